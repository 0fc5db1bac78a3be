"""Find the descendants of this process and signal all of them at once.

Processes are signalled by their groups, because the kernel then misses no process that forks at the same time. A group
below this process has no foreign member: only descendants of the process that created a session can be in its groups,
and every session below was created below.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

# How long a killed process may take to end. One that is stuck in the kernel or of another user may stay.
KILL_TIMEOUT_S = 5.0
POLL_S = 0.001

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> bool:
    try:
        import ctypes

        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):
        return False


def adopt_orphans() -> bool:
    """Make this process the parent of every orphan below it. Return False where the system cannot (not Linux)."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def signal_on_parent_death(number: int) -> None:
    """Have the kernel send this process a signal when its parent dies, where the system can."""
    _prctl(PR_SET_PDEATHSIG, number)


def reap() -> bool:
    """Reap every child that has ended. Return whether there are others."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def descendants(root: int, children: Callable[[int], list[int]]) -> list[int]:
    """Return every process below `root`, parents first."""
    seen = {root: None}
    for parent in (queue := [root]):
        new = [child for child in children(parent) if child not in seen]
        seen.update(dict.fromkeys(new))
        queue += new
    return list(seen)[1:]


def children_reader() -> Callable[[int], list[int]]:
    """Return a function that returns the children of a process, from the kernel's lists or a scan of all processes."""
    pid = os.getpid()
    return listed_children if os.path.exists(f"/proc/{pid}/task/{pid}/children") else scan_children()


def listed_children(pid: int) -> list[int]:
    """Return the children of all threads of a process. A process that is gone has none: they are adopted orphans."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    except OSError:
        pass
    return children


def scan_children() -> Callable[[int], list[int]]:
    """Read the parents of all processes of the machine, which takes longer."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        parent = _parent(name) if name.isdigit() else 0
        if parent:
            children.setdefault(parent, []).append(int(name))
    return lambda pid: children.get(pid, [])


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def groups_of(pids: list[int]) -> set[int]:
    """Return the process groups of these processes, without our own."""
    groups: set[int] = set()
    for pid in pids:
        try:
            groups.add(os.getpgid(pid))
        except OSError:
            pass
    return groups - {os.getpgrp(), 0, 1}


def send(groups: set[int], number: int) -> None:
    """Signal all processes of these groups. Ignore those that are gone or may not be signalled."""
    for group in groups:
        send_one(-group, number)


def send_one(target: int, number: int) -> None:
    """Signal a process, or a group by its negative number."""
    try:
        os.kill(target, number)
    except OSError:
        pass


def kill_all() -> None:
    """Kill all processes below this one, repeatedly until none is left."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while reap() and time.monotonic() < deadline:
        send(groups_of(descendants(os.getpid(), children_reader())), signal.SIGKILL)
        time.sleep(POLL_S)


def exists(group: int) -> bool:
    """Return whether a group has any member, including zombies."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return group > 1
