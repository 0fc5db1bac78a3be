"""How the page notifies its user: the title, the icon and notifications. How a phone signs in, and the inbox on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from playwright.sync_api import expect

from tests.support.browser import Server, Tab, in_browser, serving
from tests.support.cli_process import run
from tests.support.sample_sessions import OPTIONS, event

RECORD_NOTIFICATIONS = """
// A browser without a screen shows no notification and denies the permission, so this class takes the place of its own.
globalThis.Notification = class extends EventTarget {
  static permission = localStorage.getItem("test.permission") ?? "default";
  static async requestPermission() {
    localStorage.setItem("test.permission", "granted");
    return (this.permission = "granted");
  }
  constructor(title, { body, tag }) {
    super();
    for (const other of globalThis.__notifications ?? []) if (other.tag === tag && other.isOpen) other.close();
    Object.assign(this, { title, body, tag, isOpen: true });
    (globalThis.__notifications ??= []).push(this);
  }
  close() {
    this.isOpen = false;
    this.onclose?.();
  }
};
"""


@pytest.fixture(scope="module")
def server(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server whose pending requests are those of these tests, and keep its folder."""
    folder = tmp_path_factory.mktemp("notifications")
    with serving(folder) as running:
        running.folder = folder  # type: ignore[attr-defined]
        yield running


def ask(server: Server, session: str, title: str) -> str:
    """Request an approval and return its id."""
    alias = f"{session} {title}"
    server.append(
        session,
        event("call.proposed", alias, toolName="shell", title=title, input={"command": title}),
        event("approval.requested", alias, description=title, options=OPTIONS),
    )
    rows = server.request(f"/v1/approvals?session={session}")["approvals"]
    return next(row["approval"] for row in rows if row["description"] == title)


def deny(server: Server, approval: str) -> None:
    server.request(f"/v1/approvals/{approval}", {"decision": "deny"})


def notifications(tab: Tab) -> list[tuple[str, str, bool]]:
    """Return the title, the text and whether it is open, of each notification that a tab has shown."""
    return [
        (one["title"], one["body"], one["isOpen"])
        for one in tab.page.evaluate(
            "(globalThis.__notifications ?? []).map(({ title, body, isOpen }) => ({ title, body, isOpen }))"
        )
    ]


def has_badge(tab: Tab) -> bool:
    return "circle" in unquote(tab.page.get_attribute("link[rel=icon]", "href") or "")


@in_browser
def test_the_title_and_the_icon_show_pending_requests(server: Server) -> None:
    """NTF11: in every view, until the requests are answered."""
    tab = server.window().tab("/commands")
    expect(tab.page).to_have_title("Commands · Callslip")
    assert not has_badge(tab)
    first, second = ask(server, "title", "one"), ask(server, "title", "two")
    expect(tab.page).to_have_title("(2) Commands · Callslip")
    assert has_badge(tab)
    deny(server, first)
    tab.go("/s/title")
    expect(tab.page).to_have_title("(1) title · Callslip")
    deny(server, second)
    expect(tab.page).to_have_title("title · Callslip")
    assert not has_badge(tab)
    tab.assert_no_problems()


@in_browser
def test_one_of_several_tabs_notifies_the_user(server: Server) -> None:
    """NTF12: after the button was pressed, once for each request; an answer anywhere closes the notification."""
    server.append("bell", event("session.info", agent="codex"))
    before = ask(server, "bell", "before")
    window = server.window()
    window.context.add_init_script(RECORD_NOTIFICATIONS)
    tabs = [window.tab(path) for path in ("/inbox", "/", "/commands")]
    button = tabs[0].page.get_by_role("button", name="Notify me")
    button.click()
    expect(tabs[0].page.get_by_role("button", name="Notifications on")).to_have_attribute("aria-pressed", "true")
    for tab in tabs[1:]:
        tab.reload()
        expect(tab.page.get_by_role("status").first).to_contain_text("Live")
    approval = ask(server, "bell", "rm -rf <b>all</b>")
    tab = tabs[0].until(lambda: next((tab for tab in tabs if notifications(tab)), None), "a notification")
    shown = [one for each in tabs for one in notifications(each)]
    assert shown == [("codex waits for your answer", "rm -rf <b>all</b>", True)]
    tab.page.evaluate("__notifications[0].onclick()")
    expect(tab.page).to_have_url(re.compile(r"/s/bell#entry-\d+$"))
    expect(tab.page.get_by_text("rm -rf <b>all</b>").first).to_be_visible()
    second = ask(server, "bell", "second")
    tab.until(lambda: [one for each in tabs for one in notifications(each) if one[1] == "second"], "the second one")
    (owner,) = [each for each in tabs if any(one[1] == "second" for one in notifications(each))]
    tabs.remove(owner)
    owner.assert_no_problems()
    owner.page.close()
    tab = tabs[0]
    tab.until(
        lambda: [one for each in tabs for one in notifications(each) if one[1] == "second"], "that of another tab"
    )
    deny(server, second)
    tab.until(lambda: not [one for each in tabs for one in notifications(each) if one[2]], "that it is closed")
    for each in (before, approval):
        deny(server, each)
    for each in tabs:
        each.assert_no_problems()


