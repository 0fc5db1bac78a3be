// The state of the page, as signals. The server's patches put, set and append entries; nothing here computes the state
// of a call. Components read the signals; the functions at the end are the user's actions.

import { apply } from "./callslip.js";
import { batch, computed, signal } from "./ui.js";
import { root } from "./route.js";
import { INITIAL_ENTRIES, follow } from "./stream.js";

export { go, link, pageUrl, root, route, selectedId } from "./route.js";

/**
 * @typedef {import("./callslip.d.ts").Entry} Entry
 * @typedef {import("./callslip.d.ts").Patch} Patch
 * @typedef {import("./callslip.d.ts").Status} Status
 * @typedef {any} Row A row of a topic, as returned by the API.
 * @typedef {Record<string, any>} Info
 * @typedef {{seq: number, at: number, type: string, entries: Entry[], info: Info}} Past The session after a past event.
 */

// Received from the server

/** "connecting" | "live" | "resuming" | "waiting" | "refused" | "closed" */
export const status = signal(/** @type {Status} */ ("connecting"));

/** Why the connection failed, and the HTTP status if there was a response (401: not signed in). */
export const connectionError = signal("");
export const errorStatus = signal(0);

/** Rows by ID, as returned by GET /v1/sessions, /v1/approvals and /v1/calls. */
const rowsSignal = () => signal(/** @type {Map<string, Row>} */ (new Map()));
export const sessions = rowsSignal();
export const inbox = rowsSignal();
export const commands = rowsSignal();

/** The pending requests that can be answered on this page. @type {import("./ui.js").ReadonlySignal<Row[]>} */
export const answerableRequests = computed(() => [...inbox.value.values()].filter((row) => !row.answerAt));

/**
 * The pending requests of the shown session, also those that are answered in another program.
 * @type {import("./ui.js").ReadonlySignal<Row[]>}
 */
export const pendingHere = computed(() =>
  [...inbox.value.values()].filter((row) => row.session === sessionName.value));

/** Requests that were answered while the page was open, with the decision, its author and its time. */
export const answeredRequests = rowsSignal();

/** What the user is to be notified of by this tab. @type {{value: import("./notices.js").Notice | null}} */
export const newNotice = signal(/** @type {any} */ (null));

/** The topics that have loaded. */
export const loadedTopics = signal(/** @type {Set<string>} */ (new Set()));

/** @type {Record<string, typeof inbox>} */
const TOPICS = { sessions, inbox, commands };

/** @type {Record<string, string>} */
const ROW_ID_FIELDS = { sessions: "session", inbox: "approval", commands: "call" };

/** The shown session: its name, its last seq, its info, and the IDs of its entries in order. */
export const sessionName = signal("");
export const seq = signal(0);
export const info = signal(/** @type {Info} */ ({}));
export const order = signal(/** @type {number[]} */ ([]));
export const loaded = signal(false);

/** The session does not exist (yet, or any more), or the user may not see it. */
export const isMissing = signal(false);

/** There may be older entries than the loaded ones; `loadOlderEntries()` loads them. */
export const hasOlder = signal(false);

/** Counts the snapshots of the session. After one, only its entries are loaded. */
export const snapshots = signal(0);

/** Whether there is a server: not for an exported file. */
export const hasServer = signal(true);

/** @type {Map<number, {value: Entry, peek(): Entry}>} */
const entries = new Map();

/** The IDs of the entries of calls that were loaded, by the ID of the call. @type {Map<string, number>} */
const callEntries = new Map();

/** Return the ID of the entry of a call, if that was loaded. @param {string} call */
export const entryIdOfCall = (call) => callEntries.get(call);

/**
 * Return the signal of an entry. Only components that read it are redrawn when it changes.
 * @param {number} id
 */
export const entrySignal = (id) => entries.get(id);

/** All current entries. A component that reads this is redrawn when any of them changes. */
export const allEntries = computed(() =>
  order.value.map((id) => /** @type {{value: Entry}} */ (entries.get(id)).value),
);

/** The shown past moment with its entries (`showPast`), or null when the page is live. */
export const past = signal(/** @type {Past | null} */ (null));

/**
 * The title of the shown session, else its first prompt, "" if there is neither.
 * @type {import("./ui.js").ReadonlySignal<string>}
 */
