// The list of sessions, the last active first: what each does, and a filter over them and over calls.

import { inert } from "./ansi.js";
import { Empty } from "./empty_state.js";
import { query } from "./header.js";
import { html, useEffect, useMemo, useState } from "./ui.js";
import { answerableRequests, get, inbox, link, loadedTopics, post, remove, sessions } from "./state.js";
import { describeState } from "./states.js";
import { formatAge, formatDuration, isoTime } from "./time.js";

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
  const facts = [row.title, row.prompt, row.session, row.owner, row.agent, row.project, row.branch, row.model];
  const text = [...facts, ...labelsOf(row).flat()].join("\n").toLowerCase();
  return terms.every((term) => text.includes(term));
}

/** Count requests by session. @param {Iterable<{session: string}>} requests */
function countBySession(requests) {
  const counts = new Map();
  for (const { session } of requests) counts.set(session, (counts.get(session) ?? 0) + 1);
  return counts;
}

/** @param {number} count @param {string} noun */
const countOf = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** What a session can be doing, with its words. @type {Record<string, string>} */
const STATES = { running: "Running", waiting: "Waiting for approval", idle: "Idle", ended: "Ended" };

/** What the loaded sessions can be sorted by. @type {Record<string, {words: string, value: (row: Row) => number}>} */
const SORTS = {
  active: { words: "Last activity", value: (row) => row.activeAt },
  started: { words: "Start", value: (row) => row.startedAt },
  duration: { words: "Duration", value: durationOf },
  calls: { words: "Calls", value: (row) => row.calls },
  failed: { words: "Failures", value: (row) => row.failed },
  tokens: { words: "Tokens", value: tokensOf },
};

/** From the first event to the last. @param {Row} row */
function durationOf({ startedAt, activeAt }) {
  return Math.max(0, activeAt - startedAt);
}

/** @param {Row} row */
function tokensOf({ usage }) {
  return (usage?.inputTokens ?? 0) + (usage?.outputTokens ?? 0);
}

/** The last part of a path. @param {string} path */
const baseName = (path) => path.replace(/[/\\]+$/, "").split(/[/\\]/).at(-1) ?? "";

/** A number with few digits: 950, 12k, 3.4M. @param {number} number */
const shortNumber = (number) =>
  Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(number).replace("K", "k");

/** Read labels as `name=value`, separated by commas. @param {string} text */
const parseLabels = (text) => Object.fromEntries(
  text.split(",").map((label) => label.trim()).filter(Boolean).map((label) => {
    const [name, ...value] = label.split("=");
    return [name.trim(), value.join("=").trim()];
  }));

/** The buttons of a session, which first ask: for its labels, or whether to delete it. @param {{row: Row}} props */
function Actions({ row }) {
  const [asked, setAsked] = useState(/** @type {"" | "label" | "delete"} */ (""));
  const [problem, setProblem] = useState("");
  const name = inert(row.session);
  const path = `/v1/sessions/${encodeURIComponent(row.session)}`;
  const run = (/** @type {Promise<unknown>} */ action) => {
    setAsked("");
    setProblem("");
    action.catch((error) => setProblem(String(error.message)));
  };
  const saveLabels = (/** @type {any} */ event) => {
    event.preventDefault();
    const labels = parseLabels(event.target.elements.labels.value);
    run(post(`${path}/events`, [{ type: "session.info", labels }]));
  };
  const cancelButton = html`<button type="button" class="button small" onClick=${() => setAsked("")}>Cancel</button>`;
  if (asked === "label") {
    return html`<form class="actions" onSubmit=${saveLabels}>
      <input class="field" name="labels" aria-label=${`Labels of ${name}`} placeholder="team=shop, urgent=yes"
        value=${labelsOf(row).map(([key, value]) => `${key}=${value}`).join(", ")} />
      <button class="button small">Save</button> ${cancelButton}
    </form>`;
  }
  if (asked === "delete") {
    return html`<span class="actions" role="group">
      Delete it for ever, with ${countOf(row.calls, "call")}?
      <button class="button small" onClick=${() => run(remove(path))}>Delete session</button> ${cancelButton}
    </span>`;
  }
  return html`<span class="actions">
    <button class="button small" aria-label=${`Label ${name}`} onClick=${() => setAsked("label")}>Label</button>
    <button class="button small" aria-label=${`Delete ${name}`} onClick=${() => setAsked("delete")}>Delete</button>
    ${problem && html`<span class="problem" role="alert">${problem}</span>`}
  </span>`;
}

