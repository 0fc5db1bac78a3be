// Shared worker that holds one event stream for all tabs of a browser. It follows every session that a tab shows,
// forwards to each tab what that tab needs, and sends a new tab the state it already has.

import { Callslip } from "./callslip.js";
import { NoticeWatch } from "./notices.js";
import { INITIAL_ENTRIES, TOPICS } from "./stream.js";

/** The server accepts at most this many sessions per connection. Further tabs connect directly. */
const MAX_SESSIONS = 20;

/** A tab that switches sessions sends two messages; wait until both have arrived. */
const UPDATE_DELAY_MS = 20;

/** The session that each tab shows, or "" for none. @type {Map<MessagePort, string>} */
const tabs = new Map();

/** The tabs that show notifications. @type {Set<MessagePort>} */
const notifyingTabs = new Set();

/** The requests that a tab notified the user of, with the tab. @type {Map<string, [MessagePort, import("./notices.js").Notice]>} */
const notified = new Map();

const watch = new NoticeWatch(notifyInOneTab, (id) => notified.delete(id));

/** Requested sessions that do not exist. @type {Set<string>} */
const missingSessions = new Set();

/** @type {Callslip | undefined} */
let client;

/** @type {ReturnType<typeof setTimeout> | undefined} */
let updateTimer;

const wantedSessions = () => [...new Set(tabs.values())].filter((name) => name && !missingSessions.has(name));

/** @param {MessagePort} port @param {{follow: string, url: string}} request */
function follow(port, { follow: session, url }) {
  missingSessions.delete(session); // It may have been created since.
  tabs.set(port, session);
  if (wantedSessions().length > MAX_SESSIONS) {
    tabs.delete(port);
    port.postMessage({ session, connectDirectly: true });
    return;
  }
  const onStatus = () => broadcastStatus();
  client ??= new Callslip({ url, topics: TOPICS, limit: INITIAL_ENTRIES, onChange: broadcast, onStatus });
  sendKnownState(port, session);
  port.postMessage({ session, ...connectionStatus() });
  updateSubscriptions();
}

/** Check the connection: the computer may have slept, or a tab became visible. */
function nudge() {
  if (client?.status === "refused") updateSubscriptions();
  else client?.nudge();
}

/** Let one tab notify the user. @param {import("./notices.js").Notice} notice */
function notifyInOneTab(notice) {
  const [port] = notifyingTabs;
  if (!port) return;
  if (notice.kind === "request") notified.set(notice.id, [port, notice]);
  port.postMessage({ event: "notice", update: notice });
}

/** @param {MessagePort} port @param {boolean} notifies */
function setNotifies(port, notifies) {
  if (notifies) notifyingTabs.add(port);
  else notifyingTabs.delete(port);
}

/** A notification ends with its tab, so another tab shows it again. @param {MessagePort} port */
function passOnNotices(port) {
  for (const [id, [tab, notice]] of [...notified]) {
    if (tab !== port) continue;
    notified.delete(id);
    notifyInOneTab(notice);
  }
}

/** @param {MessagePort} port @param {boolean} isGone Whether the tab was closed: else it shows another session. */
function leave(port, isGone) {
  tabs.delete(port);
  notifyingTabs.delete(port);
  if (isGone) passOnNotices(port);
  updateSubscriptions();
}

/** Follow the sessions of all tabs. Retry a refused connection: the user may have signed in since. */
function updateSubscriptions() {
  clearTimeout(updateTimer);
  updateTimer = setTimeout(() => {
    if (!client) return;
    if (!tabs.size) return client.close();
    const names = wantedSessions();
    const isSame = names.length === client.names.length && names.every((name) => client?.names.includes(name));
    if (!isSame) client.follow(names);
    if (client.status === "closed" || client.status === "refused") client.open();
  }, UPDATE_DELAY_MS);
}

/** @param {string} event @param {any} update */
function broadcast(event, update) {
  watch.receive(event, update);
  if (event === "gone") missingSessions.add(update.session);
  for (const [port, session] of tabs) {
    if (update.session === undefined || update.session === session) port.postMessage({ event, update });
  }
}

/** @param {MessagePort} port @param {string} name */
function sendKnownState(port, name) {
  for (const [topic, rows] of client?.topics ?? []) {
    port.postMessage({ event: "topic", update: { topic, rows: [...rows.values()] } });
  }
  const state = client?.sessions.get(name);
  if (!state) return;
  const update = { session: name, seq: state.seq, info: state.info, entries: [...state.entries.values()] };
  port.postMessage({ event: "snapshot", update });
}

function connectionStatus() {
  const error = client?.status === "live" ? undefined : client?.error;
  return { status: client?.status, message: error?.message, code: error?.status };
}

function broadcastStatus() {
  if (client?.status === "closed" && tabs.size) updateSubscriptions(); // A tab arrived while it was closing.
  for (const port of tabs.keys()) port.postMessage(connectionStatus());
}

/** Held while the worker lives: a tab that gets this lock knows that the worker is gone. */
const workerLock = `callslip-worker-${Math.random().toString(36).slice(2)}`;
const lockIsHeld = new Promise((/** @type {(held: void) => void} */ held) => {
  navigator.locks?.request(workerLock, () => (held(), new Promise(() => {})));
});

/** @type {any} */ (globalThis).onconnect = (/** @type {MessageEvent} */ { ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data.leave) leave(port, Boolean(data.isGone));
    else if (data.nudge) nudge();
    else if (data.lock) navigator.locks.request(data.lock, () => leave(port, true)); // A crashed tab sends no message.
    else {
      if (data.notifies !== undefined) setNotifies(port, data.notifies);
      if (data.follow !== undefined) follow(port, data);
    }
  };
  lockIsHeld.then(() => port.postMessage({ workerLock }));
};
