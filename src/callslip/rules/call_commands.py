"""Find the shell commands in the input of a call.

Agents send a command as `command` (Claude Code, Gemini CLI, opencode), as `cmd` (Codex), or as a list of words with the
shell first (older versions of Codex). Terminals of the Agent Client Protocol have the arguments next to it, as `args`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard, cast

from callslip.rules.shell_command import ShellCommand, is_shell, parse_arguments, parse_command


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


COMMAND_NAMES = _names("""
bash bashcommand bashscript cmd cmdline cmds command commandline commands precommand postcommand script sh shellcommand
shellscript terminalcommand
""")
"""Members of the input that are commands, in any spelling: `shell_command` and `shellCommand` are the same."""
PLACE_NAMES = _names("""
cwd directory dir dirpath file filename filepath folder path paths timeout timeoutms workdir workingdirectory workspace
""")
"""Members that limit where or how long something runs."""
MAX_COMMANDS = 20
"""More commands in one input are not parsed."""
_SIBLINGS = _names("args arguments env environment shell")
_EXPLANATIONS = _names("description explanation justification reason")
_HARMLESS_NAMES = (
    PLACE_NAMES
    | _EXPLANATIONS
    | _names("""
availabledecisions background callid comment commandid id intent isbackground kind label maxoutputtokens note notes
outputbytelimit parsedcmd prefixrule processid proposedexecpolicyamendment purpose risk runinbackground
sandboxpermissions sessionid source status summary terminalid title toolcallid turnid type yieldtimems
""")
)
"""Members next to a command that do not change what it runs."""
_SHELL_TOOL = re.compile(r"bash|shell|terminal|(exec|execute|run)_?command", re.IGNORECASE)


def runs_commands(kind: str, tool: str) -> bool:
    """Return whether calls of a kind, or of a tool if the kind is not known, execute commands."""
    return kind == "execute" or (kind in ("", "other") and _SHELL_TOOL.search(tool) is not None)


def plain_name(name: str) -> str:
    """Return the name of a member without the differences of style."""
    return re.sub(r"[_\-]", "", name).lower()


def find_commands(input: Any, *, is_execute: bool) -> dict[tuple[str, ...], ShellCommand]:
    """Return the commands in an input by the path of their member; the path of a text is empty.

    In a call that executes something, every text can be the command if no member has a known name.
    """
    if isinstance(input, str):
        return {(): parse_command(input)} if is_execute else {}
    all_members = list(_list_members(input))
    members = [member for member in all_members if plain_name(member.name) in COMMAND_NAMES]
    unknown_name = _find_unknown_name(all_members) if members else ""
    if is_execute and not members:
        texts = [member for member in all_members if isinstance(member.parent[member.name], str | list)]
        members = [member for member in texts if plain_name(member.name) not in PLACE_NAMES | _EXPLANATIONS]
    unknown = ShellCommand("", f"is one of more than {MAX_COMMANDS} commands", is_known=False)
    commands = dict.fromkeys(((*member.path, member.name) for member in members), unknown)
    for member in members[:MAX_COMMANDS]:
        commands[*member.path, member.name] = _parse_member(member, unknown_name)
    return commands


class _Member(NamedTuple):
    """A member of an object in the input, and the path of that object."""

    path: tuple[str, ...]
    name: str
    parent: dict[str, Any]


def _list_members(input: Any) -> Iterator[_Member]:
    """Yield each member that is not an object, also of objects in lists."""
    values: list[tuple[tuple[str, ...], Any]] = [((), input)]
    for path, value in values:
        if isinstance(value, list):
            values.extend(((*path, str(index)), item) for index, item in enumerate(cast("list[Any]", value)))
        elif isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            for name, inner in members.items():
                if isinstance(inner, dict) or (isinstance(inner, list) and plain_name(name) not in _HARMLESS_NAMES):
                    values.append(((*path, name), cast("Any", inner)))
                if not isinstance(inner, dict):
                    yield _Member(path, name, members)


def _find_unknown_name(members: list[_Member]) -> str:
    """Return the name of a member with a text that may change what a command runs."""
    parents = {id(member.parent) for member in members if plain_name(member.name) in COMMAND_NAMES}
    for path, name, parent in members:
        plain, value = plain_name(name), parent[name]
        is_sibling = plain in _SIBLINGS and id(parent) in parents
        is_known = is_sibling or plain in COMMAND_NAMES or plain in _HARMLESS_NAMES
        if not is_known and value and isinstance(value, str | list):
            return ".".join((*path, name))
    return ""


def _parse_member(member: _Member, unknown_name: str) -> ShellCommand:
    """Parse a command together with the members next to it that change what it runs."""
    others = {plain: value for name, value in member.parent.items() if (plain := plain_name(name)) in _SIBLINGS}
    arguments, shell = others.get("args") or others.get("arguments"), others.get("shell")
    value = member.parent[member.name]
    command = _parse_with_arguments(value, arguments) if arguments else _parse_value(value)
    problem = "sets variables" if others.get("env") or others.get("environment") else ""
    if isinstance(shell, str | list | dict) and not (isinstance(shell, str) and is_shell(shell)):
        problem = f"runs in {str(cast('Any', shell))[:40]!r}"
    if unknown_name and not problem:
        problem = f"has the unknown member {unknown_name[:40]!r}"
    if not problem:
        return command
    is_known = command.is_known and not unknown_name
    return ShellCommand("", problem, (), command.parts, is_known, (command.text, *command.other_texts))


def _is_words(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(word, str) for word in cast("list[Any]", value))


def _parse_value(value: Any) -> ShellCommand:
    if isinstance(value, str):
        return parse_command(value)
    return parse_arguments(value) if _is_words(value) else ShellCommand("", "is not a text", is_known=False)


def _parse_with_arguments(value: Any, arguments: Any) -> ShellCommand:
    """Parse a command whose arguments are in another member. What denies the command alone also matches."""
    command = _parse_value(value)
    words = [value] if isinstance(value, str) else value
    if not _is_words(words) or not (isinstance(arguments, str) or _is_words(arguments)):
        return ShellCommand("", "has arguments that are not texts", (), command.parts, False, (command.text,))
    if isinstance(arguments, str):
        full = parse_command(f"{command.text} {arguments}")
    elif isinstance(value, str) and re.search(r"\s", value):
        full = parse_command(f"{command.text} {shlex.join(arguments)}")
    else:
        full = parse_arguments([*words, *arguments])
    texts = (*full.other_texts, *command.other_texts, command.text)
    return ShellCommand(full.text, full.problem, full.words, (*full.parts, *command.parts), full.is_known, texts)
