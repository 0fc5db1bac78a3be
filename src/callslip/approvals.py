"""Answering requests for approval: once, by somebody, within the time (S2.7).

The first answer wins and the second is told who did. An answer is bound to the arguments that were asked about: if a
call that we execute ourselves has other arguments by now, the answer is refused.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import UNSET

from callslip import events as ev
from callslip.call import SOURCE
from callslip.errors import Ambiguous, Conflict, NotFound, Refused
from callslip.ledger import Ledger
from callslip.rows import ApprovalRow

_ALLOWS = ("allow_once", "allow_always")
_REJECTS = ("reject_once", "reject_always")


async def find(ledger: Ledger, given: str, session: str = "") -> ApprovalRow:
    """An approval by its id, or a prefix that fits only one. Of another session than the named one: not found."""
    row = await ledger.store.approval(given)
    exact = [row] if row else await ledger.store.approvals(prefix=given, limit=10) if given else []
    if session:
        exact = [row for row in exact if row.session == session]
    if not exact:
        raise NotFound(f"no approval {given!r}")
    if len(exact) > 1:
        names = [row.id for row in exact]
        raise Ambiguous(f"{given!r} fits several: {', '.join(names)}", names)
    return exact[0]


def _option(row: ApprovalRow, given: str, kinds: tuple[str, ...]) -> str:
    """The option that was chosen: the named one, which must be on offer, or the first that says as much."""
    offered = [cast(dict[str, Any], option) for option in row.options if isinstance(option, dict)]
    if given:
        named = [option for option in offered if option.get("optionId") == given]
        if offered and not named:
            raise NotFound(f"approval {row.id} offers no option {given!r}")
        if named and named[0].get("kind") in _ALLOWS + _REJECTS and named[0]["kind"] not in kinds:
            raise Refused("option", f"{given!r} of approval {row.id} says the contrary ({named[0]['kind']})")
        return given
    fitting = [option for kind in kinds for option in offered if option.get("kind") == kind]
    return str(fitting[0].get("optionId", "")) if fitting else ""


async def approve(
    ledger: Ledger, approval: str, *, by: str, option: str = "", input: Any = UNSET, reason: str = "", session: str = ""
) -> ApprovalRow:
    """Let a call run; with `input`, with these arguments instead."""
    row = await find(ledger, approval, session)
    call = await ledger.store.call(row.call)
    ours = call is not None and call.source == SOURCE
    if row.state == "pending" and call is not None and ours and call.input_mark != row.input_mark:
        raise Conflict(f"the arguments of call {row.call} changed since approval {row.id} was asked for", row)
    chosen = _option(row, option, _ALLOWS)
    return await _answer(
        ledger, row, ev.ApprovalGranted(approval=row.id, option=chosen, by=by, reason=reason, input=input)
    )


async def deny(
    ledger: Ledger, approval: str, *, by: str, option: str = "", reason: str = "", session: str = ""
) -> ApprovalRow:
    """Refuse a call; the reason is what the model reads."""
    row = await find(ledger, approval, session)
    chosen = _option(row, option, _REJECTS)
    return await _answer(ledger, row, ev.ApprovalRefused(approval=row.id, option=chosen, by=by, reason=reason))


async def withdraw(ledger: Ledger, approval: str, *, by: str, reason: str = "") -> ApprovalRow:
    """Ask no more; the call is cancelled."""
    row = await find(ledger, approval)
    return await _answer(ledger, row, ev.ApprovalWithdrawn(approval=row.id, by=by, reason=reason))


async def _answer(ledger: Ledger, row: ApprovalRow, answer: ev.ApprovalAnswer) -> ApprovalRow:
    await ledger.append(row.session, [answer], source=SOURCE, strict=True)
    return await find(ledger, row.id)
