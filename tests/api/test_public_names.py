"""The public names of the package, and the types in their signatures."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import types
import typing

import pytest

import callslip
import callslip.errors
import callslip.sync

USER_CONSTRUCTED = {"Worker", "Settings", "Limits"}
"""Other classes are created by `open`, `connect` and the methods of a ledger."""
LOW_LEVEL = {"log"}
"""`ledger.log` is documented as the log below the public API."""


def _public_types() -> set[object]:
    return {getattr(callslip, name) for name in callslip.__all__} | {
        getattr(callslip.sync, name) for name in callslip.sync.__all__
    }


def _is_public(kind: type) -> bool:
    """Return whether a type is exported, implements an exported one, or lists keyword arguments."""
    if not kind.__module__.startswith("callslip") or typing.is_typeddict(kind):
        return True
    return not _public_types().isdisjoint(kind.__mro__)


def _iter_types(hint: object) -> typing.Iterator[type]:
    for part in (hint, typing.get_origin(hint)):
        if isinstance(part, type) and not isinstance(part, types.GenericAlias):
            yield part
        elif isinstance(part, list):
            for item in typing.cast("list[object]", part):
                yield from _iter_types(item)
    for argument in typing.get_args(hint):
        yield from _iter_types(argument)


def _all_names() -> dict[str, object]:
    """Return every class of the package by name, for annotations that are only imported for type checkers."""
    names: dict[str, object] = {}
    for module in pkgutil.walk_packages(callslip.__path__, "callslip."):
        if module.name != "callslip.__main__":
            names |= {
                name: value
                for name, value in vars(importlib.import_module(module.name)).items()
                if inspect.isclass(value) or isinstance(value, types.UnionType | types.GenericAlias)
            }
    return names


def _iter_functions(owner: object, name: str) -> typing.Iterator[tuple[str, types.FunctionType]]:
    if isinstance(owner, types.FunctionType):
        yield name, owner
    elif inspect.isclass(owner):
        for member, value in inspect.getmembers(owner):
            function = value.fget if isinstance(value, property) else inspect.unwrap(value) if callable(value) else None
            is_checked = not member.startswith("_") or (member == "__init__" and name in USER_CONSTRUCTED)
            if isinstance(function, types.FunctionType) and is_checked and member not in LOW_LEVEL:
                yield f"{name}.{member}", function


def find_internal_types(module: types.ModuleType) -> dict[str, set[str]]:
    """Return the internal types in the signatures of a module's public names, by function."""
    internal: dict[str, set[str]] = {}
    names = _all_names()
    for public in module.__all__:
        for name, function in _iter_functions(getattr(module, public), public):
            scope = names | vars(sys.modules[function.__module__])
            for hint in typing.get_type_hints(function, globalns=scope).values():
                if internal_names := {kind.__qualname__ for kind in _iter_types(hint) if not _is_public(kind)}:
                    internal.setdefault(name, set()).update(internal_names)
    return internal


def test_dir_lists_the_public_names() -> None:
    """An interactive session offers the public names and nothing else."""
    assert set(dir(callslip)) == {*callslip.__all__, "__version__"}
    assert all(hasattr(callslip, name) for name in callslip.__all__)


def test_every_exception_is_exported_and_its_name_ends_in_error() -> None:
    """Every exception of the package can be caught by an exported name that ends in Error."""
    errors = {
        name: value
        for name, value in vars(callslip.errors).items()
        if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == "callslip.errors"
    }
    assert errors and all(name.endswith("Error") for name in errors)
    assert {name: getattr(callslip, name, None) for name in errors} == errors
    assert issubclass(callslip.WaitTimeoutError, TimeoutError)


@pytest.mark.parametrize("module", [callslip, callslip.sync], ids=["callslip", "callslip.sync"])
def test_public_signatures_use_public_types(module: types.ModuleType) -> None:
    """Every type in a public signature can be imported from the package."""
    assert find_internal_types(module) == {}


def test_an_internal_type_is_found() -> None:
    """A method that takes a draft of the log is reported."""
    from callslip.model.events import Draft

    class Broken:
        def append(self, *drafts: Draft) -> list[callslip.Event]:
            raise NotImplementedError

    module = types.ModuleType("broken")
    module.__all__ = ["Broken"]  # pyright: ignore[reportAttributeAccessIssue]
    module.Broken = Broken  # pyright: ignore[reportAttributeAccessIssue]
    Broken.append.__annotations__["drafts"] = Draft
    assert find_internal_types(module) == {"Broken.append": {"Draft"}}
