"""Claim one command and complete it, with only the standard library."""

from __future__ import annotations

import json
import sys
import urllib.request

url, token = sys.argv[1], sys.argv[2]


def post(path: str, body: object) -> bytes:
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode(), headers)) as answer:
        return answer.read()


print("ready", flush=True)
while not (body := post("/v1/calls/claim", {"wait": 30})):
    pass
claim = json.loads(body)
post(f"/v1/calls/{claim['call']}/result", {"result": claim["params"], "fence": claim["fence"]})
print(json.dumps(claim), flush=True)
