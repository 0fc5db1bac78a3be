"""Starts the command under a relay, the parent that a command sees.

A command may well kill its parent. The relay is there to be killed: it only waits for the shell and tells how it ended,
and the watch lives on. Should the watch be killed instead, the relay ends everything. So no single kill frees anybody.
"""

from __future__ import annotations

import os
import signal

from .processes import adopt_orphans, kill_all, when_parent_dies
from .wire import Request

SHELL = "/bin/sh"


def start(request: Request, out: int, err: int, tell: int) -> int:
    """The pid of a new relay. It tells, a line each: `shell PID`, `status N`, `refused WHAT ERRNO`, then closes."""
    watch = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _be_relay(watch, request, out, err, tell)
    except OSError as error:
        _say(tell, "refused", "start", error.errno)
    finally:
        os._exit(0)


def _be_relay(watch: int, request: Request, out: int, err: int, tell: int) -> None:
    adopt_orphans()
    when_parent_dies(signal.SIGTERM)
    _forget_signals()
    if os.getppid() != watch:
        return
    relay = os.getpid()
    shell = os.fork()
    if not shell:
        _be_shell(relay, request, out, err, tell)
    signal.signal(signal.SIGTERM, _end_all)
    os.closerange(1, tell)  # The line stays open: while anybody is left, the host must not believe that all is over.
    _say(tell, "shell", shell)
    _say(tell, "status", _outcome(shell))


def _outcome(shell: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == shell:
            return status


def _end_all(number: int, frame: object) -> None:
    kill_all()
    os._exit(0)


def _be_shell(relay: int, request: Request, out: int, err: int, tell: int) -> None:
    """A session of its own: no terminal to ask on, and `kill 0` in a script hits the script alone."""
    doing = "start"
    try:
        os.setsid()
        when_parent_dies(signal.SIGKILL)
        if os.getppid() != relay:
            return
        for ours, theirs in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
            os.dup2(ours, theirs)
        doing = "cwd"
        if request.cwd:
            os.chdir(request.cwd)
        doing = "command"
        os.execve(SHELL, [b"sh", b"-c", b"--", request.command], request.env)
    except OSError as error:
        _say(tell, "refused", doing, error.errno)
    finally:
        os._exit(127)


def _forget_signals() -> None:
    """Nothing ignored and nothing blocked, whatever this process or its host had arranged for itself."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _say(tell: int, *words: object) -> None:
    os.write(tell, (" ".join(map(str, words)) + "\n").encode())
