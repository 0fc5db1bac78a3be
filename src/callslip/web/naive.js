// A client as they are often written, to stand beside ours in the demo. It finds a call by the text of its command, the
// last thing it hears is what it shows, and it has everything in memory alone. Nothing else on the page uses it.

import { frames } from "./callslip.js";

/**
 * `seq` is where the card came from. The naive client makes no use of it: by it the panel can say what is wrong.
 * @typedef {{text: string, status: string, output: string, seq: number}} Card
 * @typedef {{type: string, seq: number, title?: string, text?: string, output?: unknown}} Told
 */

/** What each event makes of the card it is taken to be about. Others, such as `call.lost`, nobody told it of. */
const ENDS = /** @type {Record<string, string>} */ ({
  "call.completed": "completed",
  "call.failed": "failed",
  "call.cancelled": "cancelled",
});

/** @param {Card[]} cards @param {Told} event @returns {Card[]} */
export function take(cards, event) {
  const text = event.title ?? "";
  if (event.type === "call.proposed") return [...cards, { text, status: "queued", output: "", seq: event.seq }];
  const known = cards.find((card) => card.text === text);
  const status = ENDS[event.type] ?? (["call.started", "call.progress"].includes(event.type) ? "running" : "");
  if (!status || !text) return cards;
  const before = known ?? { text: "unknown", status, output: "", seq: event.seq };
  const after = { ...before, status, output: said(before, event) };
  return known ? cards.map((card) => (card === known ? after : card)) : [...cards, after];
}

/** @param {Card} card @param {Told} event */
function said(card, event) {
  if (event.type === "call.progress") return card.output + (event.text ?? "");
  return typeof event.output === "string" ? event.output : card.output;
}

export class Naive {
  /** @param {{url: string, session: string, ask: typeof fetch, onChange: (cards: Card[]) => void}} options */
  constructor({ url, session, ask, onChange }) {
    this.place = `${url}/v1/sessions/${encodeURIComponent(session)}`;
    this.ask = ask;
    this.onChange = onChange;
    this.closed = false;
    this.controller = new AbortController();
    /** @type {Card[]} */
    this.cards = [];
    /** How far it has heard; it makes no use of that either. */
    this.heard = -1;
  }

  /** It comes back after a lost line, too, and goes on with what is told from then on. */
  async open() {
    while (!this.closed) {
      await this.once().catch(() => {});
      if (!this.closed) await new Promise((resolve) => setTimeout(resolve, 400));
    }
  }

  async once() {
    const signal = this.controller.signal;
    const { seq } = await (await this.ask(`${this.place}?limit=1`, { signal })).json();
    const answer = await this.ask(`${this.place}/stream?format=events&after=${seq}`, { signal, cache: "no-store" });
    if (!answer.ok || !answer.body) throw new Error(`the server answered ${answer.status}`);
    this.heard = seq;
    for await (const frame of frames(answer.body)) {
      if (!frame.data) continue;
      const event = JSON.parse(frame.data);
      this.heard = event.seq;
      this.cards = take(this.cards, event);
      this.onChange(this.cards);
    }
  }

  close() {
    this.closed = true;
    this.controller.abort();
  }
}
