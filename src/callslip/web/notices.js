// Decides which changes of the lists the browser notifies the user of. The shared worker uses it for all tabs; a
// tab without a worker uses it for itself.

/**
 * @typedef {{id: string, kind: "request" | "finished" | "idle", session: string, entry: number, title: string, text: string}} Notice
 */

/** A rule may answer a request at once, and an agent may start the next turn. */
const REQUEST_DELAY_MS = 2_000;
const FINISHED_DELAY_MS = 10_000;
const IDLE_DELAY_MS = 300_000;

const ACTIVE_STATES = ["running", "waiting"];
const ENDED_STATES = ["idle", "ended"];

/** Whether a session's agent works, or waits for an answer. @param {string | undefined} state */
export const isActive = (state) => ACTIVE_STATES.includes(state ?? "");

export class NoticeWatch {
  /** @param {(notice: Notice) => void} notify @param {(id: string) => void} [onAnswered] */
  constructor(notify, onAnswered = () => {}) {
    this.notify = notify;
    this.onAnswered = onAnswered;
    /** The pending requests; null before the list has loaded. @type {Set<string> | null} */
    this.pending = null;
    /** The state of each session, and its agent. @type {Map<string, {state: string, agent?: string}>} */
    this.sessions = new Map();
    /** The notices that are due later. @type {Map<string, ReturnType<typeof setTimeout>>} */
    this.timers = new Map();
  }

  /** Take an event of the stream. @param {string} event @param {any} update */
  receive(event, update) {
    if (update.topic === "inbox") this.receiveInbox(event, update);
    else if (update.topic === "sessions") this.receiveSessions(event, update);
  }

  /** What is pending when the page opens is on the page; the user is notified of later ones. */
  receiveInbox(/** @type {string} */ event, /** @type {any} */ update) {
    if (event === "topic") {
      const before = this.pending;
      this.pending = new Set(update.rows.map((/** @type {any} */ row) => row.approval));
      for (const id of before ?? []) if (!this.pending.has(id)) this.answered(id);
      if (before) for (const row of update.rows) if (!before.has(row.approval)) this.requested(row);
    } else if (update.gone) {
      this.pending?.delete(update.id);
      this.answered(update.id);
    } else if (this.pending && !this.pending.has(update.id)) {
      this.pending.add(update.id);
      this.requested(update.row);
    }
  }

  requested(/** @type {any} */ row) {
    const { approval: id, session, entry, description = "" } = row;
    if (row.answerAt) return;
    const title = `${this.sessions.get(session)?.agent || "An agent"} waits for your answer`;
    this.notifyLater({ id, kind: "request", session, entry, title, text: description || session }, REQUEST_DELAY_MS);
  }

  answered(/** @type {string} */ id) {
    this.forget(id);
    this.onAnswered(id);
  }

  /** A list comes at the start, and after a lost connection with what has changed meanwhile. */
  receiveSessions(/** @type {string} */ event, /** @type {any} */ update) {
    if (event === "topic") {
      const names = new Set(update.rows.map((/** @type {any} */ row) => row.session));
      for (const name of [...this.sessions.keys()]) if (!names.has(name)) this.gone(name);
      for (const row of update.rows) this.changed(row);
    } else if (update.gone) this.gone(update.id);
    else this.changed(update.row);
  }

  gone(/** @type {string} */ session) {
    this.sessions.delete(session);
    this.working(session);
  }

  /** The agent works again, or is gone. @param {string} session */
  working(session) {
    for (const id of [`finished ${session}`, `idle ${session}`]) {
      this.forget(id);
      this.onAnswered(id);
    }
  }

  /** The server computes the state of a session. @param {any} row */
  changed(row) {
    const { session, state, agent } = row;
    const wasActive = isActive(this.sessions.get(session)?.state);
    this.sessions.set(session, { state, agent });
    if (isActive(state)) return this.working(session);
    if (state === "ended") this.forget(`idle ${session}`); // An agent whose program has ended is not idle.
    if (!wasActive || !ENDED_STATES.includes(state)) return;
    const name = agent || "An agent";
    const facts = { session, entry: 0, text: row.title || row.prompt || session };
    this.notifyLater({ ...facts, id: `finished ${session}`, kind: "finished", title: `${name} has finished` },
      FINISHED_DELAY_MS);
    if (state === "idle") this.notifyLater({ ...facts, id: `idle ${session}`, kind: "idle", title: `${name} is idle` },
      IDLE_DELAY_MS);
  }

  /** @param {Notice} notice @param {number} delay */
  notifyLater(notice, delay) {
    this.forget(notice.id);
    this.timers.set(notice.id, setTimeout(() => {
      this.timers.delete(notice.id);
      this.notify(notice);
    }, delay));
  }

  forget(/** @type {string} */ id) {
    clearTimeout(this.timers.get(id));
    this.timers.delete(id);
  }
}
