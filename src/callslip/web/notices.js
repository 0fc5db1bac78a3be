// Decides which changes of the lists the browser notifies the user of. The shared worker uses it for all tabs; a
// tab without a worker uses it for itself.

/**
 * @typedef {{id: string, kind: "request" | "finished", session: string, entry: number, title: string, text: string}} Notice
 */

/** A rule may answer a request at once, and an agent may start the next turn. */
const REQUEST_DELAY_MS = 2_000;
const FINISHED_DELAY_MS = 10_000;

const ACTIVE_STATES = ["running", "waiting"];
const ENDED_STATES = ["idle", "ended"];

export class NoticeWatch {
  /** @param {(notice: Notice) => void} notify @param {(id: string) => void} [onAnswered] */
  constructor(notify, onAnswered = () => {}) {
    this.notify = notify;
    this.onAnswered = onAnswered;
    /** The pending requests; null before the list has loaded. @type {Set<string> | null} */
    this.pending = null;
    /** The state of each session. @type {Map<string, string>} */
    this.states = new Map();
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
    this.notifyLater({ id, kind: "request", session, entry, title: "Approval needed", text: description }, REQUEST_DELAY_MS);
  }

  answered(/** @type {string} */ id) {
    this.forget(id);
    this.onAnswered(id);
  }

  receiveSessions(/** @type {string} */ event, /** @type {any} */ update) {
    if (event === "topic") for (const row of update.rows) this.states.set(row.session, row.state);
    else if (update.gone) this.states.delete(update.id);
    else this.changed(update.row);
  }

  /** The server computes the state of a session. @param {any} row */
  changed(row) {
    const { session, state } = row;
    const wasActive = ACTIVE_STATES.includes(this.states.get(session) ?? "");
    this.states.set(session, state);
    const id = `finished ${session}`;
    if (ACTIVE_STATES.includes(state)) return this.forget(id);
    if (!wasActive || !ENDED_STATES.includes(state)) return;
    const title = `${row.agent || "The agent"} has finished`;
    this.notifyLater({ id, kind: "finished", session, entry: 0, title, text: row.title || row.prompt || session },
      FINISHED_DELAY_MS);
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
