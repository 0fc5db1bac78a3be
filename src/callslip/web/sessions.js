// The list of sessions, latest first, with running calls and pending approvals, and a search over sessions and calls.

import { inert } from "./ansi.js";
import { Empty } from "./empty_state.js";
import { query } from "./header.js";
import { html, signal, useEffect, useMemo, useSignalEffect, useState } from "./ui.js";
import { answerableRequests, get, inbox, link, loadedTopics, sessions } from "./state.js";
import { describeState } from "./states.js";
import { formatAge, isoTime } from "./time.js";

/** @typedef {import("./state.js").Row} Row */

/** The server pushes this many of the latest sessions; older ones are loaded on request. */
const PUSHED_SESSIONS = 200;

/** @type {(row: Row) => [string, string][]} */
const labelsOf = ({ labels }) =>
  labels && typeof labels === "object" ? Object.entries(labels).map(([key, value]) => [key, textOf(value)]) : [];

/** @param {unknown} value */
const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** @param {Row} row @param {string[]} terms */
function matches(row, terms) {
  const text = [row.title, row.session, row.owner, ...labelsOf(row).flat()].join("\n").toLowerCase();
  return terms.every((term) => text.includes(term));
}

/** The number of open calls by session. Reloaded when sessions change, once a second at most. */
const openCalls = signal(/** @type {Map<string, number>} */ (new Map()));
let isLoading = false;
let isStale = false;

