// The timeline: only what is near the window is drawn. Whoever reads at the end stays at the end; whoever scrolled up keeps
// the line they read where it is, whatever comes or changes above and below.

import { html, lazily, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./parts.js";
import ToolCard from "./card.js";
import { Heights } from "./heights.js";
import { Message, Meta, Mode, Plan, Thought, Unknown } from "./message.js";
import { asking, entryAt, ids as allIds, kept, loadOlder, peekAt, slowly } from "./rows.js";
import { hasOlder, info, loaded, past, picked } from "./state.js";

const NEAR = 900;
const END = 48;
/** Below the page's header, which may stay in view. */
const UPPER = 96;

const GUESSES = /** @type {Record<string, number>} */ ({ tool_call: 118, message: 84, thought: 44, permission_request: 150, plan: 44, mode_change: 36, meta: 36 });

/** @param {number} id */
function guess(id) {
  const entry = peekAt(id);
  const length = entry?.type === "message" ? Math.min(4000, entry.content?.length ?? 0) : 0;
  return (GUESSES[entry?.type] ?? 60) + Math.floor(length / 90) * 22;
}

/** Where the window stands over the list. */
class Place {
  /** @param {{current: HTMLElement | null}} list @param {() => void} redraw */
  constructor(list, redraw) {
    this.list = list;
    this.redraw = redraw;
    this.heights = new Heights(guess);
    this.following = true;
    /** @type {{id: number, top: number} | null} The row that must not move, and where it stands in the window. */
    this.anchor = null;
    /** The last row that was there when the person left the end. */
    this.seen = 0;
    /** @type {[number, number]} */
    this.drawn = [0, 0];
    this.width = 0;
    /** Where the window stood at the last scroll. */
    this.before = 0;
    this.scrolled = this.scrolled.bind(this);
    this.settle = this.settle.bind(this);
    this.resized = () => (this.settle(), this.redraw());
  }

  attach() {
    addEventListener("scroll", this.scrolled, { passive: true });
    addEventListener("resize", this.resized);
    this.watcher = new ResizeObserver(this.settle);
    this.watcher.observe(document.body);
    if (this.list.current) this.watcher.observe(this.list.current);
    return () => {
      removeEventListener("scroll", this.scrolled);
      removeEventListener("resize", this.resized);
      this.watcher?.disconnect();
    };
  }

  /** The rows to draw. At first, before anything has its place, the last ones. */
  range() {
    const box = this.list.current?.getBoundingClientRect();
    const top = box ? -box.top : 0;
    const at = this.following ? Math.max(top, this.heights.total() - innerHeight) : top;
    return (this.drawn = this.heights.between(at - NEAR, at + innerHeight + NEAR));
  }

  rows() {
    return /** @type {HTMLElement[]} */ ([...(this.list.current?.querySelectorAll(":scope > .row") ?? [])]);
  }

  toEnd() {
    return document.documentElement.scrollHeight - innerHeight - scrollY;
  }

  scrolled() {
    // Only who moves up leaves the end: a page that grows below somebody has not been scrolled.
    const following = this.toEnd() < END || (this.following && scrollY >= this.before - 1);
    this.before = scrollY;
    if (this.following && !following) this.seen = this.heights.ids.at(-1) ?? 0;
    const changed = following !== this.following;
    this.following = following;
    this.hold();
    const [from, to] = this.drawn;
    const [first, last] = this.range();
    if (changed || first !== from || last !== to) this.redraw();
    if (first === 0) loadOlder();
  }

  /** Remember the first row that is in the window. Where nothing stands above the window, nothing there can move it. */
  hold() {
    const top = this.list.current?.getBoundingClientRect().top ?? 0;
    if (top > UPPER && !hasOlder.value) return void (this.anchor = null);
    const row = this.rows().find((row) => row.getBoundingClientRect().bottom > UPPER);
    this.anchor = row ? { id: Number(row.dataset.id), top: row.getBoundingClientRect().top } : null;
  }

  /** After every change: take the heights as they are now, and put the window where it was. */
  settle() {
    const list = this.list.current;
    if (!list) return;
    if (this.width && Math.abs(this.width - list.clientWidth) > 1) this.heights.forget();
    this.width = list.clientWidth;
    let news = false;
    for (const row of this.rows()) news = this.heights.measure(Number(row.dataset.id), row.getBoundingClientRect().height) || news;
    if (this.following) this.scroll(this.toEnd());
    else if (this.anchor) this.keep(this.anchor);
    if (news) this.redraw();
  }

  /** Put a row back where it was. One that is gone keeps nothing. @param {{id: number, top: number}} anchor */
  keep({ id, top }) {
    const row = this.rows().find((row) => Number(row.dataset.id) === id);
    const index = row ? 0 : this.heights.ids.indexOf(id);
    const list = this.list.current?.getBoundingClientRect().top ?? 0;
    if (row) this.scroll(row.getBoundingClientRect().top - top);
    else if (index >= 0) this.scroll(list + this.heights.top(index) - top);
    else this.hold();
  }

  /** Nothing comes to the past, so nobody is taken along there. @param {boolean} inPast */
  visit(inPast) {
    this.following = !inPast && this.toEnd() < END;
    this.hold();
    this.redraw();
  }

  /** @param {number} by */
  scroll(by) {
    if (Math.abs(by) >= 1) scrollBy({ top: by, behavior: "instant" });
  }

  end() {
    this.following = true;
    this.anchor = null;
    this.redraw();
  }

  /** Bring a row into the window. Whether it is there. @param {number} id */
  show(id) {
    const index = this.heights.ids.indexOf(id);
    const list = this.list.current;
    if (index < 0 || !list) return false;
    this.following = false;
    this.seen = this.heights.ids.at(-1) ?? 0;
    this.anchor = { id, top: UPPER + 8 };
    this.scroll(list.getBoundingClientRect().top + this.heights.top(index) - this.anchor.top);
    this.redraw();
    return true;
  }
}

/** The request for approval is another's work; without it the request is still told. */
const Request = lazily(() => import("./request.js").catch(() => ({ default: BareRequest })));

/** @param {{entry: any}} props */
const BareRequest = ({ entry }) => html`<p class="note-row"><b>Approval</b> <span dir="auto">${entry.description}</span> · ${entry.state ?? "pending"}</p>`;

/** @type {Record<string, any>} */
const SHOWN = { message: Message, thought: Thought, tool_call: ToolCard, permission_request: Request, plan: Plan, mode_change: Mode, meta: Meta };

const NAMES = /** @type {Record<string, string>} */ ({ tool_call: "tool call", permission_request: "approval", mode_change: "mode", meta: "agent" });

/** @param {{id: number, at: number, size: number}} props */
function Row({ id, at, size }) {
  const entry = entryAt(id);
  if (!entry) return null;
  const Shown = SHOWN[entry.type] ?? Unknown;
  const label = entry.type === "message" ? (entry.role === "user" ? "You" : "Agent") : (NAMES[entry.type] ?? entry.type);
  return html`<div class=${`row row-${entry.type}`} id=${`entry-${id}`} data-id=${id} role="article" tabindex="-1"
    aria-label=${label} aria-posinset=${at + 1} aria-setsize=${size}><${Shown} entry=${entry} live=${!past.value} /></div>`;
}

/** @param {{accept?: ((entry: any) => boolean) | null}} props */
export default function Timeline({ accept }) {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const [, draw] = useState(0);
  const place = useMemo(() => new Place(list, () => draw((count) => count + 1)), []);
  const ids = accept ? slowly.value.filter(accept).map((entry) => entry.id) : allIds.value;
  place.heights.take(ids);
  useEffect(() => place.attach(), []);
  useLayoutEffect(place.settle);
  useVisit(place, !!past.value);
  usePicked(place, ids);
  const [from, to] = place.range();
  const { heights } = place;
  return html`<div class="timeline-box">
    <${Before} />
    <div class="timeline" ref=${list} role="feed" aria-label="Timeline" aria-busy=${!loaded.value}>
      <div class="spacer" style=${{ height: `${heights.top(from)}px` }}></div>
      ${ids.slice(from, to).map((id, index) => html`<${Row} key=${id} id=${id} at=${from + index} size=${ids.length} />`)}
      <div class="spacer" style=${{ height: `${heights.total() - heights.top(to)}px` }}></div>
    </div>
    <${Nothing} count=${ids.length} filtered=${!!accept} />
    <${Jump} place=${place} ids=${ids} />
  </div>`;
}

/** @param {Place} place @param {boolean} inPast */
function useVisit(place, inPast) {
  const was = useRef(inPast);
  useLayoutEffect(() => {
    if (was.current !== inPast) place.visit(inPast);
    was.current = inPast;
  }, [inPast]);
}

/** Open, show and focus the entry that the address names, loading older pages until it is there. @param {Place} place @param {number[]} ids */
function usePicked(place, ids) {
  const wanted = useRef(0);
  const id = picked.value;
  useEffect(() => {
    wanted.current = id;
    if (id) kept(id, "open").value = true;
  }, [id]);
  useEffect(() => {
    if (!wanted.current || !loaded.value || !ids.length) return;
    if (!ids.includes(wanted.current)) return void (wanted.current < ids[0] && loadOlder());
    const found = wanted.current;
    if (!place.show(found)) return;
    wanted.current = 0;
    requestAnimationFrame(() => focusOn(document.getElementById(`entry-${found}`)));
  }, [id, ids]);
}

/** @param {HTMLElement | null} row */
function focusOn(row) {
  /** @type {HTMLElement | null | undefined} */
  const target = row?.querySelector(".call-toggle, .fold-head") ?? row;
  target?.focus({ preventScroll: true });
}

function Before() {
  if (past.value || !hasOlder.value) return null;
  const failed = asking.value && asking.value !== "asking";
  return html`<p class="before">${failed && html`<span role="alert">Earlier entries did not come: ${asking.value}</span>`}
    <button class="link" disabled=${asking.value === "asking"} onClick=${loadOlder}>${asking.value === "asking" ? "Loading earlier entries…" : "Load earlier entries"}</button></p>`;
}

/** @param {{count: number, filtered: boolean}} props */
function Nothing({ count, filtered }) {
  if (count) return null;
  if (!loaded.value && !past.value) return html`<p class="nothing" role="status">Loading the session…</p>`;
  if (filtered) return html`<p class="nothing" role="status">Nothing here fits the filter. Clear it to see all entries.</p>`;
  return html`<p class="nothing">${info.value.turn ? "The agent is at work; nothing to show yet." : "Nothing has happened in this session yet."}</p>`;
}

/** @param {{place: Place, ids: number[]}} props */
function Jump({ place, ids }) {
  if (place.following || !ids.length) return null;
  const fresh = ids.length - 1 - ids.lastIndexOf(place.seen);
  const count = place.seen && ids.includes(place.seen) ? fresh : 0;
  return html`<div class="jump"><button onClick=${() => place.end()}>${count ? `${count} new, jump to the end` : "Jump to the end"} <span aria-hidden="true">↓</span></button></div>`;
}
