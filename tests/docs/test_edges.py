"""The edges (HTTP, MCP, the command line, workers) call operations in `api`. They use no store and build no events."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from callslip.model import events
from tests.docs.test_layout import MODULES, SRC, find_imports, module_name

EDGES = ("http", "mcp", "cli", "worker", "notify")
FORBIDDEN_IMPORTS = ("callslip.store", "callslip.ledger.write")
STORE_ATTRIBUTES = {"store", "_store"}
LIFECYCLE_EVENTS = {
    name
    for name, value in vars(events).items()
    if isinstance(value, type)
    and (issubclass(value, events.CallEvent) or name in ("TurnStarted", "TurnEnded") or name.startswith("Approval"))
}

# Modules that still break a rule, with the number of places. This list only shrinks.
KNOWN_VIOLATIONS: dict[str, int] = {}


def find_violations(path: Path, known_modules: set[str], src: Path = SRC) -> Iterator[str]:
    """Yield a line for each place where a file uses a store or builds a lifecycle event."""
    relative_path = path.relative_to(src)
    for line, target in find_imports(path, known_modules, src):
        if any(target == name or target.startswith(f"{name}.") for name in FORBIDDEN_IMPORTS):
            yield f"{relative_path}:{line}: imports {target}"
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Attribute) and node.attr in STORE_ATTRIBUTES:
            yield f"{relative_path}:{node.lineno}: uses .{node.attr}"
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in LIFECYCLE_EVENTS:
                yield f"{relative_path}:{node.lineno}: builds {name}"


def edge_modules(modules: dict[str, Path]) -> dict[str, Path]:
    """Return the modules of the edges."""
    return {name: path for name, path in modules.items() if name.split(".")[1:2] and name.split(".")[1] in EDGES}


def test_edges_call_operations() -> None:
    """No edge uses a store or builds lifecycle events, but for the known places."""
    found = {name: list(find_violations(path, set(MODULES))) for name, path in edge_modules(MODULES).items()}
    new = [line for name, lines in found.items() if len(lines) > KNOWN_VIOLATIONS.get(name, 0) for line in lines]
    assert not new, "\n" + "\n".join(new)


def test_known_violations_still_exist() -> None:
    """A place that was fixed leaves the list, so that it does not come back."""
    counts = {name: len(list(find_violations(path, set(MODULES)))) for name, path in edge_modules(MODULES).items()}
    fixed = {name: count for name, count in KNOWN_VIOLATIONS.items() if counts.get(name, 0) < count}
    assert not fixed, f"lower these numbers in tests/docs/test_edges.py: {fixed}"


@pytest.mark.parametrize(
    ("source", "complaints"),
    [
        ("async def f(log):\n    return await log.store.session('s')", ["uses .store"]),
        ("class A:\n    def __init__(self, store):\n        self._store = store", ["uses ._store"]),
        ("def f():\n    from callslip.store.protocol import Store", ["imports callslip.store.protocol"]),
        ("from callslip.ledger import write", ["imports callslip.ledger.write"]),
        ("from callslip.model.events import TurnEnded\nend = TurnEnded(reason='x')", ["builds TurnEnded"]),
        ("from callslip.model import events as ev\nend = ev.CallFailed(call='c')", ["builds CallFailed"]),
        ("from callslip.model import events as ev\nend = ev.ApprovalGranted(approval='a')", ["builds ApprovalGranted"]),
        ("from callslip.model.events import CallFailed\nis_end = isinstance(1, CallFailed)", []),
    ],
)
def test_a_violation_is_found(tmp_path: Path, source: str, complaints: list[str]) -> None:
    """The rules see attributes, lazy imports and constructors, and allow reading events."""
    for name in ("store/protocol", "ledger/write", "ledger/__init__", "model/events", "http/calls"):
        path = tmp_path / "callslip" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source if name == "http/calls" else "", "utf-8")
    modules = {module_name(path, tmp_path): path for path in tmp_path.rglob("*.py")}
    found = [
        line.partition(": ")[2]
        for path in edge_modules(modules).values()
        for line in find_violations(path, set(modules), tmp_path)
    ]
    assert found == complaints
