// One event stream for all tabs of a browser: a shared worker holds it (stream_worker.js) and forwards to each tab
// what that tab shows. Without shared workers, the tab connects to the server itself.

import { Callslip } from "./callslip.js";
import { NoticeWatch } from "./notices.js";

/**
 * @typedef {(event: string, update: any) => void} OnChange
 * @typedef {(status: import("./callslip.d.ts").Status, message?: string, code?: number) => void} OnStatus
 * @typedef {{url: string, session: string, onChange: OnChange, onStatus: OnStatus}} FollowOptions
 * @typedef {{close(): void, nudge(): void}} Connection
 */

/** @type {import("./callslip.d.ts").TopicName[]} */
export const TOPICS = ["sessions", "inbox", "commands"];

/** How many of a session's newest entries a page loads at first. It requests older ones when needed. */
export const INITIAL_ENTRIES = 1000;

/** How long other tabs do not repeat a notice. */
const REPEAT_MS = 60_000;

/** A worker that has not answered after this time is considered broken. */
const WORKER_TIMEOUT_MS = 3000;

/** Whether this tab shows notifications, and its connection. */
let notifies = false;
let current = /** @type {SharedStream | DirectStream | null} */ (null);

/** Set whether this tab shows notifications. @param {boolean} value */
export function setNotifies(value) {
  notifies = value;
  current?.setNotifies();
}

/** Follow the topics and a session ("" for none). @param {FollowOptions} options @returns {Connection} */
export function follow(options) {
  const worker = connectWorker(options.url);
  current = worker ? new SharedStream(worker, options) : new DirectStream(options);
  return current;
}

/** A connection that belongs to this tab. */
class DirectStream {
  /** @param {FollowOptions} options */
  constructor({ url, session, onChange, onStatus }) {
    showHere = (notice) => onChange("notice", notice);
    this.client = new Callslip({
      url,
      sessions: session ? [session] : [],
      topics: TOPICS,
      limit: INITIAL_ENTRIES,
      onChange: (event, update) => {
        directWatch.receive(event, update);
        onChange(event, update);
      },
      onStatus: (status, { error }) => onStatus(status, error?.message, error?.status),
    });
    this.client.open();
    this.stopListening = onResume(() => this.nudge());
  }

  setNotifies() {}

  nudge() {
    if (this.client.status === "refused") this.client.open();
    else this.client.nudge();
  }

  close() {
    this.stopListening();
    this.client.onChange = this.client.onStatus = () => {};
    this.client.close();
  }
}

/** @typedef {import("./notices.js").Notice} Notice */

/** Show a notice in the view of this tab. @type {(notice: Notice) => void} */
let showHere = () => {};

/** What this tab notifies the user of while it has a connection of its own, whichever session it shows. */
const directWatch = new NoticeWatch((notice) => notifies && notifyOnce(notice));

/** Show a notice in one of the tabs that have connections of their own: in the one that gets the lock. @param {Notice} notice */
function notifyOnce(notice) {
  if (!navigator.locks) return showHere(notice);
  navigator.locks.request(`callslip-notice ${notice.id}`, { ifAvailable: true }, (lock) => {
    if (!lock) return undefined;
    showHere(notice);
    return new Promise((resolve) => setTimeout(resolve, REPEAT_MS));
  });
}

/** The worker's connection, shared by all tabs. Falls back to a direct connection if the worker does not answer. */
class SharedStream {
  /** @param {MessagePort} port @param {FollowOptions} options */
  constructor(port, options) {
    this.port = port;
    this.options = options;
    this.subscribe = () => port.postMessage({ follow: options.session, url: options.url, notifies });
    this.handleMessage = this.handleMessage.bind(this);
    port.addEventListener("message", this.handleMessage);
    this.subscribe();
    this.workerTimer = setTimeout(() => this.handleSilentWorker(), WORKER_TIMEOUT_MS);
    this.stopListening = onResume((wasCached) => (wasCached ? this.subscribe() : this.nudge()));
  }

  setNotifies() {
    if (!this.direct) this.port.postMessage({ notifies });
  }

  nudge() {
    if (this.direct) this.direct.nudge();
    else this.port.postMessage({ nudge: true });
  }

  /** @param {MessageEvent} message */
  handleMessage({ data }) {
    clearTimeout(this.workerTimer);
    if (data.session !== undefined && data.session !== this.options.session) return; // About an earlier session.
    if (data.connectDirectly) this.fallBack();
    else if (data.status) this.options.onStatus(data.status, data.message, data.code);
    else this.options.onChange(data.event, data.update);
  }

  /** Fall back, and let later connections of this tab skip the worker. */
  handleSilentWorker() {
    workerPort = null;
    this.fallBack();
  }

  fallBack() {
    this.close();
    this.direct = new DirectStream(this.options);
  }

  close() {
    clearTimeout(this.workerTimer);
    this.stopListening();
    this.port.removeEventListener("message", this.handleMessage);
    if (this.direct) this.direct.close();
    else this.port.postMessage({ leave: true });
  }
}

/** @type {MessagePort | null | undefined} */
let workerPort;

/** @param {string} url */
function connectWorker(url) {
  if (workerPort !== undefined) return workerPort;
  workerPort = null;
  if (typeof SharedWorker === "undefined") return null;
  try {
    const worker = new SharedWorker(`${url}/web/stream_worker.js`, { type: "module", name: "callslip" });
    worker.port.start();
    holdTabLock(worker.port);
    watchWorkerLock(worker.port);
    addEventListener("pagehide", () => worker.port.postMessage({ leave: true, isGone: true }));
    workerPort = worker.port;
  } catch {
    // Shared workers may be forbidden here; the tab then connects directly.
  }
  return workerPort;
}

/**
 * Hold a lock while the tab lives. The worker waits for the lock, and gets it when the tab is gone.
 * @param {MessagePort} port
 */
function holdTabLock(port) {
  const lock = `callslip-tab-${Math.random().toString(36).slice(2)}`;
  navigator.locks?.request(lock, () => {
    port.postMessage({ lock });
    return new Promise(() => {});
  });
}

/**
 * Wait for the lock that the worker holds while it lives. A tab that gets it connects directly; the next connection may
 * start a new worker.
 * @param {MessagePort} port
 */
function watchWorkerLock(port) {
  port.addEventListener("message", ({ data }) => {
    if (!data.workerLock) return;
    navigator.locks.request(data.workerLock, () => {
      workerPort = undefined;
      port.dispatchEvent(new MessageEvent("message", { data: { connectDirectly: true } }));
    });
  });
}

/**
 * Call back when the tab becomes visible, the network returns, or the page is restored from the browser's cache
 * (`wasCached`). Returns a function that stops this.
 * @param {(wasCached: boolean) => void} callback
 */
function onResume(callback) {
  const onVisible = () => document.visibilityState === "visible" && callback(false);
  const onOnline = () => callback(false);
  const onPageShow = (/** @type {PageTransitionEvent} */ event) => event.persisted && callback(true);
  document.addEventListener("visibilitychange", onVisible);
  addEventListener("online", onOnline);
  addEventListener("pageshow", onPageShow);
  return () => {
    document.removeEventListener("visibilitychange", onVisible);
    removeEventListener("online", onOnline);
    removeEventListener("pageshow", onPageShow);
  };
}
