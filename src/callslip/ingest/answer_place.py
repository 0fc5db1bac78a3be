"""Where requests for approval of external agents must be answered.

An agent that only reports its messages waits for the answer of its own client. An answer in the ledger would not reach
it, unless the program that records the messages delivers it.
"""

from __future__ import annotations

from callslip.formats import registry
from callslip.model.events import ApprovalRequested, Draft, replace_fields


def set_answer_place(drafts: list[Draft], format: str) -> list[Draft]:
    """Return drafts whose requests for approval name the client of the format as the place to answer them."""
    client = registry.find(format).client
    has_request = client and any(isinstance(draft.event, ApprovalRequested) for draft in drafts)
    return replace_fields(drafts, ApprovalRequested, answer_at=client) if has_request else drafts


def clear_answer_place(drafts: list[Draft]) -> list[Draft]:
    """Return drafts whose requests for approval can be answered in the ledger."""
    return replace_fields(drafts, ApprovalRequested, answer_at="")
