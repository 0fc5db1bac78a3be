// The table of sessions, the last active first: what each does, filters over them, and a search for calls.

import { inert } from "./ansi.js";
import { Empty } from "./empty_state.js";
import { Frame, IconButton } from "./frame.js";
import { query } from "./header.js";
import { countOf, formatCosts, shortNumber } from "./numbers.js";
import { ActionsMenu, labelsOf, labelText, Question } from "./session_actions.js";
import { classes, html, useEffect, useMemo, useState } from "./ui.js";
import { answerableRequests, get, go, link, loadedTopics, route, sessions } from "./state.js";
import { describeState } from "./states.js";
import { formatAge, formatDuration, formatMoment, isoTime, today } from "./time.js";

/** @typedef {import("./state.js").Row} Row */

/** The server pushes this many of the latest sessions; older ones are loaded on request. */
const PUSHED_SESSIONS = 200;

/** What the list can be limited to, with its words, and whether their count is always shown. */
const SWITCHES = {
  running: { words: "Running", accepts: (/** @type {Row} */ row) => row.state === "running", look: "count" },
  waiting: { words: "Waiting", accepts: (/** @type {Row} */ row) => row.state === "waiting", look: "count hot" },
  failed: { words: "Failed", accepts: (/** @type {Row} */ row) => row.failed > 0, look: "count", about: "With failed calls" },
  idle: { words: "Idle", accepts: (/** @type {Row} */ row) => row.state === "idle", look: "" },
  ended: { words: "Ended", accepts: (/** @type {Row} */ row) => row.state === "ended", look: "" },
};

/**
 * How each state of a session is displayed.
 * @type {Record<string, {icon: string, tone: string, words: string}>}
 */
const STATES = {
  running: { icon: "", tone: "run", words: "Running" },
  waiting: { icon: "i-wait", tone: "wait", words: "Waiting for approval" },
  ended: { icon: "i-check", tone: "good", words: "Ended" },
  idle: { icon: "i-todo", tone: "dim", words: "Idle" },
};

/** The columns; those with a value can be sorted by. @typedef {{id: string, words: string, css?: string, value?: (row: Row) => number}} Column */

/** @type {Column[]} */
const COLUMNS = [
  { id: "title", words: "Session" },
  { id: "state", words: "State", css: "c-state" },
  { id: "agent", words: "Agent", css: "c-agent c-opt" },
  { id: "project", words: "Project", css: "c-project c-opt" },
  { id: "calls", words: "Calls", css: "n c-number", value: (row) => row.calls },
  { id: "failed", words: "Failed", css: "n c-number c-mid", value: (row) => row.failed },
  { id: "tokens", words: "Tokens", css: "n c-number c-opt", value: tokensOf },
  { id: "cost", words: "Cost", css: "n c-number c-opt" },
  { id: "duration", words: "Duration", css: "n c-time c-mid", value: durationOf },
  { id: "active", words: "Last activity", css: "n c-age", value: (row) => row.activeAt },
];
const SORTED = COLUMNS.filter(({ value }) => value);
const DEFAULT_SORT = "active";

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

/** @param {Row} row @param {string[]} terms */
function hasWords(row, terms) {
  const facts = [row.title, row.prompt, row.session, row.owner, row.agent, row.project, row.branch, row.model];
  const text = [...facts, ...labelsOf(row).flat()].join("\n").toLowerCase();
  return terms.every((term) => text.includes(term));
}

/**
 * What the list can be limited to by a value that some of its sessions have.
 * @typedef {{name: string, label: string, values: (row: Row) => string[], words?: (value: string) => string}} Choice
 */

/** @type {Choice[]} */
const CHOICES = [
  { name: "agent", label: "Agent", values: ({ agent }) => (agent ? [agent] : []) },
  { name: "project", label: "Project", values: ({ project }) => (project ? [project] : []), words: baseName },
  { name: "label", label: "Label", values: (row) => labelsOf(row).map(labelText) },
];

/** Set a filter in the address, so that a link and a reload show the same. @param {string} name @param {string} value */
function setFilter(name, value) {
  const terms = new URLSearchParams(route.peek().search);
  if (value) terms.set(name, value);
  else terms.delete(name);
  go(terms.size ? `/?${terms}` : "/", { replace: true });
}

