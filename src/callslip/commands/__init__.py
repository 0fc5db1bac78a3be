"""Commands: calls that somebody submits and somebody else runs, each in their own time (seed 003, durable)."""

from callslip.commands.queue import Commands
from callslip.commands.shown import Claim, Command
from callslip.commands.tracker import Pending, Tracker

__all__ = ["Claim", "Command", "Commands", "Pending", "Tracker"]
