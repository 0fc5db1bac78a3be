"""Generate ids of calls and approvals.

Random digits are read from the system in bulk, which is 20 times faster than a UUID for each id. The writer generates
another id if the ledger already has this one.
"""

from __future__ import annotations

import os
import re

_POOL_BYTES = 6 * 512
_pool = ""
_at = 0

CALL = re.compile(r"exec_[0-9a-f]{12}\Z")


def _hex12() -> str:
    """Return twelve random lowercase hex digits."""
    global _pool, _at
    if _at >= len(_pool):
        _pool, _at = os.urandom(_POOL_BYTES).hex(), 0
    _at += 12
    return _pool[_at - 12 : _at]


def _clear_pool() -> None:
    """Clear the pool, so that a forked child does not use the ids of its parent."""
    global _pool
    _pool = ""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_pool)


def call_id() -> str:
    """Return a new call id: `exec_` and twelve hex digits."""
    return "exec_" + _hex12()


def approval_id() -> str:
    """Return a new approval id: `appr_` and twelve hex digits."""
    return "appr_" + _hex12()


def rule_id() -> str:
    """Return a new id of a saved rule: `rule_` and twelve hex digits."""
    return "rule_" + _hex12()


def first_version() -> int:
    """Return a random version to count from, so that two counters do not meet. It fits into 64 bits."""
    return (int(_hex12()[:9], 16) + 1) << 24
