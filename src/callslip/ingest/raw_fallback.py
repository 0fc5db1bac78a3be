"""Append the drafts of a message, and the message itself as raw where the ledger refuses a draft.

So a message that the ledger cannot store as events is still in the log, and affects no other message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from msgspec import structs, to_builtins

from callslip.errors import InvalidInputError
from callslip.ledger.aio import run_off_loop
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import CallEvent, Draft
from callslip.model.names import NEW_CALL_PREFIX

MAX_REFUSED_REPLAYED = 50
"""How many events of a replay may be refused before the whole replay adds nothing."""


async def append_or_keep_raw(
    append: Callable[[list[Draft]], Awaitable[object]], drafts: list[Draft], format: str, message: Any
) -> None:
    """Append the drafts of a message together; if that is refused, in groups, and refused groups as raw.

    Written drafts are removed from `drafts`, so that a retry after a disk error repeats none. If a raw message is
    refused as well, the other groups are still written before InvalidInputError is raised.
    """
    if not drafts:
        return
    try:
        await append(list(drafts))
        return drafts.clear()
    except InvalidInputError:
        # The message of a replay is only its end: keep what is refused of it as drafts.
        groups = [(group, None if group[0].adds == "turns" else message) for group in group_drafts(drafts)]
    refusal: InvalidInputError | None = None
    retries = MAX_REFUSED_REPLAYED
    while groups:
        group, original = groups[0]
        try:
            await append(group)
        except InvalidInputError as error:
            if group[0].adds == "turns" and len(group) > 1:
                parts = await _without_refused(group, error.position if retries else None, format)
                groups[:1] = [(part, None) for part in parts]
                retries -= 1
                continue
            refusal = await _append_raw(append, group, format, original, error) or refusal
        del groups[0]
        drafts[:] = [draft for rest, _ in groups for draft in rest]
    if refusal is not None:
        raise refusal


async def _append_raw(
    append: Callable[[list[Draft]], Awaitable[object]],
    refused: list[Draft],
    format: str,
    message: Any,
    error: InvalidInputError,
) -> InvalidInputError | None:
    """Append a message as raw in place of refused drafts; return the error if that is refused as well."""
    if isinstance(refused[0].event, ev.Raw):
        return error
    try:
        await append([await _to_raw(refused, format, message)])
    except InvalidInputError as raw_error:
        return raw_error
    return None


async def _to_raw(drafts: list[Draft], format: str, message: Any) -> Draft:
    """Return the message of drafts as raw. At the end of a stream there is none: then the drafts themselves."""
    original = [to_builtins(draft.event) for draft in drafts] if message is None else message
    body = await run_off_loop(codec.is_large([original]), codec.to_json, original)
    return Draft(ev.Raw(format=format, body=body), drafts[0].key, drafts[0].mark)


async def _without_refused(replay: list[Draft], position: int | None, format: str) -> list[list[Draft]]:
    """Return the groups to append in place of a replay: the replay without the draft that is refused, and that one.

    A refused prompt is left out with its whole turn, whose answers would else be those of the turn before. If it is not
    known which draft is refused, or if too many are, the replay adds nothing.
    """
    if position is None:
        return [[structs.replace(draft, adds="nothing")] for draft in replay]
    start = position % len(replay)
    end = start + 1
    if isinstance(replay[start].event, ev.MessageUser):
        while end < len(replay) and not isinstance(replay[end].event, ev.MessageUser | ev.MessageEnded):
            end += 1
    answers = [[await _to_raw([draft], format, None)] for draft in replay[start + 1 : end]]
    rest = replay[:start] + replay[end:]
    return [*([rest] if rest else []), [replay[start]], *answers]


def group_drafts(drafts: Iterable[Draft]) -> list[list[Draft]]:
    """Group the drafts that must be written together: those that name the same new call, and those of a replay."""
    groups: dict[str, list[Draft]] = {}
    for number, draft in enumerate(drafts):
        call = draft.event.call if isinstance(draft.event, CallEvent) else ""
        name = call if call.startswith(NEW_CALL_PREFIX) else f"#{number}"
        groups.setdefault("replay" if draft.adds == "turns" else name, []).append(draft)
    return list(groups.values())
