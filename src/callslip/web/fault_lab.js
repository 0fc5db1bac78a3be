// Fault lab: sends the same events to a naive client and to Callslip's client, with buttons that inject faults. Shown
// only in the demo's session, which enables it in its options.

import { Callslip } from "./callslip.js";
import { FAULTS, reloadMessage } from "./faults.js";
import { NaiveClient } from "./naive.js";
import { scroller } from "./frame.js";
import { classes, html, signal, useEffect } from "./ui.js";
import { cancel, get, info, loaded, pageUrl, post, root } from "./state.js";
import { describeState } from "./states.js";

/**
 * @typedef {import("./naive.js").Card} Card
 * @typedef {{id: number, type: string, status: string, title?: string, output?: unknown, outputText?: string,
 *   reason?: string, late?: number}} Call
 */

const MAX_ROWS = 6; // Per side.
const MAX_POLLS = 300; // Checks, every 50 ms, whether the clients have caught up.
const STORAGE_KEY = "callslip-fault-lab";
const pause = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** State that survives a reload: the session, whether the panel is open, and the number of cards lost by the reload. */
const readSaved = () => JSON.parse(sessionStorage.getItem(STORAGE_KEY) ?? "{}");
const save = (/** @type {object} */ fields) =>
  sessionStorage.setItem(STORAGE_KEY, JSON.stringify({ ...readSaved(), ...fields }));

const cards = signal(/** @type {Card[]} */ ([]));
const calls = signal(/** @type {Call[]} */ ([]));
const busy = signal("");
const message = signal("");
const isOffline = signal(false);
const isSameAsStored = signal(/** @type {boolean | null} */ (null));
/** The session that both clients follow. */
const currentSession = signal("");
/** The value of `busy` while a new session is created. */
const RESETTING = "reset";

/** @type {{naive: NaiveClient, ours: Callslip} | null} */
let clients = null;

let connection = new AbortController();

/** A browser allows six connections for all its tabs: a hidden, idle tab holds none. */
const isHidden = () => document.hidden && !busy.value;
const untilVisible = () =>
  new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));

function disconnect() {
  connection.abort();
  connection = new AbortController();
}

/** Like `AbortSignal.any`, whose signal WebKit garbage-collects too early. */
function anyOf(/** @type {(AbortSignal | null | undefined)[]} */ ...signals) {
  const controller = new AbortController();
  for (const signal of signals) {
    if (signal?.aborted) controller.abort();
    signal?.addEventListener("abort", () => controller.abort(), { once: true });
  }
  return controller.signal;
}

/** The `fetch` of both clients. It fails while they are offline. @type {typeof fetch} */
const labFetch = async (input, init = {}) => {
  if (isHidden()) await untilVisible();
  if (isOffline.value) throw new TypeError("the connection is down");
  return fetch(input, { ...init, signal: anyOf(connection.signal, init?.signal) });
};

/** Connect both clients to a session. @param {string} session */
function openSession(session) {
  closeClients();
  cards.value = [];
  calls.value = [];
  isSameAsStored.value = null;
  const onCards = (/** @type {Card[]} */ newCards) => (cards.value = newCards);
  const naive = new NaiveClient({ url: root, session, fetch: labFetch, onChange: onCards });
  const onChange = () => (calls.value = callsOf(session));
  const ours = new Callslip({ url: root, sessions: [session], fetch: labFetch, onChange });
  clients = { naive, ours };
  currentSession.value = session;
  naive.open();
  ours.open();
}

function closeClients() {
  clients?.naive.close();
  clients?.ours.close();
  clients = null;
}

/** @param {string} session @returns {Call[]} */
function callsOf(session) {
  const entries = [...(clients?.ours.sessions.get(session)?.entries.values() ?? [])];
  return /** @type {any[]} */ (entries).filter((entry) => entry.type === "tool_call");
}

const sessionPath = (/** @type {string} */ session) => `/v1/sessions/${encodeURIComponent(session)}`;

/** Wait until both clients have received all events, so that the result does not depend on their speed. */
async function untilCaughtUp(/** @type {string} */ session) {
  const { seq } = await get(`${sessionPath(session)}?limit=1`);
  const lastSeq = () => Math.min(clients?.naive.lastSeq ?? seq, clients?.ours.sessions.get(session)?.seq ?? -1);
  for (let left = MAX_POLLS; left && !isOffline.value && lastSeq() < seq; left--) await pause(50);
}

/** Whether Callslip's side equals what a reload would load. @param {string} session */
async function matchesStored(session) {
  const { entries } = await get(`${sessionPath(session)}?format=entries&limit=1000`);
  const stored = entries.filter((/** @type {Call} */ entry) => entry.type === "tool_call");
  return canonicalJson(stored) === canonicalJson(callsOf(session));
}

