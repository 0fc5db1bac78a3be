// Follow sessions and topics of a Callslip server: a snapshot, then patches, resumed after a lost connection.
// The server computes every entry; this client only applies patches. Browsers and Node 18 or newer, no framework.
// For pages that show commands or executions, ShellMessages and Timeline have the state of each one, from a history or
// from live events, and followSession fills them.

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
    this.error = await problemOf(response);
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

/** The messages of a session in the format `shell`: their parts, and the state of each command by message and id. */
export class ShellMessages {
  constructor() {
    this.format = /** @type {const} */ ("shell");
    this.messages = /** @type {Map<string, import("./callslip.d.ts").ShellMessage>} */ (new Map());
    this.parts = /** @type {Map<string, Map<string, import("./callslip.d.ts").ShellCommand>>} */ (new Map());
    this.known = /** @type {Map<string, import("./callslip.d.ts").ShellCommand>} */ (new Map());
    this.live = "";
    this.isLoaded = false;
  }

  /**
   * Replace everything by a history.
   * @param {import("./callslip.d.ts").ShellMessage[]} messages
   */
  load(messages) {
    this.messages.clear();
    this.parts.clear();
    this.live = "";
    this.isLoaded = true;
    for (const message of messages) {
      this.add({ ...message, parts: [] });
      for (const part of message.parts) this.addPart(message.id, { ...part });
    }
  }

  /**
   * Begin the message that the following events fill. A stream replays its message from the start, so begin it again
   * with every connection.
   * @param {string} [message]
   */
  begin(message = this.lastAnswer()) {
    this.live = message;
    // A history that was just loaded may be newer than the first events. No command goes back to an earlier status.
    this.known = (this.isLoaded && this.parts.get(message)) || new Map();
    this.isLoaded = false;
    const earlier = this.messages.get(message);
    if (earlier) Object.assign(earlier, { parts: [] });
    else this.messages.set(message, { id: message, role: "assistant", parts: [] });
    this.parts.set(message, new Map());
  }

  /**
   * Apply an event of a live stream and return the part that it changed. Events of unknown commands change nothing, and
   * a command never goes back to an earlier status.
   * @param {import("./callslip.d.ts").ShellEvent} event
   * @returns {import("./callslip.d.ts").ShellPart | undefined}
   */
  apply(event) {
    if (!this.live) this.begin();
    if (event.type === "text" || event.type === "reasoning") return this.addText(event);
    if (event.type !== "tool-call" && event.type !== "tool-start" && event.type !== "tool-result") return undefined;
    const { command, commandId, callslip_id } = event;
    const part = this.command(this.live, callslip_id ?? commandId);
    if (event.type === "tool-call") {
      if (part) return undefined;
      const ids = callslip_id ? { commandId, callslip_id } : { commandId };
      const known = this.known.get(callslip_id ?? commandId);
      return this.addPart(this.live, known ? { ...known } : { type: "tool", command, ...ids, toolStatus: "queued" });
    }
    if (!part || part.toolStatus === "completed") return undefined;
    if (event.type === "tool-result") {
      return Object.assign(part, { toolStatus: "completed", content: event.result, isError: event.isError ?? false });
    }
    return part.toolStatus === "queued" ? Object.assign(part, { toolStatus: "running" }) : undefined;
  }

  /**
   * Return a command by its message and its id in that message, or its `callslip_id`.
   * @param {string} message @param {string} id
   */
  command(message, id) {
    return this.parts.get(message)?.get(id);
  }

  /** Return all commands with their messages, in order. */
  commands() {
    return [...this.messages.values()].flatMap(({ id: message, parts }) =>
      parts.flatMap((part) => (part.type === "tool" ? [{ ...part, message }] : [])));
  }

  /** @param {import("./callslip.d.ts").ShellMessage} message */
  add(message) {
    this.messages.set(message.id, message);
    this.parts.set(message.id, new Map());
  }

