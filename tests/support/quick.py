"""Add `pytest --quick`, which runs only tests that start no process. A test that starts one anyway fails.

It deselects tests marked `chaos` or `postgres` too, and runs only some cases of a test that has many. To know which
tests start a process it reads their code: the test, its fixtures, and the functions and classes of the tests and of
Callslip that they use directly or indirectly.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

READ_PACKAGES = ("tests", "callslip")
"""The packages whose code is read."""
MAX_CASES = 2
"""How many cases of one test are run, at most."""
EXCLUDED_MARKERS = ("chaos", "postgres")
STARTING_MODULES = {"subprocess", "multiprocessing", "pty", "playwright"}
STARTING_NAMES = {
    "create_subprocess_exec",
    "create_subprocess_shell",
    "fork",
    "forkpty",
    "posix_spawn",
    "stdio_client",  # of the MCP library
}
STARTING_EVENTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""The audit events of Python when a process starts."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run only tests that start no other process")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        sys.addaudithook(_Guard.check)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the tests of the page, which all need a browser or Node: importing them takes time."""
    return True if config.getoption("quick") and collection_path.name == "web" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that start processes, those marked `chaos` or `postgres`, and most cases of a test with many."""
    if config.getoption("quick"):
        roots = {item.nodeid: list(_find_roots(item)) for item in items}
        starting_ids = find_starting_code(root for item_roots in roots.values() for root in item_roots)
        removed = {
            item
            for item in items
            if any(item.get_closest_marker(name) for name in EXCLUDED_MARKERS)
            or any(id(root) in starting_ids for root in roots[item.nodeid])
        }
        cases: dict[str, list[pytest.Item]] = {}
        for item in items:
            if item not in removed:
                cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
        selected = {item for group in cases.values() for item in group[:: -(-len(group) // MAX_CASES)]}
        removed = set(items) - selected
        items[:] = [item for item in items if item in selected]
        config.hook.pytest_deselected(items=list(removed))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Activate the guard while a test runs."""
    _Guard.is_active, _Guard.started = item.config.getoption("quick"), ""
    try:
        return (yield)
    finally:
        _Guard.is_active = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Fail a test that started a process, also if it caught the error of the guard."""
    result = yield
    _Guard.fail()
    return result


class _Guard:
    """Refuses to start a process while a test runs."""

    is_active = False
    started = ""

    @classmethod
    def check(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if cls.is_active and event in STARTING_EVENTS:
            cls.started = f"{event}{arguments[:2]}"
            cls.fail()

    @classmethod
    def fail(cls) -> None:
        if cls.started:
            pytest.fail(f"this test starts a process, but `pytest --quick` selected it: {cls.started}")


def _find_roots(item: pytest.Item) -> Iterator[Any]:
    """Yield the functions and the class of a test and of its fixtures."""
    assert isinstance(item, pytest.Function)
    yield item.function
    if item.cls:
        yield item.cls
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            yield definition.func


def find_starting_code(roots: Iterable[Any]) -> set[int]:
    """Return the ids of functions, classes and modules that may start a process: the roots and all that they use."""
    users: dict[int, list[int]] = {}
    starting: set[int] = set()
    todo, seen = list(roots), dict[int, Any]()  # The objects in `seen` stay alive, so that no id is reused.
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        codes = _list_code(node)
        if any(STARTING_NAMES.intersection(code.co_names) for code in codes):
            starting.add(id(node))
        for used in _find_used(node, codes):
            if _package(used) in STARTING_MODULES:
                starting.add(id(node))
            elif _package(used) in READ_PACKAGES:
                users.setdefault(id(used), []).append(id(node))
                todo.append(used)
    pending = list(starting)
    while pending:
        new = set(users.get(pending.pop(), ())) - starting
        starting |= new
        pending += new
    return starting


def _find_used(node: Any, codes: list[CodeType]) -> Iterator[Any]:
    """Yield what a function or class uses: global names, its closure, its bases and members, and what it wraps."""
    if isinstance(node, functools.partial):
        yield from _unpack(node.func)
    if isinstance(node, type):
        yield from node.__bases__
        for member in vars(node).values():
            yield from _unpack(member)
    inner = getattr(getattr(node, "hypothesis", None), "inner_test", None)
    yield from _unpack([getattr(node, "__wrapped__", None), inner])
    if isinstance(node, FunctionType):
        for cell in node.__closure__ or ():
            try:
                yield from _unpack(cell.cell_contents)
            except ValueError:  # The cell is empty.
                pass
        for code in codes:
            values = [node.__globals__[name] for name in code.co_names if name in node.__globals__]
            for value in values:
                yield from _unpack(value)
                if isinstance(value, ModuleType) and _package(value) in READ_PACKAGES:
                    yield from _unpack([vars(value)[name] for name in code.co_names if name in vars(value)])


def _unpack(value: Any, depth: int = 2) -> Iterator[Any]:
    """Yield a function, class or module itself, those in a container or property, and the class of another value."""
    if isinstance(value, MethodType | staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property | functools.cached_property):
        yield from _unpack([getattr(value, "fget", None), getattr(value, "func", None)])
    elif isinstance(value, list | tuple | set | frozenset | dict):
        for item in (value.values() if isinstance(value, dict) else value) if depth else ():
            yield from _unpack(item, depth - 1)
    elif isinstance(value, FunctionType | type | ModuleType | functools.partial) or hasattr(value, "__wrapped__"):
        yield value
    else:
        yield type(value)


def _list_code(node: Any) -> list[CodeType]:
    """Return the code of a function and of the functions inside it."""
    codes = [node.__code__] if isinstance(node, FunctionType) else []
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return codes


def _package(value: Any) -> str:
    """Return the name of the top package that defines a value."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name).partition(".")[0]