@in_browser
def test_a_notification_of_an_agent_ends_when_it_works_again(server: Server) -> None:
    """NTF12: that it has finished, or is idle."""
    server.append("ends", event("session.info", agent="codex"), event("turn.started"))
    window = server.window()
    window.context.add_init_script(RECORD_NOTIFICATIONS)
    window.context.add_init_script("localStorage.setItem('callslip.notifications', 'on')")
    window.context.add_init_script("Notification.permission = 'granted'")
    tab = window.tab("/")
    expect(tab.page.get_by_text("ends", exact=True).first).to_be_visible()
    show = """async (kind) => {
      const { newNotice } = await import("/web/state.js");
      const title = `codex is ${kind}`;
      newNotice.value = { id: `${kind} ends`, kind, session: "ends", entry: 0, title, text: "T" };
    }"""
    server.append("ends", event("turn.ended"))
    state = "import('/web/state.js').then(({ sessions }) => sessions.value.get('ends')?.state)"
    tab.until(lambda: tab.page.evaluate(state) == "idle", "that the turn has ended")
    for kind in ("finished", "idle"):
        tab.page.evaluate(show, kind)
    tab.until(
        lambda: notifications(tab) == [("codex is finished", "T", False), ("codex is idle", "T", True)],
        "that the second one replaces the first",
    )
    server.append("ends", event("turn.started"))
    tab.until(lambda: not [one for one in notifications(tab) if one[2]], "that it is closed")
    tab.assert_no_problems()


WATCH = """async () => {
  const { NoticeWatch } = await import("/web/notices.js");
  const real = globalThis.setTimeout, delays = new Set(), shown = [], answered = [];
  const watch = new NoticeWatch(({ id, title, text }) => shown.push([id, title, text]), (id) => answered.push(id));
  const topic = (name, rows) => watch.receive("topic", { topic: name, rows });
  const session = (name, state) => ({ session: name, state, agent: "codex", title: "T " + name });
  const changed = (...fields) => watch.receive("row", { topic: "sessions", id: fields[0], row: session(...fields) });
  const request = (id) => ({ approval: id, session: "s", entry: 1, description: id });
  const requested = (row) => watch.receive("row", { topic: "inbox", id: row.approval, row });

  // Only what the work does at once is not delayed: other parts of the page have timers too.
  async function withoutDelay(work) {
    globalThis.setTimeout = (done, delay) => (delays.add(delay), real(done, 0));
    work();
    globalThis.setTimeout = real;
    await new Promise((done) => real(done, 20));
    return shown.length;
  }

  const before = await withoutDelay(() => {
    const running = ["a", "d", "e"].map((name) => session(name, "running"));
    topic("sessions", [...running, session("b", "idle")]);
    topic("inbox", [request("old")]);
    for (const state of ["waiting", "idle", "running"]) changed("a", state);  // The next turn has begun.
    changed("b", "idle");
    changed("new", "idle");
    requested(request("short"));
    watch.receive("row", { topic: "inbox", id: "short", gone: true });  // A rule has answered it.
    requested({ ...request("other"), answerAt: "an editor" });
  });
  await withoutDelay(() => {
    changed("c", "running");
    changed("c", "idle");
    changed("e", "idle");
    watch.receive("row", { topic: "sessions", id: "e", gone: true });
  });
  await withoutDelay(() => {
    topic("sessions", [session("a", "running"), session("b", "idle"), session("c", "idle"), session("d", "ended")]);
    changed("c", "running");
    changed("a", "ended");
    changed("a", "ended");
    requested(request("one"));
    requested(request("one"));
    topic("inbox", [request("old"), request("one"), { ...request("two"), session: "a" }]);  // After a lost connection.
  });
  return { before, shown, delays: [...delays], answered: answered.filter((id) => id.endsWith(" c")) };
}"""


