"""The hooks in `callslip doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from callslip.api.ledger import LocalLedger
from callslip.hooks.folder import LOCK
from callslip.hooks.server import try_lock
from tests.support.acp_process import with_ledger
from tests.support.cli_process import run_in_process
from tests.support.hooked_agents import Hooks


def diagnose(hooks: Hooks) -> tuple[Any, list[str]]:
    """Return the facts about the hooks, and the findings."""
    env = {name: hooks.env[name] for name in ("HOME", "XDG_DATA_HOME")}
    facts = json.loads(run_in_process("doctor", "--json", "--db", hooks.db, env=env).stdout)
    return facts.get("hooks"), [finding["what"] for finding in facts["findings"]]


def test_the_doctor_reports_the_folder_of_the_hooks(tmp_path: Path) -> None:
    """HK13: served or not, how many messages wait, and a folder that others can use."""
    hooks = Hooks(str(tmp_path / "ledger.db"), tmp_path / "home")
    with_ledger(hooks.db, LocalLedger.approvals)
    facts = {"folder": str(hooks.folder), "served": False, "waiting": 0}
    assert diagnose(hooks) == (facts, [])
    (hooks.folder / "spool" / "1000000000000000001-1-abcdef01.json").write_text("{}")
    (hooks.folder / "spool" / "1000000000000000001-1-abcdef01.json.part").touch()
    assert diagnose(hooks) == ({**facts, "waiting": 1}, ["1 stored message of hooks not imported yet"])
    assert not (hooks.folder / LOCK).exists()
    with try_lock(hooks.folder) as is_locked:
        assert is_locked and diagnose(hooks) == ({**facts, "waiting": 1, "served": True}, [])
    hooks.folder.chmod(0o755)
    found, (finding,) = diagnose(hooks)
    assert found is None and "hooks cannot be recorded" in finding
