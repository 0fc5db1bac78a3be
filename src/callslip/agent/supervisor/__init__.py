"""The process that stands between us and a command, so that nothing of the command outlives it (S0.7).

    host <-- one socket --> watch -- relay -- /bin/sh -c COMMAND -- whatever it starts

The watch adopts every orphan below it (a "subreaper"), so a process may leave its parent, its group and its session and
is still found. It is a process of its own because a library must not make its host the parent of strangers. It ends
all of them when the command ends, when the host says so, and when the host is gone, however that came about.

It starts for every command, so it loads little: these modules import only one another and a few of Python's own.
"""
