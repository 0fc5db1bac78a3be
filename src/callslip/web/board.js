// The command board: calls that one program submits and a worker runs, in columns by state.

import { inert } from "./ansi.js";
import { classes, html, useEffect, useState } from "./ui.js";
import { cancel, commands, get, link, loadedTopics } from "./state.js";
import { describeState } from "./states.js";
import { formatAge, formatElapsed, formatTime, isoTime } from "./time.js";

/**
 * @typedef {{call: string, session: string, toolCallId: string, state: string, toolName: string, title: string,
 *   reason: string, attempt: number, createdAt: number, startedAt: number, endedAt: number, client?: string}} Row
 * @typedef {{status: string, position?: number, executor_seen_at?: string | null, result?: unknown,
 *   error?: string}} Command
 */

/** @typedef {{id: string, label: string, emptyText: string, accepts: (row: Row) => boolean}} Column */

/** The columns; a command is in the first one that accepts it. @type {Column[]} */
const LANES = [
  {
    id: "pending", label: "Pending", emptyText: "No pending commands",
    accepts: ({ state }) => describeState(state).isOpen,
  },
  {
    id: "complete", label: "Completed", emptyText: "None completed recently",
    accepts: ({ state }) => state === "completed",
  },
  { id: "failed", label: "Failed", emptyText: "None failed", accepts: () => true },
];
/** The queue position is loaded for this many queued commands without opening them. */
const MAX_POSITIONS = 8;

const oldestFirst = (/** @type {Row} */ one, /** @type {Row} */ two) => one.createdAt - two.createdAt;
const lastEndedFirst = (/** @type {Row} */ one, /** @type {Row} */ two) => two.endedAt - one.endedAt;

/** @param {Row[]} rows */
function groupByLane(rows) {
  const byLane = new Map(LANES.map((lane) => [lane.id, /** @type {Row[]} */ ([])]));
  for (const row of rows) byLane.get(LANES.find((lane) => lane.accepts(row))?.id ?? "failed")?.push(row);
  for (const [id, list] of byLane) list.sort(id === "pending" ? oldestFirst : lastEndedFirst);
  return byLane;
}

/**
 * Load the details of a command, again whenever `version` changes.
 * @param {Row} row @param {boolean} isWanted @param {string} version
 */
function useCommand(row, isWanted, version) {
  const [result, setResult] = useState(/** @type {{command?: Command, failed?: string}} */ ({}));
  useEffect(() => {
    if (!isWanted) return;
    let stale = false;
    get(`/v1/calls/${encodeURIComponent(row.call)}?format=command`).then(
      (command) => stale || setResult({ command }),
      (error) => stale || setResult({ failed: error.message }),
    );
    return () => {
      stale = true;
    };
  }, [isWanted, version]);
  return result;
}

/** The position in the queue, and when a worker was last seen. @param {{command: Command}} props */
function QueuePosition({ command }) {
  const { position, executor_seen_at: workerSeenAt } = command;
  const seenAt = workerSeenAt ? Date.parse(workerSeenAt) : 0;
  return html`<p class="dim">
    ${position ? `Position ${position}.` : ""}
    ${seenAt ? html` Worker last seen <time title=${isoTime(seenAt)}>${formatAge(seenAt)}</time>.` : ""}
    ${workerSeenAt === null ? html` <span class="missing">No worker has connected yet.</span>` : ""}
  </p>`;
}

/** @param {{label: string, value: unknown, wrong?: boolean}} props */
function ValueBlock({ label, value, wrong = false }) {
  const text = typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
  return html`<div>
    <p class="dim">${label}</p>
    <pre class=${classes("arg-value untrusted", wrong && "is-failed")} dir="auto" tabindex="0" role="group"
      aria-label=${label}>${inert(text)}</pre>
  </div>`;
}

/** @param {{row: Row}} props */
function CancelButton({ row }) {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  async function stop() {
    setBusy(true);
    setError("");
    try {
      await cancel(row.call, "cancelled in the web UI");
    } catch (cause) {
      setError(/** @type {Error} */ (cause).message);
    } finally {
      setBusy(false);
    }
  }
  return html`<button type="button" class="button small" disabled=${busy} onClick=${stop}
      aria-label=${`Cancel ${inert(row.title || row.toolName)}`}>■ Cancel</button>
    ${error ? html`<p class="error-text" role="alert">${error}</p>` : ""}`;
}

/** @param {Row} row */
const describeAge = ({ createdAt, endedAt }) =>
  endedAt ? `${formatElapsed(createdAt, endedAt)}, ${formatAge(endedAt)}` : formatElapsed(createdAt);