async function loadOpenCalls() {
  isStale = true;
  if (isLoading) return;
  isLoading = true;
  try {
    while (isStale) {
      isStale = false;
      const { calls } = await get("/v1/calls?status=queued,awaiting_approval,running&limit=1000");
      const counts = new Map();
      for (const { session } of calls) counts.set(session, (counts.get(session) ?? 0) + 1);
      openCalls.value = counts;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  } catch {
    // The list works without the counts; the connection status shows the problem.
  } finally {
    isLoading = false;
  }
}

/** Count requests by session. @param {Iterable<{session: string}>} requests */
function countBySession(requests) {
  const counts = new Map();
  for (const { session } of requests) counts.set(session, (counts.get(session) ?? 0) + 1);
  return counts;
}

/** @param {number} count @param {string} noun */
const countOf = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** @param {{row: Row, pending: number, running: number, isWaiting: boolean}} props */
function SessionRow({ row, pending, running, isWaiting }) {
  return html`<li>
    <a class="session" data-card ...${link(`/s/${encodeURIComponent(row.session)}`)}>
      <span class="what">
        <span class="name untrusted" dir="auto">${inert(row.title || row.session)}</span>
        ${row.title && html`<code class="id untrusted" dir="auto">${inert(row.session)}</code>`}
        ${labelsOf(row).map(([key, value]) => html`
          <span class="label untrusted" dir="auto">${inert(`${key}: ${value}`)}</span>`)}
      </span>
      <span class="how">
        ${pending > 0 && html`<span class="state is-awaiting_approval">? ${pending} to approve</span>`}
        ${running > 0 && html`<span class="state is-running">● ${running} running</span>`}
        ${row.turn && running <= 0 && !isWaiting && html`<span class="state is-running">● Running</span>`}
        <span class="calls">${row.calls ? countOf(row.calls, "call") : "No calls"}</span>
        <time class="when" datetime=${isoTime(row.updatedAt)}
          title=${isoTime(row.updatedAt)}>${formatAge(row.updatedAt)}</time>
      </span>
    </a>
  </li>`;
}

/** Search for calls by tool, title or ID, on the server. @param {string} words */
function useCallSearch(words) {
  const [results, setResults] = useState(/** @type {Row[]} */ ([]));
  useEffect(() => {
    setResults([]);
    if (words.length < 2) return;
    let isStopped = false;
    const timer = setTimeout(() => {
      const path = `/v1/calls?limit=20&q=${encodeURIComponent(words)}`;
      get(path).then(({ calls }) => isStopped || setResults(calls), () => {});
    }, 200);
    return () => {
      isStopped = true;
      clearTimeout(timer);
    };
  }, [words]);
  return results;
}

/** @param {{row: Row}} props */
function CallRow({ row }) {
  const { glyph, label: word } = describeState(row.state);
  return html`<li>
    <a class="session" data-card ...${link(`/s/${encodeURIComponent(row.session)}#entry-${row.entry}`)}>
      <span class="what">
        <span class=${`state is-${row.state}`}><span aria-hidden="true">${glyph}</span> ${word}</span>
        <span class="name untrusted" dir="auto">${inert(row.title || row.toolName || "Call")}</span>
        <code class="id">${row.call}</code>
      </span>
      <span class="how">
        <span class="untrusted" dir="auto">${inert(row.session)}</span>
        <time class="when">${formatAge(row.createdAt)}</time>
      </span>
    </a>
  </li>`;
}

/** @param {{calls: Row[]}} props */
function CallResults({ calls }) {
  return html`<section aria-labelledby="found-calls">
    <h2 id="found-calls" class="section">Calls</h2>
    <ul class="panel">${calls.map((row) => html`<${CallRow} key=${row.call} row=${row} />`)}</ul>
  </section>`;
}

/** Load sessions older than those that the server pushes. */
function useOlderSessions() {
  const [more, setMore] = useState({ rows: /** @type {Row[]} */ ([]), cursor: "", done: false });
  const [status, setStatus] = useState({ isLoading: false, problem: "" });
  const load = async () => {
    if (status.isLoading) return;
    setStatus({ isLoading: true, problem: "" });
    try {
      const page = await get(`/v1/sessions?limit=1000${more.cursor && `&cursor=${encodeURIComponent(more.cursor)}`}`);
      setMore({ rows: [...more.rows, ...page.sessions], cursor: page.cursor, done: !page.cursor });
      setStatus({ isLoading: false, problem: "" });
    } catch (error) {
      setStatus({ isLoading: false, problem: String(/** @type {Error} */ (error).message) });
    }
  };
  return { ...more, ...status, load };
}

function NoResults() {
  return html`<p class="notice">
    No results for "<b class="untrusted" dir="auto">${query.value}</b>".${" "}
    <button class="button small" onClick=${() => (query.value = "")}>Clear search</button>
  </p>`;
}

export default function SessionList() {
  useSignalEffect(() => void (sessions.value.size && loadOpenCalls()));
  const older = useOlderSessions();
  const searchText = query.value.trim().toLowerCase();
  const rows = useMemo(() => {
    const all = new Map(older.rows.map((row) => [row.session, row]));
    for (const [session, row] of sessions.value) all.set(session, row);
    return [...all.values()].sort((a, b) => b.updatedAt - a.updatedAt);
  }, [sessions.value, older.rows]);
  const matching = searchText ? rows.filter((row) => matches(row, searchText.split(/\s+/))) : rows;
  const calls = useCallSearch(query.value.trim());
  const pendingBySession = countBySession(inbox.value.values());
  const answerableBySession = countBySession(answerableRequests.value);
  if (!loadedTopics.value.has("sessions")) return html`<p class="loading" role="status">Loading sessions…</p>`;
  if (!rows.length) return html`<${Empty} />`;
  const item = (/** @type {Row} */ row) => {
    const pending = answerableBySession.get(row.session) ?? 0;
    const waiting = pendingBySession.get(row.session) ?? 0;
    const running = (openCalls.value.get(row.session) ?? 0) - waiting;
    return html`<${SessionRow} key=${row.session} row=${row} pending=${pending} running=${running}
      isWaiting=${waiting > 0} />`;
  };
  return html`<div class="column">
    <div class="head">
      <h1>Sessions</h1>
      <p class="dim" role="status">
        ${searchText ? `${matching.length} of ${countOf(rows.length, "session")}` : rows.length}</p>
    </div>
    ${matching.length > 0 && html`<ul class="panel sessions">${matching.map(item)}</ul>`}
    ${searchText && calls.length > 0 && html`<${CallResults} calls=${calls} />`}
    ${searchText && !matching.length && !calls.length && html`<${NoResults} />`}
    ${rows.length >= PUSHED_SESSIONS && !older.done && html`<p class="more">
      <button class="button" aria-disabled=${String(older.isLoading)} onClick=${older.load}>
        ${older.isLoading ? "Loading…" : "Load older sessions"}</button>
      ${older.problem && html` <span role="alert">Could not load: ${older.problem}</span>`}</p>`}
  </div>`;
}