export const sessionTitle = computed(() =>
  (past.value?.info ?? info.value).title || sessions.value.get(sessionName.value)?.prompt || "");

/** The shown entries: those of the past moment, or the live ones. */
export const visibleEntries = computed(() => (past.value ? past.value.entries : allEntries.value));

/** @param {Entry} entry */
function putEntry(entry) {
  const existing = entries.get(entry.id);
  if (existing) existing.value = entry;
  else entries.set(entry.id, signal(entry));
  if (entry.type === "tool_call") callEntries.set(entry.callId, entry.id);
}

/** @param {{session: string, seq: number, info: Info, entries: Entry[]}} snapshot */
function applySnapshot(snapshot) {
  if (snapshot.session !== sessionName.value) return;
  batch(() => {
    const ids = snapshot.entries.map((entry) => entry.id);
    const present = new Set(ids);
    forgetReaders();
    for (const id of entries.keys()) if (!present.has(id)) entries.delete(id);
    snapshot.entries.forEach(putEntry);
    order.value = ids;
    info.value = snapshot.info;
    seq.value = snapshot.seq;
    hasOlder.value = ids.length >= INITIAL_ENTRIES;
    isMissing.value = false;
    loaded.value = true;
    snapshots.value++;
  });
}

/** @typedef {{session: string, seq: number, patches: Patch[]}} Change */

/**
 * The changes that arrived while entries were read, for each reader: they may concern those entries.
 * @type {Set<Change[]>}
 */
const readers = new Set();

/** A snapshot arrived: changes before it are not sent again, so entries that are being read are outdated. */
const forgetReaders = () => readers.clear();

/** @param {Change} change */
function applyPatches(change) {
  if (change.session !== sessionName.value || change.seq <= seq.value) return;
  for (const changes of readers) changes.push(change);
  batch(() => {
    change.patches.forEach(applyPatch);
    seq.value = change.seq;
  });
}

/** @param {Patch} patch */
function applyPatch(patch) {
  if (patch.op === "put") {
    const first = order.value[0] ?? 0;
    if (patch.entry.id < first && !entries.has(patch.entry.id)) return; // An older entry that is not loaded.
    putEntry(patch.entry); // A filter may have loaded it before.
    if (patch.entry.id > (order.value.at(-1) ?? 0)) order.value = [...order.value, patch.entry.id];
    return;
  }
  const target = patch.id ? entries.get(patch.id) : info;
  if (!target) return;
  const copy = /** @type {any} */ ({ ...target.peek() });
  apply({ name: "", seq: 0, entries: new Map([[patch.id, copy]]), info: copy }, patch);
  target.value = copy;
}

/** @type {Record<string, (update: any) => void>} */
const HANDLERS = {
  snapshot: applySnapshot,
  patches: applyPatches,
  notice: (notice) => (newNotice.value = notice),
  gone: ({ session }) => session === sessionName.value && (isMissing.value = true),
  topic(topic) {
    const idField = ROW_ID_FIELDS[topic.topic];
    TOPICS[topic.topic].value = new Map(topic.rows.map((/** @type {Row} */ row) => [row[idField], row]));
    loadedTopics.value = new Set(loadedTopics.value).add(topic.topic);
  },
  row({ topic, id, row, gone }) {
    const rows = new Map(TOPICS[topic].value);
    if (gone && row) answeredRequests.value = new Map(answeredRequests.value).set(id, row);
    if (gone) rows.delete(id);
    else rows.set(id, row);
    TOPICS[topic].value = rows;
    if (topic === "sessions" && id === sessionName.value && isMissing.value && !gone) connect(); // It was created.
  },
};

/** @type {import("./stream.js").Connection | null} */
let connection = null;

/** Follow the topics and the shown session ("" for none), over one connection for all tabs (stream.js). */
export function followSession(/** @type {string} */ session) {
  if (connection && session === sessionName.value) return;
  batch(() => {
    sessionName.value = session;
    forgetReaders();
    entries.clear();
    callEntries.clear();
    order.value = [];
    info.value = {};
    seq.value = 0;
    loaded.value = isMissing.value = hasOlder.value = false;
    showLive();
  });
  connect();
}

