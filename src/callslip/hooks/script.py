"""Pass one message of an agent's hook on to Callslip. Started as `PYTHON -I -S script.py AGENT FOLDER [OPTION]...`.

This runs at every step of an agent, so it imports little and nothing of the package. Without options the message is
stored as a file and nothing is waited for. With `--approvals` it is sent to the server, whose answer is printed for
the agent; `--wait-s N` is how long the answer may take. If the agent ends meanwhile, so does this. If anything fails,
the exit status is 0 and nothing is printed: the agent then asks in its own terminal.
"""

import os
import sys
import time

NAMES = ("claude-code", "codex", "gemini", "opencode")
MAX_MESSAGE_BYTES = 4 * 2**20
MAX_SPOOL_FILES = 5000
MAX_SPOOL_BYTES = 256 * 2**20
CONNECT_S = 1.0
DEFAULT_WAIT_S = 600.0
GRACE_S = 5.0
"""How much longer than the server this process waits."""


def run(arguments: list[str]) -> None:
    agent, folder, *options = arguments
    if agent not in NAMES or os.environ.get("CALLSLIP_AGENT"):
        return
    body = sys.stdin.buffer.read(MAX_MESSAGE_BYTES + 1)
    while sys.stdin.buffer.read(65536):  # The agent may wait until all of it is read.
        pass
    os.chdir(folder)
    status = os.stat(".")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return
    # A line break in JSON is only between values.
    body = body.strip().replace(b"\r", b" ").replace(b"\n", b" ")
    head = b'{"agent":"%s","at":%d' % (agent.encode(), time.time_ns() // 10**6)
    is_complete = len(body) <= MAX_MESSAGE_BYTES
    if "--approvals" in options:
        if is_complete:
            wait_s = float(options[options.index("--wait-s") + 1]) if "--wait-s" in options else DEFAULT_WAIT_S
            answer = ask(b'%s,"wait":%d,"message":%s}\n' % (head, wait_s, body), wait_s + GRACE_S)
            sys.stdout.buffer.write(answer)
            sys.stdout.buffer.flush()
        return
    if is_complete:
        store(b'%s,"message":%s}' % (head, body))
    if os.path.exists("socket"):
        connect(CONNECT_S).sendall(b'{"ping":true}\n')


def store(data: bytes) -> None:
    """Write a file that the server, or the next one, imports and deletes. The new name appears with its content."""
    spool = os.open("spool", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    names = os.listdir(spool)
    if len(names) >= MAX_SPOOL_FILES or len(data) + size_of(spool, names) > MAX_SPOOL_BYTES:
        return
    name = f"{time.time_ns()}-{os.getpid()}-{os.urandom(4).hex()}.json"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    file = os.open(name + ".part", flags, 0o600, dir_fd=spool)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
    except OSError:
        os.unlink(name + ".part", dir_fd=spool)
        raise
    finally:
        os.close(file)
    os.rename(name + ".part", name, src_dir_fd=spool, dst_dir_fd=spool)


def size_of(spool: int, names: list[str]) -> int:
    """Return how large all files are; 0 if they are so few that this cannot be too much."""
    size = 0
    for name in names if len(names) >= MAX_SPOOL_BYTES // MAX_MESSAGE_BYTES else ():
        try:
            size += os.lstat(name, dir_fd=spool).st_size
        except FileNotFoundError:  # It was imported meanwhile.
            pass
    return size


def connect(timeout_s: float):
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    connection.connect("socket")
    return connection


def ask(request: bytes, timeout_s: float) -> bytes:
    """Return the server's answer, b"" if it has none, or if the agent does not read it any more."""
    import select

    connection = connect(CONNECT_S)
    connection.settimeout(timeout_s)
    connection.sendall(request)
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(output, 0)  # That the agent is gone is always told.
    end = time.monotonic() + timeout_s
    answer = b""
    while not answer.endswith(b"\n"):
        events = dict(poll.poll(max(0.0, end - time.monotonic()) * 1000))
        if events.get(output, 0) & select.POLLNVAL:  # Not every system can tell it for every file.
            poll.unregister(output)
            del events[output]
        elif output in events or not events:
            return b""
        if connection.fileno() in events:
            data = connection.recv(65536)
            if not data or len(answer) > MAX_MESSAGE_BYTES:
                return b""
            answer += data
    return answer


if __name__ == "__main__":
    try:
        run(sys.argv[1:])
    except BaseException:
        pass
    os._exit(0)
