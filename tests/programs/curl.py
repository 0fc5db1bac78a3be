"""Run the subset of curl that the docs use, for machines without curl: -s, -H, -d, -o and -w."""

from __future__ import annotations

import getopt
import http.client
import sys
from urllib.parse import urlsplit


def main() -> int:
    options, urls = getopt.gnu_getopt(sys.argv[1:], "sH:d:o:w:")
    headers = [text for name, text in options if name == "-H"]
    values = dict(options)
    parts = urlsplit(urls[0])
    try:
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        body = values["-d"].replace("\n", "").encode() if "-d" in values else None
        connection.request(
            "POST" if body is not None else "GET", target, body, dict(_parse_header(text) for text in headers)
        )
        response = connection.getresponse()
        content = response.read().decode()
    except OSError:
        return 7
    if "-o" not in values:
        sys.stdout.write(content)
    if "-w" in values:
        content_type = response.getheader("content-type", "")
        text = values["-w"].replace("%{http_code}", str(response.status)).replace("%{content_type}", content_type)
        sys.stdout.write(text.replace("\\n", "\n"))
    return 0


def _parse_header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name, value.strip()


if __name__ == "__main__":
    sys.exit(main())
