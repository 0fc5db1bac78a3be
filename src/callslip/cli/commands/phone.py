"""Sign in with a phone: QR codes on the terminal of a server, and `callslip admin token qr`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from callslip.cli.terminal import tables
from callslip.cli.terminal.keys import can_prompt, read_keys
from callslip.cli.terminal.qr_code import draw_text
from callslip.errors import CallslipError, InvalidInputError

if TYPE_CHECKING:
    from callslip.api.access import Verb
    from callslip.api.ledger import LocalLedger
    from callslip.model.records import TokenRecord

RIGHTS: tuple[Verb, ...] = ("read", "approve")
LABEL = "phone"
KEY = "q"


def sign_in_url(url: str, code: str) -> str:
    """Return the address that signs a browser in. The code is in the fragment, which no browser sends to a server."""
    return f"{url}/#sign-in={code}"


async def create_sign_in(
    ledger: LocalLedger, url: str, verbs: tuple[Verb, ...] = RIGHTS, label: str = LABEL
) -> tuple[str, TokenRecord]:
    """Create a sign-in code. Return the address with it, and its record."""
    from callslip.api.tokens import create_code
    from callslip.client.token_file import hash_token, mint_code

    code = mint_code()
    return sign_in_url(url, code), await create_code(ledger.log, hash_token(code), verbs=verbs, label=label)


def print_qr_code(url: str) -> None:
    """Draw a QR code on stderr, unless the address is too long for one."""
    has_colors = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    try:
        drawing = draw_text(url, has_colors=has_colors)
    except InvalidInputError:
        return tables.print_status("the address is too long for a QR code; open it on the phone")
    sys.stderr.write(drawing + "\n")
    sys.stderr.flush()


class PhoneSignIn:
    """The sign-in code on the terminal of a server. A new code revokes the one before."""

    def __init__(self, ledger: LocalLedger, url: str) -> None:
        self._ledger = ledger
        self._url = url
        self._record: TokenRecord | None = None

    async def show(self) -> None:
        """Create a code, and draw it."""
        await self._revoke()
        url, self._record = await create_sign_in(self._ledger, self._url)
        print_qr_code(url)
        tables.print_status(f"Scan it with a phone, or open {url}")
        tables.print_status(f"It works once, for two minutes. Press {KEY} for a new one.")

    async def _revoke(self) -> None:
        from callslip.api.tokens import revoke_token

        record, self._record = self._record, None
        if record is not None:
            with contextlib.suppress(CallslipError):  # It was used, or has expired.
                await revoke_token(self._ledger.log, record.id)

    async def _read_keys(self) -> None:
        async with read_keys() as keys:
            while True:
                if await keys.get() == KEY:
                    try:
                        await self.show()
                    except CallslipError as error:
                        tables.print_status(f"no new code: {error}")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Show a new code at each press of the key while the block runs, then revoke the last one."""
        task = asyncio.ensure_future(self._read_keys())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._revoke()

    @staticmethod
    def can_show() -> bool:
        """Return whether there is a terminal to draw on and to read keys from."""
        return can_prompt() and sys.stderr.isatty()
