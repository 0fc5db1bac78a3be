"""Describe how the AI SDK majors 5, 6 and 7 differ, as data for one encoder.

Every value was measured with the client of that major: npm `ai` 5.0.277, 6.0.326 and 7.0.169 (see `wire.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from callslip.model.state_names import STATE_NAMES, ai_sdk_v7_state_name


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """A major. `state_name(state, is_refused, is_granted)` names the state of a call.

    `has_extras`: calls have a title and metadata. `shows_partial_input`: streamed arguments show as text. `requests`:
    a request for approval is a separate data part, or is on its call while it waits, or stays on its call.
    `has_reasons`: chunks may contain why a stream ends.
    """

    major: int
    state_name: Callable[[str, bool, bool], str]
    has_extras: bool = True
    shows_partial_input: bool = True
    requests: Literal["apart", "waiting", "kept"] = "waiting"
    has_reasons: bool = True


# Early releases of version 5 refuse chunks with unknown keys, so it gets no keys that were added later.
V5 = Dialect(
    major=5,
    state_name=lambda state, is_refused, is_granted: STATE_NAMES[state].v5,
    has_extras=False,
    shows_partial_input=False,
    requests="apart",
    has_reasons=False,
)
V6 = Dialect(major=6, state_name=lambda state, is_refused, is_granted: STATE_NAMES[state].v6)
V7 = Dialect(major=7, state_name=ai_sdk_v7_state_name, requests="kept")
