"""`callslip notify`: try the receivers of notifications."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click

from callslip.cli import exit_status
from callslip.cli.commands.reach import NOTIFY_FILE, check_public_url, read_notify_settings
from callslip.cli.options import json_option, wants_json
from callslip.cli.terminal import tables
from callslip.client.location import data_folder
from callslip.errors import NotFoundError

if TYPE_CHECKING:
    from callslip.notify.post import Outcome
    from callslip.notify.settings import NotifySettings


@click.group()
def notify() -> None:
    """Try notifications."""


@notify.command("test")
@click.option(
    "--notify",
    "path",
    metavar="FILE",
    help=f"The settings of notifications. [default: {NOTIFY_FILE} in the user's data folder]",
)
@click.option("--public-url", metavar="URL", default="", help="The address of the server, for the link.")
@json_option
def send_test(path: str | None, public_url: str) -> int:
    """Send a test message to every webhook.

    It is sent once, without retries. The exit status is 1 if a receiver did not accept it.
    """
    settings = read_notify_settings(path)
    if settings is None:
        raise NotFoundError(f"no file {data_folder() / NOTIFY_FILE}; write one, or name one with --notify")
    public_url = check_public_url(public_url, "--public-url") if public_url else ""
    outcomes = asyncio.run(_send(settings, public_url))
    for webhook, outcome in zip(settings.webhooks, outcomes, strict=True):
        if wants_json():
            tables.write_json({"host": webhook.name, "format": webhook.format, "problem": outcome.problem or None})
        tables.print_status(f"{webhook.name}: {outcome.problem or 'OK'}")
    if not outcomes:
        tables.print_status("the file has no webhook")
    return exit_status.FAILED if any(outcome.problem for outcome in outcomes) else exit_status.OK


async def _send(settings: NotifySettings, public_url: str) -> list[Outcome]:
    from callslip.notify.messages import encode_message, example_message
    from callslip.notify.post import post

    message = example_message(int(time.time() * 1000), public_url)
    requests = [(webhook, encode_message(webhook, message, int(time.time()))) for webhook in settings.webhooks]
    return await asyncio.gather(
        *(post(webhook, body, headers, settings.networks) for webhook, (body, headers) in requests)
    )
