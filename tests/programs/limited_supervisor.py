"""Run the supervisor as on a system with fewer functions.

limited_supervisor.py FOLDER plain      without the adoption of orphans and without epoll
limited_supervisor.py FOLDER powerless  without permission to signal processes, as if they were another user's
"""

from __future__ import annotations

import os
import select
import sys

sys.path.append(sys.argv[1])
if sys.argv[2] == "plain":
    del select.epoll
    del os.pidfd_open

from supervisor import main, processes  # type: ignore[import-not-found]

if sys.argv[2] == "plain":
    processes.adopt_orphans = lambda: False
else:
    processes.send = lambda groups, number: None
    main.KILL_TIMEOUT_S = 0.2
main.main()
