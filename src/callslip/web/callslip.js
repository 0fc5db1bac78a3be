// Follow sessions and topics of a Callslip server: a snapshot, then patches, resumed after a lost connection.
// The server computes every entry; this client only applies patches. Browsers and Node 18 or newer, no framework.

/** @typedef {import("./callslip.d.ts").Status} Status */

/**
 * Apply one patch to a session. Patches of entries that are not loaded are ignored.
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
 * Parse server-sent events from a body: {id, event, data}. A frame without data only moves the cursor.
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

/**
 * Split a body into lines. Each chunk is scanned once, however long the line is.
 * @param {ReadableStream<Uint8Array>} body
 */
async function* lines(body) {
  const reader = body.getReader(); // Not every browser can iterate over a body.
  const decoder = new TextDecoder();
  let line = "";
  try {
    for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
      const [first, ...more] = decoder.decode(chunk.value, { stream: true }).split("\n");
      line += first;
      for (const next of more) {
        yield line.endsWith("\r") ? line.slice(0, -1) : line;
        line = next;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // The stream may already have failed.
  }
}

export class Callslip {
  /** @param {import("./callslip.d.ts").Options} options */
  constructor(options = {}) {
    const { url = "", sessions = [], topics = [], token = "", limit, silenceTimeout = 60_000 } = options;
    const { onChange, onStatus, fetch: fetcher } = options;
    this.url = url.replace(/\/$/, "");
    this.names = sessions;
    this.topicNames = topics;
    this.token = token;
    this.limit = limit;
    this.silenceTimeout = silenceTimeout;
    this.sessions = new Map();
    this.topics = new Map();
    this.cursor = "";
    this.status = /** @type {Status} */ ("closed");
    this.error = /** @type {(Error & {status?: number}) | undefined} */ (undefined);
    this.onChange = onChange ?? (() => {});
    this.onStatus = onStatus ?? (() => {});
    this.fetch = fetcher ?? ((/** @type {Parameters<typeof fetch>} */ ...parameters) => fetch(...parameters));
    this.controller = new AbortController();
    this.closed = false;
    this.wake = () => {};
    this.retryDelay = 0;
    this.lastFrameAt = 0;
    this.isReconnecting = false;
  }

  /** Follow until `close()` is called, or until the server refuses the connection. */
  async open() {
    this.closed = false;
    while (!this.closed) {
      this.controller = new AbortController();
      const wasReconnecting = this.isReconnecting;
      this.isReconnecting = false;
      try {
        if ((await this.connectOnce(wasReconnecting)) === "refused") return;
      } catch (error) {
        if (this.closed) break;
        if (!this.isReconnecting) this.error = /** @type {Error} */ (error);
      } finally {
        clearTimeout(this.silenceTimer);
      }
      if (!this.closed && !this.isReconnecting) await this.waitBeforeRetry();
    }
    this.setStatus("closed");
  }

  /**
   * Replace the followed sessions. Sessions that stay keep their state and continue from their cursor.
   * @param {string[]} sessions
   */
  follow(sessions) {
    for (const name of this.names) if (!sessions.includes(name)) this.dropSession(name);
    this.names = sessions;
    this.reconnect();
  }

  /** Reconnect at once if disconnected, or if silent for longer than a heartbeat, as after the computer slept. */
  nudge() {
    if (this.status === "waiting" || Date.now() - this.lastFrameAt > 20_000) this.reconnect();
  }

  reconnect() {
    this.isReconnecting = true;
    this.retryDelay = 0;
    this.controller.abort();
    this.wake();
  }

  /** @param {string} name */
  dropSession(name) {
    this.sessions.delete(name);
    const nameOf = (/** @type {string} */ part) => decodeURIComponent(part.replace(/:\d+:\d+$/, ""));
    this.cursor = this.cursor.split(" ").filter((part) => part && nameOf(part) !== name).join(" ");
  }

  close() {
    this.closed = true;
    this.controller.abort();
    this.wake();
  }

  /** @param {boolean} wasReconnecting */
  async connectOnce(wasReconnecting) {
    if (!wasReconnecting || this.status !== "live") this.setStatus(this.cursor ? "resuming" : "connecting");
    const query = new URLSearchParams();
    for (const name of this.names) query.append("session", name);
    for (const name of this.topicNames) query.append("topic", name);
    if (this.limit) query.set("limit", String(this.limit));
    /** @type {Record<string, string>} */
    const headers = { accept: "text/event-stream", ...this.headers() };
    if (this.cursor) headers["last-event-id"] = this.cursor;
    const signal = this.controller.signal;
    this.restartSilenceTimer();
    const response = await this.fetch(`${this.url}/v1/stream?${query}`, { headers, signal, cache: "no-store" });
    // Without a valid cursor, the next connection starts with a snapshot.
    if (response.status === 410 || (response.status === 400 && this.cursor)) this.cursor = "";
    else if (response.status === 404 && (await this.dropMissingSessions(response))) return "dropped";
    else if (response.status >= 400 && response.status < 500) return this.rejectConnection(response);
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    this.setStatus("live");
    if (response.body) for await (const frame of frames(response.body)) this.handleFrame(frame);
  }

  /**
   * Stop following the sessions that do not exist, and return true. Return false if nothing would be left to follow.
   * @param {Response} response
   */
  async dropMissingSessions(response) {
    const gone = /** @type {string[]} */ ([]);
    for (const name of this.names) if (await this.isMissing(name)) gone.push(name);
    if (!gone.length || (gone.length === this.names.length && !this.topicNames.length)) return false;
    await response.body?.cancel();
    this.names = this.names.filter((name) => !gone.includes(name));
    this.isReconnecting = true;
    for (const session of gone) {
      this.dropSession(session);
      this.onChange("gone", { session }, this);
    }
    return true;
  }

  /** @param {string} name */
  async isMissing(name) {
    const url = `${this.url}/v1/sessions/${encodeURIComponent(name)}?limit=1`;
    const { signal } = this.controller;
    const response = await this.fetch(url, { headers: this.headers(), signal, cache: "no-store" });
    await response.body?.cancel();
    return response.status === 404;
  }

  /** @returns {Record<string, string>} */
  headers() {
    return this.token ? { authorization: `Bearer ${this.token}` } : {};
  }

  /** @param {Response} response */
  async rejectConnection(response) {
    const message = (await response.json().catch(() => ({}))).detail ?? `HTTP status ${response.status}`;
    this.error = Object.assign(new Error(message), { status: response.status });
    this.closed = true;
    this.setStatus("refused");
    return "refused";
  }

  /** Abort the connection after too long a silence: after a sleep, a dead connection reports no error. */
  restartSilenceTimer() {
    this.lastFrameAt = Date.now();
    clearTimeout(this.silenceTimer);
    this.silenceTimer = setTimeout(() => this.controller.abort(), this.silenceTimeout);
  }

  /** @param {import("./callslip.d.ts").Frame} frame */
  handleFrame(frame) {
    this.restartSilenceTimer();
    this.retryDelay = 0;
    if (frame.data) this.applyEvent(/** @type {any} */ (frame.event), JSON.parse(frame.data));
    if (frame.id) this.cursor = frame.id;
  }

  /** @param {"snapshot" | "patches" | "topic" | "row"} event @param {any} update */
  applyEvent(event, update) {
    if (event === "snapshot") {
      const entries = new Map(update.entries.map((/** @type {any} */ entry) => [entry.id, entry]));
      this.sessions.set(update.session, { name: update.session, seq: update.seq, info: update.info, entries });
    } else if (event === "patches") {
      const session = this.sessions.get(update.session);
      if (!session || update.seq <= session.seq) return;
      for (const patch of update.patches) apply(session, patch);
      session.seq = update.seq;
    } else if (event === "topic") {
      const id = ROW_ID_FIELDS[/** @type {import("./callslip.d.ts").TopicName} */ (update.topic)];
      this.topics.set(update.topic, new Map(update.rows.map((/** @type {any} */ row) => [row[id], row])));
    } else if (event === "row") {
      const rows = this.topics.get(update.topic);
      if (update.gone) rows.delete(update.id);
      else rows.set(update.id, update.row);
    }
    this.onChange(event, update, this);
  }

  /** @param {Status} status */
  setStatus(status) {
    if (this.status === status) return;
    this.status = status;
    this.onStatus(status, this);
  }

  async waitBeforeRetry() {
    this.setStatus("waiting");
    const delay = (this.retryDelay = Math.min(30_000, this.retryDelay * 2 || 500));
    let timer;
    await new Promise((/** @type {(done: void) => void} */ resolve) => {
      this.wake = resolve;
      timer = setTimeout(resolve, delay * (0.5 + Math.random() / 2));
    });
    clearTimeout(timer);
  }
}

const ROW_ID_FIELDS = { sessions: "session", inbox: "approval", commands: "call" };
