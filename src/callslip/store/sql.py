"""Read SQL from `.sql` files, in which each statement has a name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from types import TracebackType
from typing import Any, Protocol


class Connection(Protocol):
    """The methods of a database connection that the store uses. The annotations of apsw leave values unknown."""

    in_transaction: bool

    def execute(self, statements: str, bindings: Any = ..., /) -> Any: ...
    def executemany(self, statements: str, bindings: Iterable[Any], /) -> Any: ...
    def set_busy_timeout(self, milliseconds: int, /) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


@cache
def statements(file: str) -> dict[str, str]:
    """Return the named statements of a file, with `{name}` replaced by the part of that name."""
    text = files("callslip.store").joinpath(file).read_text("utf-8")
    sections = re.split(r"^-- (name|part): (\w+)$", text, flags=re.MULTILINE)[1:]
    kinds = {"name": dict[str, str](), "part": dict[str, str]()}
    for kind, name, body in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        kinds[kind][name] = body.strip().rstrip(";")
    parts = kinds["part"]
    return {name: re.sub(r"\{(\w+)\}", lambda m: parts[m[1]], body) for name, body in kinds["name"].items()}


@cache
def migrations(engine: str) -> tuple[tuple[int, str], ...]:
    """Return the numbered migrations of an engine, in order."""
    folder = files("callslip.store").joinpath("migrations")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(f"_{engine}.sql"))
    return tuple((int(name[:4]), folder.joinpath(name).read_text("utf-8")) for name in names)
