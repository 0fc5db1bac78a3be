// The sessions, last written first: which are at work, what waits in them, and a search through them and their calls.

import { inert } from "./ansi.js";
import { Empty } from "./empty_state.js";
import { query } from "./header.js";
import { html, signal, useEffect, useMemo, useSignalEffect, useState } from "./ui.js";
import { get, inbox, link, sessions, told } from "./state.js";
import { stateOf } from "./states.js";
import { ago, exactly } from "./time.js";

/** @typedef {import("./state.js").Row} Row */

/** The server tells so many of the newest; older ones are asked for. */
const TOLD = 200;

/** @type {(row: Row) => [string, string][]} */
const labelsOf = ({ labels }) =>
  labels && typeof labels === "object" ? Object.entries(labels).map(([key, value]) => [key, textOf(value)]) : [];

/** @param {unknown} value */
const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** @param {Row} row @param {string[]} words */
function fits(row, words) {
  const text = [row.title, row.session, row.owner, ...labelsOf(row).flat()].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}

/** How many calls are open, by session. Asked for again when sessions change, once a second at most. */
const open = signal(/** @type {Map<string, number>} */ (new Map()));
let asking = false;
let stale = false;

async function countOpen() {
  stale = true;
  if (asking) return;
  asking = true;
  try {
    while (stale) {
      stale = false;
      const { calls } = await get("/v1/calls?status=queued,awaiting_approval,running&limit=1000");
      const counts = new Map();
      for (const { session } of calls) counts.set(session, (counts.get(session) ?? 0) + 1);
      open.value = counts;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  } catch {
    // The list does without; the pill says what is wrong.
  } finally {
    asking = false;
  }
}

function waiting() {
  const counts = new Map();
  for (const { session } of inbox.value.values()) counts.set(session, (counts.get(session) ?? 0) + 1);
  return counts;
}

const many = (/** @type {number} */ count, /** @type {string} */ word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** @param {{row: Row, asks: number, runs: number}} props */
function Item({ row, asks, runs }) {
  return html`<li>
    <a class="session" data-card ...${link(`/s/${encodeURIComponent(row.session)}`)}>
      <span class="what">
        <span class="name foreign" dir="auto">${inert(row.title || row.session)}</span>
        ${row.title && html`<code class="id foreign" dir="auto">${inert(row.session)}</code>`}
        ${labelsOf(row).map(([key, value]) => html`
          <span class="label foreign" dir="auto">${inert(`${key}: ${value}`)}</span>`)}
      </span>
      <span class="how">
        ${asks > 0 && html`<span class="state is-awaiting_approval">? ${asks} to approve</span>`}
        ${runs > 0 && html`<span class="state is-running">● ${runs} open</span>`}
        ${row.turn && !runs && html`<span class="state is-running">● at work</span>`}
        <span class="calls">${row.calls ? many(row.calls, "call") : "no calls"}</span>
        <time class="when" datetime=${exactly(row.updatedAt)}
          title=${exactly(row.updatedAt)}>${ago(row.updatedAt)}</time>
      </span>
    </a>
  </li>`;
}

/** Calls whose tool, title or id has the words: the server looks. @param {string} words */
function useCalls(words) {
  const [found, setFound] = useState(/** @type {Row[]} */ ([]));
  useEffect(() => {
    setFound([]);
    if (words.length < 2) return;
    let left = false;
    const timer = setTimeout(() => {
      get(`/v1/calls?limit=20&q=${encodeURIComponent(words)}`).then(({ calls }) => left || setFound(calls), () => {});
    }, 200);
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, [words]);
  return found;
}

/** @param {{row: Row}} props */
function Call({ row }) {
  const { glyph, word } = stateOf(row.state);
  return html`<li>
    <a class="session" data-card ...${link(`/s/${encodeURIComponent(row.session)}#entry-${row.entry}`)}>
      <span class="what">
        <span class=${`state is-${row.state}`}><span aria-hidden="true">${glyph}</span> ${word}</span>
        <span class="name foreign" dir="auto">${inert(row.title || row.toolName || "call")}</span>
        <code class="id">${row.call}</code>
      </span>
      <span class="how">
        <span class="foreign" dir="auto">${inert(row.session)}</span>
        <time class="when">${ago(row.createdAt)}</time>
      </span>
    </a>
  </li>`;
}

/** @param {{calls: Row[]}} props */
function Calls({ calls }) {
  return html`<section aria-labelledby="found-calls">
    <h2 id="found-calls" class="section">Calls</h2>
    <ul class="panel">${calls.map((row) => html`<${Call} key=${row.call} row=${row} />`)}</ul>
  </section>`;
}

/** Sessions that are older than those the server tells of by itself. */
function useOlder() {
  const [more, setMore] = useState({ rows: /** @type {Row[]} */ ([]), cursor: "", done: false });
  const [told, tell] = useState({ asking: false, problem: "" });
  const load = async () => {
    if (told.asking) return;
    tell({ asking: true, problem: "" });
    try {
      const page = await get(`/v1/sessions?limit=1000${more.cursor && `&cursor=${encodeURIComponent(more.cursor)}`}`);
      setMore({ rows: [...more.rows, ...page.sessions], cursor: page.cursor, done: !page.cursor });
      tell({ asking: false, problem: "" });
    } catch (error) {
      tell({ asking: false, problem: String(/** @type {Error} */ (error).message) });
    }
  };
  return { ...more, ...told, load };
}

function NoneFits() {
  return html`<p class="notice">
    No session and no call has <b class="foreign" dir="auto">${query.value}</b> in its title, name, labels or id.${" "}
    <button class="button small" onClick=${() => (query.value = "")}>Clear the search</button>
  </p>`;
}

export default function SessionList() {
  useSignalEffect(() => void (sessions.value.size && countOpen()));
  const older = useOlder();
  const words = query.value.trim().toLowerCase();
  const rows = useMemo(() => {
    const all = new Map(older.rows.map((row) => [row.session, row]));
    for (const [session, row] of sessions.value) all.set(session, row);
    return [...all.values()].sort((a, b) => b.updatedAt - a.updatedAt);
  }, [sessions.value, older.rows]);
  const found = words ? rows.filter((row) => fits(row, words.split(/\s+/))) : rows;
  const calls = useCalls(query.value.trim());
  const asks = waiting();
  if (!told.value.has("sessions")) return html`<p class="loading" role="status">Asking for the sessions…</p>`;
  if (!rows.length) return html`<${Empty} />`;
  const item = (/** @type {Row} */ row) => {
    const waits = asks.get(row.session) ?? 0;
    const runs = (open.value.get(row.session) ?? 0) - waits;
    return html`<${Item} key=${row.session} row=${row} asks=${waits} runs=${runs} />`;
  };
  return html`<div class="column">
    <div class="head">
      <h1>Sessions</h1>
      <p class="dim" role="status">${words ? `${found.length} of ${rows.length} fit` : rows.length}</p>
    </div>
    ${found.length > 0 && html`<ul class="panel sessions">${found.map(item)}</ul>`}
    ${words && calls.length > 0 && html`<${Calls} calls=${calls} />`}
    ${words && !found.length && !calls.length && html`<${NoneFits} />`}
    ${rows.length >= TOLD && !older.done && html`<p class="more">
      <button class="button" aria-disabled=${String(older.asking)} onClick=${older.load}>
        ${older.asking ? "Loading…" : "Load older sessions"}</button>
      ${older.problem && html` <span role="alert">They did not come: ${older.problem}</span>`}</p>`}
  </div>`;
}
