// Follows sessions and topics of a Callslip server: a snapshot, then patches, and after a lost line from where it was.
// It has no rules of its own: what an entry is was decided by the server. Browsers and Node 18 or newer, no framework.

/** @typedef {import("./callslip.d.ts").Status} Status */

/**
 * Make one patch come true in a session. What is not loaded (an older page of entries) is left alone.
 * @param {import("./callslip.d.ts").Session} session @param {import("./callslip.d.ts").Patch} patch
 */
export function apply(session, patch) {
  if (patch.op === "put") {
    session.entries.set(patch.entry.id, patch.entry);
    return;
  }
  const target = /** @type {any} */ (patch.id ? session.entries.get(patch.id) : session.info);
  if (!target) return;
  if (patch.op === "append") {
    target[patch.field] = (target[patch.field] ?? "").slice(0, patch.offset) + patch.text;
    return;
  }
  for (const [name, value] of Object.entries(patch.fields)) {
    if (value === null) delete target[name];
    else target[name] = value;
  }
}

/**
 * Server-sent events out of a body: {id, event, data}. A frame without data only moves the cursor.
 * @param {ReadableStream<Uint8Array>} body
 */
export async function* frames(body) {
  let frame = /** @type {Record<string, string>} */ ({});
  for await (const line of lines(body)) {
    const [, name, value] = line.match(/^([^:]+): ?(.*)$/s) ?? [];
    if (name) frame[name] = value;
    if (line) continue;
    yield frame;
    frame = {};
  }
}

