// Break it: the same events reach a naive client and Callslip's own view, and buttons make the events go wrong. Shown
// on the session of the demo only, which says so by its options.

import { Callslip } from "./callslip.js";
import { FAULTS, refreshed } from "./faults.js";
import { Naive } from "./naive.js";
import { classes, html, signal, useEffect } from "./ui.js";
import { address, cancel, get, info, loaded, post, root } from "./state.js";
import { stateOf } from "./states.js";

/**
 * @typedef {import("./naive.js").Card} Card
 * @typedef {{id: number, type: string, status: string, title?: string, output?: unknown, outputText?: string,
 *   reason?: string, late?: number}} Call
 */

const MOST = 6; // so many rows of each side are shown
const LOOKS = 300; // how often it is looked, every 50 ms, whether the clients are back after the line was cut
const KEPT = "callslip-break-it";
const pause = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** What outlives a refresh: which session this is about, whether the panel is open, and how much a refresh cost. */
const recall = () => JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
const remember = (/** @type {object} */ more) => sessionStorage.setItem(KEPT, JSON.stringify({ ...recall(), ...more }));

const cards = signal(/** @type {Card[]} */ ([]));
const calls = signal(/** @type {Call[]} */ ([]));
const busy = signal("");
const told = signal("");
const down = signal(false);
const equal = signal(/** @type {boolean | null} */ (null));
/** The session that both clients look at. */
const here = signal("");
/** What `busy` says while a new session is made. */
const OVER = "over";

/** @type {{naive: Naive, ours: Callslip} | null} */
let stage = null;

let line = new AbortController();

/** A browser has six lines for all its tabs: one that nobody looks at, and where nothing goes on, holds none. */
const away = () => document.hidden && !busy.value;
const seenAgain = () => new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));

function hangUp() {
  line.abort();
  line = new AbortController();
}

/** Aborted with any of them. WebKit forgets the signal of `AbortSignal.any` before its time. */
function anyOf(/** @type {(AbortSignal | null | undefined)[]} */ ...signals) {
  const made = new AbortController();
  for (const signal of signals) {
    if (signal?.aborted) made.abort();
    signal?.addEventListener("abort", () => made.abort(), { once: true });
  }
  return made.signal;
}

/** The one way of both clients to the server. While it is cut nobody gets through. @type {typeof fetch} */
const ask = async (input, init = {}) => {
  if (away()) await seenAgain();
  if (down.value) throw new TypeError("the line is cut");
  return fetch(input, { ...init, signal: anyOf(line.signal, init?.signal) });
};

/** Both clients, each by its own line to the same session. @param {string} session */
function enter(session) {
  leave();
  cards.value = [];
  calls.value = [];
  equal.value = null;
  const naive = new Naive({ url: root, session, ask, onChange: (now) => (cards.value = now) });
  const onChange = () => (calls.value = callsOf(session));
  const ours = new Callslip({ url: root, sessions: [session], fetch: ask, onChange });
  stage = { naive, ours };
  here.value = session;
  naive.open();
  ours.open();
}

function leave() {
  stage?.naive.close();
  stage?.ours.close();
  stage = null;
}

/** @param {string} session @returns {Call[]} */
function callsOf(session) {
  const entries = [...(stage?.ours.sessions.get(session)?.entries.values() ?? [])];
  return /** @type {any[]} */ (entries).filter((entry) => entry.type === "tool_call");
}

const place = (/** @type {string} */ session) => `/v1/sessions/${encodeURIComponent(session)}`;

/** Until both clients have heard all there is, so that what is shown does not hang on how fast they are. */
async function inStep(/** @type {string} */ session) {
  const { seq } = await get(`${place(session)}?limit=1`);
  const heard = () => Math.min(stage?.naive.heard ?? seq, stage?.ours.sessions.get(session)?.seq ?? -1);
  for (let left = LOOKS; left && !down.value && heard() < seq; left--) await pause(50);
}

/** Whether Callslip's side is what a reload would give, told by asking for that. @param {string} session */
async function sameAsStored(session) {
  const { entries } = await get(`${place(session)}?format=entries&limit=1000`);
  return plain(entries.filter((/** @type {Call} */ entry) => entry.type === "tool_call")) === plain(callsOf(session));
}

