"""What the majors of the AI SDK differ in, as data. One encoder speaks all three; it asks here and nowhere else.

Every entry was measured with the client of that major: npm `ai` 5.0.277, 6.0.326 and 7.0.169 (see `wire.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from callslip.model.state_names import STATE_NAMES, ai_sdk_v7_state_name


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One major. `word` says a call's state; it is told whether the call's request was refused, and whether granted.

    `extras`: calls have a title and metadata. `pieces`: arguments are shown while they come, as text. `requests`: how a
    request for approval shows, as a data part of its own, on its call while it waits, or on its call for good.
    `reasons`: chunks may say why a stream ends.
    """

    major: int
    word: Callable[[str, bool, bool], str]
    extras: bool = True
    pieces: bool = True
    requests: Literal["apart", "waiting", "kept"] = "waiting"
    reasons: bool = True


def _v5(state: str, refused: bool, granted: bool) -> str:
    return STATE_NAMES[state].v5


def _v6(state: str, refused: bool, granted: bool) -> str:
    return STATE_NAMES[state].v6


# Early releases of version 5 refuse a chunk with a key that they do not know, so it gets none that came later.
V5 = Dialect(major=5, word=_v5, extras=False, pieces=False, requests="apart", reasons=False)
V6 = Dialect(major=6, word=_v6)
V7 = Dialect(major=7, word=ai_sdk_v7_state_name, requests="kept")
