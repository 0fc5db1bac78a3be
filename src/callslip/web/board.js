// The commands board: calls that somebody submits and somebody else runs, as they wait, run and end.

import { inert } from "./ansi.js";
import { classes, html, useEffect, useState } from "./ui.js";
import { cancel, commands, get, link, told } from "./state.js";
import { stateOf } from "./states.js";
import { ago, elapsed, exactly, timeOf } from "./time.js";

/**
 * @typedef {{call: string, session: string, toolCallId: string, state: string, toolName: string, title: string,
 *   reason: string, attempt: number, createdAt: number, startedAt: number, endedAt: number, client?: string}} Row
 * @typedef {{status: string, position?: number, executor_seen_at?: string | null, result?: unknown,
 *   error?: string}} Command
 */

/** The lanes; a row stands in the first that takes it. */
const LANES = /** @type {{id: string, word: string, none: string, takes: (row: Row) => boolean}[]} */ ([
  { id: "pending", word: "Pending", none: "Nothing waits, nothing runs.", takes: (row) => stateOf(row.state).open },
  { id: "complete", word: "Complete", none: "Nothing completed lately.", takes: (row) => row.state === "completed" },
  { id: "failed", word: "Failed", none: "Nothing failed.", takes: () => true },
]);
/** Of so many that wait the place in the queue is asked for without being opened. */
const AT_ONCE = 8;

const oldestFirst = (/** @type {Row} */ one, /** @type {Row} */ two) => one.createdAt - two.createdAt;
const lastEndedFirst = (/** @type {Row} */ one, /** @type {Row} */ two) => two.endedAt - one.endedAt;

/** @param {Row[]} rows */
function lanes(rows) {
  const found = new Map(LANES.map((lane) => [lane.id, /** @type {Row[]} */ ([])]));
  for (const row of rows) found.get(LANES.find((lane) => lane.takes(row))?.id ?? "failed")?.push(row);
  for (const [id, list] of found) list.sort(id === "pending" ? oldestFirst : lastEndedFirst);
  return found;
}

/**
 * Details of a command, asked for again whenever `version` changes.
 * @param {Row} row @param {boolean} wanted @param {string} version
 */
function useCommand(row, wanted, version) {
  const [got, setGot] = useState(/** @type {{command?: Command, failed?: string}} */ ({}));
  useEffect(() => {
    if (!wanted) return;
    let stale = false;
    get(`/v1/calls/${encodeURIComponent(row.call)}?format=command`).then(
      (command) => stale || setGot({ command }),
      (error) => stale || setGot({ failed: error.message }),
    );
    return () => {
      stale = true;
    };
  }, [wanted, version]);
  return got;
}

/** Where it stands in the queue, and whether anybody comes for it. @param {{command: Command}} props */
function Waiting({ command }) {
  const { position, executor_seen_at: seen } = command;
  const at = seen ? Date.parse(seen) : 0;
  return html`<p class="dim">
    ${position ? (position === 1 ? "Next in the queue." : `Number ${position} in the queue.`) : ""}
    ${at ? html` An executor asked for work <time title=${exactly(at)}>${ago(at)}</time>.` : ""}
    ${seen === null ? html` <span class="missing">No executor has asked for work yet.</span>` : ""}
  </p>`;
}

/** @param {{label: string, value: unknown, wrong?: boolean}} props */
function Outcome({ label, value, wrong = false }) {
  const text = typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
  return html`<div>
    <p class="dim">${label}</p>
    <pre class=${classes("arg-value foreign", wrong && "is-failed")} dir="auto" tabindex="0" role="group"
      aria-label=${label}>${inert(text)}</pre>
  </div>`;
}

/** @param {{row: Row}} props */
function Cancel({ row }) {
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  async function stop() {
    setBusy(true);
    setWrong("");
    try {
      await cancel(row.call, "cancelled on the board");
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    } finally {
      setBusy(false);
    }
  }
  return html`<button type="button" class="button small" disabled=${busy} onClick=${stop}
      aria-label=${`Cancel ${inert(row.title || row.toolName)}`}>■ Cancel</button>
    ${wrong ? html`<p class="wrong" role="alert">${wrong}</p>` : ""}`;
}

/** @param {Row} row */
const age = ({ createdAt, endedAt }) =>
  endedAt ? `took ${elapsed(createdAt, endedAt)}, ${ago(endedAt)}` : elapsed(createdAt);