  /** @param {string} message @param {import("./callslip.d.ts").ShellPart} part */
  addPart(message, part) {
    this.messages.get(message)?.parts.push(part);
    const byId = this.parts.get(message);
    if (part.type === "tool") {
      byId?.set(part.commandId, part);
      if (part.callslip_id) byId?.set(part.callslip_id, part);
    }
    return part;
  }

  /** @param {{type: "text" | "reasoning", content: string}} event */
  addText({ type, content }) {
    const last = this.messages.get(this.live)?.parts.at(-1);
    if (last?.type !== type) return this.addPart(this.live, { type, content });
    return Object.assign(last, { content: last.content + content });
  }

  /** Return the last message if it is an answer, which a stream without a turn continues; otherwise a new id. */
  lastAnswer() {
    const last = [...this.messages.values()].at(-1);
    return last?.role === "assistant" ? last.id : "live";
  }
}

/** The timeline of a session in the format `act-observe`: its texts, and the state of executions by message and id. */
export class Timeline {
  constructor() {
    this.format = /** @type {const} */ ("act-observe");
    this.items = /** @type {Map<number, import("./callslip.d.ts").TimelineItem>} */ (new Map());
    this.executionsById = /** @type {Map<string, import("./callslip.d.ts").Execution>} */ (new Map());
    this.userMessages = /** @type {number[]} */ ([]);
    this.begunTexts = /** @type {Set<number>} */ (new Set());
  }

  /**
   * Replace everything by a history.
   * @param {import("./callslip.d.ts").TimelineHistoryItem[]} items
   */
  load(items) {
    this.items.clear();
    this.executionsById.clear();
    this.userMessages = [];
    for (const item of items) {
      if (item.type === "act") {
        const { type, execution, ...fields } = item;
        this.addExecution({ ...fields, ...execution });
      } else if (item.type === "observe") {
        const { type, seq, ...fields } = item;
        Object.assign(this.items.get(seq) ?? {}, fields);
      } else this.addText({ ...item });
    }
  }

  /** Begin to read a stream, which replays its items from the start. Call it for every connection. */
  begin() {
    this.begunTexts.clear();
  }

  /**
   * Apply an event of a live stream and return the item that it changed.
   * @param {import("./callslip.d.ts").TimelineEvent} event
   * @returns {import("./callslip.d.ts").TimelineItem | undefined}
   */
  apply(event) {
    if (event.type === "act") return this.applyAct(event);
    if (event.type === "observe") return this.applyObserve(event);
    if (event.type === "text_delta" || event.type === "thought_delta") return this.appendText(event);
    if (event.type === "text_start" || event.type === "text_end") {
      const content = event.type === "text_end" ? event.full_text : "";
      return this.addText({ type: "assistant_message", seq: event.seq, content });
    }
    const isText = event.type === "user_message" || event.type === "assistant_message" || event.type === "thought";
    return isText ? this.addText({ ...event }) : undefined;
  }

  /** Return all texts and executions, in order. */
  list() {
    return [...this.items.values()].sort((one, other) => one.seq - other.seq);
  }

  /** Return all executions, in order. */
  executions() {
    return this.list().flatMap((item) => (item.type === "execution" ? [item] : []));
  }

  /**
   * Return an execution by its id, or its `callslip_id`, and the user's message before it: `msg-` and its seq, or "".
   * @param {string} message @param {string} id
   */
  execution(message, id) {
    return this.executionsById.get(`${message} ${id}`);
  }

  /** @param {import("./callslip.d.ts").ActEvent} event */
  applyAct({ type, tool_name, tool_input, timestamp, tool_execution_id, status, ...fields }) {
    const earlier = this.items.get(fields.seq);
    const changes = { ...fields, toolName: tool_name, toolInput: tool_input, startTime: timestamp };
    if (earlier?.type === "execution") return Object.assign(earlier, changes);
    return this.addExecution({ ...changes, status, endTime: null });
  }

