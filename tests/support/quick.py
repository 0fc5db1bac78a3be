"""`pytest --quick`: only tests that start no other process, with few examples. A test that starts one anyway fails.

Tests marked `chaos` are left out too, since they are about volumes, and of a test with many cases only some run.
Which tests start a process is read from their code: the test, its fixtures, and the functions and classes of the tests
and of Callslip that they name, directly or through each other.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator, Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

FOLLOWED = ("tests", "callslip")
"""The packages whose code is read."""
MAX_CASES = 3
"""How many cases of one test run."""
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
"""What an audit hook of Python is called with when a process starts."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run only tests that start no other process")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        sys.addaudithook(_Guard.check)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that start processes, those marked `chaos`, and most cases of a test with many."""
    if config.getoption("quick"):
        roots = {item.nodeid: list(_code_of(item)) for item in items}
        starting = starting_code(root for found in roots.values() for root in found)
        removed = {
            item
            for item in items
            if item.get_closest_marker("chaos") or any(id(root) in starting for root in roots[item.nodeid])
        }
        cases: dict[str, list[pytest.Item]] = {}
        for item in items:
            if item not in removed:
                cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
        selected = {item for found in cases.values() for item in found[:: -(-len(found) // MAX_CASES)]}
        removed = set(items) - selected
        items[:] = [item for item in items if item in selected]
        config.hook.pytest_deselected(items=list(removed))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let the guard know the running test."""
    _Guard.is_active, _Guard.started = item.config.getoption("quick"), ""
    try:
        return (yield)
    finally:
        _Guard.is_active = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Fail a test that caught the error of the guard."""
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
            pytest.fail(f"this test starts a process, which `pytest --quick` did not foresee: {cls.started}")


def _code_of(item: pytest.Item) -> Iterator[Any]:
    """Yield the functions and the class of a test and of its fixtures."""
    assert isinstance(item, pytest.Function)
    yield item.function
    if item.cls:
        yield item.cls
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            yield definition.func


def starting_code(roots: Iterable[Any]) -> set[int]:
    """Return the ids of all functions, classes and modules under the roots from which a process may be started."""
    users: dict[int, list[int]] = {}
    starting: set[int] = set()
    todo, seen = list(roots), dict[int, Any]()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        codes = _codes(node)
        if any(STARTING_NAMES.intersection(code.co_names) for code in codes):
            starting.add(id(node))
        for used in _used(node, codes):
            if _package(used) in STARTING_MODULES:
                starting.add(id(node))
            elif _package(used) in FOLLOWED:
                users.setdefault(id(used), []).append(id(node))
                todo.append(used)
    reached = list(starting)
    while reached:
        new = set(users.get(reached.pop(), ())) - starting
        starting |= new
        reached += new
    return starting


def _used(node: Any, codes: list[CodeType]) -> Iterator[Any]:
    """Yield what a function or class refers to: by name, in its closure, as a base, or as what it wraps."""
    if isinstance(node, functools.partial):
        yield from _inside(node.func)
    if isinstance(node, type):
        yield from node.__bases__
        for member in vars(node).values():
            yield from _inside(member)
    inner = getattr(getattr(node, "hypothesis", None), "inner_test", None)
    yield from _inside([getattr(node, "__wrapped__", None), inner])
    if isinstance(node, FunctionType):
        for cell in node.__closure__ or ():
            try:
                yield from _inside(cell.cell_contents)
            except ValueError:  # The cell is empty.
                pass
        for code in codes:
            found = [node.__globals__[name] for name in code.co_names if name in node.__globals__]
            for value in found:
                yield from _inside(value)
                if isinstance(value, ModuleType) and _package(value) in FOLLOWED:
                    yield from _inside([vars(value)[name] for name in code.co_names if name in vars(value)])


def _inside(value: Any, depth: int = 2) -> Iterator[Any]:
    """Yield functions, classes and modules: a value itself, its class, or what a container of containers has."""
    if isinstance(value, MethodType | staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property | functools.cached_property):
        yield from _inside([getattr(value, "fget", None), getattr(value, "func", None)])
    elif isinstance(value, list | tuple | set | frozenset | dict):
        for item in (value.values() if isinstance(value, dict) else value) if depth else ():
            yield from _inside(item, depth - 1)
    elif isinstance(value, FunctionType | type | ModuleType | functools.partial) or hasattr(value, "__wrapped__"):
        yield value
    else:
        yield type(value)


def _codes(node: Any) -> list[CodeType]:
    """Return the code of a function and of the functions in it."""
    codes = [node.__code__] if isinstance(node, FunctionType) else []
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return codes


def _package(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name).partition(".")[0]