function connect() {
  connection?.close();
  connection = follow({
    url: root,
    session: sessionName.value,
    onChange: (event, update) => HANDLERS[event]?.(update),
    onStatus: (newStatus, message, code) =>
      batch(() => {
        status.value = newStatus;
        connectionError.value = message ?? "";
        errorStatus.value = code ?? 0;
      }),
  });
}

/** Retry the connection now instead of after the retry delay. */
export const reconnect = () => connection?.nudge();

// User actions. Each returns the server's response, or throws an Error with the server's message.

/** @param {any} body @param {Response} response @returns {string} */
const errorDetail = (body, response) => body?.detail ?? `HTTP status ${response.status}`;

/** Return the server's error message. @param {Response} response */
export const readError = async (response) => errorDetail(await response.json().catch(() => null), response);

const UNREACHABLE = "The server cannot be reached. Try again when the connection is back.";

/**
 * Fetch, with a readable error if there is no connection: that of the browser says only "Failed to fetch".
 * @param {string} url @param {RequestInit} [options]
 */
export async function fetchOrExplain(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (options?.signal?.aborted) throw error;
    throw new Error(UNREACHABLE, { cause: error });
  }
}

/** @param {string} path @param {RequestInit} [options] @returns {Promise<any>} */
async function request(path, options) {
  const response = await fetchOrExplain(root + path, options);
  const body = response.status === 204 ? null : await response.json().catch(() => null);
  if (response.ok) return body;
  throw Object.assign(new Error(errorDetail(body, response)), { body, status: response.status });
}

/** @param {string} path @param {AbortSignal} [signal] */
export const get = (path, signal) => request(path, { signal });

/** @param {string} path @param {unknown} body */
export const post = (path, body) =>
  request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

/** @param {string} path */
export const remove = (path) => request(path, { method: "DELETE" });

/**
 * @param {string} approval
 * @param {{decision: "approve" | "deny" | "edit", option?: string, input?: unknown, reason?: string}} answer
 */
export const decide = (approval, answer) => post(`/v1/approvals/${encodeURIComponent(approval)}`, answer);

/** @param {string} call */
export const cancel = (call, reason = "") => post(`/v1/calls/${encodeURIComponent(call)}/cancel`, { reason });

const sessionPath = () => `/v1/sessions/${encodeURIComponent(sessionName.value)}`;

/** Counts moves through the history, so that the response to an earlier move is ignored. */
let navigations = 0;

/** Show the session as it was after an event. `showLive()` returns to live. @param {number} at */
export async function showPast(at) {
  const navigation = ++navigations;
  const [snapshot, log] = await Promise.all([
    get(`${sessionPath()}?format=entries&at=${at}`),
    get(`${sessionPath()}?format=events&cursor=${at - 1}&limit=1`),
  ]);
  if (navigation !== navigations) return;
  const { at: time = 0, type = "" } = log.events[0] ?? {};
  past.value = { seq: snapshot.seq, at: time, type, entries: snapshot.entries, info: snapshot.info };
}

/** Return to live. */
export function showLive() {
  navigations++;
  past.value = null;
}

/**
 * Read a page of entries, add those that are not loaded, and apply the changes that arrived in the meantime. Return null
 * if a snapshot arrived first: changes before it are not sent again, so the page would be outdated.
 * @param {string} path @param {AbortSignal} [signal] @param {(page: any) => void} [add]
 */
export async function readEntries(path, signal, add = () => {}) {
  /** @type {Change[]} */
  const changes = [];
  readers.add(changes);
  try {
    const page = await get(path, signal);
    if (!readers.has(changes)) return null;
    if (past.value) return page; // Its entries are those of the past moment.
    batch(() => {
      for (const entry of page.entries) if (!entries.has(entry.id)) putEntry(entry);
      add(page);
      for (const change of changes) if (change.seq > page.seq) change.patches.forEach(applyPatch);
    });
    return page;
  } finally {
    readers.delete(changes);
  }
}

/** Load the entries before the oldest loaded one. Return false if a snapshot arrived first. */
export async function loadOlderEntries() {
  const path = `${sessionPath()}?format=entries&limit=${INITIAL_ENTRIES}&cursor=${order.value[0]}`;
  const page = await readEntries(path, undefined, ({ entries: older, cursor }) => {
    order.value = [...older.map((/** @type {Entry} */ entry) => entry.id), ...order.value];
    hasOlder.value = Boolean(cursor);
  });
  return page !== null;
}
