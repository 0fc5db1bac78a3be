"""Updates do not disturb a user who types, views the history or follows links."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import expect

from tests.support.browser import Server, Tab, chromium, in_browser
from tests.support.sample_sessions import event

GO_TO_PATH = "async (path) => (await import('/web/state.js')).go(path)"
SHOW_PAST = "async (at) => (await import('/web/state.js')).showPast(at)"
LOAD_OLDER = "async () => { await (await import('/web/row_state.js')).loadOlder(); }"
FIND_GAPS = """async () => {
    const ids = (await import('/web/state.js')).order.value;
    return ids.filter((id, at) => at && id !== ids[at - 1] + 1);
}"""


def make_proposals(name: str, count: int) -> list[dict[str, Any]]:
    """Return proposals, each of which creates an entry."""
    return [event("call.proposed", f"{name}-{n}", toolName="shell", title=f"{name} {n}") for n in range(count)]


def append_request(site: Server, session: str) -> int:
    """Append a call that waits for approval, and return the last seq."""
    return site.append(session, *make_proposals(session, 1), event("approval.requested", f"{session}-0"))


@in_browser
def test_link_within_the_page_opens_its_card(site: Server) -> None:
    """A link works from a list, and from another session whose entries have the same IDs."""
    for name in ("here", "there"):
        site.append(name, *make_proposals(name, 6))
    titles = {entry["id"]: entry["title"].split()[1] for entry in site.entries("here")}
    tab = site.window().tab("/")
    for name, entry in (("here", 4), ("there", 4), ("here", 3)):
        tab.page.evaluate(GO_TO_PATH, f"/s/{name}#entry-{entry}")
        row = tab.page.locator(f".row[data-id='{entry}']")
        expect(row.locator(".call-title")).to_have_text(f"{name} {titles[entry]}")
        expect(row.locator(".call-title")).to_be_focused()
        expect(row.get_by_role("button", name="Close in place")).to_have_attribute("aria-expanded", "true")
    tab.assert_no_problems()


@in_browser
def test_past_does_not_show_later_changes(site: Server) -> None:
    """The past shows neither a later decision of this tab nor a full output that it loaded."""
    before = append_request(site, "unanswered")
    tab = site.window().tab("/s/unanswered")
    tab.page.get_by_role("button", name="Approve", exact=True).click()
    expect(tab.page.locator(".row-permission_request")).to_contain_text("Approved by")
    tab.page.evaluate(SHOW_PAST, before)
    tab.page.get_by_text("At event").wait_for()
    expect(tab.page.locator(".row-permission_request")).not_to_contain_text("Approved")
    start = [event("call.started", "big", toolName="shell"), event("call.progress", "big", text="first line\n")]
    before = site.append("unfinished", *start)
    site.append("unfinished", event("call.completed", "big", output="\n".join(f"line {n}" for n in range(20_000))))
    tab.page.evaluate(GO_TO_PATH, f"/s/unfinished#entry-{site.entries('unfinished')[0]['id']}")
    tab.page.get_by_role("button", name="Load full output").click()
    tab.page.get_by_text("Full output, ").wait_for()
    tab.page.evaluate(SHOW_PAST, before)
    expect(tab.page.locator(".outputs")).to_contain_text("first line")
    expect(tab.page.locator(".outputs")).not_to_contain_text("line 19999")
    tab.assert_no_problems()


@in_browser
def test_older_sessions_are_loaded_by_a_button(site: Server) -> None:
    """The server pushes a few hundred sessions. An error while loading older ones is shown."""
    for number in range(202):
        site.append(f"many-{number:03}", event("message.user", text=f"one-of-many-{number:03}"))
    tab = site.window().tab("/")
    first = tab.page.get_by_role("link", name="one-of-many-000")
    more = tab.page.get_by_role("button", name="Load older sessions")
    more.wait_for()
    assert first.count() == 0
    url = re.compile(r"/v1/sessions\?limit=1000")
    tab.page.route(url, lambda route: route.abort())
    more.click()
    expect(tab.page.get_by_role("alert")).to_contain_text("Could not load")
    tab.page.unroute(url)
    more.click()
    first.wait_for()
    expect(more).to_have_count(0)
    expect(tab.page.get_by_role("alert")).to_have_count(0)
    tab.ignore_problems("net::ERR_FAILED")
    tab.assert_no_problems()


@in_browser
def test_typing_in_a_card_is_not_interrupted(site: Server) -> None:
    """The card stays in place while entries are added below it."""
    append_request(site, "written")
    tab = site.window().tab("/s/written")
    reason = tab.page.locator(".request input.reason")
    reason.click()
    tab.page.keyboard.type("half a rea")
    for number in range(3):
        tab.wait_for_seq(site.append("written", *make_proposals(f"more {number}", 20)))
    tab.page.keyboard.type("son")
    expect(reason).to_be_focused()
    assert reason.input_value() == "half a reason"
    tab.assert_no_problems()


@in_browser
def test_linked_entry_stays_in_view(site: Server) -> None:
    """The view does not follow the end, although the linked entry is close to it."""
    seq = site.append(
        "near-the-end", *make_proposals("near-the-end", 40), event("message.user", text="What is the result?")
    )
    entry = site.entries("near-the-end")[-1]["id"]
    tab = site.window().tab(f"/s/near-the-end#entry-{entry}")
    expect(tab.page.locator(f"#entry-{entry}")).to_be_focused()
    tab.page.wait_for_timeout(200)  # Let the scroll position settle.
    tab.wait_for_seq(seq)
    tab.wait_for_seq(site.append("near-the-end", *make_proposals("after it", 40)))
    expect(tab.page.locator(f"#entry-{entry}")).to_be_in_viewport()
    tab.page.get_by_role("button", name="Jump to latest").click()
    expect(tab.page.get_by_text("after it 39").first).to_be_in_viewport()
    tab.wait_for_seq(site.append("near-the-end", *make_proposals("at last", 1)))
    expect(tab.page.get_by_text("at last 0").first).to_be_in_viewport()
    tab.assert_no_problems()


class DelayedRequest:
    """Delay the next request for older entries until `release()`; later requests are not delayed."""

    def __init__(self, tab: Tab) -> None:
        self.routes: list[Any] = []
        tab.page.route(
            "**/v1/sessions/*?format=entries*",
            lambda route: route.continue_() if self.routes else self.routes.append(route),
        )
        tab.page.evaluate(f"() => void ({LOAD_OLDER})()")
        tab.until(lambda: self.routes, "the request")

    def release(self) -> None:
        self.routes[0].continue_()


@in_browser
def test_older_entries_that_arrive_after_a_snapshot_leave_no_gap(site: Server) -> None:
    """They do not fit the snapshot, and are requested again."""
    site.append("gap", *make_proposals("gap", 3000))
    tab = site.window().tab("/s/gap")
    tab.until(tab.rows, "entries")
    tab.page.evaluate(LOAD_OLDER)
    delayed = DelayedRequest(tab)
    count = "async () => (await import('/web/state.js')).order.value.length"
    before = tab.page.evaluate(count)
    tab.page.evaluate("() => dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    tab.until(lambda: tab.page.evaluate(count) < before, "the snapshot")
    delayed.release()
    tab.until(lambda: tab.page.evaluate(count) > 1000, "older entries than those of the snapshot")
    assert tab.page.evaluate(FIND_GAPS) == []
    tab.assert_no_problems()


@in_browser
def test_link_works_while_another_session_loads_older_entries(site: Server) -> None:
    """The request of the previous session does not block the new one."""
    site.append("gone-from", *make_proposals("gone-from", 1500))
    site.append("gone-to", *make_proposals("gone-to", 1500))
    tab = site.window().tab("/s/gone-from")
    tab.until(tab.rows, "entries")
    delayed = DelayedRequest(tab)
    first = site.entries("gone-to")[0]["id"]
    tab.page.evaluate(GO_TO_PATH, f"/s/gone-to#entry-{first}")
    tab.page.get_by_text("gone-to 1499").first.wait_for()
    delayed.release()
    expect(tab.page.locator(f"#entry-{first}")).to_contain_text("gone-to 0")
    tab.assert_no_problems()


def end_workers(tab: Tab) -> None:
    """End the shared workers of the page, as a browser that is low on memory may do."""
    browser = chromium().browser.new_browser_cdp_session()
    for target in browser.send("Target.getTargets", {"filter": [{}]})["targetInfos"]:
        if target["type"] == "shared_worker" and target["url"].startswith(tab.page.url.partition("/s/")[0]):
            session = browser.send("Target.attachToTarget", {"targetId": target["targetId"], "flatten": False})
            message = json.dumps({"id": 1, "method": "Runtime.evaluate", "params": {"expression": "self.close()"}})
            browser.send("Target.sendMessageToTarget", {"sessionId": session["sessionId"], "message": message})


@in_browser
def test_page_continues_without_its_shared_worker(site: Server) -> None:
    """Later events are still shown."""
    site.append("worker", *make_proposals("worker", 2))
    tab = site.window().tab("/s/worker")
    tab.until(lambda: tab.state("status") == "live", "that it is live")
    end_workers(tab)
    tab.wait_for_seq(site.append("worker", *make_proposals("afterwards", 1)))
    expect(tab.page.locator("main")).to_contain_text("afterwards 0")
    tab.assert_no_problems()
