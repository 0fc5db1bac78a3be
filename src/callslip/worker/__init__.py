"""Workers: functions of a program that run the commands which others submit, over HTTP or straight on the ledger."""

from callslip.worker.worker import Worker

__all__ = ["Worker"]
