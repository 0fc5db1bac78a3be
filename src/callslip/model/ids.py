"""Identities. Random parts come from one bulk read of the system's randomness, sliced: 20x cheaper than a UUID each.

An id is never trusted to be unique by chance: the writer mints again when the ledger already holds it (C1).
"""

from __future__ import annotations

import os
import re

_POOL_BYTES = 6 * 512
_pool = ""
_at = 0

CALL = re.compile(r"exec_[0-9a-f]{12}\Z")


def _hex12() -> str:
    """Twelve random lowercase hex digits."""
    global _pool, _at
    if _at >= len(_pool):
        _pool, _at = os.urandom(_POOL_BYTES).hex(), 0
    _at += 12
    return _pool[_at - 12 : _at]


def _forget() -> None:
    """A forked child must not hand out its parent's ids."""
    global _pool
    _pool = ""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def call_id() -> str:
    """A new execution id: `exec_` and twelve hex digits."""
    return "exec_" + _hex12()


def approval_id() -> str:
    """A new approval id."""
    return "appr_" + _hex12()