  /** @param {import("./callslip.d.ts").ObserveEvent} event */
  applyObserve({ type, tool_name, result, observation, is_error, timestamp, tool_execution_id, ...fields }) {
    const execution = this.items.get(fields.seq);
    if (execution?.type !== "execution" || execution.endTime !== null) return undefined;
    return Object.assign(execution, { ...fields, toolOutput: result, isError: is_error, endTime: timestamp });
  }

  /** @param {Omit<import("./callslip.d.ts").Execution, "type" | "message">} fields */
  addExecution(fields) {
    // Any later user message in the list arrived before an older call started.
    const before = this.userMessages.findLast((seq) => seq < fields.seq);
    const message = before === undefined ? "" : `msg-${before}`;
    const execution = /** @type {import("./callslip.d.ts").Execution} */ ({ type: "execution", message, ...fields });
    this.items.set(fields.seq, execution);
    this.executionsById.set(`${message} ${fields.execution_id}`, execution);
    if (fields.callslip_id) this.executionsById.set(`${message} ${fields.callslip_id}`, execution);
    return execution;
  }

  /** @param {import("./callslip.d.ts").TimelineText} item */
  addText(item) {
    if (item.type === "user_message" && !this.items.has(item.seq)) this.userMessages.push(item.seq);
    this.items.set(item.seq, item);
    this.begunTexts.add(item.seq);
    return item;
  }

  /** @param {{type: "text_delta" | "thought_delta", seq: number, delta: string}} event */
  appendText({ type, seq, delta }) {
    const item = this.begunTexts.has(seq) ? this.items.get(seq) : undefined;
    if (item && item.type !== "execution") return Object.assign(item, { content: item.content + delta });
    return this.addText({ type: type === "text_delta" ? "assistant_message" : "thought", seq, content: delta });
  }
}

/**
 * Fill a view with the history of a session, then with its live events, until the signal is aborted. After a lost
 * connection it reads the history again. It rejects if the server refuses a request, for example without a valid token.
 * @param {import("./callslip.d.ts").SessionView} view @param {import("./callslip.d.ts").FollowOptions} options
 */
export async function followSession(view, options) {
  const { signal } = options;
  const reader = new SessionReader(view, options);
  for (let delay = 0; !signal?.aborted; ) {
    try {
      await reader.load(reader.status === "live" ? HISTORY_WAIT_S : 0);
      await reader.readTurn();
      delay = 0;
    } catch (caught) {
      const error = /** @type {Error & {status?: number}} */ (caught);
      if (signal?.aborted) return;
      if (error.status && error.status < 500 && ![410, 429].includes(error.status)) throw error;
      reader.setStatus("waiting");
      delay = Math.min(30_000, delay * 2 || 500);
      await new Promise((/** @type {(done: void) => void} */ resolve) => {
        setTimeout(resolve, delay * (0.5 + Math.random() / 2));
        signal?.addEventListener("abort", () => resolve(), { once: true });
      });
    }
  }
}

/** The requests of `followSession`. */
class SessionReader {
  /** @param {import("./callslip.d.ts").SessionView} view @param {import("./callslip.d.ts").FollowOptions} options */
  constructor(view, { url = "", session, token = "", signal, onChange, onStatus, fetch: fetcher }) {
    this.view = view;
    this.path = `${url.replace(/\/$/, "")}/v1/sessions/${encodeURIComponent(session)}`;
    this.headers = /** @type {Record<string, string>} */ (token ? { authorization: `Bearer ${token}` } : {});
    this.signal = signal;
    this.status = "";
    this.onChange = onChange ?? (() => {});
    this.onStatus = onStatus ?? (() => {});
    this.fetch = fetcher ?? ((/** @type {Parameters<typeof fetch>} */ ...parameters) => fetch(...parameters));
    this.etag = "";
    this.seq = 0;
  }

  /** Report a change. An error of the caller's function is not a lost connection, so it is thrown outside. */
  reportChange() {
    try {
      this.onChange(this.view);
    } catch (error) {
      setTimeout(() => {
        throw error;
      });
    }
  }

