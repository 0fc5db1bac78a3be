// The results of a search over all sessions: `/search?q=...`. Each leads to its entry.

import { inert } from "./ansi.js";
import { authorOf } from "./message.js";
import { html, useEffect, useState } from "./ui.js";
import { get, go, link, route } from "./state.js";
import { describeState } from "./states.js";
import { formatAge, isoTime } from "./time.js";

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

/** @param {{row: Row}} props */
function Result({ row }) {
  const path = `/s/${encodeURIComponent(row.session)}${row.entry ? `#entry-${row.entry}` : ""}`;
  const parts = splitAt(row.excerpt ?? "", row.ranges ?? []);
  const { glyph, label } = describeState(row.state);
  const kind = kindOf(row);
  return html`<li>
    <a class="session result" data-card ...${link(path)}>
      <span class="what">
        <span class="name untrusted" dir="auto">${inert(kind)}</span>
        ${row.state && html`<span class=${`state is-${row.state}`}>
          <span aria-hidden="true">${glyph}</span> ${label}</span>`}
        ${row.parent && kind !== "Sub-agent" && html`<span class="label">Sub-agent</span>`}
        <span class="dim untrusted" dir="auto">${inert(row.title || row.session)}</span>
      </span>
      <span class="how"><time class="when" datetime=${isoTime(row.at)}>${row.at ? formatAge(row.at) : ""}</time></span>
      <span class="excerpt untrusted" dir="auto">${parts.map((part, index) =>
        index % 2 ? html`<mark>${inert(part)}</mark>` : inert(part))}</span>
    </a>
  </li>`;
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
  return html`<form class="search-form" onSubmit=${submit}>
    ${FIELDS.map(([name, label]) => html`<label key=${name}>
      <span class="dim">${label}</span>
      <input class="field" name=${name} type=${DAYS.includes(name) ? "date" : "text"} autocomplete="off"
        spellcheck=${false} defaultValue=${terms.get(name) ?? ""} />
    </label>`)}
    <button class="button primary">Search</button>
  </form>`;
}

/** @param {{last: Row | null, count: number, problem: string}} props */
function Summary({ last, count, problem }) {
  if (problem) return html`<p role="alert">${inert(problem)}</p>`;
  if (!last) return html`<p class="dim" role="status"></p>`;
  if (!last.words.length) return html`<p role="status">The search has no letters or digits.</p>`;
  return html`<p class="dim" role="status">
    ${count ? `${count}${last.cursor ? " or more" : ""} found.` : "Nothing found."}
    ${last.limited && " Many entries match; only the newest of them were compared."}
    ${last.behind && " The newest entries of some sessions cannot be found yet."}
  </p>`;
}

export default function Search() {
  const { search = "" } = route.value;
  const terms = new URLSearchParams(search);
  const { rows, last, problem, loadMore } = useResults(requestQuery(terms));
  return html`<div class="column">
    <h1>Search</h1>
    <${SearchForm} key=${search} terms=${terms} />
    <${Summary} last=${last} count=${rows.length} problem=${problem} />
    ${rows.length > 0 && html`<ul class="panel">
      ${rows.map((row) => html`<${Result} key=${`${row.session} ${row.entry}`} row=${row} />`)}</ul>`}
    ${last?.cursor && html`<p class="more"><button class="button" onClick=${loadMore}>More results</button></p>`}
  </div>`;
}
