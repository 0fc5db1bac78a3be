"""Use a ledger without an event loop. Fail if a loop is running in the main thread.

script.py URL
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import callslip
from callslip.errors import CallDeniedError, CallEndedError
from callslip.settings import Settings


def assert_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise AssertionError("a loop is running")


def main(url: str) -> None:
    assert_no_loop()
    with callslip.sync.open(url, Settings(approval_expiry=0.1, reaper_interval=0.02)) as ledger:
        assert_no_loop()
        session = ledger.session("script")
        with session.call("ls", {"path": "."}) as call:
            assert_no_loop()
            call.progress("looking\n")
            call.complete(["a.txt"])
        print("completed", call.result().state)
        try:
            with session.call("broken") as call:
                raise ValueError("it broke")
        except ValueError as error:
            print("raised", error, call.result().state)
        try:
            with session.call("interrupted") as call:
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            print("interrupted", call.result().state)
        try:
            with session.call("slow", timeout=0.05) as call:
                time.sleep(0.2)
                print("meanwhile", call.result().state)
        except CallEndedError as error:
            print("timed out", error.state)
        try:
            with session.call("risky", approval=True):
                raise AssertionError("entered")
        except CallDeniedError as error:
            print("denied", error)
        with session.turn("continue") as turn:
            turn.say("done")
        print("entries", len(session.snapshot().entries))
    assert_no_loop()
    print("threads", [thread.name for thread in threading.enumerate() if thread.name.startswith("callslip")])


if __name__ == "__main__":
    main(sys.argv[1])
