"""Check which package imports which, what an import loads, and that lock and version match pyproject.toml."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from callslip._version import __version__
from tests.support.paths import ROOT

SRC = ROOT / "src"

# A package may import from packages with a lower number, and from itself. `callslip` is the package itself, which
# exports the public names. The table is by folder: see docs/architecture.md.
LAYERS: dict[str, int] = {
    "errors": 1,
    "settings": 1,
    "stacks": 1,
    "_version": 1,
    "model": 2,
    "rules": 3,
    "formats": 4,
    "store": 5,
    "ledger": 6,
    "commands": 7,
    "ingest": 7,
    "api": 8,
    "transcripts": 8,
    "client": 9,
    "worker": 9,
    "agent": 9,
    "wrap": 10,
    "hooks": 10,
    "notify": 10,
    "http": 10,
    "mcp": 10,
    "cli": 10,
    "web": 10,
    "demo": 10,
    "otel": 10,
    "sync": 10,
    "serving": 11,
    "callslip": 12,
    "__main__": 12,
}

# Imports within one layer, or across a layer that is otherwise skipped, that the table allows.
EXCEPTIONS = {
    ("worker", "client"),
    ("mcp", "http"),
    *((edge, other) for edge in ("cli", "demo") for other in LAYERS),
}

# Imports that still point upward: (module, imported module). This list only shrinks.
KNOWN_UPWARD: set[tuple[str, str]] = set()

# Modules that all formats share. Everything else directly under formats/ is one format and imports no other.
SHARED_BY_FORMATS = {
    "__init__",
    "assistant_message",
    "base",
    "call_tracker",
    "sent_text",
    "text_digest",
    "json_fields",
    "json_rpc",
    "message_ids",
    "js_json",
    "outcome",
    "providers",
    "registry",
    "repeated_text",
    "transcripts",
    "turn_scope",
    "turn_stream",
    "usage",
}

HEAVY_MODULES = {"apsw", "asyncio", "click", "mcp", "openai", "anthropic", "rich", "starlette", "uvicorn"}


def module_name(path: Path, src: Path = SRC) -> str:
    """Return the module of a file: callslip.store.sqlite for src/callslip/store/sqlite.py."""
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SRC / "callslip").rglob("*.py"))}


def find_imports(path: Path, known_modules: set[str], src: Path = SRC) -> Iterator[tuple[int, str]]:
    """Yield every module of the package that a file imports, at the top or inside a function, with its line."""
    package = list(path.relative_to(src).parent.parts)
    for statement in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(statement, ast.Import):
            targets = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            parent_parts = package[: len(package) - statement.level + 1] if statement.level else []
            base = ".".join([*parent_parts, *([statement.module] if statement.module else [])])
            candidates = [f"{base}.{alias.name}" for alias in statement.names]
            targets = [name if name in known_modules else base for name in candidates]
        else:
            continue
        for target in targets:
            if target.split(".")[0] == "callslip":
                yield statement.lineno, target


def layer_name(module: str) -> str:
    """Return the key in LAYERS: store for callslip.store.sqlite, callslip for callslip."""
    return module.split(".")[1] if "." in module else module


def format_name(module: str) -> str | None:
    """Return the format that a module belongs to, or None."""
    parts = module.split(".")
    if parts[:2] != ["callslip", "formats"] or len(parts) < 3 or parts[2] in SHARED_BY_FORMATS:
        return None
    return parts[2]


def is_allowed(importer: str, imported: str) -> bool:
    """Return whether a package may import from another."""
    if importer == imported or (importer, imported) in EXCEPTIONS:
        return True
    if (importer, imported) == ("formats", "store"):
        return False
    return LAYERS[imported] < LAYERS[importer]


def find_wrong_imports(
    modules: dict[str, Path], src: Path = SRC, known_upward: frozenset[tuple[str, str]] = frozenset()
) -> list[str]:
    """Return a line for each import that points upward or from one format to another."""
    problems: list[str] = []
    for module, path in modules.items():
        layer = layer_name(module)
        for line, target in find_imports(path, set(modules), src):
            target_layer, place = layer_name(target), f"{path.relative_to(src)}:{line}"
            if layer not in LAYERS or target_layer not in LAYERS:
                continue  # Reported by test_every_package_has_a_layer.
            if not is_allowed(layer, target_layer) and (module, target) not in known_upward:
                problems.append(f"{place}: {layer} may not import {target_layer}, which is not below it")
            own_format, other = format_name(module), format_name(target)
            if own_format and other and own_format != other:
                problems.append(f"{place}: format {own_format} may not import format {other}")
    return problems


def test_every_package_has_a_layer() -> None:
    """A new package is added to LAYERS before anything is built on it."""
    missing = sorted({layer_name(module) for module in MODULES} - set(LAYERS))
    assert not missing, f"add to LAYERS in tests/docs/test_layout.py: {', '.join(missing)}"


def test_imports_point_one_way() -> None:
    """No module imports from a package above its own, lazily or not, and no format imports another."""
    assert MODULES
    problems = find_wrong_imports(MODULES, known_upward=frozenset(KNOWN_UPWARD))
    assert not problems, "\n" + "\n".join(problems)


def test_known_upward_imports_still_exist() -> None:
    """An upward import that was removed must leave the list."""
    modules = {module for module, _ in KNOWN_UPWARD}
    edges = {(module, target) for module in modules for _, target in find_imports(MODULES[module], set(MODULES))}
    assert edges >= KNOWN_UPWARD


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("callslip/rules/fold.py", "def f():\n    from callslip.ledger import feed", "rules may not import ledger"),
        ("callslip/model/ids.py", "from callslip.rules import fold", "model may not import rules"),
        ("callslip/store/sqlite.py", "from ..http import app", "store may not import http"),
        ("callslip/ledger/feed.py", "import callslip", "ledger may not import callslip"),
        ("callslip/http/app.py", "from callslip.wrap import proxy", "http may not import wrap"),
        ("callslip/formats/acp/decode.py", "from callslip.store import sqlite", "formats may not import store"),
        ("callslip/formats/acp/decode.py", "from ..ag_ui import wire", "format acp may not import format ag_ui"),
        ("callslip/formats/acp/decode.py", "from callslip.formats import registry", None),
        ("callslip/formats/acp/decode.py", "from . import wire\nfrom callslip.formats.acp.wire import X", None),
        ("callslip/rules/fold.py", "import asyncio\nfrom callslip.model import events, ids", None),
        ("callslip/mcp/server.py", "from callslip.http import app", None),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, module: str, source: str, complaint: str | None) -> None:
    """Absolute, relative and lazy imports are checked; permitted ones are allowed."""
    others = ["rules/fold", "model/ids", "model/events", "ledger/feed", "store/sqlite", "http/__init__", "http/app"]
    others += ["wrap/proxy", "mcp/server", "formats/registry", "formats/acp/wire", "formats/acp/__init__"]
    for other in [f"callslip/{name}.py" for name in [*others, "formats/ag_ui/wire", "__init__"]] + [module]:
        path = tmp_path / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source if other == module else "", "utf-8")
    found = find_wrong_imports({module_name(path, tmp_path): path for path in tmp_path.rglob("*.py")}, tmp_path)
    assert [line.partition(": ")[2].partition(",")[0] for line in found] == ([complaint] if complaint else [])


def test_importing_the_package_loads_nothing_heavy() -> None:
    """`import callslip` loads no database, server or event loop."""
    code = "import sys; before = set(sys.modules); import callslip; print(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY_MODULES & {name.split(".")[0] for name in result.stdout.split()}


def test_the_lock_matches_pyproject() -> None:
    """Every declared dependency is locked at an allowed version, with hashes and without URLs."""
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    locked = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, re.MULTILINE))
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    extras = project["project"]["optional-dependencies"].values()
    declared = sum(extras, project["project"]["dependencies"] + project["dependency-groups"]["dev"])
    stale = [text for text in declared if not is_locked_as_declared(Requirement(text), locked)]
    assert not stale, f"run `make lock`: {stale}"
    assert "--hash=sha256:" in lock and "://" not in lock


def test_the_package_and_pyproject_have_the_same_version() -> None:
    """`callslip --version` and the installed distribution agree."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] == __version__


def is_locked_as_declared(requirement: Requirement, locked: dict[str, str]) -> bool:
    """Return whether the lock has the package at an allowed version."""
    version = locked.get(requirement.name.lower().replace("_", "-"))
    return version is not None and requirement.specifier.contains(version, prereleases=True)
