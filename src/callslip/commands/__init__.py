"""Commands: calls that one program submits and a worker runs. Queue, claims, leases and deadlines."""

from callslip.commands.deadlines import DeadlineTracker, Pending
from callslip.commands.views import Claim, Command

__all__ = ["Claim", "Command", "DeadlineTracker", "Pending"]
