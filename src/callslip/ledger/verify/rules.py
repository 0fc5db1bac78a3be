"""Check that saved rules can be read, and that each is for a session that exists."""

from __future__ import annotations

from callslip.errors import CallslipError
from callslip.ledger.verify.problems import Problem
from callslip.rules.saved_rules import check_rule
from callslip.store.protocol import Store

SCOPES = ("session", "project", "everywhere")


async def check_rules(store: Store) -> list[Problem]:
    """Return the problems of the saved rules."""
    try:
        records = await store.rules()
    except CallslipError as error:
        return [Problem("", "rule", str(error))]
    problems: list[Problem] = []
    for record in records:
        try:
            check_rule(record)
        except CallslipError as error:
            problems.append(Problem("", "rule", f"{record.id} cannot be used: {error}"))
        if record.scope not in SCOPES or bool(record.scope_value) == (record.scope == "everywhere"):
            problems.append(Problem("", "rule", f"{record.id} has the scope {record.scope!r} {record.scope_value!r}"))
        elif record.scope == "session" and await store.session(record.scope_value) is None:
            problems.append(
                Problem("", "rule", f"{record.id} is for session {record.scope_value!r}, which does not exist")
            )
    return problems
