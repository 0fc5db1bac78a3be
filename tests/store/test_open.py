"""The URL chooses the engine, and only that engine is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import callslip
from callslip.errors import StoreError
from callslip.model import events as ev
from callslip.settings import Settings
from callslip.store import open as databases
from callslip.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

URL = "postgresql://ann:S3cr3t@db.example/app"


def use_engine(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    """Replace modules of the engine of servers."""
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"callslip.store.{name}", module)


async def test_a_path_and_a_sqlite_url_open_a_file(tmp_path: Path) -> None:
    """The store shows its path."""
    path = str(tmp_path / "ledger.db")
    for url in (path, f"sqlite:///{path}"):
        store = await databases.open_store(url, Settings())
        assert isinstance(store, SqliteStore) and store.display_name == path
        await store.close()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
async def test_a_server_url_opens_the_engine_of_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    """It gets the URL as it was given, and the settings."""
    opened: list[tuple[str, Settings]] = []

    class Engine:
        @staticmethod
        async def open(url: str, settings: Settings, *, create: bool) -> SqliteStore:
            opened.append((url, settings))
            return SqliteStore(str(tmp_path / "ledger.db"), settings)

    use_engine(monkeypatch, postgres=SimpleNamespace(PostgresStore=Engine))
    url, settings = URL.replace("postgresql", scheme), Settings(queue_limit=7)
    async with callslip.open(url, settings) as ledger:
        assert ledger.log.settings == settings
    assert opened == [(url, settings)]


async def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """DB2: the message says what to install, without the password."""
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "callslip.store.postgres_database", raising=False)
    with pytest.raises(StoreError, match=r"install callslip\[postgres\]") as error:
        databases._import_postgres("postgres_database", URL)  # pyright: ignore[reportPrivateUsage]
    assert "S3cr3t" not in str(error.value) and "postgresql://ann:***@db.example/app" in str(error.value)
    assert databases.database_version(URL) == ("asyncpg", "")


async def test_facts_of_a_server_come_from_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is looked for."""

    async def read_facts(url: str) -> dict[str, Any]:
        assert url == URL
        return {"sessions": 3, "access": access}

    use_engine(monkeypatch, postgres_facts=SimpleNamespace(read_facts=read_facts))
    access = "read and write"
    assert (await databases.read_facts(URL))["sessions"] == 3 and await databases.is_writable(URL)
    access = "read only"
    assert not await databases.is_writable(URL)
    assert databases.read_file_facts(URL) == {"exists": True}


async def test_facts_of_a_file_are_read_without_opening_the_store(tmp_path: Path) -> None:
    """A file that does not exist is not created."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert databases.read_file_facts(url) == {"exists": False} and await databases.is_writable(url)
    assert databases.read_file_facts("sqlite:///:memory:") == {"exists": False}
    assert list(tmp_path.iterdir()) == []
    async with callslip.open(url) as ledger:
        await ledger.log.append("s", [ev.MessageUser(text="hello")])
    facts = databases.read_file_facts(url)
    assert facts["exists"] and facts["files"]["db"] > 0 and facts["freeBytes"] > 0
    assert (await databases.read_facts(url))["sessions"] == 1
    assert databases.database_version(url)[0] == "sqlite"


def test_a_file_is_opened_without_the_modules_of_the_other_engine(tmp_path: Path) -> None:
    """The driver of servers is an extra, which need not be installed."""
    code = (
        "import asyncio, sys, callslip\n"
        "async def main():\n"
        "    async with callslip.open(sys.argv[1]): pass\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if 'postgres' in name or 'asyncpg' in name])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "ledger.db")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
