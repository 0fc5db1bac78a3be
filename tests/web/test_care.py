"""What a person does on the page is not lost or mixed up, whatever comes meanwhile: typing, looking back, going on."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import expect

from tests.support.browser import Server, Tab, chromium, in_browser
from tests.support.sample_sessions import event

GO = "async (path) => (await import('/web/state.js')).go(path)"
PAST = "async (at) => (await import('/web/state.js')).showPast(at)"
OLDER = "async () => { await (await import('/web/row_state.js')).loadOlder(); }"
HOLES = """async () => {
    const ids = (await import('/web/state.js')).order.value;
    return ids.filter((id, at) => at && id !== ids[at - 1] + 1);
}"""


def calls(name: str, count: int) -> list[dict[str, Any]]:
    """Proposals, each an entry by its own event."""
    return [event("call.proposed", f"{name}-{n}", toolName="shell", title=f"{name} {n}") for n in range(count)]


def asked(site: Server, session: str) -> int:
    """A session in which a call waits for approval; the seq it is then at."""
    return site.tell(session, *calls(session, 1), event("approval.requested", f"{session}-0"))


@in_browser
def test_a_link_within_the_page_opens_its_card(site: Server) -> None:
    """From a list, and from another session whose entries have the same ids."""
    for name in ("here", "there"):
        site.tell(name, *calls(name, 6))
    titles = {entry["id"]: entry["title"].split()[1] for entry in site.entries("here")}
    tab = site.window().tab("/")
    for name, entry in (("here", 4), ("there", 4), ("here", 3)):
        tab.page.evaluate(GO, f"/s/{name}#entry-{entry}")
        toggle = tab.page.locator(f".row[data-id='{entry}'] .call-toggle")
        expect(toggle).to_contain_text(f"{name} {titles[entry]}")
        expect(toggle).to_have_attribute("aria-expanded", "true")
        expect(toggle).to_be_focused()
    tab.fine()


@in_browser
def test_the_past_knows_nothing_of_what_came_later(site: Server) -> None:
    """Neither an answer that this tab gave, nor a whole output that it fetched."""
    before = asked(site, "unanswered")
    tab = site.window().tab("/s/unanswered")
    tab.page.get_by_role("button", name="Approve", exact=True).click()
    expect(tab.page.locator(".request")).to_contain_text("approved by")
    tab.page.evaluate(PAST, before)
    tab.page.get_by_text("as it was after event").wait_for()
    expect(tab.page.locator(".request")).not_to_contain_text("approved")
    began = [event("call.started", "big", toolName="shell"), event("call.progress", "big", text="first line\n")]
    before = site.tell("unfinished", *began)
    site.tell("unfinished", event("call.completed", "big", output="\n".join(f"line {n}" for n in range(20_000))))
    tab.page.evaluate(GO, f"/s/unfinished#entry-{site.entries('unfinished')[0]['id']}")
    tab.page.get_by_role("button", name="Load the whole").click()
    tab.page.get_by_text("This is the whole output").wait_for()
    tab.page.evaluate(PAST, before)
    expect(tab.page.locator(".outputs")).to_contain_text("first line")
    expect(tab.page.locator(".outputs")).not_to_contain_text("line 19999")
    tab.fine()


@in_browser
def test_sessions_older_than_the_newest_are_a_button_away(site: Server) -> None:
    """Those that the server tells of by itself are a few hundred; if the older do not come, that is said."""
    for number in range(202):
        site.tell(f"one-of-many-{number:03}", event("message.user", text="hello"))
    tab = site.window().tab("/")
    first = tab.page.get_by_role("link", name="one-of-many-000")
    more = tab.page.get_by_role("button", name="Load older sessions")
    more.wait_for()
    assert first.count() == 0
    asked = re.compile(r"/v1/sessions\?limit=1000")
    tab.page.route(asked, lambda route: route.abort())
    more.click()
    expect(tab.page.get_by_role("alert")).to_contain_text("They did not come")
    tab.page.unroute(asked)
    more.click()
    first.wait_for()
    expect(more).to_have_count(0)
    expect(tab.page.get_by_role("alert")).to_have_count(0)
    tab.forgive("net::ERR_FAILED")
    tab.fine()


@in_browser
def test_whoever_writes_in_a_card_goes_on_writing(site: Server) -> None:
    """However much comes below it meanwhile: the card stays where it is."""
    asked(site, "written")
    tab = site.window().tab("/s/written")
    reason = tab.page.locator(".request input.reason")
    reason.click()
    tab.page.keyboard.type("half a rea")
    for number in range(3):
        tab.reaches(site.tell("written", *calls(f"more {number}", 20)))
    tab.page.keyboard.type("son")
    expect(reason).to_be_focused()
    assert reason.input_value() == "half a reason"
    tab.fine()


@in_browser
def test_whoever_came_by_a_link_is_not_taken_along_to_the_end(site: Server) -> None:
    """Although what they came for is so near the end that the window stands there."""
    seq = site.tell("near-the-end", *calls("near-the-end", 40), event("message.user", text="What came of it?"))
    entry = site.entries("near-the-end")[-1]["id"]
    tab = site.window().tab(f"/s/near-the-end#entry-{entry}")
    expect(tab.page.locator(f"#entry-{entry}")).to_be_focused()
    tab.page.wait_for_timeout(200)  # Whatever still moves the window has done so.
    tab.reaches(seq)
    tab.reaches(site.tell("near-the-end", *calls("after it", 40)))
    expect(tab.page.locator(f"#entry-{entry}")).to_be_in_viewport()
    tab.page.get_by_role("button", name="jump to the end").click()
    expect(tab.page.get_by_text("after it 39").first).to_be_in_viewport()
    tab.reaches(site.tell("near-the-end", *calls("at last", 1)))
    expect(tab.page.get_by_text("at last 0").first).to_be_in_viewport()
    tab.fine()


class Held:
    """The next question for older entries waits until it is let go; those after it do not."""

    def __init__(self, tab: Tab) -> None:
        self.routes: list[Any] = []
        tab.page.route(
            "**/v1/sessions/*?format=entries*",
            lambda route: route.continue_() if self.routes else self.routes.append(route),
        )
        tab.page.evaluate(f"() => void ({OLDER})()")
        tab.until(lambda: self.routes, "the question")

    def let_go(self) -> None:
        self.routes[0].continue_()


@in_browser
def test_older_entries_that_come_after_a_snapshot_leave_no_hole(site: Server) -> None:
    """They do not belong to what the snapshot shows, and are asked for anew."""
    site.tell("gap", *calls("gap", 3000))
    tab = site.window().tab("/s/gap")
    tab.until(tab.rows, "entries")
    tab.page.evaluate(OLDER)
    held = Held(tab)
    count = "async () => (await import('/web/state.js')).order.value.length"
    before = tab.page.evaluate(count)
    tab.page.evaluate("() => dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    tab.until(lambda: tab.page.evaluate(count) < before, "the snapshot")
    held.let_go()
    tab.until(lambda: tab.page.evaluate(count) > 1000, "older entries than those of the snapshot")
    assert tab.page.evaluate(HOLES) == []
    tab.fine()


@in_browser
def test_a_link_is_followed_while_another_session_still_waits_for_older_entries(site: Server) -> None:
    """The question of the session that was left is not the question of this one."""
    site.tell("gone-from", *calls("gone-from", 1500))
    site.tell("gone-to", *calls("gone-to", 1500))
    tab = site.window().tab("/s/gone-from")
    tab.until(tab.rows, "entries")
    held = Held(tab)
    first = site.entries("gone-to")[0]["id"]
    tab.page.evaluate(GO, f"/s/gone-to#entry-{first}")
    tab.page.get_by_text("gone-to 1499").first.wait_for()
    held.let_go()
    expect(tab.page.locator(f"#entry-{first}")).to_contain_text("gone-to 0")
    tab.fine()


def end_workers(tab: Tab) -> None:
    """As a browser that is short of memory may do."""
    browser = chromium().browser.new_browser_cdp_session()
    for found in browser.send("Target.getTargets", {"filter": [{}]})["targetInfos"]:
        if found["type"] == "shared_worker" and found["url"].startswith(tab.page.url.partition("/s/")[0]):
            session = browser.send("Target.attachToTarget", {"targetId": found["targetId"], "flatten": False})
            message = json.dumps({"id": 1, "method": "Runtime.evaluate", "params": {"expression": "self.close()"}})
            browser.send("Target.sendMessageToTarget", {"sessionId": session["sessionId"], "message": message})


@in_browser
def test_a_page_outlives_the_worker_that_follows_for_it(site: Server) -> None:
    """What happens afterwards is shown all the same."""
    site.tell("worker", *calls("worker", 2))
    tab = site.window().tab("/s/worker")
    tab.until(lambda: tab.state("status") == "live", "that it is live")
    end_workers(tab)
    tab.reaches(site.tell("worker", *calls("afterwards", 1)))
    expect(tab.page.locator("main")).to_contain_text("afterwards 0")
    tab.fine()
