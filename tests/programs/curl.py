"""As much of curl as the walk in the docs uses, for machines that have none: -s, -H, -d, -o and -w."""

from __future__ import annotations

import getopt
import http.client
import sys
from urllib.parse import urlsplit


def main() -> int:
    options, addresses = getopt.gnu_getopt(sys.argv[1:], "sH:d:o:w:")
    given = [text for name, text in options if name == "-H"]
    named = dict(options)
    parts = urlsplit(addresses[0])
    try:
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        body = named["-d"].replace("\n", "").encode() if "-d" in named else None
        connection.request("POST" if body is not None else "GET", target, body, dict(_header(text) for text in given))
        answer = connection.getresponse()
        said = answer.read().decode()
    except OSError:
        return 7
    if "-o" not in named:
        sys.stdout.write(said)
    if "-w" in named:
        kind = answer.getheader("content-type", "")
        told = named["-w"].replace("%{http_code}", str(answer.status)).replace("%{content_type}", kind)
        sys.stdout.write(told.replace("\\n", "\n"))
    return 0


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name, value.strip()


if __name__ == "__main__":
    sys.exit(main())
