// The commands: calls that one program submits and a worker runs, in a table by state.

import { inert } from "./ansi.js";
import { Frame, IconButton } from "./frame.js";
import { readRequest } from "./inbox_detail.js";
import {
  AnswerEditor, AnswerPlace, AnswerResult, DecisionForm, isAnswerKey, pressKey, Requested, requestFromRow, useAnswer,
} from "./request.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { cancel, commands, get, inbox, link, loadedTopics } from "./state.js";
import { describeState } from "./states.js";
import { formatAge, formatElapsed, formatTime, isoTime } from "./time.js";

/**
 * @typedef {{call: string, session: string, toolCallId: string, state: string, toolName: string, title: string,
 *   reason: string, attempt: number, createdAt: number, startedAt: number, endedAt: number, client?: string}} Row
 * @typedef {{status: string, position?: number, executor_seen_at?: string | null, result?: unknown,
 *   error?: string}} Command
 */

/** The groups; a command is in the first one that accepts it. @type {{label: string, accepts: (row: Row) => boolean}[]} */
const GROUPS = [
  { label: "Waiting for approval", accepts: ({ state }) => state === "awaiting_approval" },
  { label: "Queued", accepts: ({ state }) => state === "queued" },
  { label: "Running", accepts: ({ state }) => describeState(state).isOpen },
  { label: "Finished", accepts: () => true },
];
/** The queue position is loaded for this many queued commands without opening them. */
const MAX_POSITIONS = 8;
const COLUMNS = 6;

const oldestFirst = (/** @type {Row} */ one, /** @type {Row} */ two) => one.createdAt - two.createdAt;
const lastEndedFirst = (/** @type {Row} */ one, /** @type {Row} */ two) => two.endedAt - one.endedAt;