/** Format a value as JSON with sorted keys. @param {any} value @returns {string} */
function canonicalJson(value) {
  const sorted = (/** @type {string} */ _, /** @type {any} */ part) =>
    part && typeof part === "object" && !Array.isArray(part) ? Object.fromEntries(Object.entries(part).sort()) : part;
  return JSON.stringify(value, sorted);
}

// Actions

/** @param {boolean} offline */
function setOffline(offline) {
  isOffline.value = offline;
  if (offline) connection.abort();
  else connection = new AbortController();
}

/** @param {import("./faults.js").Fault} fault */
async function run(fault) {
  const session = currentSession.value;
  busy.value = fault.id;
  message.value = "";
  try {
    await untilCaughtUp(session);
    message.value = await fault.run({
      send: (...events) => post(`${sessionPath(session)}/events`, events).then(() => untilCaughtUp(session)),
      start: () => post("/demo/workers", { session }),
      kill: (call) => post(`/demo/workers/${call}/kill`, {}),
      waitForEnd: (call) => get(`/v1/calls/${call}?wait=10`),
      cancel,
      setOffline,
      pause,
    });
    await untilCaughtUp(session);
    isSameAsStored.value = await matchesStored(session);
  } catch (error) {
    message.value = `Failed: ${error instanceof Error ? error.message : error}`;
  } finally {
    if (isOffline.value) setOffline(false);
    busy.value = "";
    if (isHidden()) disconnect();
  }
}

function reloadPage() {
  save({ lostCards: cards.value.length });
  location.reload();
}

/** Start again with a new, empty session. @param {string} first */
async function reset(first) {
  const session = `${first}-${Date.now().toString(36)}`;
  busy.value = RESETTING;
  try {
    await post(`${sessionPath(session)}/events`, [{ type: "session.info", title: "Fault lab" }]);
    save({ session });
    message.value = "";
    openSession(session);
  } catch (error) {
    message.value = `Failed: ${/** @type {Error} */ (error).message}`;
  } finally {
    busy.value = "";
  }
}

// Components

/**
 * Compare a card of the naive client with the call that the same event created. Return the difference, or "".
 * @param {Card} card @param {Map<number, Call>} callsById
 */
function describeError(card, callsById) {
  const call = callsById.get(card.seq);
  if (!call) return "no such call";
  if (call.status !== card.status) return `should be ${describeState(call.status).label}`;
  return call.title === card.text ? "" : `should be ${call.title}`;
}

const lastLine = (/** @type {unknown} */ output) =>
  typeof output === "string" ? (output.trimEnd().split("\n").at(-1) ?? "") : "";

/** @param {{status: string, text: string, output: string, notes: {text: string, bad?: boolean}[]}} props */
const Row = ({ status, text, output, notes }) => html`
  <li class=${classes("fault-row", `is-${status}`)}>
    <span class="state">
      <span aria-hidden="true">${describeState(status).glyph}</span> ${describeState(status).label}</span>
    <div>
      <code class="untrusted" dir="auto">${text}</code>
      ${output && html`<samp class="untrusted" dir="auto">${output}</samp>`}
      ${notes.map(({ text: note, bad }) => html`
        <span class=${classes("note", bad && "bad")}>${bad ? "✗ " : ""}${note}</span>`)}
    </div>
  </li>`;

/** @param {{count: number, rows: unknown, none: string}} props */
const Rows = ({ count, rows, none }) => html`
  ${count > MAX_ROWS && html`<p class="about">${count - MAX_ROWS} earlier calls hidden</p>`}
  ${count ? html`<ol>${rows}</ol>` : html`<p class="fault-empty">${none}</p>`}`;

function NaiveSide() {
  const callsById = new Map(calls.value.map((call) => [call.id, call]));
  const results = cards.value.map((card) => ({ card, error: busy.value ? "" : describeError(card, callsById) }));
  const wrongCount = results.filter(({ error }) => error).length;
  const seen = new Set(cards.value.map((card) => card.seq));
  const missingCount = busy.value ? 0 : calls.value.filter((call) => !seen.has(call.id)).length;
  const counts = [wrongCount && `${wrongCount} wrong`, missingCount && `${missingCount} missing`];
  const summary = counts.filter(Boolean).join(", ");
  const rows = results.slice(-MAX_ROWS).map(({ card, error }) => html`
    <${Row} key=${card.seq} status=${card.status} text=${card.text} output=${lastLine(card.output)}
      notes=${error ? [{ text: error, bad: true }] : []} />`);
  return html`
    <section class="fault-side" aria-label="Naive client">
      <h3>Naive client <span class=${summary ? "tally bad" : "tally"}>${summary ? `✗ ${summary}` : ""}</span></h3>
      <p class="about">Matches calls by their text and keeps the last status.</p>
      <${Rows} count=${cards.value.length} rows=${rows} none="No calls received since the page was loaded." />
    </section>`;
}