/** @param {{filters: URLSearchParams, rows: Row[]}} props */
function Switches({ filters, rows }) {
  const current = filters.get("state") ?? "";
  const button = (/** @type {string} */ name, /** @type {any} */ { words, about, look = "" }, /** @type {number} */ count = 0) =>
    html`<button type="button" key=${name} aria-pressed=${String(current === name)} title=${about}
      onClick=${() => setFilter("state", name)}>${words}${look && count > 0 &&
        html` <span class=${look}>${count}</span>`}</button>`;
  return html`<div class="switch" role="group" aria-label="State">
    ${button("", { words: "All" })}
    ${Object.entries(SWITCHES).map(([name, one]) => button(name, one, rows.filter(one.accepts).length))}
  </div>`;
}

/** @param {{choice: Choice, filters: URLSearchParams, rows: Row[]}} props */
function ChoiceField({ choice: { name, label, values, words = (value) => value }, filters, rows }) {
  const current = filters.get(name) ?? "";
  const all = useMemo(() => [...new Set(rows.flatMap(values))].sort((a, b) => a.localeCompare(b)), [rows]);
  if (!all.length && !current) return null;
  const shown = !current || all.includes(current) ? all : [current, ...all];
  return html`<select class="field soft" aria-label=${label} value=${current}
      onChange=${(/** @type {any} */ event) => setFilter(name, event.target.value)}>
    <option value="">Any ${label.toLowerCase()}</option>
    ${shown.map((value) => html`<option key=${value} value=${value} dir="auto" title=${inert(value)}>
      ${inert(words(value))}</option>`)}
  </select>`;
}

/** A number, or – for none and for what is not known. @param {number} count @param {string} [tone] */
const cell = (count, tone = "") => (count > 0 ? html`<span class=${tone}>${shortNumber(count)}</span>` : html`<span class="dim">–</span>`);

/** @param {{row: Row, answerable: number}} props */
function StateCell({ row, answerable }) {
  const { tone, words } = STATES[row.state] ?? STATES.idle;
  const running = row.openCalls - row.pending;
  return html`<span class=${tone === "good" ? "dim" : tone}>${row.state === "running" && running > 0 ? `${running} running` : words}</span>
    ${answerable > 0 && html` <span class="count hot">${answerable}<span class="visually-hidden"> to approve</span></span>`}`;
}

/** @param {{row: Row, answerable: number}} props */
function SessionRow({ row, answerable }) {
  const [asked, setAsked] = useState(/** @type {import("./session_actions.js").Asked} */ (""));
  const { icon, tone } = STATES[row.state] ?? STATES.idle;
  return html`<tr class="session-row">
    <td class="t m"><span class="ttl">
      ${icon ? html`<i class=${`i ${icon} ${tone}`} aria-hidden="true"></i>` : html`<span class="ring"></span>`}
      <a class="cut untrusted" dir="auto" data-card title=${inert(row.session)}
        ...${link(`/s/${encodeURIComponent(row.session)}`)}>${inert(row.title || row.prompt || row.session)}</a>
      ${labelsOf(row).map((label) => html`<span class="chip cut untrusted" dir="auto">${inert(labelText(label))}</span>`)}
      ${row.turns > 1 && html`<small>${countOf(row.turns, "turn")}</small>`}
    </span></td>
    <td class="m c-state"><${StateCell} row=${row} answerable=${answerable} /></td>
    <td class="c-agent c-opt"><span class="untrusted" dir="auto">${inert(row.agent)}</span>
      ${row.model && html` <small class="untrusted" dir="auto">${inert(row.model)}</small>`}</td>
    <td class="c-project c-opt"><span class="untrusted" dir="auto" title=${inert(row.project)}>${inert(baseName(row.project))}</span>
      ${row.branch && html` <small class="untrusted" dir="auto">${inert(row.branch)}</small>`}</td>
    <td class="n c-number">${cell(row.calls)}</td>
    <td class="n c-number c-mid">${cell(row.failed, "bad")}</td>
    <td class="n c-number c-opt">${cell(tokensOf(row))}</td>
    <td class="n c-number c-opt">${formatCosts(row.usage?.costs) || html`<span class="dim">–</span>`}</td>
    <td class="n c-time c-mid">${durationOf(row) > 0 ? formatDuration(durationOf(row)) : html`<span class="dim">–</span>`}</td>
    <td class="n m c-age"><time datetime=${isoTime(row.activeAt)} title=${isoTime(row.activeAt)}>${formatMoment(row.activeAt)}</time></td>
    <td class="c-menu"><${ActionsMenu} row=${row} onAsk=${setAsked} /></td>
  </tr>
  ${asked && html`<tr class="asked"><td colspan=${COLUMNS.length + 1}>
    <${Question} row=${row} asked=${asked} onDone=${() => setAsked("")} /></td></tr>`}`;
}

