"""Fork repeatedly: each process starts the next in a new session and exits.

runaway.py SECONDS
"""

from __future__ import annotations

import os
import sys
import time

deadline = time.monotonic() + float(sys.argv[1])
os.write(1, b"running\n")
while time.monotonic() < deadline:
    if os.fork():
        os._exit(0)
    os.setsid()