/** A value as text in which the order of fields does not matter. @param {any} value @returns {string} */
function plain(value) {
  const sorted = (/** @type {string} */ _, /** @type {any} */ part) =>
    part && typeof part === "object" && !Array.isArray(part) ? Object.fromEntries(Object.entries(part).sort()) : part;
  return JSON.stringify(value, sorted);
}

// What the buttons do

/** @param {boolean} now */
function cut(now) {
  down.value = now;
  if (now) line.abort();
  else line = new AbortController();
}

/** @param {import("./faults.js").Fault} fault */
async function run(fault) {
  const session = here.value;
  busy.value = fault.id;
  told.value = "";
  try {
    await inStep(session);
    told.value = await fault.run({
      tell: (...events) => post(`${place(session)}/events`, events).then(() => inStep(session)),
      start: () => post("/demo/workers", { session }),
      kill: (call) => post(`/demo/workers/${call}/kill`, {}),
      ended: (call) => get(`/v1/calls/${call}?wait=10`),
      cancel,
      cut,
      pause,
    });
    await inStep(session);
    equal.value = await sameAsStored(session);
  } catch (error) {
    told.value = `That did not work: ${error instanceof Error ? error.message : error}`;
  } finally {
    if (down.value) cut(false);
    busy.value = "";
    if (away()) hangUp();
  }
}

function refresh() {
  remember({ gone: cards.value.length });
  location.reload();
}

/** A new session, in which nothing has gone wrong yet. @param {string} first */
async function startOver(first) {
  const session = `${first}-${Date.now().toString(36)}`;
  busy.value = OVER;
  try {
    await post(`${place(session)}/events`, [{ type: "session.info", title: "Break it" }]);
    remember({ session });
    told.value = "";
    enter(session);
  } catch (error) {
    told.value = `That did not work: ${/** @type {Error} */ (error).message}`;
  } finally {
    busy.value = "";
  }
}

// What is shown

/**
 * What is wrong with a card, by the call that came of the same event.
 * @param {Card} card @param {Map<number, Call>} known
 */
function wrong(card, known) {
  const call = known.get(card.seq);
  if (!call) return "there is no such call";
  if (call.status !== card.status) return `really ${stateOf(call.status).word}`;
  return call.title === card.text ? "" : `really ${call.title}`;
}

const lastLine = (/** @type {unknown} */ output) =>
  typeof output === "string" ? (output.trimEnd().split("\n").at(-1) ?? "") : "";

/** @param {{status: string, text: string, output: string, notes: {text: string, bad?: boolean}[]}} props */
const Row = ({ status, text, output, notes }) => html`
  <li class=${classes("broken-row", `is-${status}`)}>
    <span class="state"><span aria-hidden="true">${stateOf(status).glyph}</span> ${stateOf(status).word}</span>
    <div>
      <code class="foreign" dir="auto">${text}</code>
      ${output && html`<samp class="foreign" dir="auto">${output}</samp>`}
      ${notes.map(({ text: note, bad }) => html`
        <span class=${classes("note", bad && "bad")}>${bad ? "✗ " : ""}${note}</span>`)}
    </div>
  </li>`;

/** @param {{count: number, rows: unknown, none: string}} props */
const Rows = ({ count, rows, none }) => html`
  ${count > MOST && html`<p class="about">${count - MOST} earlier not shown</p>`}
  ${count ? html`<ol>${rows}</ol>` : html`<p class="broken-none">${none}</p>`}`;

function NaiveSide() {
  const known = new Map(calls.value.map((call) => [call.id, call]));
  const judged = cards.value.map((card) => ({ card, why: busy.value ? "" : wrong(card, known) }));
  const bad = judged.filter((one) => one.why).length;
  const seen = new Set(cards.value.map((card) => card.seq));
  const missing = busy.value ? 0 : calls.value.filter((call) => !seen.has(call.id)).length;
  const faults = [bad && `${bad} wrong`, missing && `${missing} missing`].filter(Boolean).join(", ");
  const rows = judged.slice(-MOST).map(({ card, why }) => html`
    <${Row} key=${card.seq} status=${card.status} text=${card.text} output=${lastLine(card.output)}
      notes=${why ? [{ text: why, bad: true }] : []} />`);
  return html`
    <section class="broken-side" aria-label="A naive client">
      <h3>A naive client <span class=${faults ? "tally bad" : "tally"}>${faults ? `✗ ${faults}` : ""}</span></h3>
      <p class="about">Finds a call by its text, believes the last word.</p>
      <${Rows} count=${cards.value.length} rows=${rows} none="It has heard of no call since this page was loaded." />
    </section>`;
}