/** The beginning of the day so many days before another day. @param {number} day @param {number} count */
const daysBefore = (day, count) => new Date(day).setDate(new Date(day).getDate() - count);

/** Group sessions by the day of a time, the latest first. @param {Row[]} rows @param {number} day The beginning of today. */
function groupByDay(rows, day) {
  const groups = [["Today", day], ["Yesterday", daysBefore(day, 1)], ["Last 7 days", daysBefore(day, 6)],
    ["Last 30 days", daysBefore(day, 29)], ["Older", -Infinity]];
  const found = groups.map(([words]) => ({ words, rows: /** @type {Row[]} */ ([]) }));
  for (const row of rows) found[groups.findIndex(([, from]) => row.activeAt >= Number(from))].rows.push(row);
  return found.filter((group) => group.rows.length);
}

/** @param {{sort: string}} props */
function TableHead({ sort }) {
  return html`<thead><tr>
    ${COLUMNS.map(({ id, words, css, value }) => html`<th key=${id} scope="col" class=${css}
        aria-sort=${value && sort === id ? "descending" : undefined}>
      ${value ? html`<button type="button" onClick=${() => setFilter("sort", id === DEFAULT_SORT ? "" : id)}>${words}${sort === id &&
        html`<i class="i i-down" aria-hidden="true"></i>`}</button>` : words}</th>`)}
    <th scope="col" class="c-menu"><span class="visually-hidden">Actions</span></th>
  </tr></thead>`;
}