/** @param {{row: Row, eager: boolean, moved: string}} props */
function CommandCard({ row, eager, moved }) {
  const [open, setOpen] = useState(false);
  const state = stateOf(row.state);
  const version = `${row.state} ${row.attempt} ${row.state === "queued" ? moved : ""}`;
  const { command, failed } = useCommand(row, open || eager, version);
  const place = `/c/${encodeURIComponent(row.call)}`;
  const name = inert(row.title || row.toolName || row.call);
  return html`<li><article data-card tabindex="-1" class=${classes("command", `is-${row.state}`, open && "open")}
    aria-label=${`${name}, ${state.word}`}>
    <p class="line">
      <span class="state"><span aria-hidden="true">${state.glyph}</span> ${state.word}</span>
      <span class="dim age" title=${exactly(row.createdAt)}>${age(row)}</span>
    </p>
    <h3><a class="foreign" dir="auto" ...${link(place)}>${name}</a></h3>
    <p class="dim about">
      ${row.client ? html`<span>for <b class="foreign" dir="auto">${inert(row.client)}</b></span>` : ""}
      <span class="foreign" dir="auto">${inert(row.session)}</span>
      <code>${inert(row.toolCallId || row.call)}</code>
      ${row.attempt > 1 ? html`<span>attempt ${row.attempt}</span>` : ""}
    </p>
    ${row.reason ? html`<p class="why foreign" dir="auto">${inert(row.reason)}</p>` : ""}
    ${command && row.state === "queued" ? html`<${Waiting} command=${command} />` : ""}
    ${open && failed ? html`<p class="wrong" role="alert">${failed}</p>` : ""}
    ${open && command ? html`<${Details} row=${row} command=${command} />` : ""}
    <div class="ways">
      <button type="button" class="button small plain" aria-expanded=${open ? "true" : "false"}
        onClick=${() => setOpen(!open)}>${open ? "Less" : "More"}<span class="unseen"> about ${name}</span></button>
      ${state.open ? html`<${Cancel} row=${row} />` : ""}
    </div>
  </article></li>`;
}

/** @param {{row: Row, command: Command}} props */
function Details({ row, command }) {
  const times = Object.entries({ submitted: row.createdAt, "taken up": row.startedAt, ended: row.endedAt });
  const time = (/** @type {string} */ word, /** @type {number} */ at) =>
    html`<li key=${word}>${word} <time title=${exactly(at)}>${timeOf(at)}</time></li>`;
  return html`<ul class="times dim">
      ${times.filter(([, at]) => at).map(([word, at]) => time(word, at))}
      <li>told as <code>${command.status}</code></li>
    </ul>
    ${command.result !== undefined ? html`<${Outcome} label="Result" value=${command.result} />` : ""}
    ${command.error && command.error !== row.reason
      ? html`<${Outcome} label="Error" value=${command.error} wrong />`
      : ""}`;
}

function Nothing() {
  if (!told.value.has("commands")) return html`<p class="empty" role="status">Asking for commands…</p>`;
  return html`<div class="empty">
    <p><b>No commands.</b></p>
    <p class="dim">A command is a call that one program submits and another runs. Submit one, and watch it here:</p>
    <pre class="arg-value"><code>callslip submit look --client browser</code></pre>
  </div>`;
}

/** @param {{id: string, word: string, none: string, rows: Row[], moved: string}} props */
function Lane({ id, word, none, rows, moved }) {
  const eager = (/** @type {Row} */ row, /** @type {number} */ number) => row.state === "queued" && number < AT_ONCE;
  return html`<section class=${`lane ${id}`} aria-labelledby=${`lane-${id}`}>
    <h2 id=${`lane-${id}`}>${word} <span class="count">${rows.length}</span></h2>
    ${rows.length ? "" : html`<p class="dim">${none}</p>`}
    <ol class="cards">
      ${rows.map((row, at) => html`
        <${CommandCard} key=${row.call} row=${row} moved=${moved} eager=${eager(row, at)} />`)}
    </ol>
  </section>`;
}

export default function CommandBoard() {
  const rows = /** @type {Row[]} */ ([...commands.value.values()]);
  const found = lanes(rows);
  const moved = found.get("pending")?.filter((row) => row.state === "queued").map((row) => row.call).join() ?? "";
  return html`<section class="board" aria-labelledby="board-title">
    <h1 id="board-title">Commands</h1>
    ${rows.length
      ? html`<div class="lanes">
          ${LANES.map((lane) => html`<${Lane} key=${lane.id} ...${lane} rows=${found.get(lane.id)} moved=${moved} />`)}
        </div>`
      : html`<${Nothing} />`}
  </section>`;
}
