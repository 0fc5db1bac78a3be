// One event stream for all tabs of a browser: a shared worker holds it (stream_worker.js) and tells each tab what is
// its business. Where there are no shared workers the tab follows the server itself.

import { Callslip } from "./callslip.js";

/**
 * @typedef {(event: string, told: any) => void} OnChange
 * @typedef {(status: import("./callslip.d.ts").Status, why?: string, code?: number) => void} OnStatus
 * @typedef {{url: string, session: string, onChange: OnChange, onStatus: OnStatus}} Wanted
 * @typedef {{close(): void, nudge(): void}} Line
 */

/** @type {import("./callslip.d.ts").TopicName[]} */
export const TOPICS = ["sessions", "inbox", "commands"];

/** A page is told so many of a session's newest entries at first; it asks for older ones itself. */
export const NEWEST = 1000;

/** A worker that has not said a word after so many ms will not. */
const PATIENCE = 3000;

/** Follow the topics, and a session ("" for none). @param {Wanted} wanted @returns {Line} */
export function follow(wanted) {
  const worker = workerOf(wanted.url);
  return worker ? new Shared(worker, wanted) : new Alone(wanted);
}

/** A line of the tab's own. */
class Alone {
  /** @param {Wanted} wanted */
  constructor({ url, session, onChange, onStatus }) {
    this.client = new Callslip({
      url,
      sessions: session ? [session] : [],
      topics: TOPICS,
      limit: NEWEST,
      onChange,
      onStatus: (status, { error }) => onStatus(status, error?.message, error?.status),
    });
    this.client.open();
    this.unlisten = onAwake(() => this.nudge());
  }

  nudge() {
    if (this.client.status === "refused") this.client.open();
    else this.client.nudge();
  }

  close() {
    this.unlisten();
    this.client.onChange = this.client.onStatus = () => {};
    this.client.close();
  }
}

/** A share in the worker's line. If there is no word from the worker, the tab goes on alone. */
class Shared {
  /** @param {MessagePort} port @param {Wanted} wanted */
  constructor(port, wanted) {
    this.port = port;
    this.wanted = wanted;
    this.ask = () => port.postMessage({ follow: wanted.session, url: wanted.url });
    this.take = this.take.bind(this);
    port.addEventListener("message", this.take);
    this.ask();
    this.silence = setTimeout(() => this.silent(), PATIENCE);
    this.unlisten = onAwake((back) => (back ? this.ask() : this.nudge()));
  }

  nudge() {
    if (this.alone) this.alone.nudge();
    else this.port.postMessage({ nudge: true });
  }

  /** @param {MessageEvent} message */
  take({ data }) {
    clearTimeout(this.silence);
    if (data.session !== undefined && data.session !== this.wanted.session) return; // what was asked for before
    if (data.alone) this.goAlone();
    else if (data.status) this.wanted.onStatus(data.status, data.why, data.code);
    else this.wanted.onChange(data.event, data.told);
  }

  /** Who comes after need not wait for it again. */
  silent() {
    shared = null;
    this.goAlone();
  }

  goAlone() {
    this.close();
    this.alone = new Alone(this.wanted);
  }

  close() {
    clearTimeout(this.silence);
    this.unlisten();
    this.port.removeEventListener("message", this.take);
    if (this.alone) this.alone.close();
    else this.port.postMessage({ leave: true });
  }
}

/** @type {MessagePort | null | undefined} */
let shared;

/** @param {string} url */
function workerOf(url) {
  if (shared !== undefined) return shared;
  shared = null;
  if (typeof SharedWorker === "undefined") return null;
  try {
    const worker = new SharedWorker(`${url}/web/stream_worker.js`, { type: "module", name: "callslip" });
    worker.port.start();
    sayAlive(worker.port);
    hearDeath(worker.port);
    addEventListener("pagehide", () => worker.port.postMessage({ leave: true }));
    shared = worker.port;
  } catch {
    // It is not allowed here; the tab can do without.
  }
  return shared;
}

/**
 * The tab holds a lock as long as it lives; the worker, once told its name, gets it when the tab is gone.
 * @param {MessagePort} port
 */
function sayAlive(port) {
  const lock = `callslip-tab-${Math.random().toString(36).slice(2)}`;
  navigator.locks?.request(lock, () => {
    port.postMessage({ lock });
    return new Promise(() => {});
  });
}

/**
 * The worker holds a lock as long as it lives. A tab that gets it goes on alone; the next line may have a new worker.
 * @param {MessagePort} port
 */
function hearDeath(port) {
  port.addEventListener("message", ({ data }) => {
    if (!data.life) return;
    navigator.locks.request(data.life, () => {
      shared = undefined;
      port.dispatchEvent(new MessageEvent("message", { data: { alone: true } }));
    });
  });
}

/**
 * When the computer or the network has come back, or the tab to the front. `back`: the page had been put away.
 * @param {(back: boolean) => void} then
 */
function onAwake(then) {
  const seen = () => document.visibilityState === "visible" && then(false);
  const online = () => then(false);
  const back = (/** @type {PageTransitionEvent} */ event) => event.persisted && then(true);
  document.addEventListener("visibilitychange", seen);
  addEventListener("online", online);
  addEventListener("pageshow", back);
  return () => {
    document.removeEventListener("visibilitychange", seen);
    removeEventListener("online", online);
    removeEventListener("pageshow", back);
  };
}
