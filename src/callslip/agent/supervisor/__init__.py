"""The process between the host and a shell command, which ends every process that the command starts.

    host <-- one socket --> supervisor -- relay -- /bin/sh -c COMMAND -- its descendants

The supervisor adopts every orphan below it (a "subreaper"), so it finds processes that left their parent, their group
and their session. It is a separate process because a library must not make its host the parent of foreign processes. It
ends all descendants when the command ends, when the host requests it, and when the host is gone.

A supervisor starts for every command, so these modules import only each other and small standard modules.
"""
