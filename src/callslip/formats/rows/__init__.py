"""`rows`: the messages of a thread as a chat backend stores them, USER, AI_TOOL, TOOL and AI_MESSAGE.

They are read into a ledger by `decode.py`, or turned into messages of the AI SDK 4 without one.
"""

from callslip.formats.rows.packed import vercel_json
from callslip.formats.rows.vercel import format_messages_to_vercel

__all__ = ["format_messages_to_vercel", "vercel_json"]