/** A long line comes in many pieces; each of them is looked at once. @param {ReadableStream<Uint8Array>} body */
async function* lines(body) {
  const reader = body.getReader(); // not every browser can loop over a body
  const decoder = new TextDecoder();
  let line = "";
  try {
    for (let got = await reader.read(); !got.done; got = await reader.read()) {
      const [first, ...more] = decoder.decode(got.value, { stream: true }).split("\n");
      line += first;
      for (const next of more) {
        yield line.endsWith("\r") ? line.slice(0, -1) : line;
        line = next;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may be broken already
  }
}

export class Callslip {
  /** @param {import("./callslip.d.ts").Options} options */
  constructor(options = {}) {
    const { url = "", sessions = [], topics = [], token = "", limit, patience = 60_000 } = options;
    const { onChange, onStatus, fetch: ask } = options;
    this.url = url.replace(/\/$/, "");
    this.names = sessions;
    this.topicNames = topics;
    this.token = token;
    this.limit = limit;
    this.patience = patience;
    this.sessions = new Map();
    this.topics = new Map();
    this.cursor = "";
    this.status = /** @type {Status} */ ("closed");
    this.error = /** @type {(Error & {status?: number}) | undefined} */ (undefined);
    this.onChange = onChange ?? (() => {});
    this.onStatus = onStatus ?? (() => {});
    this.ask = ask ?? ((/** @type {Parameters<typeof fetch>} */ ...given) => fetch(...given));
    this.controller = new AbortController();
    this.closed = false;
    this.wake = () => {};
    this.wait = 0;
    this.heard = 0;
    this.moved = false;
  }

  /** Follow until `close` is called, or until the server says that there is nothing to follow. */
  async open() {
    this.closed = false;
    while (!this.closed) {
      this.controller = new AbortController();
      const moved = this.moved;
      this.moved = false;
      try {
        if ((await this.once(moved)) === "refused") return;
      } catch (error) {
        if (this.closed) break;
        if (!this.moved) this.error = /** @type {Error} */ (error);
      } finally {
        clearTimeout(this.silence);
      }
      if (!this.closed && !this.moved) await this.pause();
    }
    this.say("closed");
  }

  /**
   * Follow these sessions from now on. What is known of those that stay is kept, and the line goes on from there.
   * @param {string[]} sessions
   */
  follow(sessions) {
    for (const name of this.names) if (!sessions.includes(name)) this.forget(name);
    this.names = sessions;
    this.again();
  }

  /** Ask the server at once if there is no line, or if it is silent for longer than a heart beats: after a sleep. */
  nudge() {
    if (this.status === "waiting" || Date.now() - this.heard > 20_000) this.again();
  }

  again() {
    this.moved = true;
    this.wait = 0;
    this.controller.abort();
    this.wake();
  }

  /** @param {string} name */
  forget(name) {
    this.sessions.delete(name);
    const of = (/** @type {string} */ place) => decodeURIComponent(place.replace(/:\d+:\d+$/, ""));
    this.cursor = this.cursor.split(" ").filter((place) => place && of(place) !== name).join(" ");
  }

  close() {
    this.closed = true;
    this.controller.abort();
    this.wake();
  }

  /** @param {boolean} moved */
  async once(moved) {
    if (!moved || this.status !== "live") this.say(this.cursor ? "resuming" : "connecting");
    const query = new URLSearchParams();
    for (const name of this.names) query.append("session", name);
    for (const name of this.topicNames) query.append("topic", name);
    if (this.limit) query.set("limit", String(this.limit));
    /** @type {Record<string, string>} */
    const headers = { accept: "text/event-stream", ...this.headers() };
    if (this.cursor) headers["last-event-id"] = this.cursor;
    const signal = this.controller.signal;
    this.listen();
    const answer = await this.ask(`${this.url}/v1/stream?${query}`, { headers, signal, cache: "no-store" });
    if (answer.status === 410 || (answer.status === 400 && this.cursor)) this.cursor = ""; // a snapshot, then
    else if (answer.status === 404 && (await this.leave(answer))) return "left";
    else if (answer.status >= 400 && answer.status < 500) return this.refuse(answer);
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    this.say("live");
    if (answer.body) for await (const frame of frames(answer.body)) this.take(frame);
  }

  /**
   * One session that is gone is no reason to lose the others: which of them is it? False if that leaves nothing.
   * @param {Response} answer
   */
  async leave(answer) {
    const gone = /** @type {string[]} */ ([]);
    for (const name of this.names) if (await this.isGone(name)) gone.push(name);
    if (!gone.length || (gone.length === this.names.length && !this.topicNames.length)) return false;
    await answer.body?.cancel();
    this.names = this.names.filter((name) => !gone.includes(name));
    this.moved = true;
    for (const session of gone) {
      this.forget(session);
      this.onChange("gone", { session }, this);
    }
    return true;
  }

  /** @param {string} name */
  async isGone(name) {
    const place = `${this.url}/v1/sessions/${encodeURIComponent(name)}?limit=1`;
    const { signal } = this.controller;
    const answer = await this.ask(place, { headers: this.headers(), signal, cache: "no-store" });
    await answer.body?.cancel();
    return answer.status === 404;
  }

  /** @returns {Record<string, string>} */
  headers() {
    return this.token ? { authorization: `Bearer ${this.token}` } : {};
  }

  /** @param {Response} answer */
  async refuse(answer) {
    const said = (await answer.json().catch(() => ({}))).detail ?? `the server answered ${answer.status}`;
    this.error = Object.assign(new Error(said), { status: answer.status });
    this.closed = true;
    this.say("refused");
    return "refused";
  }

  /** A line that gives no sign of life for so long is dead; after a sleep nobody else would say so. */
  listen() {
    this.heard = Date.now();
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.controller.abort(), this.patience);
  }

  /** @param {import("./callslip.d.ts").Frame} frame */
  take(frame) {
    this.listen();
    this.wait = 0;
    if (frame.data) this.change(/** @type {any} */ (frame.event), JSON.parse(frame.data));
    if (frame.id) this.cursor = frame.id;
  }

  /** @param {"snapshot" | "patches" | "topic" | "row"} event @param {any} told */
  change(event, told) {
    if (event === "snapshot") {
      const entries = new Map(told.entries.map((/** @type {any} */ entry) => [entry.id, entry]));
      this.sessions.set(told.session, { name: told.session, seq: told.seq, info: told.info, entries });
    } else if (event === "patches") {
      const session = this.sessions.get(told.session);
      if (!session || told.seq <= session.seq) return;
      for (const patch of told.patches) apply(session, patch);
      session.seq = told.seq;
    } else if (event === "topic") {
      const id = IDS[/** @type {import("./callslip.d.ts").TopicName} */ (told.topic)];
      this.topics.set(told.topic, new Map(told.rows.map((/** @type {any} */ row) => [row[id], row])));
    } else if (event === "row") {
      const rows = this.topics.get(told.topic);
      if (told.gone) rows.delete(told.id);
      else rows.set(told.id, told.row);
    }
    this.onChange(event, told, this);
  }

  /** @param {Status} status */
  say(status) {
    if (this.status === status) return;
    this.status = status;
    this.onStatus(status, this);
  }

  async pause() {
    this.say("waiting");
    const longest = (this.wait = Math.min(30_000, this.wait * 2 || 500));
    let timer;
    await new Promise((/** @type {(done: void) => void} */ resolve) => {
      this.wake = resolve;
      timer = setTimeout(resolve, longest * (0.5 + Math.random() / 2));
    });
    clearTimeout(timer);
  }
}

const IDS = { sessions: "session", inbox: "approval", commands: "call" };