/** @param {{row: Row, isEager: boolean, queuedIds: string}} props */
function CommandCard({ row, isEager, queuedIds }) {
  const [open, setOpen] = useState(false);
  const state = describeState(row.state);
  const version = `${row.state} ${row.attempt} ${row.state === "queued" ? queuedIds : ""}`;
  const { command, failed } = useCommand(row, open || isEager, version);
  const path = `/c/${encodeURIComponent(row.call)}`;
  const name = inert(row.title || row.toolName || row.call);
  return html`<li><article data-card tabindex="-1" class=${classes("command", `is-${row.state}`, open && "open")}
    aria-label=${`${name}, ${state.label}`}>
    <p class="line">
      <span class="state"><span aria-hidden="true">${state.glyph}</span> ${state.label}</span>
      <span class="dim age" title=${isoTime(row.createdAt)}>${describeAge(row)}</span>
    </p>
    <h3><a class="untrusted" dir="auto" ...${link(path)}>${name}</a></h3>
    <p class="dim about">
      ${row.client ? html`<span>For <b class="untrusted" dir="auto">${inert(row.client)}</b></span>` : ""}
      <span class="untrusted" dir="auto">${inert(row.session)}</span>
      <code>${inert(row.toolCallId || row.call)}</code>
      ${row.attempt > 1 ? html`<span>Attempt ${row.attempt}</span>` : ""}
    </p>
    ${row.reason ? html`<p class="why untrusted" dir="auto">${inert(row.reason)}</p>` : ""}
    ${command && row.state === "queued" ? html`<${QueuePosition} command=${command} />` : ""}
    ${open && failed ? html`<p class="error-text" role="alert">${failed}</p>` : ""}
    ${open && command ? html`<${Details} row=${row} command=${command} />` : ""}
    <div class="button-row">
      <button type="button" class="button small plain" aria-expanded=${open ? "true" : "false"}
        onClick=${() => setOpen(!open)}>
        ${open ? "Hide details" : "Show details"}<span class="visually-hidden"> of ${name}</span></button>
      ${state.isOpen ? html`<${CancelButton} row=${row} />` : ""}
    </div>
  </article></li>`;
}

/** @param {{row: Row, command: Command}} props */
function Details({ row, command }) {
  const times = Object.entries({ Submitted: row.createdAt, Claimed: row.startedAt, Ended: row.endedAt });
  const timeItem = (/** @type {string} */ label, /** @type {number} */ at) =>
    html`<li key=${label}>${label} <time title=${isoTime(at)}>${formatTime(at)}</time></li>`;
  return html`<ul class="times dim">
      ${times.filter(([, at]) => at).map(([label, at]) => timeItem(label, at))}
      <li>API status <code>${command.status}</code></li>
    </ul>
    ${command.result !== undefined ? html`<${ValueBlock} label="Result" value=${command.result} />` : ""}
    ${command.error && command.error !== row.reason
      ? html`<${ValueBlock} label="Error" value=${command.error} wrong />`
      : ""}`;
}

function EmptyBoard() {
  if (!loadedTopics.value.has("commands")) return html`<p class="empty" role="status">Loading commands…</p>`;
  return html`<div class="empty">
    <p><b>No commands yet</b></p>
    <p class="dim">A command is a call that one program submits and a worker runs. Submit one:</p>
    <pre class="arg-value"><code>callslip submit screenshot --queue browser --params '{"url": "https://example.com"}'</code></pre>
  </div>`;
}

/** @param {{id: string, label: string, emptyText: string, rows: Row[], queuedIds: string}} props */
function Lane({ id, label, emptyText, rows, queuedIds }) {
  const isEager = (/** @type {Row} */ { state }, /** @type {number} */ at) => state === "queued" && at < MAX_POSITIONS;
  return html`<section class=${`lane ${id}`} aria-labelledby=${`lane-${id}`}>
    <h2 id=${`lane-${id}`}>${label} <span class="count">${rows.length}</span></h2>
    ${rows.length ? "" : html`<p class="dim">${emptyText}</p>`}
    <ol class="cards">
      ${rows.map((row, at) => html`
        <${CommandCard} key=${row.call} row=${row} queuedIds=${queuedIds} isEager=${isEager(row, at)} />`)}
    </ol>
  </section>`;
}

export default function CommandBoard() {
  const rows = /** @type {Row[]} */ ([...commands.value.values()]);
  const byLane = groupByLane(rows);
  const queuedIds = byLane.get("pending")?.filter((row) => row.state === "queued").map((row) => row.call).join() ?? "";
  return html`<section class="board" aria-labelledby="board-title">
    <h1 id="board-title">Commands</h1>
    ${rows.length
      ? html`<div class="lanes">
          ${LANES.map((lane) => html`
            <${Lane} key=${lane.id} ...${lane} rows=${byLane.get(lane.id)} queuedIds=${queuedIds} />`)}
        </div>`
      : html`<${EmptyBoard} />`}
  </section>`;
}
