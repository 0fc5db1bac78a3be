"""`ui-v6`: the UI messages and the UI message stream of the AI SDK (npm `ai` 6.0.326)."""

from __future__ import annotations

from callslip.formats.ai_sdk.encode import Restart, StreamEncoder, stream
from callslip.formats.ai_sdk.messages import history
from callslip.formats.ai_sdk.wire import HEADERS, frame, sse

encode_history = history

__all__ = ["HEADERS", "Restart", "StreamEncoder", "encode_history", "frame", "history", "sse", "stream"]
