// The results of a search over all sessions: `/search?q=...`. Each leads to its entry.

import { inert } from "./ansi.js";
import { authorOf } from "./message.js";
import { countOf } from "./numbers.js";
import { classes, html, useEffect, useState } from "./ui.js";
import { get, go, link, route, sessions } from "./state.js";
import { describeState } from "./states.js";
import { formatMoment, isoTime } from "./time.js";

/** @typedef {import("./state.js").Row} Row */

/** The filters of the address, as `GET /v1/search` takes them, with their labels. Times are days here. */
const FIELDS = [
  ["q", "Words"],
  ["session", "Session"],
  ["project", "Project folder"],
  ["tool", "Tool"],
  ["state", "State"],
  ["since", "From"],
  ["until", "Before"],
];
const DAYS = ["since", "until"];

/** Return the query of a request, with the days of the address as times. @param {URLSearchParams} terms */
function requestQuery(terms) {
  const query = new URLSearchParams(terms);
  for (const name of DAYS) {
    const time = new Date(`${terms.get(name)}T00:00`).getTime();
    if (time > 0) query.set(name, String(time));
    else query.delete(name);
  }
  return query.toString();
}

/** Return the parts of an excerpt, every second one highlighted. @param {string} text @param {[number, number][]} ranges */
function splitAt(text, ranges) {
  const parts = [];
  let at = 0;
  for (const [start, end] of ranges) {
    parts.push(text.slice(at, start), text.slice(start, end));
    at = end;
  }
  return [...parts, text.slice(at)];
}

/** @param {Row} row */
function kindOf(row) {
  if (row.tool) return row.tool;
  return row.role ? authorOf(row) : (row.type ?? "session").replaceAll("_", " ");
}

/** The icon of a kind of entry that is no call. @type {Record<string, string>} */
const ICONS = { user: "user", assistant: "bot", thought: "thought", plan: "list" };

/** @param {{row: Row}} props */
function Result({ row }) {
  const path = `/s/${encodeURIComponent(row.session)}${row.entry ? `#entry-${row.entry}` : ""}`;
  const parts = splitAt(row.excerpt ?? "", row.ranges ?? []);
  const { icon, label } = describeState(row.state);
  const kind = kindOf(row);
  return html`<li><a class=${classes("hit", row.state && `is-${row.state}`)} data-card ...${link(path)}>
    <span class="line">
      ${row.state
        ? html`<span class="state" title=${label}>${icon === "ring" ? html`<span class="ring"></span>` : html`<i class=${`i i-${icon}`} aria-hidden="true"></i>`}
            <span class="visually-hidden">${label}</span></span>`
        : html`<i class=${`i dim i-${ICONS[row.role] ?? ICONS[row.type] ?? "file"}`} aria-hidden="true"></i>`}
      <span class="strong untrusted" dir="auto">${inert(kind)}</span>
      ${row.parent && kind !== "Sub-agent" && html`<span class="chip">Sub-agent</span>`}
      <span class="gap"></span>
      <time class="dim" datetime=${isoTime(row.at)} title=${isoTime(row.at)}>${formatMoment(row.at)}</time>
    </span>
    <span class=${classes("excerpt untrusted", row.state && "mono")} dir="auto">${parts.map((part, index) =>
      index % 2 ? html`<mark>${inert(part)}</mark>` : inert(part))}</span>
  </a></li>`;
}

/** Consecutive results of one session, under its title: their order is that of the server. @param {Row[]} rows */
function groupBySession(rows) {
  const groups = /** @type {Row[][]} */ ([]);
  for (const row of rows) {
    if (groups.at(-1)?.[0].session === row.session) groups.at(-1)?.push(row);
    else groups.push([row]);
  }
  return groups;
}

/** @param {{rows: Row[]}} props */
function Hits({ rows }) {
  const { session, title } = rows[0];
  const about = sessions.value.get(session);
  return html`<section class="hits">
    <h2><a class="cut untrusted" dir="auto" title=${inert(session)} ...${link(`/s/${encodeURIComponent(session)}`)}>
        ${inert(title || session)}</a>
      ${about?.agent && html`<span class="dim cut untrusted" dir="auto">${inert(about.agent)}</span>`}</h2>
    <ul>${rows.map((row) => html`<${Result} key=${row.entry} row=${row} />`)}</ul>
  </section>`;
}

