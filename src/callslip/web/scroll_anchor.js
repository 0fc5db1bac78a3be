// Where the window stands over a long list. Whoever reads at the end stays at the end; whoever scrolled up keeps the
// line they read where it is, whatever comes or changes above and below.

import { Heights } from "./heights.js";
import { loadOlder, peekAt } from "./row_state.js";
import { hasOlder, past } from "./state.js";

const NEAR = 900;
const END = 48;
/** As a share of the window. */
const FAR = 0.5;
/** Below the page's header, which may stay in view. */
const UPPER = 96;

const GUESSES = /** @type {Record<string, number>} */ ({
  tool_call: 118, message: 84, thought: 44, permission_request: 150, plan: 44, mode_change: 36, meta: 36,
});

/** @param {number} id */
function guess(id) {
  const entry = peekAt(id);
  const length = entry?.type === "message" ? Math.min(4000, entry.content?.length ?? 0) : 0;
  return (GUESSES[entry?.type] ?? 60) + Math.floor(length / 90) * 22;
}

export class Place {
  /** @param {{current: HTMLElement | null}} list @param {() => void} redraw */
  constructor(list, redraw) {
    this.list = list;
    this.redraw = redraw;
    this.heights = new Heights(guess);
    this.following = !past.peek();
    /** @type {{id: number, top: number} | null} The row that must not move, and where it stands in the window. */
    this.anchor = null;
    /** The last row that was there when the person left the end. */
    this.seen = 0;
    /** @type {[number, number]} */
    this.drawn = [0, 0];
    this.width = 0;
    /** Where the window stood at the last scroll. */
    this.before = 0;
    /** Where this has put the window, until that is heard of as a scroll. */
    this.put = NaN;
    /** Whether the end is so far below that a way there is worth a button. */
    this.far = false;
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
    if (this.following && this.writing()) this.stay();
    const box = this.list.current?.getBoundingClientRect();
    const top = box ? -box.top : 0;
    const at = this.following ? Math.max(top, this.heights.total() - innerHeight) : top;
    return (this.drawn = this.heights.between(at - NEAR, at + innerHeight + NEAR));
  }

  /** Whether somebody writes in a row: it must neither move nor go. */
  writing() {
    const field = document.activeElement;
    return !!field?.matches("input, textarea") && !!this.list.current?.contains(field);
  }

  stay() {
    this.following = false;
    this.seen = Number(this.rows().at(-1)?.dataset.id ?? 0);
    this.hold();
  }

  rows() {
    return /** @type {HTMLElement[]} */ ([...(this.list.current?.querySelectorAll(":scope > .row") ?? [])]);
  }

  toEnd() {
    return document.documentElement.scrollHeight - innerHeight - scrollY;
  }

  /** See how far the end is: how much of the list is below the window. Whether that is news. */
  look() {
    const { height = 0, bottom = 0 } = this.list.current?.getBoundingClientRect() ?? {};
    const far = !this.following && Math.min(height, bottom - innerHeight) > innerHeight * FAR;
    const news = far !== this.far;
    this.far = far;
    return news;
  }

  scrolled() {
    // Only who moves down comes to the end, and only who moves up leaves it: a page that grows or shrinks below
    // somebody, or that was put there for them, has not been scrolled.
    const down = scrollY > this.before && !(Math.abs(scrollY - this.put) < 1);
    const end = this.toEnd() < END ? this.following || down : this.following && scrollY >= this.before - 1;
    this.put = NaN;
    const following = end && !this.writing();
    this.before = scrollY;
    if (this.following && !following) this.seen = this.heights.ids.at(-1) ?? 0;
    const left = following !== this.following;
    this.following = following;
    const changed = this.look() || left;
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
    for (const row of this.rows()) {
      news = this.heights.measure(Number(row.dataset.id), row.getBoundingClientRect().height) || news;
    }
    if (this.following) this.scroll(this.toEnd());
    else if (this.anchor) this.keep(this.anchor);
    if (this.look() || news) this.redraw();
  }

  /** Put a row back where it was. One that is gone keeps nothing. @param {{id: number, top: number}} anchor */
  keep({ id, top }) {
    const row = this.rows().find((row) => Number(row.dataset.id) === id);
    const index = row ? 0 : this.heights.ids.indexOf(id);
    const list = this.list.current?.getBoundingClientRect().top ?? 0;
    if (row) this.keepRow(row, top);
    else if (index >= 0) this.scroll(list + this.heights.top(index) - top);
    else this.hold();
  }

  /**
   * One that is so much shorter now that it would be out of sight is shown from its beginning.
   * @param {HTMLElement} row @param {number} top
   */
  keepRow(row, top) {
    const box = row.getBoundingClientRect();
    const wanted = top + box.height < UPPER ? UPPER : top;
    if (wanted !== top) this.anchor = { id: Number(row.dataset.id), top: wanted };
    this.scroll(box.top - wanted);
  }

  /** Nothing comes to the past, so nobody is taken along there. @param {boolean} inPast */
  visit(inPast) {
    this.following = !inPast && this.toEnd() < END;
    this.hold();
    this.redraw();
  }

  /** @param {number} by */
  scroll(by) {
    if (Math.abs(by) < 1) return;
    scrollBy({ top: by, behavior: "instant" });
    this.put = scrollY;
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
