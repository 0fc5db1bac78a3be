"""`rows`: the messages of a thread as a chat backend stores them: USER, AI_TOOL, TOOL and AI_MESSAGE.

`rows_decode.py` reads them into a ledger; `rows_convert.py` turns them into messages of the AI SDK 4 without one.
"""

from callslip.formats.ai_sdk_v4.rows_convert import format_messages_to_vercel
from callslip.formats.ai_sdk_v4.rows_convert_fast import vercel_json

__all__ = ["format_messages_to_vercel", "vercel_json"]
