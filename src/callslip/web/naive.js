// A client as it is often written, for comparison in the fault lab. It matches calls by the text of their command,
// shows the last status it received, and keeps everything in memory. Nothing else on the page uses it.

import { frames } from "./callslip.js";

/**
 * `seq` is the event that created the card. The client does not use it; the fault lab finds errors with it.
 * @typedef {{text: string, status: string, output: string, seq: number}} Card
 * @typedef {{type: string, seq: number, title?: string, text?: string, output?: unknown}} CallEvent
 */

/** The status that an event gives to its card. The client does not know other events, such as `call.lost`. */
const END_STATES = /** @type {Record<string, string>} */ ({
  "call.completed": "completed",
  "call.failed": "failed",
  "call.cancelled": "cancelled",
});

/** @param {Card[]} cards @param {CallEvent} event @returns {Card[]} */
export function applyEvent(cards, event) {
  const text = event.title ?? "";
  if (event.type === "call.proposed") return [...cards, { text, status: "queued", output: "", seq: event.seq }];
  const existing = cards.find((card) => card.text === text);
  const status = END_STATES[event.type] ?? (["call.started", "call.progress"].includes(event.type) ? "running" : "");
  if (!status || !text) return cards;
  const before = existing ?? { text: "unknown", status, output: "", seq: event.seq };
  const after = { ...before, status, output: nextOutput(before, event) };
  return existing ? cards.map((card) => (card === existing ? after : card)) : [...cards, after];
}

/** @param {Card} card @param {CallEvent} event */
function nextOutput(card, event) {
  if (event.type === "call.progress") return card.output + (event.text ?? "");
  return typeof event.output === "string" ? event.output : card.output;
}

export class NaiveClient {
  /** @param {{url: string, session: string, fetch: typeof fetch, onChange: (cards: Card[]) => void}} options */
  constructor({ url, session, fetch, onChange }) {
    this.url = `${url}/v1/sessions/${encodeURIComponent(session)}`;
    this.fetch = fetch;
    this.onChange = onChange;
    this.closed = false;
    this.controller = new AbortController();
    /** @type {Card[]} */
    this.cards = [];
    /** The last received event. The client does not use it; the fault lab waits for it. */
    this.lastSeq = -1;
  }

  /** Reconnect after a lost connection, without loading what was missed. */
  async open() {
    while (!this.closed) {
      await this.readStream().catch(() => {});
      if (!this.closed) await new Promise((resolve) => setTimeout(resolve, 400));
    }
  }

  async readStream() {
    const signal = this.controller.signal;
    const { seq } = await (await this.fetch(`${this.url}?limit=1`, { signal })).json();
    const response = await this.fetch(`${this.url}/stream?format=events&after=${seq}`, { signal, cache: "no-store" });
    if (!response.ok || !response.body) throw new Error(`HTTP status ${response.status}`);
    this.lastSeq = seq;
    for await (const frame of frames(response.body)) {
      if (!frame.data) continue;
      const event = JSON.parse(frame.data);
      this.lastSeq = event.seq;
      this.cards = applyEvent(this.cards, event);
      this.onChange(this.cards);
    }
  }

  close() {
    this.closed = true;
    this.controller.abort();
  }
}