/** Load the results of a query string, page after page. @param {string} terms */
function useResults(terms) {
  const [page, setPage] = useState({ rows: /** @type {Row[]} */ ([]), last: /** @type {Row | null} */ (null) });
  const [problem, setProblem] = useState("");
  const load = (/** @type {string} */ cursor, /** @type {Row[]} */ rows, /** @type {AbortSignal | undefined} */ signal = undefined) =>
    get(`/v1/search?${terms}${cursor && `&cursor=${encodeURIComponent(cursor)}`}`, signal).then(
      (answer) => {
        setProblem("");
        setPage({ rows: [...rows, ...answer.results], last: answer });
      },
      (error) => signal?.aborted || setProblem(String(error.message)),
    );
  useEffect(() => {
    setPage({ rows: [], last: null });
    setProblem("");
    if (!new URLSearchParams(terms).get("q")) return;
    const controller = new AbortController();
    load("", [], controller.signal);
    return () => controller.abort();
  }, [terms]);
  return { ...page, problem, loadMore: () => load(page.last?.cursor, page.rows) };
}

/** @param {{terms: URLSearchParams}} props */
function SearchForm({ terms }) {
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    const typed = [...new FormData(event.target)].filter(([, value]) => String(value).trim());
    go(`/search?${new URLSearchParams(/** @type {[string, string][]} */ (typed))}`);
  };
  const [[, words], ...narrower] = FIELDS;
  return html`<form class="search-form" onSubmit=${submit}>
    <div class="line">
      <label class="field bigfind"><i class="i i-find dim" aria-hidden="true"></i><span class="visually-hidden">${words}</span>
        <input name="q" type="text" autocomplete="off" spellcheck=${false} defaultValue=${terms.get("q") ?? ""}
          placeholder="Words in messages, inputs and outputs" /></label>
      <button class="btn main">Search</button>
    </div>
    <div class="narrower">${narrower.map(([name, label]) => html`<label class="field soft" key=${name}>
      <span class="dim">${label}</span>
      <input name=${name} type=${DAYS.includes(name) ? "date" : "text"} autocomplete="off" spellcheck=${false}
        defaultValue=${terms.get(name) ?? ""} />
    </label>`)}</div>
  </form>`;
}

/** @param {{last: Row | null, rows: Row[], problem: string, terms: URLSearchParams}} props */
function Summary({ last, rows, problem, terms }) {
  if (problem) return html`<p class="searched bad" role="alert">${inert(problem)}</p>`;
  if (!last) return html`<p class="searched dim" role="status">${terms.get("q") ? "Searching…" : ""}</p>`;
  if (!last.words.length) return html`<p class="searched" role="status">The search has no letters or digits.</p>`;
  const count = new Set(rows.map(({ session }) => session)).size;
  return html`<p class="searched dim" role="status">
    ${rows.length ? html`<span class="strong">${rows.length}${last.cursor ? " or more" : ""} found.</span> In ${countOf(count, "session")}, best match first.`
      : "Nothing found."}
    ${last.limited && " Many entries match; only the newest of them were compared."}
    ${last.behind && " The newest entries of some sessions cannot be found yet."}
  </p>`;
}

export default function Search() {
  const { search = "" } = route.value;
  const terms = new URLSearchParams(search);
  const { rows, last, problem, loadMore } = useResults(requestQuery(terms));
  const hasNothing = last && last.words.length > 0 && !rows.length && !problem;
  return html`<div class="found">
    <h1 class="visually-hidden">Search</h1>
    <${SearchForm} key=${search} terms=${terms} />
    <${Summary} last=${last} rows=${rows} problem=${problem} terms=${terms} />
    ${groupBySession(rows).map((group) => html`<${Hits} key=${`${group[0].session} ${group[0].entry}`} rows=${group} />`)}
    ${hasNothing && html`<div class="void"><i class="i i-find" aria-hidden="true"></i><h2>No entry has all of these words</h2>
      <p>Only whole words are found. Try fewer words, or remove a filter.</p></div>`}
    ${last?.cursor && html`<p class="more"><button class="btn" onClick=${loadMore}>More results</button></p>`}
  </div>`;
}
