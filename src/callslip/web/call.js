// `/c/{call}`: look up a call by any of its IDs, and go to its card in its session.

import { html, useEffect, useState } from "./ui.js";
import { get, go, link, route } from "./state.js";

export default function Call() {
  const { call = "" } = route.value;
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let isStopped = false;
    get(`/v1/calls/${encodeURIComponent(call)}`).then(
      (row) => isStopped || go(`/s/${encodeURIComponent(row.session)}#entry-${row.entry}`, { replace: true }),
      (error) => isStopped || setProblem(error.message),
    );
    return () => (isStopped = true);
  }, [call]);
  if (!problem) return html`<p class="loading" role="status">Loading call…</p>`;
  return html`<section class="notice" role="alert">
    <h1>Call not found</h1>
    <p class="untrusted" dir="auto">${problem}</p>
    <p class="dim">A shortened ID must match exactly one call. The call's session may have been deleted.</p>
    <p><a class="button" ...${link("/")}>All sessions</a></p>
  </section>`;
}
