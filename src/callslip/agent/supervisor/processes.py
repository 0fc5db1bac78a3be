"""Who descends from this process, and signals to all of them at once.

Processes are signalled by their groups: the kernel lets no fork slip through between two members of a group. A group
below us holds no stranger, for only those who descend from a session's founder can be in it, and each of the sessions
below was founded below.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

# How long what was killed may take to go. What is in the kernel's hands or another user's may stay.
KILL_TIMEOUT_S = 5.0
AGAIN = 0.001

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> bool:
    try:
        import ctypes

        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):
        return False


def adopt_orphans() -> bool:
    """Make this process the parent of every orphan below it. Only Linux can; False says that it was not done."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def when_parent_dies(number: int) -> None:
    """Where the system can, have the death of the parent told to this process by a signal."""
    _prctl(PR_SET_PDEATHSIG, number)


def reap() -> bool:
    """Take leave of every child that has ended; whether there are others."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def descendants(root: int, children: Callable[[int], list[int]]) -> list[int]:
    """Every process below this one, parents first."""
    found = {root: None}
    for parent in (waiting := [root]):
        new = [child for child in children(parent) if child not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return list(found)[1:]


def look() -> Callable[[int], list[int]]:
    """How to learn the children of a process: from the kernel's lists where it keeps them, else from all processes."""
    me = os.getpid()
    return listed_children if os.path.exists(f"/proc/{me}/task/{me}/children") else scanned_children()


def listed_children(pid: int) -> list[int]:
    """The children of all threads of a process. One that is gone has none: they are orphans, and ours."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def scanned_children() -> Callable[[int], list[int]]:
    """The same from one look at all processes of the machine, which takes longer."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        parent = _parent(name) if name.isdigit() else 0
        if parent:
            found.setdefault(parent, []).append(int(name))
    return lambda pid: found.get(pid, [])


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def groups_of(pids: list[int]) -> set[int]:
    """The process groups of these, without our own."""
    found: set[int] = set()
    for pid in pids:
        try:
            found.add(os.getpgid(pid))
        except OSError:
            pass
    return found - {os.getpgrp(), 0, 1}


def send(groups: set[int], number: int) -> None:
    """A signal to all processes of these groups. Those that are gone by now, or not ours to signal, are passed over."""
    for group in groups:
        send_one(-group, number)


def send_one(target: int, number: int) -> None:
    """A signal to one process, or to the group whose negative this is."""
    try:
        os.kill(target, number)
    except OSError:
        pass


def kill_all() -> None:
    """End everyone below this process, as often as it takes."""
    until = time.monotonic() + KILL_TIMEOUT_S
    while reap() and time.monotonic() < until:
        send(groups_of(descendants(os.getpid(), look())), signal.SIGKILL)
        time.sleep(AGAIN)


def exists(group: int) -> bool:
    """Whether a group has any member, dead or alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return group > 1
