"""Run a command and record every byte between it and the process that started this one.

tee.py FOLDER COMMAND...     FOLDER/in has what went to the command, FOLDER/out what came from it
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


def copy(source: int, target: int, record: Path) -> None:
    with record.open("wb", buffering=0) as file:
        while data := os.read(source, 1000):
            file.write(data)
            left = memoryview(data)
            while left:
                left = left[os.write(target, left) :]
    os.close(target)


def main(folder: Path, command: list[str]) -> int:
    folder.mkdir()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    assert process.stdin is not None and process.stdout is not None
    ins = threading.Thread(target=copy, args=(0, os.dup(process.stdin.fileno()), folder / "in"), daemon=True)
    process.stdin.close()
    outs = threading.Thread(target=copy, args=(process.stdout.fileno(), 1, folder / "out"), daemon=True)
    ins.start()
    outs.start()
    status = process.wait()
    outs.join(10)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1]), sys.argv[2:]))
