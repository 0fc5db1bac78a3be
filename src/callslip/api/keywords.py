"""Keyword arguments that several functions share, described by a TypedDict and checked when they are passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_keywords(function: str, keywords: Mapping[str, Any], kind: Any) -> None:
    """Raise TypeError for a keyword that the TypedDict does not have: a misspelt `approval` must not skip it."""
    for name in keywords:
        if name not in kind.__optional_keys__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
