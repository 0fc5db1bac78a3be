"""Answer requests for approval.

The first answer wins; a later one raises ConflictError with the winner. An answer is bound to the arguments in the
request: if a call that we run ourselves has other arguments by now, the answer is refused. An approval may carry edited
arguments, which must match the tool's JSON Schema in the request. An answer that is refused changes nothing.

A request that names another place for its answer is answered there, because an answer from here would not reach the
agent. The report of its source about that answer counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, structs

from callslip.api.access import FULL_ACCESS, Access
from callslip.api.find import find_approval
from callslip.errors import (
    CallslipError,
    ConflictError,
    InvalidInputError,
    InvalidTransitionError,
    NotFoundError,
    PermissionDeniedError,
)
from callslip.formats.hooks.answers import LEAVE
from callslip.formats.registry import FORMATS
from callslip.ledger.aio import run_off_loop
from callslip.ledger.event_log import EventLog
from callslip.ledger.write import AnswerCheck, PostedAnswer, WriteContext, write_events
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft, decode_event
from callslip.model.names import SOURCE_PYTHON
from callslip.model.records import ApprovalRecord
from callslip.model.views import CamelStruct
from callslip.rules import json_schema
from callslip.rules.approval_options import choose_option, option_allows, option_ids
from callslip.rules.notices import question_kind
from callslip.store.unit_of_work import UnitOfWork

MAX_BULK_ANSWERS = 100
_EXTERNAL_SOURCES = frozenset(FORMATS) - {"events"}
"""Sources of requests by agents that run the call themselves and accept only yes or no."""


async def approve(
    log: EventLog,
    id_or_prefix: str,
    *,
    by: str = "",
    option: str = "",
    input: Any = UNSET,
    reason: str = "",
    session: str = "",
    access: Access = FULL_ACCESS,
) -> ApprovalRecord:
    """Approve a call, with `input` as its arguments if given. `by` is overridden by the name that `access` knows."""
    record, by = await _find_for_answer(log, id_or_prefix, by, session, access)
    answer = await _make_answer(log, record, by, allow=True, option=option, input=input, reason=reason)
    return await _append_answer(log, record, answer)


async def deny(
    log: EventLog,
    id_or_prefix: str,
    *,
    by: str = "",
    option: str = "",
    reason: str = "",
    session: str = "",
    access: Access = FULL_ACCESS,
) -> ApprovalRecord:
    """Deny a call. The model reads the reason."""
    record, by = await _find_for_answer(log, id_or_prefix, by, session, access)
    answer = await _make_answer(log, record, by, allow=False, option=option, reason=reason)
    return await _append_answer(log, record, answer)


class BulkAnswer(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An answer to one of several requests, as it was shown: `inputHash` is the one of its view."""

    id: str
    input_hash: str
    action: Literal["approve", "deny"]
    reason: Annotated[str, msgspec.Meta(max_length=2000)] = ""


class BulkResult(msgspec.Struct, kw_only=True, rename="camel"):
    """The result of an answer.

    The request was `answered`; or it was `not-pending` any more, has `changed` since it was shown, was `not-found`, or
    the answer was `refused`, for the reason in `detail`. `state` and `by` are those of the request now, if it is known.
    """

    id: str
    result: Literal["answered", "not-pending", "changed", "not-found", "refused"]
    state: str = ""
    by: str = ""
    detail: str = ""


async def answer_several(
    log: EventLog, answers: Sequence[BulkAnswer], *, by: str = "", access: Access = FULL_ACCESS
) -> list[BulkResult]:
    """Answer requests, each only if it is pending and as it was shown. One that fails does not concern the others.

    If the caller may answer none of them, raise the first error.
    """
    if not 0 < len(answers) <= MAX_BULK_ANSWERS:
        raise InvalidInputError("answers", f"must be 1 to {MAX_BULK_ANSWERS}", MAX_BULK_ANSWERS)
    results: list[BulkResult] = []
    refusals: list[CallslipError] = []
    for answer in answers:
        try:
            results.append(await _answer_shown(log, answer, by, access))
        except (NotFoundError, PermissionDeniedError) as error:
            refusals.append(error)
            result = "not-found" if isinstance(error, NotFoundError) else "refused"
            results.append(BulkResult(id=answer.id, result=result, detail=str(error)))
    if len(refusals) == len(answers):
        raise refusals[0]
    return results


