"""Read a policy file, a TOML file with rules (see `callslip.rules.policy`)."""

from __future__ import annotations

import functools
import os
import re
import tomllib
from typing import Any, cast

from callslip.errors import InvalidInputError
from callslip.formats.json_fields import as_list
from callslip.rules.policy import Policy, Rule, parse_rule


def read_policy(path: str | os.PathLike[str]) -> Policy:
    """Return the policy in a file, or raise InvalidInputError with the place of the error."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        document = tomllib.loads(text)
    except OSError as error:
        raise InvalidInputError(str(path), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(str(path), f"is not TOML: {error}") from error
    unknown = sorted(set(document) - {"rule"})
    if unknown:
        raise InvalidInputError(str(path), f"unknown key {unknown[0]!r}; write each rule under [[rule]]")
    value: Any = document.get("rule", [])
    rules = [cast("dict[str, Any]", rule) for rule in as_list(value) if isinstance(rule, dict)]
    if rules != value:
        raise InvalidInputError(str(path), "write each rule under [[rule]], with two brackets")
    heads = [text.count("\n", 0, match.end()) + 1 for match in re.finditer(r"^[ \t]*\[\[", text, re.MULTILINE)]
    lines = heads if len(heads) == len(rules) else [0] * len(rules)
    parsed: list[Rule] = []
    for number, (rule, line) in enumerate(zip(rules, lines, strict=True), 1):
        place = f"{path}, line {line}" if line else str(path)
        parsed.append(parse_rule(number, rule, f"{place}, rule {number}", line))
    return Policy(tuple(parsed), os.path.abspath(path))


def current_policy(path: str) -> Policy:
    """Return the policy in a file as it is now. It is read again only if it has changed."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise InvalidInputError(path, f"cannot be read: {error.strerror}") from error
    return _read_version(path, (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev))


@functools.lru_cache(maxsize=8)
def _read_version(path: str, version: tuple[int, ...]) -> Policy:
    return read_policy(path)
