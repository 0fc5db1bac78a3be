// The page: a header, and below it what the address names.

import { inert } from "./ansi.js";
import Header from "./header.js";
import Help, { onKey } from "./help.js";
import { effect, html, lazily, render, untracked, useEffect, useRef } from "./ui.js";
import { Refused, Trouble } from "./connection.js";
import { info, link, loaded, missing, name, picked, route, status, told, watch } from "./state.js";

/** @type {Record<import("./route.js").View, any>} */
const VIEWS = {
  sessions: lazily(() => import("./sessions.js")),
  session: lazily(() => import("./session.js")),
  call: lazily(() => import("./call.js")),
  inbox: lazily(() => import("./inbox.js")),
  commands: lazily(() => import("./board.js")),
  nowhere: Nowhere,
};

/** What only the demo's session has. */
const BreakIt = lazily(() => import("./fault_lab.js"));

/** @type {Record<import("./route.js").View, () => string>} */
const TITLES = {
  sessions: () => "Sessions",
  session: () => inert(info.value.title || name.value),
  call: () => "Call",
  inbox: () => "Inbox",
  commands: () => "Commands",
  nowhere: () => "Not found",
};

function Nowhere() {
  return html`<section class="notice">
    <h1>Nothing is at this address</h1>
    <p>The address <code class="foreign" dir="auto">${inert(location.pathname)}</code> names no view of this page. What
      there is:</p>
    <p class="ways">
      <a class="button" ...${link("/")}>Sessions</a>
      <a class="button" ...${link("/inbox")}>Inbox</a>
      <a class="button" ...${link("/commands")}>Commands</a>
    </p>
  </section>`;
}

function Missing() {
  return html`<section class="notice" role="status">
    <h1>${loaded.value ? "This session was deleted" : "There is no such session"}</h1>
    <p>No session is called <code class="foreign" dir="auto">${inert(name.value)}</code>${loaded.value
        ? " any more; below is what was seen of it. "
        : ", or it is not yours to see. "}If one begins under this name, it is shown here.</p>
    <p><a class="button" ...${link("/")}>All sessions</a></p>
  </section>`;
}

function Main() {
  const { view, session = "", call = "" } = route.value;
  const View = VIEWS[view];
  const nothing = view === "session" && missing.value;
  if (status.value === "refused" && !told.value.size && !loaded.value) return html`<${Refused} />`;
  return html`
    ${nothing && html`<${Missing} />`}
    ${view === "session" && info.value.options?.breakIt && html`<div class="column"><${BreakIt} /></div>`}
    ${(!nothing || loaded.value) && html`<${View} key=${`${view} ${session} ${call}`} />`}`;
}

/** Whoever comes to another view begins at its content, also with a screen reader; whoever is writing is left alone. */
function useArrival(/** @type {string} */ place) {
  const before = useRef(place);
  useEffect(() => {
    if (before.current === place) return;
    before.current = place;
    if (picked.value || document.activeElement?.id === "search") return;
    document.getElementById("main")?.focus({ preventScroll: true });
  }, [place]);
}

function App() {
  const { view, session = "" } = route.value;
  const title = TITLES[view]();
  useArrival(`${view} ${session}`);
  useEffect(() => {
    document.title = `${title} · Callslip`;
  }, [title]);
  useEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return html`<${Header} />
    <${Trouble} />
    <main id="main" class=${`view-${view}`} tabindex="-1"><${Main} /></main>
    <${Help} />`;
}

// What is followed changes with the address, before anything of the new view is drawn.
effect(() => {
  const { session = "" } = route.value;
  untracked(() => watch(session));
});
render(html`<${App} />`, document.getElementById("app"));