  /**
   * Read the history if it has changed since it was read. If not, wait for a change for some seconds.
   * @param {number} wait
   */
  async load(wait) {
    const query = `?format=${this.view.format}&wait=${wait}`;
    await this.request(query, this.etag ? { "if-none-match": this.etag } : {}, async (response) => {
      if (response.status === 304) return;
      const { messages, seq } = await response.json();
      this.etag = response.headers.get("etag") ?? "";
      this.seq = seq;
      this.view.load(messages);
      this.reportChange();
    });
  }

  /** Read the open turn, or what is outside of turns, to its end or to the next prompt. */
  async readTurn() {
    const { info, entries } = await this.request("?limit=1", {}, (response) => response.json());
    if (!info.turn && entries.at(-1)?.turn) return this.setStatus("live"); // The history has all of the last turn.
    const controller = new AbortController();
    const readers = [this.readEvents(info.turn, controller), this.waitForPrompt(controller)];
    try {
      await Promise.race(readers);
    } finally {
      controller.abort();
      await Promise.allSettled(readers);
    }
  }

  /** @param {string | undefined} turn @param {AbortController} controller */
  async readEvents(turn, controller) {
    const query = `/stream?format=${this.view.format}${turn ? `&turn=${encodeURIComponent(turn)}` : ""}`;
    await this.request(query, {}, async (response, restartSilenceTimer) => {
      this.setStatus("live");
      let hasBegun = false;
      for await (const frame of frames(/** @type {ReadableStream<Uint8Array>} */ (response.body))) {
        restartSilenceTimer();
        if (!frame.data) continue;
        if (!hasBegun) this.view.begin(turn ? `turn-${turn}` : undefined);
        hasBegun = true;
        this.view.apply(JSON.parse(frame.data));
        this.reportChange();
      }
    }, controller);
  }

  /**
   * Wait for a user's message that is not in the loaded history: the stream of a turn may not have it.
   * @param {AbortController} controller
   */
  async waitForPrompt(controller) {
    await this.request(`/stream?format=entries&after=${this.seq}`, {}, async (response, restartSilenceTimer) => {
      for await (const frame of frames(/** @type {ReadableStream<Uint8Array>} */ (response.body))) {
        restartSilenceTimer();
        const { patches = [] } = frame.data ? JSON.parse(frame.data) : {};
        if (patches.some((/** @type {any} */ { entry }) => entry?.type === "message" && entry.role === "user")) return;
      }
    }, controller);
  }

  /** @param {"live" | "waiting"} status */
  setStatus(status) {
    if (this.status === status) return;
    this.status = status;
    this.onStatus(status);
  }

  /**
   * Send a request and read its response. It fails after too long a silence: a dead connection reports no error.
   * @template T
   * @param {string} query @param {Record<string, string>} headers
   * @param {(response: Response, restartSilenceTimer: () => void) => Promise<T>} read
   * @param {AbortController} controller
   */
  async request(query, headers, read, controller = new AbortController()) {
    const abort = () => controller.abort();
    let timer = setTimeout(abort, SILENCE_TIMEOUT_MS);
    const restartSilenceTimer = () => {
      clearTimeout(timer);
      timer = setTimeout(abort, SILENCE_TIMEOUT_MS);
    };
    this.signal?.addEventListener("abort", abort);
    try {
      const allHeaders = { ...this.headers, ...headers };
      const { signal } = controller;
      const response = await this.fetch(this.path + query, { headers: allHeaders, signal, cache: "no-store" });
      restartSilenceTimer();
      if (!response.ok && response.status !== 304) throw await problemOf(response);
      return await read(response, restartSilenceTimer);
    } finally {
      clearTimeout(timer);
      this.signal?.removeEventListener("abort", abort);
    }
  }
}

/**
 * Return the problem in a response as an error with its `status`.
 * @param {Response} response
 */
async function problemOf(response) {
  const message = (await response.json().catch(() => ({}))).detail ?? `HTTP status ${response.status}`;
  return Object.assign(new Error(message), { status: response.status });
}

const HISTORY_WAIT_S = 30;
const SILENCE_TIMEOUT_MS = 60_000;
