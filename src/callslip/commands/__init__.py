"""Commands: calls that somebody submits and somebody else runs, each in their own time (seed 003, durable)."""

from callslip.commands.deadlines import DeadlineTracker, Pending
from callslip.commands.queue import Commands
from callslip.commands.views import Claim, Command

__all__ = ["Claim", "Command", "Commands", "DeadlineTracker", "Pending"]