/** What is said of our side, once that was looked at. */
const SAME = new Map([[null, ""], [true, "✓ the same as after a reload"], [false, "✗ not as after a reload"]]);

function OurSide() {
  const rows = calls.value.slice(-MOST).map((call) => html`
    <${Row} key=${call.id} status=${call.status} text=${call.title ?? ""}
      output=${lastLine(call.output ?? call.outputText)}
      notes=${[call.reason, call.late && "something came late"].filter(Boolean).map((text) => ({ text }))} />`);
  const count = calls.value.length;
  const look = equal.value === false ? "tally bad" : "tally good";
  return html`
    <section class="broken-side" aria-label="Callslip">
      <h3>Callslip <span class=${look}>${SAME.get(equal.value)}</span></h3>
      <p class="about">Every call has an id, one life, and its log.</p>
      <${Rows} count=${count} rows=${rows} none="No calls yet: press a button." />
    </section>`;
}

/** One thing at a time; a button that waits keeps the keyboard's focus. */
const idle = () => !busy.value;

/** @param {{first: string}} props */
function Buttons({ first }) {
  const button = (name = "", hint = "", /** @type {() => void} */ act, look = "") => html`
    <button type="button" class=${classes("button", look)} key=${name} title=${hint}
      aria-disabled=${String(!idle())} onClick=${() => idle() && act()}>${name}</button>`;
  return html`
    <div class="broken-buttons" role="group" aria-label="What goes wrong">
      ${FAULTS.map((one) => button(one.name, one.hint, () => run(one), busy.value === one.id ? "running" : ""))}
      ${button("Refresh", "load this page again", refresh)}
      ${button("Start over", "with a session in which nothing has gone wrong", () => startOver(first), "plain")}
    </div>`;
}

/** @param {{first: string}} props */
function Panel({ first }) {
  useEffect(() => {
    const { session = "", gone } = recall();
    enter(session.startsWith(first) ? session : first);
    if (gone !== undefined) told.value = refreshed(gone);
    remember({ gone: undefined });
    return leave;
  }, [first]);
  useEffect(() => {
    const look = () => away() && hangUp();
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);
  const where = address(`/s/${encodeURIComponent(here.value || first)}`);
  const doing = busy.value === OVER ? "A new session …" : busy.value && "Watch both sides …";
  const line = down.value ? "The line is cut." : doing || told.value;
  return html`
    <div class="broken">
      <p class="about">The same events go to two clients. Make them go wrong, and compare. All of it is real, and
        in <a href=${where}>a session of its own</a>.</p>
      <${Buttons} first=${first} />
      <p class=${classes("broken-told", down.value && "bad")} role="status">${line || "Nothing has gone wrong yet."}</p>
      <div class="broken-sides"><${NaiveSide} /><${OurSide} /></div>
    </div>`;
}

/** Whether this page was loaded anew by the button, whose effect is then to be seen. */
const refreshing = recall().gone !== undefined;
/** In ms: by then the timeline, which opens at its end, has come to rest. */
const SETTLED = 100;

const unfolded = signal(Boolean(recall().open));

/** @param {boolean} open */
function fold(open) {
  unfolded.value = open;
  remember({ open });
}

/** @param {{first: string}} props */
function Folded({ first }) {
  useEffect(() => {
    if (refreshing && loaded.value) setTimeout(() => scrollTo(0, 0), SETTLED);
  }, [loaded.value]);
  return html`
    <details class="break-it" open=${unfolded.value}
      onToggle=${(/** @type {any} */ event) => fold(event.target.open)}>
      <summary><h2>Break it</h2>
        <span>Duplicate, reorder, delay, kill, cut: and see which side still tells the truth</span></summary>
      ${unfolded.value && html`<${Panel} first=${first} />`}
    </details>`;
}

/** The panel, on the session of the demo; nothing elsewhere. */
export function BreakIt() {
  const first = info.value.options?.breakIt;
  return first ? html`<${Folded} first=${first} />` : null;
}

export default BreakIt;
