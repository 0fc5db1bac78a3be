"""The example page in plain JavaScript: the commands of a session by message and id, live and after a reload."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.support.browser import LOOKS, Server, Tab, in_browser

READ_CARDS = """() => [...document.querySelectorAll("main > *")].map((one) => one.matches(".command")
  ? [...one.querySelectorAll("code, small, h2 span, pre")].map((part) => part.textContent)
  : [one.className, one.textContent])"""


def post(site: Server, session: str, format: str, *messages: dict[str, Any]) -> None:
    """Post the messages of an agent as its backend sends them."""
    site.request(f"/v1/sessions/{quote(session)}/events?format={format}", list(messages))


def open_page(site: Server, session: str, format: str, **options: Any) -> Tab:
    return site.window(**options).tab(f"/web/example.html?session={quote(session)}&format={format}")


def read_cards(tab: Tab) -> list[list[str]]:
    """Return the texts of each element, from top to bottom."""
    return tab.page.evaluate(READ_CARDS)


def wait_for_cards(tab: Tab, *expected: list[str]) -> None:
    tab.until(lambda: read_cards(tab) == list(expected), f"{expected}")


def command_event(kind: str, number: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "command": "ls", "commandId": f"cmd-0-{number}", **more}


@in_browser
def test_the_example_page_shows_each_command_live_and_after_a_reload(site: Server) -> None:
    """JS3: two equal commands in a message, and the same ids in the next one, each with its own state and result."""
    session = "example shell"
    post(
        site,
        session,
        "shell",
        {"type": "user", "content": "What is there?"},
        {"type": "text", "content": "I look twice. <shell>ls</shell><shell>ls</shell>"},
    )
    first = ["user", "What is there?"], ["text", "I look twice. "]
    tab = open_page(site, session, "shell")
    wait_for_cards(tab, *first, ["ls", "queued", "cmd-0-0"], ["ls", "queued", "cmd-0-1"])
    post(site, session, "shell", command_event("tool-start", 1))
    wait_for_cards(tab, *first, ["ls", "queued", "cmd-0-0"], ["ls", "running", "cmd-0-1"])
    post(site, session, "shell", command_event("tool-result", 1, result="b.txt"))
    wait_for_cards(tab, *first, ["ls", "queued", "cmd-0-0"], ["ls", "completed", "cmd-0-1", "b.txt"])
    post(site, session, "shell", command_event("tool-start", 0), command_event("tool-result", 0, result="a <b>.txt"))
    first_message = (*first, ["ls", "completed", "cmd-0-0", "a <b>.txt"], ["ls", "completed", "cmd-0-1", "b.txt"])
    wait_for_cards(tab, *first_message)
    post(
        site,
        session,
        "shell",
        {"type": "done"},
        {"type": "user", "content": "Again."},
        {"type": "text", "content": "<shell>ls</shell>"},
    )
    tab.until(lambda: [card[:2] for card in read_cards(tab)[-2:]] == [["user", "Again."], ["ls", "queued"]])
    assert read_cards(tab)[:-2] == list(first_message)
    site.append(session, {"type": "message.user", "text": "Hurry."})
    tab.until(lambda: read_cards(tab)[-1] == ["user", "Hurry."])
    post(site, session, "shell", {"type": "text", "content": " Done."}, {"type": "done"})
    tab.until(lambda: ["text", " Done."] in read_cards(tab))
    live = read_cards(tab)
    tab.reload()
    wait_for_cards(tab, *live)
    tab.assert_no_problems()


@in_browser
def test_the_example_page_shows_each_execution_live_and_after_a_reload(site: Server) -> None:
    """JS3: an act and its observe are one card with the name of the tool; an error is shown as one."""
    session = "example acts"
    started = [{"type": "turn.started"}, {"type": "message.user", "text": "Go."}]
    site.append(session, *started)
    one, other = ({"execution_id": f"exec_{digit * 12}", "tool_name": "Search", "call_id": digit} for digit in "ab")
    post(site, session, "act-observe", {"type": "act", **one, "tool_input": {"q": 1}, "status": "running"})
    tab = open_page(site, session, "act-observe")
    running = ['Search {"q":1}', "running"]
    tab.until(lambda: [card[:2] for card in read_cards(tab)[1:]] == [running])
    post(site, session, "act-observe", {"type": "act", **other, "tool_input": {"q": 1}, "status": "running"})
    tab.until(lambda: [card[:2] for card in read_cards(tab)[1:]] == [running, running])
    end = {"result": {"error": "boom"}, "is_error": True, "duration_ms": 5}
    post(site, session, "act-observe", {"type": "observe", **other, **end})
    tab.until(lambda: [card[1] for card in read_cards(tab)[1:]] == ["running", "failed"])
    post(site, session, "act-observe", {"type": "observe", **one, "result": "found", "duration_ms": 5})
    site.append(session, {"type": "turn.ended"})
    tab.until(lambda: [card[1] for card in read_cards(tab)[1:]] == ["completed", "failed"])
    live = read_cards(tab)
    assert live[0] == ["user", "Go."] and live[1][-1] == "found" and '"error": ' in live[2][-1]
    assert len({card[2] for card in live[1:]}) == 2
    tab.reload()
    wait_for_cards(tab, *live)
    tab.assert_no_problems()


@in_browser
def test_the_example_page_reconnects_and_reports_refusals(site: Server) -> None:
    """JS3: a change during a lost connection is shown after it, and a session that does not exist is named."""
    session = "example lost"
    post(site, session, "shell", {"type": "user", "content": "Go."}, {"type": "text", "content": "<shell>ls</shell>"})
    tab = open_page(site, session, "shell")
    wait_for_cards(tab, ["user", "Go."], ["ls", "queued", "cmd-0-0"])
    tab.page.route("**/stream?*", lambda route: route.abort("connectionreset"))
    tab.reload()
    tab.until(lambda: "Not connected" in tab.page.inner_text("#status"))
    post(site, session, "shell", command_event("tool-start", 0))
    tab.page.unroute("**/stream?*")
    tab.page.route("**/stream?*", lambda route: route.fulfill(body='data: {"type": "text", "content"'), times=1)
    wait_for_cards(tab, ["user", "Go."], ["ls", "running", "cmd-0-0"])
    post(site, session, "shell", command_event("tool-result", 0, result="a.txt"))
    wait_for_cards(tab, ["user", "Go."], ["ls", "completed", "cmd-0-0", "a.txt"])
    assert tab.page.inner_text("#status") == "Live."
    tab.go("/web/example.html?session=nowhere")
    tab.until(lambda: "no session 'nowhere'" in tab.page.inner_text("#status.error"))
    tab.ignore_problems("404", "ERR_CONNECTION_RESET")
    tab.assert_no_problems()


@pytest.mark.parametrize(("theme", "width"), LOOKS)
@in_browser
def test_the_example_page_is_accessible_and_fits(site: Server, theme: str, width: int) -> None:
    """JS3: in both themes, without horizontal scrolling on a phone."""
    session = f"example {theme}"
    post(
        site,
        session,
        "shell",
        {"type": "user", "content": "What is there, and does the build pass?"},
        {"type": "text", "content": "I look at the folder first. <shell>ls -la src</shell><shell>make</shell>"},
        {**command_event("tool-start", 0), "command": "ls -la src"},
        {**command_event("tool-result", 0, result="main.py\n" + "x" * 200), "command": "ls -la src"},
        {**command_event("tool-start", 1), "command": "make"},
    )
    tab = open_page(site, session, "shell", theme=theme, width=width)
    tab.until(lambda: len(read_cards(tab)) == 4)
    assert not tab.axe_violations() and not tab.find_overflow()
    tab.assert_no_problems()