/** @param {{rows: Row[], sort: string}} props */
function Table({ rows, sort }) {
  const counts = new Map();
  for (const { session } of answerableRequests.value) counts.set(session, (counts.get(session) ?? 0) + 1);
  const groups = sort === DEFAULT_SORT ? groupByDay(rows, today.value) : [{ words: "", rows }];
  return html`<table class="list sessions"><${TableHead} sort=${sort} />
    ${groups.map((group) => html`<tbody key=${group.words}>
      ${group.words && html`<tr class="day"><th scope="rowgroup" colspan=${COLUMNS.length + 1}>${group.words}
        <span>${group.rows.length}</span></th></tr>`}
      ${group.rows.map((row) => html`
        <${SessionRow} key=${row.session} row=${row} answerable=${counts.get(row.session) ?? 0} />`)}
    </tbody>`)}
  </table>`;
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
  const { label } = describeState(row.state);
  return html`<tr>
    <td class="t m"><span class="ttl"><a class="cut untrusted" dir="auto" data-card
      ...${link(`/s/${encodeURIComponent(row.session)}#entry-${row.entry}`)}>
        ${inert(row.title || row.toolName || "Call")}</a></span></td>
    <td class=${classes("m c-state state", `is-${row.state}`)}>${label}</td>
    <td class="c-mid untrusted" dir="auto">${inert(row.session)}</td>
    <td class="c-call c-opt"><code>${row.call}</code></td>
    <td class="n m c-age"><time title=${isoTime(row.createdAt)}>${formatAge(row.createdAt)}</time></td>
  </tr>`;
}

/** @param {{calls: Row[]}} props */
function CallResults({ calls }) {
  return html`<section aria-labelledby="found-calls">
    <h2 id="found-calls" class="sect">Calls</h2>
    <table class="list"><thead class="visually-hidden"><tr><th scope="col">Call</th><th scope="col" class="c-state">State</th>
      <th scope="col" class="c-mid">Session</th><th scope="col" class="c-call c-opt">ID</th><th scope="col" class="c-age">Time</th></tr></thead>
      <tbody>${calls.map((row) => html`<${CallRow} key=${row.call} row=${row} />`)}</tbody></table>
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

/** @param {{onClear: () => void}} props */
function NoResults({ onClear }) {
  return html`<div class="void">
    <i class="i i-find" aria-hidden="true"></i>
    <h2>No session matches</h2>
    ${query.value && html`<p>No results for "<b class="untrusted" dir="auto">${inert(query.value)}</b>".</p>`}
    <button type="button" class="btn" onClick=${onClear}>Clear filters</button>
  </div>`;
}

/** @param {{children?: any}} props */
const Page = ({ children }) => html`<div class="page" data-scroller tabindex="0">${children}</div>`;

function clearFilters() {
  query.value = "";
  go("/", { replace: true });
}

export default function SessionList() {
  const [isFilterOpen, setFilterOpen] = useState(false);
  const older = useOlderSessions();
  const filters = new URLSearchParams(route.value.search);
  const sort = SORTED.find(({ id }) => id === filters.get("sort")) ?? COLUMNS[COLUMNS.length - 1];
  const rows = useMemo(() => {
    const all = new Map(older.rows.map((row) => [row.session, row]));
    for (const [session, row] of sessions.value) all.set(session, row);
    const value = sort.value ?? durationOf;
    return [...all.values()].sort((a, b) => value(b) - value(a) || b.activeAt - a.activeAt);
  }, [sessions.value, older.rows, sort]);
  const words = query.value.trim();
  const calls = useCallSearch(words);
  if (!loadedTopics.value.has("sessions")) return html`<${Page}><p class="loading" role="status">Loading sessions…</p><//>`;
  if (!rows.length) return html`<${Page}><${Empty} /><//>`;
  const terms = words.toLowerCase().split(/\s+/);
  const accepts = /** @type {any} */ (SWITCHES)[filters.get("state") ?? ""]?.accepts ?? (() => true);
  const matching = rows.filter((row) => accepts(row) && hasWords(row, terms) &&
    CHOICES.every(({ name, values }) => !filters.get(name) || values(row).includes(filters.get(name) ?? "")));
  const isFiltered = words || matching.length < rows.length;
  const mayHaveMore = rows.length >= PUSHED_SESSIONS && !older.done;
  const chosen = CHOICES.filter(({ name }) => filters.get(name)).length;
  const head = html`<h1>Sessions</h1>
    <p class="dim num" role="status">${isFiltered ? `${matching.length} of ` : ""}${rows.length.toLocaleString("en")}${mayHaveMore && " loaded"}</p>
    <${IconButton} icon="filter" label=${chosen ? `Filters, ${chosen} set` : "Filters"} class="only-small filters-toggle"
      aria-expanded=${String(isFilterOpen)} onClick=${() => setFilterOpen(!isFilterOpen)} />
    <${Switches} filters=${filters} rows=${rows} />
    <span class="gap"></span>
    <div class=${classes("choices", isFilterOpen && "open")}>
      ${CHOICES.map((choice) => html`<${ChoiceField} key=${choice.name} choice=${choice} filters=${filters} rows=${rows} />`)}
      <select class="field soft only-small" aria-label="Sort by" value=${sort.id}
          onChange=${(/** @type {any} */ event) => setFilter("sort", event.target.value)}>
        ${SORTED.map(({ id, words }) => html`<option value=${id}>${words}</option>`)}</select>
    </div>`;
  return html`<${Frame} head=${head}>
    <div class="wrap">
      ${matching.length > 0 && html`<${Table} rows=${matching} sort=${sort.id} />`}
      ${words && calls.length > 0 && html`<${CallResults} calls=${calls} />`}
      ${!matching.length && !calls.length && html`<${NoResults} onClear=${clearFilters} />`}
      ${mayHaveMore && html`<p class="more">
        <button class="btn" aria-disabled=${String(older.isLoading)} onClick=${older.load}>
          ${older.isLoading ? "Loading…" : "Load older sessions"}</button>
        ${older.problem && html` <span role="alert">Could not load: ${inert(older.problem)}</span>`}</p>`}
    </div>
  <//>`;
}
