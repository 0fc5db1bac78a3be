"""Run `callslip serve` as on another machine: `serve_machine.py MACHINE JSON OPTION...`.

JSON has settings of the ledger, which begin with those of `callslip serve`. Notifications alone tell what other
processes wrote: the database is not polled. Prompts are answered: `hold` waits until its turn ends, and everything else
is repeated.
"""

import asyncio
import json
import sys
from functools import partial
from typing import Any

from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.cli import main
from callslip.cli.commands import serve
from callslip.ledger import liveness
from callslip.settings import Settings
from callslip.store import postgres_notify

NEVER_S = 1e6


async def answer(ledger: LocalLedger, session: str, text: str) -> str:
    """Answer a prompt."""
    if text == "hold":
        async with ledger.session(session).call("held"):
            await asyncio.Event().wait()
    return text


def replace_parts(machine: str, settings: dict[str, Any]) -> None:
    """Replace what makes this process a server of this machine."""
    liveness._machine = liveness._boot = lambda: machine  # type: ignore[assignment] # pyright: ignore
    serve.Settings = partial(Settings, **settings)  # type: ignore[misc,assignment] # pyright: ignore
    http.standalone = partial(http.standalone, answers=answer)
    postgres_notify.LISTENING_POLL_S = NEVER_S


if __name__ == "__main__":
    replace_parts(sys.argv[1], json.loads(sys.argv[2]))
    sys.argv = ["callslip", "serve", *sys.argv[3:]]
    main()
