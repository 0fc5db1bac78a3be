"""`shell`: a model's text with commands between `<shell>` and `</shell>`, and events about running them."""

from __future__ import annotations

from callslip.formats.shell.parse import (
    Command,
    ExtractedCommand,
    Piece,
    ShellParser,
    Text,
    command_id,
    extract_commands,
)
from callslip.formats.shell.results import format_tool_results, truncate_output

__all__ = [
    "Command",
    "ExtractedCommand",
    "Piece",
    "ShellParser",
    "Text",
    "command_id",
    "extract_commands",
    "format_tool_results",
    "truncate_output",
]
