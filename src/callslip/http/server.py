"""What all requests of one server share."""

from __future__ import annotations

from callslip.api.ledger import LocalLedger
from callslip.api.posts import Posts
from callslip.http.access import Authorizer, TokenAuthorizer
from callslip.http.metrics import Metrics
from callslip.http.prompts import Answers, Prompts
from callslip.http.request import Route
from callslip.http.revocations import Revocations
from callslip.http.sign_in import Attempts
from callslip.http.streams import Hub
from callslip.settings import Limits


class Server:
    """The ledger, the authorizer and the state of one server. Nothing runs before the first request."""

    def __init__(
        self, ledger: LocalLedger, gate: Authorizer, limits: Limits | None = None, answers: Answers | None = None
    ) -> None:
        self.ledger = ledger
        self.commands = ledger.commands
        self.gate = gate
        self.limits = limits or Limits()
        self.revocations = Revocations(ledger.log) if isinstance(gate, TokenAuthorizer) else None
        self.accepts_codes = isinstance(gate, TokenAuthorizer) and gate.cookies
        """Whether a sign-in code can be exchanged for a cookie here."""
        self.attempts = Attempts()
        self.hub = Hub(ledger, self.limits)
        self.posts = Posts(ledger.log)
        self.prompts = Prompts(ledger, answers)
        self.metrics = Metrics(ledger.log)
        self.routes: tuple[Route, ...] = ()
