"""Answering requests for approval: once, by somebody, within the time (S2.7, S4.6).

The first answer wins and the second is told who did. An answer is bound to the arguments that were asked about: if a
call that we execute ourselves has other arguments by now, the answer is refused. Whoever approves may put others in
their place; they must fit the tool's schema, which stands in the request, so that any process can tell. What does not
fit changes nothing, and the request stays.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import UNSET

from callslip.api.call import SOURCE
from callslip.api.ledger import Ledger
from callslip.errors import AmbiguousIdError, InvalidInputError, NotFoundError
from callslip.formats.registry import FORMATS
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import decode_event
from callslip.model.records import ApprovalRecord
from callslip.rules import json_schema

_ALLOWS = ("allow_once", "allow_always")
_REJECTS = ("reject_once", "reject_always")
_FOREIGN = frozenset(FORMATS) - {"events"}
"""Sources of requests by somebody who runs the call and takes no more than yes or no for an answer."""


async def find(ledger: Ledger, given: str, session: str = "") -> ApprovalRecord:
    """An approval by its id, or a prefix that fits only one. Of another session than the named one: not found."""
    row = await ledger.store.approval(given)
    if row is not None:
        found = [row] if session in ("", row.session) else []
    else:
        found = await ledger.store.approvals(session=session, prefix=given, limit=10) if given else []
    if not found:
        raise NotFoundError(f"no approval {given!r}")
    if len(found) > 1:
        names = [row.id for row in found]
        raise AmbiguousIdError(f"{given!r} fits several: {', '.join(names)}", names)
    return found[0]


async def request(ledger: Ledger, row: ApprovalRecord) -> ev.ApprovalRequested | None:
    """The event that asked; None if retention has removed it."""
    rows = await ledger.store.events(row.session, row.entry - 1, 1)
    event = decode_event(rows[0][1]) if rows and rows[0][0] == row.entry else None
    return event if isinstance(event, ev.ApprovalRequested) else None


def _option(row: ApprovalRecord, given: str, kinds: tuple[str, ...]) -> str:
    """The option that was chosen: the named one, which must be on offer, or the first that says as much."""
    offered = [cast(dict[str, Any], option) for option in row.options if isinstance(option, dict)]
    if given:
        named = [option for option in offered if option.get("optionId") == given]
        if offered and not named:
            raise NotFoundError(f"approval {row.id} offers no option {given!r}")
        if named and named[0].get("kind") in _ALLOWS + _REJECTS and named[0]["kind"] not in kinds:
            raise InvalidInputError("option", f"{given!r} of approval {row.id} says the contrary ({named[0]['kind']})")
        return given
    fitting = [option for kind in kinds for option in offered if option.get("kind") == kind]
    return str(fitting[0].get("optionId", "")) if fitting else ""


async def approve(
    ledger: Ledger, approval: str, *, by: str, option: str = "", input: Any = UNSET, reason: str = "", session: str = ""
) -> ApprovalRecord:
    """Let a call run; with `input`, with these arguments instead."""
    row = await find(ledger, approval, session)
    chosen = _option(row, option, _ALLOWS)
    if row.state == "pending":
        asked = await request(ledger, row)
        if asked is not None and asked.source in _FOREIGN and row.options and not chosen:
            raise InvalidInputError(
                "option", f"of what approval {row.id} offers nothing is known to allow it: name an option"
            )
        input = input if input is UNSET else _fitting(asked, input)
    return await _answer(
        ledger, row, ev.ApprovalGranted(approval=row.id, option=chosen, by=by, reason=reason, input=input)
    )


def _fitting(asked: ev.ApprovalRequested | None, input: Any) -> Any:
    """Arguments that may stand in place of those that were asked about, or Refused with where they do not fit."""
    if asked is None:
        raise InvalidInputError(
            "input", "the request is no longer in the log, so that nothing can be checked against its schema"
        )
    if asked.source in _FOREIGN:
        raise InvalidInputError(
            "input", "whoever asked runs this call and cannot be told other arguments: approve or deny it"
        )
    input = codec.validate_json(input, "input")
    wrong = json_schema.find_violation(asked.schema, input)
    if wrong is not None:
        raise InvalidInputError(f"input{wrong.at}", wrong.text)
    return input


async def deny(
    ledger: Ledger, approval: str, *, by: str, option: str = "", reason: str = "", session: str = ""
) -> ApprovalRecord:
    """Refuse a call; the reason is what the model reads."""
    row = await find(ledger, approval, session)
    chosen = _option(row, option, _REJECTS)
    return await _answer(ledger, row, ev.ApprovalRefused(approval=row.id, option=chosen, by=by, reason=reason))


async def withdraw(ledger: Ledger, approval: str, *, by: str, reason: str = "", session: str = "") -> ApprovalRecord:
    """Ask no more; the call is cancelled."""
    row = await find(ledger, approval, session)
    return await _answer(ledger, row, ev.ApprovalWithdrawn(approval=row.id, by=by, reason=reason))


async def _answer(ledger: Ledger, row: ApprovalRecord, answer: ev.ApprovalAnswer) -> ApprovalRecord:
    await ledger.append(row.session, [answer], source=SOURCE, strict=True)
    return await find(ledger, row.id)
