// The page inside an exported HTML file: the session after its last event. There is no server behind the file, so
// nothing here sends a request; unpack.js passes the snapshot.

import { onKey } from "./help.js";
import { batch, html, render } from "./ui.js";
import SessionView from "./session.js";
import { hasServer, loaded, past, seq, sessionName } from "./state.js";

/** @typedef {import("./state.js").Entry} Entry */
/** @typedef {{session: string, seq: number, info: Record<string, any>, entries: Entry[]}} Snapshot */

/** Shortcuts that work in the file; the others go to views that it does not contain. */
const ALLOWED_KEYS = new Set(["/", "j", "k", "o", "Escape"]);

const SharedPage = () => html`<header class="top">
    <p class="brand"><span class="stamp" aria-hidden="true"><i class="i i-check"></i></span><b>Callslip</b></p>
    <p class="dim">Exported session</p>
  </header>
  <main id="main" class="view-session" tabindex="-1"><${SessionView} /></main>`;

/**
 * Load the snapshot as a past moment: it never changes and accepts no input.
 * @param {Snapshot} snapshot
 */
function loadSnapshot({ session, seq: last, info, entries }) {
  batch(() => {
    hasServer.value = false;
    sessionName.value = session;
    seq.value = last;
    past.value = { seq: last, at: 0, type: "", info, entries };
    loaded.value = true;
  });
}

/** @param {Snapshot} snapshot */
export function show(snapshot) {
  const app = Object.assign(document.createElement("div"), { id: "app" });
  document.body.append(app);
  loadSnapshot(snapshot);
  render(html`<${SharedPage} />`, app);
  for (const one of [...document.body.children]) if (one !== app) one.remove();
  addEventListener("keydown", (event) => ALLOWED_KEYS.has(event.key) && onKey(event));
}