/** @param {{row: Row, pending: number, running: number, isWaiting: boolean}} props */
function SessionRow({ row, pending, running, isWaiting }) {
  const tokens = tokensOf(row);
  const title = row.title || row.prompt;
  const hasStopped = ["idle", "ended"].includes(row.state) && durationOf(row) > 0;
  return html`<li class="session-row">
    <a class="session" data-card ...${link(`/s/${encodeURIComponent(row.session)}`)}>
      <span class="what">
        <span class="name untrusted" dir="auto">${inert(title || row.session)}</span>
        ${title && html`<code class="id untrusted" dir="auto">${inert(row.session)}</code>`}
        ${labelsOf(row).map(([key, value]) => html`
          <span class="label untrusted" dir="auto">${inert(`${key}: ${value}`)}</span>`)}
      </span>
      <span class="how">
        ${pending > 0 && html`<span class="state is-awaiting_approval">? ${pending} to approve</span>`}
        ${running > 0 && html`<span class="state is-running">● ${running} running</span>`}
        ${row.turn && running <= 0 && !isWaiting && html`<span class="state is-running">● Running</span>`}
        ${row.state === "ended" && html`<span>Ended</span>`}
        ${row.agent && html`<span class="untrusted" dir="auto">${inert(row.agent)}</span>`}
        ${row.project && html`<span class="untrusted" dir="auto" title=${inert(row.project)}>
          ${inert(baseName(row.project))}</span>`}
        ${row.branch && html`<span class="untrusted" dir="auto">${inert(row.branch)}</span>`}
        ${row.model && html`<span class="untrusted" dir="auto">${inert(row.model)}</span>`}
        <span class="calls">${row.calls ? countOf(row.calls, "call") : "No calls"}</span>
        ${row.failed > 0 && html`<span class="state is-failed">${row.failed} failed</span>`}
        ${tokens > 0 && html`<span>${shortNumber(tokens)} tokens</span>`}
        ${hasStopped && html`<span title="From the first event to the last">${formatDuration(durationOf(row))}</span>`}
        <time class="when" datetime=${isoTime(row.activeAt)}
          title=${isoTime(row.activeAt)}>${formatAge(row.activeAt)}</time>
      </span>
    </a>
    <${Actions} row=${row} />
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
  const [state, setState] = useState("");
  const [sort, setSort] = useState("active");
  const older = useOlderSessions();
  const searchText = query.value.trim().toLowerCase();
  const rows = useMemo(() => {
    const all = new Map(older.rows.map((row) => [row.session, row]));
    for (const [session, row] of sessions.value) all.set(session, row);
    const { value } = SORTS[sort];
    return [...all.values()].sort((a, b) => value(b) - value(a) || b.activeAt - a.activeAt);
  }, [sessions.value, older.rows, sort]);
  const terms = searchText.split(/\s+/);
  const matching = rows.filter((row) => (!state || row.state === state) && matches(row, terms));
  const calls = useCallSearch(query.value.trim());
  const pendingBySession = countBySession(inbox.value.values());
  const answerableBySession = countBySession(answerableRequests.value);
  if (!loadedTopics.value.has("sessions")) return html`<p class="loading" role="status">Loading sessions…</p>`;
  if (!rows.length) return html`<${Empty} />`;
  const item = (/** @type {Row} */ row) => {
    const pending = answerableBySession.get(row.session) ?? 0;
    const waiting = pendingBySession.get(row.session) ?? 0;
    const running = row.openCalls - waiting;
    return html`<${SessionRow} key=${row.session} row=${row} pending=${pending} running=${running}
      isWaiting=${waiting > 0} />`;
  };
  return html`<div class="column">
    <div class="head">
      <h1>Sessions</h1>
      <p class="dim" role="status">
        ${searchText || state ? `${matching.length} of ${countOf(rows.length, "session")}` : rows.length}</p>
      <label>State <select value=${state} onChange=${(/** @type {any} */ event) => setState(event.target.value)}>
        <option value="">All</option>
        ${Object.entries(STATES).map(([name, words]) => html`<option value=${name}>${words}</option>`)}
      </select></label>
      <label>Sort by <select value=${sort} onChange=${(/** @type {any} */ event) => setSort(event.target.value)}>
        ${Object.entries(SORTS).map(([name, { words }]) => html`<option value=${name}>${words}</option>`)}
      </select></label>
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
