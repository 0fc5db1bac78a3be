"""Access tokens for a part of a ledger: create, list, revoke and find them. Only their hashes are stored."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from secrets import token_hex

from callslip.api.access import Verb
from callslip.errors import AmbiguousIdError, NotFoundError
from callslip.ledger.event_log import EventLog
from callslip.model.names import check_id, check_session_name
from callslip.model.records import TokenRecord


async def create_token(
    log: EventLog, token_hash: str, *, session: str = "", verbs: Sequence[Verb], label: str = "", lifetime_s: float = 0
) -> TokenRecord:
    """Store the hash of a new token. No session means all sessions, no lifetime means that it does not expire."""
    session = check_session_name(session) if session else ""
    label = check_id(label, "label") if label else ""
    now = await log.store.clock()
    expires_at = now + int(lifetime_s * 1000) if lifetime_s else 0
    record = TokenRecord(f"tok_{token_hex(6)}", token_hash, label, session, tuple(verbs), now, expires_at)
    await log.store.put_token(record)
    return record


async def list_tokens(log: EventLog) -> list[TokenRecord]:
    """Return all tokens, oldest first."""
    return await log.store.tokens()


async def revoke_token(log: EventLog, id_or_prefix: str) -> TokenRecord:
    """Delete a token by its id, which ends its open streams in every process that serves this ledger.

    The message of an error does not repeat the input, which may be the token itself.
    """
    tokens = await log.store.tokens()
    matches = [record for record in tokens if record.id == id_or_prefix]
    matches = matches or [record for record in tokens if record.id.startswith(id_or_prefix)]
    if len(matches) > 1:
        names = [record.id for record in matches]
        raise AmbiguousIdError(f"{id_or_prefix!r} is ambiguous: matches {', '.join(names)}", names)
    if not matches or not await log.store.drop_token(matches[0].id):
        raise NotFoundError("no such token; callslip admin token ls lists them")
    log.feed.notice_change()
    return matches[0]


async def find_token(log: EventLog, token_hash: str) -> TokenRecord | None:
    """Return the token with this hash, unless it has expired."""
    record = await log.store.token(token_hash)
    if record is None or not hmac.compare_digest(record.hash.encode(), token_hash.encode()):
        return None
    return record if not record.expires_at or await log.store.clock() < record.expires_at else None