async def _answer_shown(log: EventLog, shown: BulkAnswer, by: str, access: Access) -> BulkResult:
    try:
        record, by = await _find_for_answer(log, shown.id, by, "", access)
        if record.id != shown.id:
            raise NotFoundError(f"no approval {shown.id!r}; write its full id")
        answer = await _make_answer(log, record, by, allow=shown.action == "approve", reason=shown.reason)
    except (InvalidInputError, ConflictError) as error:
        return BulkResult(id=shown.id, result="refused", detail=str(error))

    def work(unit: UnitOfWork, valid: list[Draft], context: WriteContext) -> str:
        current = unit.approval(record.id)
        call = unit.call(record.call)
        if current is None or call is None or current.state != "pending":
            return "not-pending"
        if current.input_hash != shown.input_hash or call.input_mark != current.input_mark:
            return "changed"
        write_events(unit, record.session, valid, context)
        return "answered"

    try:
        result = await log.transact_drafts(record.session, [answer], work, source=SOURCE_PYTHON)
    except (ConflictError, InvalidTransitionError, InvalidInputError) as error:
        return BulkResult(id=shown.id, result="refused", detail=str(error))
    now = await log.store.approval(record.id) or record
    return BulkResult(id=record.id, result=cast(Any, result), state=now.state, by=now.by)


class Offer(CamelStruct):
    """What a request asks, and which answers its agent can honour.

    `canAnswer` is false if it was answered, must be answered elsewhere, or the caller may not answer it. `canAllow` is
    also false if an agent decides by itself what is not denied, and for a question: then no rule allows it.
    `canEdit`: it is a call that can be approved with other arguments.
    """

    kind: Literal["call", "question", "plan"]
    can_answer: bool
    can_allow: bool
    can_edit: bool


async def read_offer(log: EventLog, id_or_prefix: str, *, access: Access = FULL_ACCESS) -> Offer:
    """Return what a request asks, and which answers its agent can honour."""
    record = await find_approval(log, id_or_prefix, access=access)
    call = await log.store.call(record.call)
    request = await load_request(log, record)
    allowing = [option for option in record.options if option != LEAVE]
    kind = question_kind(call.tool if call is not None else "")
    may_answer = await access.may(record.session, "approve")
    is_here = may_answer and record.state == "pending" and not record.answer_at
    return Offer(
        kind=kind or "call",
        can_answer=is_here,
        can_allow=is_here and kind != "question" and (not record.options or bool(choose_option(allowing, allow=True))),
        can_edit=is_here and not kind and request is not None and request.source not in _EXTERNAL_SOURCES,
    )


async def withdraw(
    log: EventLog, id_or_prefix: str, *, by: str = "", reason: str = "", session: str = "", access: Access = FULL_ACCESS
) -> ApprovalRecord:
    """Withdraw a request; its call is cancelled."""
    record, by = await _find_for_answer(log, id_or_prefix, by, session, access)
    return await _append_answer(log, record, ev.ApprovalWithdrawn(approval=record.id, by=by, reason=reason))


async def check_posted_answers(session: str, source: str, caller: str, by: str, access: Access) -> AnswerCheck:
    """Return the check of answers that a caller, with an id and a name, posts as messages of a format.

    A foreign agent's answer to its own request is a report: its user decided. Every other answer is a decision of the
    caller, who needs the right to approve, and follows the rules of `approve` and `deny`.
    """
    may_answer = await access.allows(session, "approve")

    def check(posted: PostedAnswer) -> ev.ApprovalAnswer:
        answer, approval, request, call = posted
        is_foreign = source in _EXTERNAL_SOURCES and call.source == source and not call.owner and not call.client
        is_own = request is not None and (request.source, request.requested_by) == (source, caller)
        if is_foreign and is_own and caller:
            return answer
        if not may_answer:
            raise PermissionDeniedError(f"approval {approval.id} can only be answered with the right to approve")
        if request is None or request.source != (answer.source or source):
            _check_place(approval)
        answer = structs.replace(answer, by=by or answer.by)
        if isinstance(answer, ev.ApprovalWithdrawn):
            return answer
        allow = isinstance(answer, ev.ApprovalGranted)
        answer = structs.replace(answer, option=_select_option(approval, answer.option, allow=allow))
        if isinstance(answer, ev.ApprovalGranted):
            _check_foreign_option(approval, request, answer.option)
            if answer.input is not UNSET:
                answer = structs.replace(answer, input=_check_edited_input(request, answer.input))
        return answer

    return check


