// The page: a header, and below it the view that the address names.

import { inert } from "./ansi.js";
import Header from "./header.js";
import Help, { onKey } from "./help.js";
import { effect, html, lazy, render, untracked, useEffect, useRef } from "./ui.js";
import { AccessDenied, OfflineBanner } from "./connection.js";
import { titleWithCount } from "./notifications.js";
import { signInByAddress } from "./sign_in.js";
import {
  followSession, isMissing, link, loaded, loadedTopics, route, selectedId, sessionName, sessionTitle, status,
} from "./state.js";
import { stopClock } from "./time.js";

/** @type {Record<import("./route.js").View, any>} */
const VIEWS = {
  sessions: lazy(() => import("./sessions.js")),
  session: lazy(() => import("./session.js")),
  call: lazy(() => import("./call.js")),
  inbox: lazy(() => import("./inbox.js")),
  commands: lazy(() => import("./board.js")),
  rules: lazy(() => import("./rules.js")),
  search: lazy(() => import("./search.js")),
  usage: lazy(() => import("./usage.js")),
  notFound: NotFound,
};

/** Views that arrange their own columns (frame.js). The others are in one that scrolls. */
const WITH_COLUMNS = new Set(["session", "sessions", "inbox", "rules", "usage", "commands"]);

/** @type {Record<import("./route.js").View, () => string>} */
const TITLES = {
  sessions: () => "Sessions",
  session: () => inert(sessionTitle.value || sessionName.value),
  call: () => "Call",
  inbox: () => "Inbox",
  commands: () => "Commands",
  rules: () => "Rules",
  search: () => "Search",
  usage: () => "Usage",
  notFound: () => "Page not found",
};

function NotFound() {
  return html`<section class="notice">
    <h1>Page not found</h1>
    <p>There is no page at <code class="untrusted" dir="auto">${inert(location.pathname)}</code>.</p>
    <p class="button-row">
      <a class="button" ...${link("/")}>Sessions</a>
      <a class="button" ...${link("/inbox")}>Inbox</a>
      <a class="button" ...${link("/commands")}>Commands</a>
    </p>
  </section>`;
}

function MissingSession() {
  return html`<section class="notice" role="status">
    <h1>Session "<span class="untrusted" dir="auto">${inert(sessionName.value)}</span>" not found</h1>
    <p>It does not exist, or you do not have access to it. If it is created, it appears here.</p>
    <p><a class="button" ...${link("/")}>All sessions</a></p>
  </section>`;
}

/** @param {{key?: string, children?: any}} props */
const Page = ({ children }) => html`<div class="page" data-scroller tabindex="0">${children}</div>`;

function Main() {
  const { view, session = "", call = "" } = route.value;
  const View = VIEWS[view];
  if (status.value === "refused" && !loadedTopics.value.size && !loaded.value) {
    return html`<${Page}><${AccessDenied} /><//>`;
  }
  if (view === "session" && isMissing.value && !loaded.value) return html`<${Page}><${MissingSession} /><//>`;
  const key = `${view} ${session} ${call}`;
  if (WITH_COLUMNS.has(view)) return html`<${View} key=${key} />`;
  return html`<${Page} key=${key}><${View} /><//>`;
}

/** Move the focus to the content of a new view, also for screen readers, unless the user types in the search field. */
function useFocusOnNavigation(/** @type {string} */ view) {
  const lastView = useRef(view);
  useEffect(() => {
    if (lastView.current === view) return;
    lastView.current = view;
    if (selectedId.value || document.activeElement?.id === "search") return;
    document.getElementById("main")?.focus({ preventScroll: true });
  }, [view]);
}

function App() {
  const { view, session = "" } = route.value;
  const title = titleWithCount(TITLES[view]());
  useFocusOnNavigation(`${view} ${session}`);
  useEffect(() => {
    document.title = title;
  }, [title]);
  useEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return html`<${Header} />
    <${OfflineBanner} />
    <main id="main" class=${`view-${view}`} tabindex="-1"><${Main} /></main>
    <${Help} />`;
}

await signInByAddress();

// What the page shows without a connection is as old as the connection: its clocks stop.
effect(() => stopClock(status.value !== "live" && (loaded.value || loadedTopics.value.size > 0)));

// Follow the session of the address before the new view is drawn.
effect(() => {
  const { session = "" } = route.value;
  untracked(() => followSession(session));
});
render(html`<${App} />`, document.getElementById("app"));