/** The result of the comparison with the stored session. */
const COMPARISONS = new Map([[null, ""], [true, "✓ Same after reload"], [false, "✗ Differs after reload"]]);

function CallslipSide() {
  const rows = calls.value.slice(-MAX_ROWS).map((call) => html`
    <${Row} key=${call.id} status=${call.status} text=${call.title ?? ""}
      output=${lastLine(call.output ?? call.outputText)}
      notes=${[call.reason, call.late && "late event ignored"].filter(Boolean).map((text) => ({ text }))} />`);
  const count = calls.value.length;
  const tallyClass = isSameAsStored.value === false ? "tally bad" : "tally good";
  return html`
    <section class="fault-side" aria-label="Callslip">
      <h3>Callslip <span class=${tallyClass}>${COMPARISONS.get(isSameAsStored.value)}</span></h3>
      <p class="about">Matches calls by ID and follows the log.</p>
      <${Rows} count=${count} rows=${rows} none="No calls yet. Inject a fault to start." />
    </section>`;
}

/** Only one fault runs at a time. Buttons are not disabled meanwhile, so that they keep the focus. */
const isIdle = () => !busy.value;

/** @param {{first: string}} props */
function Buttons({ first }) {
  const button = (name = "", hint = "", /** @type {() => void} */ act, kind = "") => html`
    <button type="button" class=${classes("button", kind)} key=${name} title=${hint}
      aria-disabled=${String(!isIdle())} onClick=${() => isIdle() && act()}>${name}</button>`;
  return html`
    <div class="fault-buttons" role="group" aria-label="Faults">
      ${FAULTS.map((one) => button(one.name, one.hint, () => run(one), busy.value === one.id ? "running" : ""))}
      ${button("Reload page", "The naive client loses its cards", reloadPage)}
      ${button("Reset", "Start again with an empty session", () => reset(first), "plain")}
    </div>`;
}

/** @param {{first: string}} props */
function Panel({ first }) {
  useEffect(() => {
    const { session = "", lostCards } = readSaved();
    openSession(session.startsWith(first) ? session : first);
    if (lostCards !== undefined) message.value = reloadMessage(lostCards);
    save({ lostCards: undefined });
    return closeClients;
  }, [first]);
  useEffect(() => {
    const onVisibilityChange = () => isHidden() && disconnect();
    document.addEventListener("visibilitychange", onVisibilityChange);
    return () => document.removeEventListener("visibilitychange", onVisibilityChange);
  }, []);
  const sessionUrl = pageUrl(`/s/${encodeURIComponent(currentSession.value || first)}`);
  const progress = busy.value === RESETTING ? "Creating a session…" : busy.value && "Injecting the fault…";
  const status = isOffline.value ? "The connection is down." : progress || message.value;
  return html`
    <div class="fault-panel">
      <p class="about">Both clients receive the same real events. Inject a fault and compare the results. The calls are
        recorded in <a href=${sessionUrl}>their own session</a>.</p>
      <${Buttons} first=${first} />
      <p class=${classes("fault-status", isOffline.value && "bad")} role="status">
        ${status || "No faults injected yet."}</p>
      <div class="fault-sides"><${NaiveSide} /><${CallslipSide} /></div>
    </div>`;
}

/** Whether the page was reloaded by the button: its effect must then be visible. */
const isAfterReload = readSaved().lostCards !== undefined;
/** By then the timeline, which opens at its end, has stopped scrolling. */
const SETTLE_MS = 100;

const isPanelOpen = signal(Boolean(readSaved().open));

/** @param {boolean} open */
function setPanelOpen(open) {
  isPanelOpen.value = open;
  save({ open });
}

/** @param {{first: string}} props */
function FaultPanel({ first }) {
  useEffect(() => {
    if (isAfterReload && loaded.value) setTimeout(() => scroller()?.scrollTo(0, 0), SETTLE_MS);
  }, [loaded.value]);
  return html`
    <details class="fault-lab" open=${isPanelOpen.value}
      onToggle=${(/** @type {any} */ event) => setPanelOpen(event.target.open)}>
      <summary><h2>Fault lab</h2>
        <span>Inject faults and compare Callslip with a naive client</span></summary>
      ${isPanelOpen.value && html`<${Panel} first=${first} />`}
    </details>`;
}

/** The panel, in the demo's session only. */
export function FaultLab() {
  const first = info.value.options?.breakIt;
  return first ? html`<${FaultPanel} first=${first} />` : null;
}

export default FaultLab;
