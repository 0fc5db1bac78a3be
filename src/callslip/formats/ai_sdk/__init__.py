"""`ui-v5`, `ui-v6`, `ui-v7`: the UI messages and the UI message stream of the AI SDK majors 5, 6 and 7."""

from __future__ import annotations

from functools import partial

from callslip.formats.ai_sdk.dialects import V5, V6, V7
from callslip.formats.ai_sdk.encode import UiRenderer
from callslip.formats.ai_sdk.messages import history
from callslip.formats.ai_sdk.wire import DONE, HEADERS
from callslip.formats.base import Streaming, sse_frame
from callslip.formats.turn_stream import TurnStream

history_v5, history_v6, history_v7 = (partial(history, dialect) for dialect in (V5, V6, V7))
STREAM_V5, STREAM_V6, STREAM_V7 = (
    Streaming(encoder=partial(TurnStream, partial(UiRenderer, dialect)), frame=sse_frame, headers=HEADERS, done=DONE)
    for dialect in (V5, V6, V7)
)

__all__ = ["STREAM_V5", "STREAM_V6", "STREAM_V7", "history_v5", "history_v6", "history_v7"]