@in_browser
def test_the_browser_notifies_of_what_is_new_and_lasts(site: Server) -> None:
    """NTF12: not of what was there before, was answered at once, or continues; agents that have finished are named.

    What happened while the connection was lost is news.
    """
    result = site.window().tab("/commands").page.evaluate(WATCH)
    assert result["before"] == 0 and sorted(result["delays"]) == [2_000, 10_000, 300_000]
    assert result["shown"] == [
        ["finished c", "codex has finished", "T c"],
        ["idle c", "codex is idle", "T c"],
        ["finished d", "codex has finished", "T d"],
        ["finished a", "codex has finished", "T a"],
        ["one", "An agent waits for your answer", "one"],
        ["two", "codex waits for your answer", "two"],
    ]
    assert result["answered"] == ["finished c", "idle c"] * 2, "what was shown of an agent that works again is over"


@in_browser
def test_a_code_in_the_address_signs_a_phone_in(server: Server) -> None:
    """PHN7: it works once and leaves the address; without a token the page asks for one, and keeps the link."""
    approval = ask(server, "phone", "from the phone")
    (row,) = [row for row in server.request("/v1/approvals")["approvals"] if row["approval"] == approval]
    folder = server.folder  # type: ignore[attr-defined]
    shown = run("admin", "token", "qr", "--url", server.url, "--db", str(folder / "ledger.db"))
    fragment = shown.stdout.strip().partition("/#")[2]
    assert fragment.startswith("sign-in="), shown.stderr
    tab = server.window("dark", 380, has_touch=True).signed_out_tab(f"/s/phone#entry-{row['entry']}")
    form = tab.page.locator("form.token")
    expect(form).to_have_attribute("action", f"/s/phone#entry-{row['entry']}")
    expect(tab.page.get_by_role("button", name="Approve")).to_have_count(0)
    assert tab.find_overflow() == [] and tab.axe_violations() == []
    tab.ignore_problems("401")

    tab.page.goto("about:blank")
    tab.go(f"/inbox#{fragment}")
    expect(tab.page.get_by_role("heading", name="Inbox")).to_be_visible()
    assert tab.page.url == f"{server.url}/inbox"
    tab.page.locator(f"[data-approval={approval}] .opener").click()
    card = tab.page.locator(f"[data-detail={approval}]")
    card.get_by_role("button", name="Allow once").click()
    expect(card.locator(".decision")).to_contain_text("phone")
    assert server.request(f"/v1/approvals/{approval}")["by"] == "phone"
    tab.assert_no_problems()

    other = server.window("light", 380).signed_out_tab(f"/inbox#{fragment}")
    expect(other.page.get_by_text("unknown, expired or used")).to_be_visible()
    assert other.page.url == f"{server.url}/inbox"
    other.ignore_problems("401")
    other.assert_no_problems()


LONG = "cd /srv/app/releases/2026-11-19 && ./deploy.sh --region eu-central-1 --image registry.example/app:" + "f" * 64


@pytest.mark.parametrize("theme", ["light", "dark"])
@in_browser
def test_the_inbox_fits_a_phone(server: Server, theme: str) -> None:
    """PHN8: at 380 px, with long commands, several requests and their buttons, in both themes."""
    approvals = [ask(server, f"fits-{theme}", text) for text in (f"{LONG} {theme}", "npm publish", "x" * 300)]
    tab = server.window(theme, 380, 780, has_touch=True).tab("/inbox")
    for approval in approvals:
        tab.page.locator(f"[data-approval={approval}] .opener").click()
        detail = tab.page.locator(f"[data-detail={approval}]")
        expect(detail.locator(".bigcmd, .args").first).to_be_visible()
        expect(detail.get_by_role("button", name="Always allow…")).to_be_visible()
        assert tab.find_overflow() == [] and tab.axe_violations() == []
        small = tab.page.evaluate(
            "[...document.querySelectorAll('.answer button, .answer input')].map((one) => one.getBoundingClientRect())"
            ".filter(({ height }) => height < 44).length"
        )
        assert small == 0, "a finger needs 44 px"
        detail.get_by_role("button", name="Back to the list").click()
    assert tab.find_overflow() == [] and tab.axe_violations() == []
    for approval in approvals:
        deny(server, approval)
    tab.assert_no_problems()
