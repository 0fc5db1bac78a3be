"""Access tokens for a part of a ledger: create, list, revoke and find them. Only their hashes are stored.

A sign-in code is a record of the same table: it is listed and revoked like a token, and exchanged for one once. Its
rights have a prefix, so that neither this version nor an older one accepts the code itself as a token.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from secrets import token_hex

from callslip.api.access import Verb
from callslip.errors import AmbiguousIdError, AuthenticationError, NotFoundError
from callslip.ledger.event_log import EventLog
from callslip.model.names import check_id, check_session_name
from callslip.model.records import TokenRecord

CODE_PREFIX = "sign-in:"
"""The prefix of the rights of a sign-in code, which its token will have."""
CODE_LIFETIME_S = 120
SIGNED_IN_LIFETIME_S = 7 * 24 * 60 * 60
"""How long the token is valid that a code was exchanged for."""


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
    record = await _find_record(log, token_hash)
    return None if record is None or is_code(record) else record


async def _find_record(log: EventLog, digest: str) -> TokenRecord | None:
    record = await log.store.token(digest)
    if record is None or not hmac.compare_digest(record.hash.encode(), digest.encode()):
        return None
    return record if not record.expires_at or await log.store.clock() < record.expires_at else None


# Sign-in codes


def is_code(record: TokenRecord) -> bool:
    """Return whether a record is that of a sign-in code."""
    return any(verb.startswith(CODE_PREFIX) for verb in record.verbs)


async def create_code(log: EventLog, code_hash: str, *, verbs: Sequence[Verb], label: str = "") -> TokenRecord:
    """Store the hash of a new sign-in code for a token with these rights, and delete codes that have expired."""
    now = await log.store.clock()
    for record in await log.store.tokens():
        if is_code(record) and record.expires_at <= now:
            await log.store.drop_token(record.id)
    label = check_id(label, "label") if label else ""
    rights = tuple(CODE_PREFIX + verb for verb in verbs)
    record = TokenRecord(f"tok_{token_hex(6)}", code_hash, label, "", rights, now, now + CODE_LIFETIME_S * 1000)
    await log.store.put_token(record)
    return record


async def redeem_code(log: EventLog, code_hash: str, token_hash: str) -> TokenRecord:
    """Exchange a sign-in code for a token. Of several callers with the same code, in any process, one gets a token."""
    record = await _find_record(log, code_hash)
    if record is None or not is_code(record) or not await log.store.drop_token(record.id):
        raise AuthenticationError("the sign-in code is unknown, expired or used. Create a new one.")
    now = await log.store.clock()
    verbs = tuple(verb.removeprefix(CODE_PREFIX) for verb in record.verbs)
    expires_at = now + SIGNED_IN_LIFETIME_S * 1000
    token = TokenRecord(f"tok_{token_hex(6)}", token_hash, record.label, "", verbs, now, expires_at)
    await log.store.put_token(token)
    return token
