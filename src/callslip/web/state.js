// What the page knows, as signals. It is what the server says: entries are put, set and appended to by its patches,
// and nothing here decides what a call is. Components read; the few things that a person can do are the functions at
// the end.

import { apply } from "./callslip.js";
import { batch, computed, signal } from "./ui.js";
import { root } from "./route.js";
import { NEWEST, follow } from "./stream.js";

export { address, go, link, picked, root, route } from "./route.js";

/**
 * @typedef {import("./callslip.d.ts").Entry} Entry
 * @typedef {import("./callslip.d.ts").Patch} Patch
 * @typedef {import("./callslip.d.ts").Status} Status
 * @typedef {any} Row One row of a topic, as the API gives it.
 * @typedef {Record<string, any>} Info
 * @typedef {{seq: number, at: number, type: string, entries: Entry[], info: Info}} Past After an event: what was then.
 */

// What the server tells

/** "connecting" | "live" | "resuming" | "waiting" | "refused" | "closed" */
export const status = signal(/** @type {Status} */ ("connecting"));

/** Why there is no line, and the status of the server's answer if it gave one (401: say who you are). */
export const problem = signal("");
export const code = signal(0);

/** Rows by id, as GET /v1/sessions, /v1/approvals and /v1/calls give them. */
const rows = () => signal(/** @type {Map<string, Row>} */ (new Map()));
export const sessions = rows();
export const inbox = rows();
export const commands = rows();

/** Requests that left the inbox while the page was open, with their answers: by whom, when, which. */
export const answered = rows();

/** Which topics have been told. */
export const told = signal(/** @type {Set<string>} */ (new Set()));

/** @type {Record<string, typeof inbox>} */
const TOPICS = { sessions, inbox, commands };

/** @type {Record<string, string>} */
const ROW = { sessions: "session", inbox: "approval", commands: "call" };

/** The session that is shown: its name, the seq it is at, its info, and the ids of its entries in order. */
export const name = signal("");
export const seq = signal(0);
export const info = signal(/** @type {Info} */ ({}));
export const order = signal(/** @type {number[]} */ ([]));
export const loaded = signal(false);

/** There is no such session: not yet, not any more, or not for whoever looks. */
export const missing = signal(false);

/** There may be older entries than those that are loaded: `older()` loads them. */
export const hasOlder = signal(false);

/** @type {Map<number, {value: Entry, peek(): Entry}>} */
const entries = new Map();

/**
 * The signal of an entry; components that read it are drawn again when it changes, and no others.
 * @param {number} id
 */
export const entryOf = (id) => entries.get(id);

/** All entries as they stand. Whoever calls this in a component depends on all of them. */
export const everything = computed(() =>
  order.value.map((id) => /** @type {{value: Entry}} */ (entries.get(id)).value),
);

/** While a past moment is shown: that, and its entries (`showPast`); null when the page is live. */
export const past = signal(/** @type {Past | null} */ (null));

/** What is shown: of the past if there is one, else live. */
export const shown = computed(() => (past.value ? past.value.entries : everything.value));

/** @param {Entry} entry */
function put(entry) {
  const known = entries.get(entry.id);
  if (known) known.value = entry;
  else entries.set(entry.id, signal(entry));
  return !known;
}

/** @param {{session: string, seq: number, info: Info, entries: Entry[]}} snapshot */
function takeSnapshot(snapshot) {
  if (snapshot.session !== name.value) return;
  batch(() => {
    const ids = snapshot.entries.map((entry) => entry.id);
    const kept = new Set(ids);
    meanwhile = null;
    for (const id of entries.keys()) if (!kept.has(id)) entries.delete(id);
    snapshot.entries.forEach(put);
    order.value = ids;
    info.value = snapshot.info;
    seq.value = snapshot.seq;
    hasOlder.value = ids.length >= NEWEST;
    missing.value = false;
    loaded.value = true;
  });
}

/** @typedef {{session: string, seq: number, patches: Patch[]}} Change */

/** What came while older entries were being asked for: they may be about those. @type {Change[] | null} */
let meanwhile = null;

/** @param {Change} change */
function takePatches(change) {
  if (change.session !== name.value || change.seq <= seq.value) return;
  meanwhile?.push(change);
  batch(() => {
    change.patches.forEach(takePatch);
    seq.value = change.seq;
  });
}

/** @param {Patch} patch */
function takePatch(patch) {
  if (patch.op === "put") {
    const first = order.value[0] ?? 0;
    if (patch.entry.id < first && !entries.has(patch.entry.id)) return; // An older entry that is not loaded.
    if (put(patch.entry)) order.value = [...order.value, patch.entry.id];
    return;
  }
  const target = patch.id ? entries.get(patch.id) : info;
  if (!target) return;
  const copy = /** @type {any} */ ({ ...target.peek() });
  apply({ name: "", seq: 0, entries: new Map([[patch.id, copy]]), info: copy }, patch);
  target.value = copy;
}