/** @param {Row[]} rows */
function groupRows(rows) {
  const groups = GROUPS.map(({ label }) => ({ label, rows: /** @type {Row[]} */ ([]) }));
  for (const row of rows) groups[GROUPS.findIndex((group) => group.accepts(row))].rows.push(row);
  for (const group of groups) group.rows.sort(group.label === "Finished" ? lastEndedFirst : oldestFirst);
  return groups.filter((group) => group.rows.length);
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
  return html`${position ? `Position ${position}.` : ""}
    ${seenAt ? html` Worker last seen <time title=${isoTime(seenAt)}>${formatAge(seenAt)}</time>.` : ""}
    ${workerSeenAt === null ? html` <span class="wait">No worker has connected yet.</span>` : ""}`;
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

/** The decision on a command that waits for approval, with what it would do. @param {{pending: any, name: string}} props */
function Approval({ pending, name }) {
  const [requested, setRequested] = useState(/** @type {any} */ (null));
  const box = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const answer = useAnswer(requested ?? requestFromRow(pending), true);
  useEffect(() => {
    readRequest(pending).then(setRequested, () => {});
  }, [pending.approval]);
  const { isWaiting, canAnswer, mode } = answer;

  function onKey(/** @type {KeyboardEvent} */ event) {
    if (event.key === "Escape" && event.target !== box.current) box.current?.focus();
    else if (event.target !== box.current || !isAnswerKey(event)) return;
    else if (canAnswer && requested && !event.repeat) pressKey(/** @type {HTMLElement} */ (box.current), event.key);
    event.preventDefault();
  }

  return html`<div class="of-command" role="group" aria-label=${`Approval of ${name}`} tabindex="0" ref=${box}
      data-card aria-keyshortcuts=${canAnswer ? "a d e" : undefined} onKeyDown=${onKey}>
    ${requested && isWaiting && mode !== "edit" && html`<${Requested} input=${requested.rawInput} kind=${answer.offer?.kind} />`}
    <${AnswerEditor} answer=${answer} onCancel=${() => box.current?.focus()} />
    ${answer.showsForm && requested && !(canAnswer && mode !== "decide") && html`<${DecisionForm} answer=${answer} />`}
    ${answer.place && html`<${AnswerPlace} place=${answer.place} />`}
    <${AnswerResult} answer=${answer} />
  </div>`;
}

/** @param {{row: Row, name: string}} props */
function CancelButton({ row, name }) {
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
  return html`${error && html`<span class="bad" role="alert">${inert(error)}</span>`}
    <button type="button" class="btn" disabled=${busy} onClick=${stop} aria-label=${`Cancel ${name}`}>Cancel</button>`;
}

/** @param {{row: Row, isEager: boolean, queuedIds: string}} props */
function CommandRow({ row, isEager, queuedIds }) {
  const pending = row.state === "awaiting_approval" &&
    [...inbox.value.values()].find(({ call, session }) => call === row.call && session === row.session);
  const [chosen, setOpen] = useState(/** @type {boolean | null} */ (null));
  const open = chosen ?? Boolean(pending);
  const state = describeState(row.state);
  const version = `${row.state} ${row.attempt} ${row.state === "queued" ? queuedIds : ""}`;
  const { command, failed } = useCommand(row, open || isEager, version);
  const name = inert(row.title || row.toolName || row.call);
  const waitedUntil = row.startedAt || row.endedAt;
  return html`<tr class=${classes("command", `is-${row.state}`)} data-card tabindex="-1" aria-label=${`${name}, ${state.label}`}>
    <td class="t m"><span class="ttl">
      <span class="state">${state.icon === "ring" ? html`<span class="ring"></span>` : html`<i class=${`i i-${state.icon}`} aria-hidden="true"></i>`}</span>
      <a class="mono cut untrusted" dir="auto" ...${link(`/c/${encodeURIComponent(row.call)}`)}>${name}</a>
      <small class="cut untrusted" dir="auto">${inert(row.session)}</small></span></td>
    <td class="m c-what"><span class=${row.state === "completed" ? "dim" : "state"}>${state.label}</span>
      ${row.attempt > 1 ? `, attempt ${row.attempt}` : ""}
      ${row.reason ? html`<span class="untrusted" dir="auto" title=${inert(row.reason)}>: ${inert(row.reason)}</span>` : ""}
      ${command && row.state === "queued" ? html`<span class="dim">. <${QueuePosition} command=${command} /></span>` : ""}</td>
    <td class="c-queue c-opt untrusted" dir="auto">${inert(row.client ?? "")}</td>
    <td class="n c-time c-mid" title=${isoTime(row.createdAt)}>${formatElapsed(row.createdAt, waitedUntil)}</td>
    <td class="n m c-time" title=${isoTime(row.startedAt)}>${row.startedAt ? formatElapsed(row.startedAt, row.endedAt) : html`<span class="dim">–</span>`}</td>
    <td class="c-acts">${state.isOpen ? html`<${CancelButton} row=${row} name=${name} />` : ""}
      <${IconButton} icon=${open ? "up" : "down"} label=${`${open ? "Hide details" : "Show details"} of ${name}`}
        aria-expanded=${String(open)} onClick=${() => setOpen(!open)} /></td>
  </tr>
  ${open && html`<tr class="asked"><td colspan=${COLUMNS}>
    ${pending && html`<${Approval} pending=${pending} name=${name} />`}
    <div class="of-command">${failed ? html`<p class="bad" role="alert">${inert(failed)}</p>` : ""}
    ${command ? html`<${Details} row=${row} command=${command} />` : ""}
  </div></td></tr>`}`;
}

function EmptyBoard() {
  if (!loadedTopics.value.has("commands")) return html`<p class="loading" role="status">Loading commands…</p>`;
  return html`<div class="void">
    <i class="i i-queue" aria-hidden="true"></i>
    <h2>No commands yet</h2>
    <p>A command is a call that one program submits and a worker runs. Submit one:</p>
    <pre class="term">callslip submit screenshot --queue browser --params '{"url": "https://example.com"}'</pre>
  </div>`;
}

export default function CommandBoard() {
  const rows = /** @type {Row[]} */ ([...commands.value.values()]);
  const groups = groupRows(rows);
  const queued = groups.find(({ label }) => label === "Queued")?.rows ?? [];
  const queuedIds = queued.map((row) => row.call).join();
  const open = rows.filter((row) => describeState(row.state).isOpen).length;
  const head = html`<h1>Commands</h1><p class="dim num" role="status">${rows.length
    ? `${rows.length} listed, ${open} not finished` : ""}</p>`;
  return html`<${Frame} head=${head}><div class="wrap">
    ${rows.length ? html`<table class="list board"><thead><tr><th scope="col">Command</th><th scope="col" class="c-what">State</th>
        <th scope="col" class="c-queue c-opt">Queue</th><th scope="col" class="n c-time c-mid">Waited</th>
        <th scope="col" class="n c-time">Took</th><th scope="col" class="c-acts"><span class="visually-hidden">Actions</span></th></tr></thead>
      ${groups.map((group) => html`<tbody key=${group.label}>
        <tr class="day"><th scope="rowgroup" colspan=${COLUMNS}>${group.label} <span>${group.rows.length}</span></th></tr>
        ${group.rows.map((row) => html`<${CommandRow} key=${row.call} row=${row} queuedIds=${queuedIds}
          isEager=${queued.slice(0, MAX_POSITIONS).includes(row)} />`)}
      </tbody>`)}</table>` : html`<${EmptyBoard} />`}
  </div><//>`;
}
