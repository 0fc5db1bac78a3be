// Holds the one event stream of a browser for all its tabs: follows the sessions that any of them shows, tells each
// what is its business, and tells a new tab at once what is known already.

import { Callslip } from "./callslip.js";
import { NEWEST, TOPICS } from "./stream.js";

/** The server takes no more sessions than this on one line; a tab beyond that follows alone. */
const MOST = 20;

/** After a tab moved from one session to another, both messages are in before the line is changed. */
const SOON = 20;

/** What each tab shows: the name of a session, or "" for none. @type {Map<MessagePort, string>} */
const tabs = new Map();

/** Sessions that were asked for and are not there. @type {Set<string>} */
const gone = new Set();

/** @type {Callslip | undefined} */
let client;

/** @type {ReturnType<typeof setTimeout> | undefined} */
let changing;

const wanted = () => [...new Set(tabs.values())].filter((name) => name && !gone.has(name));

/** @param {MessagePort} port @param {{follow: string, url: string}} asked */
function follow(port, { follow: session, url }) {
  gone.delete(session); // It may have come since.
  tabs.set(port, session);
  if (wanted().length > MOST) {
    tabs.delete(port);
    port.postMessage({ session, alone: true });
    return;
  }
  client ??= new Callslip({ url, topics: TOPICS, limit: NEWEST, onChange: tell, onStatus: () => tellStatus() });
  tellKnown(port, session);
  port.postMessage({ session, ...howItIs() });
  change();
}

/** A tab sees that the computer may have slept, or that somebody looks again. */
function nudge() {
  if (client?.status === "refused") change();
  else client?.nudge();
}

/** @param {MessagePort} port */
function leave(port) {
  tabs.delete(port);
  change();
}

/** Follow what is wanted now. A line that was refused is tried again: who asks may have shown the token since. */
function change() {
  clearTimeout(changing);
  changing = setTimeout(() => {
    if (!client) return;
    if (!tabs.size) return client.close();
    const names = wanted();
    const same = names.length === client.names.length && names.every((name) => client?.names.includes(name));
    if (!same) client.follow(names);
    if (client.status === "closed" || client.status === "refused") client.open();
  }, SOON);
}

/** @param {string} event @param {any} told */
function tell(event, told) {
  if (event === "gone") gone.add(told.session);
  for (const [port, session] of tabs) {
    if (told.session === undefined || told.session === session) port.postMessage({ event, told });
  }
}

/** @param {MessagePort} port @param {string} name */
function tellKnown(port, name) {
  for (const [topic, rows] of client?.topics ?? []) {
    port.postMessage({ event: "topic", told: { topic, rows: [...rows.values()] } });
  }
  const known = client?.sessions.get(name);
  if (!known) return;
  const told = { session: name, seq: known.seq, info: known.info, entries: [...known.entries.values()] };
  port.postMessage({ event: "snapshot", told });
}

function howItIs() {
  const error = client?.status === "live" ? undefined : client?.error;
  return { status: client?.status, why: error?.message, code: error?.status };
}

function tellStatus() {
  if (client?.status === "closed" && tabs.size) change(); // A tab came while the line was being closed.
  for (const port of tabs.keys()) port.postMessage(howItIs());
}

/** Held as long as the worker lives: a tab that gets it knows that there is none any more. */
const life = `callslip-worker-${Math.random().toString(36).slice(2)}`;
const living = new Promise((/** @type {(held: void) => void} */ held) => {
  navigator.locks?.request(life, () => (held(), new Promise(() => {})));
});

/** @type {any} */ (globalThis).onconnect = (/** @type {MessageEvent} */ { ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data.leave) leave(port);
    else if (data.nudge) nudge();
    else if (data.lock) navigator.locks.request(data.lock, () => leave(port)); // One that crashed says no farewell.
    else follow(port, data);
  };
  living.then(() => port.postMessage({ life }));
};
