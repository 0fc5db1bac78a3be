// A session that was shared as one file: the page's own view of it, as it stood after its last event. There is no
// server behind the file, so nothing here asks for one; unpack.js hands over what is to be shown.

import { onKey } from "./help.js";
import { batch, html, render } from "./ui.js";
import SessionView from "./session.js";
import { loaded, name, past, seq } from "./state.js";

/** @typedef {import("./state.js").Entry} Entry */
/** @typedef {{session: string, seq: number, info: Record<string, any>, entries: Entry[]}} Snapshot */

/** The keys that go through what is shown; the others go to views that are not here. */
const KEYS = new Set(["/", "j", "k", "o", "Escape"]);

const Shared = () => html`<header class="top">
    <p class="brand"><span class="stamp" aria-hidden="true">✓</span>Callslip</p>
    <p class="dim shared-note">A copy of a session</p>
  </header>
  <main id="main" class="view-session" tabindex="-1"><${SessionView} /></main>`;

/**
 * All of it is past: nothing comes to it, and nobody can answer there.
 * @param {Snapshot} snapshot
 */
function take({ session, seq: last, info, entries }) {
  batch(() => {
    name.value = session;
    seq.value = last;
    past.value = { seq: last, at: 0, type: "", info, entries };
    loaded.value = true;
  });
}

/** @param {Snapshot} snapshot */
export function show(snapshot) {
  const app = Object.assign(document.createElement("div"), { id: "app" });
  document.body.append(app);
  take(snapshot);
  render(html`<${Shared} />`, app);
  for (const one of [...document.body.children]) if (one !== app) one.remove();
  addEventListener("keydown", (event) => KEYS.has(event.key) && onKey(event));
}