async def _find_for_answer(
    log: EventLog, id_or_prefix: str, by: str, session: str, access: Access
) -> tuple[ApprovalRecord, str]:
    """Return the approval, and the name under which the caller may answer it."""
    record = await find_approval(log, id_or_prefix, session=session, access=access, verb="approve")
    by = await access.require(record.session, "approve") or by
    _check_place(record)
    return record, by


async def _make_answer(
    log: EventLog, record: ApprovalRecord, by: str, *, allow: bool, option: str = "", input: Any = UNSET, reason: str
) -> ev.ApprovalAnswer:
    """Return the answer to a request, or raise if it does not fit what the request offers."""
    chosen = _select_option(record, option, allow=allow)
    if not allow:
        reason = reason or (f"denied by {by}" if by else "")
        return ev.ApprovalRefused(approval=record.id, option=chosen, by=by, reason=reason)
    if record.state == "pending":
        request = await load_request(log, record)
        _check_foreign_option(record, request, chosen)
        if input is not UNSET:
            input = await run_off_loop(codec.is_large([input]), _check_edited_input, request, input)
    return ev.ApprovalGranted(approval=record.id, option=chosen, by=by, reason=reason, input=input)


def _check_place(record: ApprovalRecord) -> None:
    """Raise ConflictError if an answer from here to a pending request would not reach the agent."""
    if record.answer_at:
        place = f"must be answered in {record.answer_at}"
        raise ConflictError(f"approval {record.id}: {place}. An answer from here would not reach the agent.", record)


async def load_request(log: EventLog, record: ApprovalRecord) -> ev.ApprovalRequested | None:
    """Return the event that requested the approval, or None if retention has removed it."""
    rows = await log.store.events(record.session, record.entry - 1, 1)
    event = decode_event(rows[0][1]) if rows and rows[0][0] == record.entry else None
    return event if isinstance(event, ev.ApprovalRequested) else None


def _select_option(record: ApprovalRecord, option: str, *, allow: bool) -> str:
    """Return the named option, or the first offered one that allows or rejects, or "" if there is none."""
    if not option:
        return choose_option(record.options, allow)
    if record.options and option not in option_ids(record.options):
        raise InvalidInputError("option", f"approval {record.id} offers no option {option!r}")
    if option_allows(record.options, option) is (not allow):
        effect = "rejects" if allow else "allows"
        raise InvalidInputError("option", f"{option!r} of approval {record.id} {effect} the call")
    return option


def _check_foreign_option(record: ApprovalRecord, request: ev.ApprovalRequested | None, chosen: str) -> None:
    """Raise InvalidInputError if a foreign agent offered options and none of them is known to allow the call."""
    if request is not None and request.source in _EXTERNAL_SOURCES and record.options and not chosen:
        raise InvalidInputError("option", f"no option of approval {record.id} is known to allow it; name one")


def _check_edited_input(request: ev.ApprovalRequested | None, input: Any) -> Any:
    """Return edited arguments as JSON, or raise InvalidInputError with what does not match the schema."""
    if request is None:
        raise InvalidInputError("input", "retention removed the request, so edited arguments cannot be checked")
    if request.source in _EXTERNAL_SOURCES:
        raise InvalidInputError("input", "arguments of an external agent's call cannot be edited")
    input = codec.validate_json(input, "input")
    violation = json_schema.find_violation(request.schema, input)
    if violation is not None:
        raise InvalidInputError(f"input{violation.at}", violation.text)
    return input


async def _append_answer(log: EventLog, record: ApprovalRecord, answer: ev.ApprovalAnswer) -> ApprovalRecord:
    await log.append(record.session, [answer], source=SOURCE_PYTHON, strict=True)
    return await find_approval(log, record.id)