/** @type {Record<string, (told: any) => void>} */
const TAKES = {
  snapshot: takeSnapshot,
  patches: takePatches,
  gone: ({ session }) => session === name.value && (missing.value = true),
  topic(topic) {
    TOPICS[topic.topic].value = new Map(topic.rows.map((/** @type {Row} */ row) => [row[ROW[topic.topic]], row]));
    told.value = new Set(told.value).add(topic.topic);
  },
  row({ topic, id, row, gone }) {
    const rows = new Map(TOPICS[topic].value);
    if (gone && row) answered.value = new Map(answered.value).set(id, row);
    if (gone) rows.delete(id);
    else rows.set(id, row);
    TOPICS[topic].value = rows;
    if (topic === "sessions" && id === name.value && missing.value && !gone) begin(); // It has come to be.
  },
};

/** @type {import("./stream.js").Line | null} */
let line = null;

/** Follow the topics, and the session that is shown ("" for none). One line for all tabs of the browser (stream.js). */
export function watch(/** @type {string} */ session) {
  if (line && session === name.value) return;
  batch(() => {
    name.value = session;
    meanwhile = null;
    entries.clear();
    order.value = [];
    info.value = {};
    seq.value = 0;
    loaded.value = missing.value = hasOlder.value = false;
    now();
  });
  begin();
}

function begin() {
  line?.close();
  line = follow({
    url: root,
    session: name.value,
    onChange: (event, told) => TAKES[event]?.(told),
    onStatus: (now, why, answer) =>
      batch(() => {
        status.value = now;
        problem.value = why ?? "";
        code.value = answer ?? 0;
      }),
  });
}

/** Ask the server now, and not only after the pause that its silence brought. */
export const tryNow = () => line?.nudge();

// What a person can do. Each gives the server's answer, or throws an Error with the server's own words.

/** @param {any} told @param {Response} answer @returns {string} */
const reason = (told, answer) => told?.detail ?? `the server answered ${answer.status}`;

/** Why the server said no, in its own words. @param {Response} answer */
export const whyNot = async (answer) => reason(await answer.json().catch(() => null), answer);

/** @param {string} path @param {RequestInit} [options] @returns {Promise<any>} */
async function asked(path, options) {
  const answer = await fetch(root + path, options);
  const told = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (answer.ok) return told;
  throw Object.assign(new Error(reason(told, answer)), { told, status: answer.status });
}

/** @param {string} path */
export const get = (path) => asked(path);

/** @param {string} path @param {unknown} body */
export const post = (path, body) =>
  asked(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

/**
 * @param {string} approval
 * @param {{decision: "approve" | "deny" | "edit", option?: string, input?: unknown, reason?: string}} answer
 */
export const decide = (approval, answer) => post(`/v1/approvals/${encodeURIComponent(approval)}`, answer);

/** @param {string} call */
export const cancel = (call, reason = "") => post(`/v1/calls/${encodeURIComponent(call)}/cancel`, { reason });

const place = () => `/v1/sessions/${encodeURIComponent(name.value)}`;

/** How often somebody went to the past or came back: an answer to an older question is left alone. */
let journeys = 0;

/** The session as it stood after an event; `now()` goes back to live. @param {number} at */
export async function showPast(at) {
  const journey = ++journeys;
  const [then, log] = await Promise.all([
    get(`${place()}?format=entries&at=${at}`),
    get(`${place()}?format=events&cursor=${at - 1}&limit=1`),
  ]);
  if (journey !== journeys) return;
  const { at: time = 0, type = "" } = log.events[0] ?? {};
  past.value = { seq: then.seq, at: time, type, entries: then.entries, info: then.info };
}

/** Back to live. */
export function now() {
  journeys++;
  past.value = null;
}

/**
 * Load the entries before the oldest that is loaded. What changed them while they were on the way is made up for,
 * but not if another snapshot came: what happened before that is not told again. Gives whether they are there now.
 */
export async function older() {
  /** @type {Change[]} */
  const changes = [];
  meanwhile = changes;
  try {
    const page = await get(`${place()}?format=entries&limit=${NEWEST}&cursor=${order.value[0]}`);
    if (meanwhile !== changes) return false;
    batch(() => {
      order.value = [...page.entries.filter(put).map((/** @type {Entry} */ entry) => entry.id), ...order.value];
      hasOlder.value = Boolean(page.cursor);
      for (const change of changes) if (change.seq > page.seq) change.patches.forEach(takePatch);
    });
    return true;
  } finally {
    meanwhile = null;
  }
}
