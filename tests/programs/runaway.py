"""Runs away: says where it begins, then each generation forks the next, leaves for a session of its own, and ends.

runaway.py SECONDS
"""

from __future__ import annotations

import os
import sys
import time

until = time.monotonic() + float(sys.argv[1])
os.write(1, b"running\n")
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
