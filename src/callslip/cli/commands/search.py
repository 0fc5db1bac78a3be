"""`callslip search`: find messages, calls and titles by their words."""

from __future__ import annotations

import shlex
from datetime import datetime

import click

from callslip.api.search import MAX_RANKED, MAX_RESULTS, STATES
from callslip.cli.options import (
    ID,
    db_option,
    json_option,
    open_selected,
    selected_location,
    server_options,
    wants_json,
)
from callslip.cli.terminal import tables
from callslip.model.search import SearchResult, SearchResults, split_excerpt

_LINE_BREAKS = str.maketrans("\r\n\t", "   ")
_TIMES = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])


@click.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--session", type=ID, metavar="ID", help="Only this session.")
@click.option("--project", metavar="FOLDER", default="", help="Only sessions in this folder.")
@click.option("--tool", metavar="NAME", default="", help="Only calls of this tool and requests for it.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES),
    metavar="STATE",
    help="Only calls and requests in this state; may be repeated.",
)
@click.option("--since", type=_TIMES, help="Only from this day or time on.")
@click.option("--until", type=_TIMES, help="Only before this day or time.")
@click.option(
    "--limit", type=click.IntRange(1, MAX_RESULTS), default=20, show_default=True, help="The maximum number of results."
)
@click.option("--cursor", default="", help="Continue after a page: its cursor, as --json prints it.")
@server_options
@db_option
@json_option
def search(
    query: tuple[str, ...],
    session: str | None,
    project: str,
    tool: str,
    states: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    limit: int,
    cursor: str,
) -> None:
    """Search messages, calls and titles.

    An entry is found if its texts, inputs and outputs have all words of QUERY, in any case. Words that punctuation
    joins, such as src/app.py, and words in double quotes must follow one another. Put -- before words that begin with a
    dash: search -- rm -rf
    """
    with open_selected() as selected:
        name = selected.ledger.find_session(session).name if session else ""
        found = selected.ledger.search(
            " ".join(query),
            limit=limit,
            cursor=cursor,
            session=name,
            project=project,
            tool=tool,
            states=states,
            since=_to_ms(since),
            until=_to_ms(until),
        )
        where = "" if selected.is_remote else f" in {selected_location().display_name}"
    if wants_json():
        tables.write_json(found)
        return
    for number, result in enumerate(found.results):
        _print_result(result, is_first=not number)
    _print_notes(found, where, limit)


def _to_ms(time: datetime | None) -> int:
    return int(time.timestamp() * 1000) if time is not None else 0


def _print_result(result: SearchResult, *, is_first: bool) -> None:
    from rich.text import Text

    from callslip.cli.terminal.escape import escape_controls
    from callslip.cli.terminal.formatting import format_date, format_time

    out = tables.console()
    place = f"{result.session}#{result.entry}" if result.entry else result.session
    kind = result.tool or result.role or result.type.replace("_", " ")
    words = [
        f"{format_date(result.at)} {format_time(result.at)}" if result.at else "",
        kind,
        result.state.replace("_", " "),
    ]
    head = Text(escape_controls(place), style="bold")
    head.append("  " + "  ".join(escape_controls(word) for word in words if word), style="not bold")
    if result.parent:
        head.append("  sub-agent", style="not bold dim")
    if result.entry and result.title:
        head.append("  " + escape_controls(result.title), style="not bold dim")
    excerpt = Text("  ")
    for text, is_found in split_excerpt(result):
        line = text.translate(_LINE_BREAKS)
        excerpt.append(escape_controls(line), style="bold yellow" if is_found else "")
    if not is_first:
        out.print()
    tables.print_block(out, head)
    tables.print_block(out, excerpt)


def _print_notes(found: SearchResults, where: str, limit: int) -> None:
    if not found.words:
        tables.print_status("nothing to search for: the query has no letters or digits")
    elif not found.results:
        tables.print_status(f"nothing found{where}")
    if found.cursor:
        tables.print_status(f"showing {limit}; use --limit to show more, or --cursor {shlex.quote(found.cursor)}")
    if found.limited:
        tables.print_status(f"more than {MAX_RANKED:,} entries match; only the newest of them were compared")
    if found.behind:
        tables.print_status("the newest entries of some sessions cannot be found yet; search again in a moment")
