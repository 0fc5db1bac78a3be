// `/c/{call}`: looks the call up, by whatever id it is known, and goes to its session with its card open.

import { html, useEffect, useState } from "./ui.js";
import { get, go, link, route } from "./state.js";

export default function Call() {
  const { call = "" } = route.value;
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let left = false;
    get(`/v1/calls/${encodeURIComponent(call)}`).then(
      (row) => left || go(`/s/${encodeURIComponent(row.session)}#entry-${row.entry}`, { replace: true }),
      (error) => left || setProblem(error.message),
    );
    return () => (left = true);
  }, [call]);
  if (!problem) return html`<p class="loading" role="status">Looking for the call…</p>`;
  return html`<section class="notice" role="alert">
    <h1>This call was not found</h1>
    <p class="foreign" dir="auto">${problem}</p>
    <p class="dim">An id may be written in short, as long as it fits one call only. Its session may have been
      deleted.</p>
    <p><a class="button" ...${link("/")}>All sessions</a></p>
  </section>`;
}
