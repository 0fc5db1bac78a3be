// Scroll position over a long list. At the end, the view follows new entries. After scrolling up, the visible rows stay
// in place while entries above and below them change.

import { Heights } from "./heights.js";
import { loadOlder, peekEntry } from "./row_state.js";
import { heightOf } from "./rows.js";
import { hasOlder, past } from "./state.js";

/** @typedef {import("./rows.js").Item} Item */

const OVERSCAN_PX = 900;
const END_PX = 48;
/** The space above an entry that a link names. */
const ABOVE_LINKED_PX = 48;
/** As a share of the viewport. */
const FAR_SCREENS = 0.5;

export class ScrollAnchor {
  /** @param {{current: HTMLElement | null}} list @param {() => void} redraw */
  constructor(list, redraw) {
    this.list = list;
    this.redraw = redraw;
    /** @type {Item[]} */
    this.items = [];
    /** @type {Map<string, Item>} */
    this.byKey = new Map();
    this.heights = new Heights((key) => {
      const item = /** @type {Item} */ (this.byKey.get(key));
      return heightOf(item, peekEntry(item.id));
    });
    this.isFollowing = !past.peek();
    /** @type {{key: string, top: number} | null} The row that must not move, and its position in the viewport. */
    this.anchor = null;
    /** The last entry, the last one that was drawn, and the last one when the user scrolled away from the end. */
    this.lastId = this.lastDrawnId = this.lastSeenId = 0;
    /** The turn of the first visible row, if its heading is above it. @type {import("./rows.js").Turn | undefined} */
    this.turn = undefined;
    /** @type {[number, number]} */
    this.drawnRange = [0, 0];
    this.width = 0;
    /** The height of all content at the last change or scroll event. */
    this.contentHeight = 0;
    /** The scroll position at the last scroll event. */
    this.lastScrollY = 0;
    /** The position of a scroll made by this class, until its scroll event arrives. */
    this.ownScrollY = NaN;
    /** Whether the end is far enough away to show the jump button. */
    this.isFarFromEnd = false;
    this.onScroll = this.onScroll.bind(this);
    this.settle = this.settle.bind(this);
    this.onResize = () => (this.settle(), this.redraw());
  }

  /** Set the rows. @param {Item[]} items @param {number} lastId The last entry. */
  setItems(items, lastId) {
    this.lastId = lastId;
    if (items === this.items) return;
    this.items = items;
    this.byKey = new Map(items.map((item) => [item.key, item]));
    this.heights.setIds(items.map(({ key }) => key));
  }

  /** Return the turn of the first visible row, if its heading is above the visible part. */
  currentTurn() {
    const y = -this.box().list;
    if (y <= 0 || !this.items.length) return (this.turn = undefined);
    let at = this.heights.indexAt(y);
    while (at > 0 && this.items[at].kind !== "turn") at--;
    const { turn } = this.items[at];
    return (this.turn = turn?.isFolded ? undefined : turn);
  }

  attach() {
    const view = this.view();
    if (!view || !this.list.current) return;
    view.addEventListener("scroll", this.onScroll, { passive: true });
    this.observer = new ResizeObserver(this.onResize);
    for (const box of [view, this.list.current, ...view.children]) this.observer.observe(box);
    return () => {
      view.removeEventListener("scroll", this.onScroll);
      this.observer?.disconnect();
    };
  }

  /** The element that scrolls the list. */
  view() {
    return /** @type {HTMLElement | null | undefined} */ (this.list.current?.closest("[data-scroller]"));
  }

  /** The position and height of the visible part, and the position of the list in it. */
  box() {
    const view = this.view()?.getBoundingClientRect();
    const list = this.list.current?.getBoundingClientRect();
    const { top = 0, height = innerHeight } = view ?? {};
    return { top, height, list: (list?.top ?? top) - top, listHeight: list?.height ?? 0 };
  }

  scrollTop() {
    return this.view()?.scrollTop ?? 0;
  }

  /** Return the range of rows to draw. At first, these are the last ones. */
  range() {
    if (this.isFollowing && this.isTyping()) this.stopFollowing();
    const { list, height } = this.box();
    const at = this.isFollowing ? Math.max(-list, this.heights.total() - height) : -list;
    return (this.drawnRange = this.heights.visibleRange(at - OVERSCAN_PX, at + height + OVERSCAN_PX));
  }

  /** Whether the user types in a row: that row must neither move nor disappear. */
  isTyping() {
    const field = document.activeElement;
    return !!field?.matches("input, textarea") && !!this.list.current?.contains(field);
  }

  stopFollowing() {
    this.isFollowing = false;
    this.lastSeenId = this.lastDrawnId;
    this.saveAnchor();
  }

  rows() {
    return /** @type {HTMLElement[]} */ ([...(this.list.current?.querySelectorAll(":scope > .row") ?? [])]);
  }

  distanceToEnd() {
    const view = this.view();
    return view ? view.scrollHeight - view.clientHeight - view.scrollTop : 0;
  }

  /** Update `isFarFromEnd` from the part of the list below the viewport. Return whether it changed. */
  updateIsFar() {
    const { height, list, listHeight } = this.box();
    const far = !this.isFollowing && Math.min(listHeight, list + listHeight - height) > height * FAR_SCREENS;
    const hasChanged = far !== this.isFarFromEnd;
    this.isFarFromEnd = far;
    return hasChanged;
  }

  /** Whether the content became so much shorter that its position says nothing: then it is restored first. */
  hasCollapsed() {
    const view = this.view();
    const before = this.contentHeight;
    this.contentHeight = view?.scrollHeight ?? 0;
    return !!view && !!this.anchor && !this.isFollowing && before - this.contentHeight > view.clientHeight;
  }

  onScroll() {
    // Following starts only when the user scrolls down to the end, and stops only when the user scrolls up. A list that
    // grows or shrinks, or a scroll made by this class, does not count.
    if (this.hasCollapsed()) return this.settle();
    const wasFollowing = this.isFollowing;
    const scrollY = this.scrollTop();
    const isDown = scrollY > this.lastScrollY && !(Math.abs(scrollY - this.ownScrollY) < 1);
    const isUp = scrollY < this.lastScrollY - 1;
    const isAtEnd = this.distanceToEnd() < END_PX ? wasFollowing || isDown : wasFollowing && !isUp;
    this.ownScrollY = NaN;
    this.lastScrollY = scrollY;
    this.isFollowing = isAtEnd && !this.isTyping();
    if (wasFollowing && !this.isFollowing) this.lastSeenId = this.lastId;
    const changed = this.updateIsFar() || this.isFollowing !== wasFollowing;
    this.saveAnchor();
    const [from, to] = this.drawnRange;
    const [first, last] = this.range();
    const turn = this.turn;
    if (changed || first !== from || last !== to || this.currentTurn() !== turn) this.redraw();
    if (first === 0) loadOlder();
  }

  /** Save the first visible row as the anchor. If no row is above the viewport, none can move it and none is needed. */
  saveAnchor() {
    const { top, list } = this.box();
    if (list > 0 && !hasOlder.value) return void (this.anchor = null);
    const row = this.rows().find((row) => row.getBoundingClientRect().bottom > top);
    this.anchor = row ? { key: row.dataset.key ?? "", top: row.getBoundingClientRect().top - top } : null;
  }

  /** After every change: measure the rows and restore the scroll position. */
  settle() {
    const list = this.list.current;
    if (!list) return;
    this.lastDrawnId = this.lastId;
    this.contentHeight = this.view()?.scrollHeight ?? 0;
    if (this.width && Math.abs(this.width - list.clientWidth) > 1) this.heights.forget();
    this.width = list.clientWidth;
    let hasChanged = false;
    for (const row of this.rows()) {
      hasChanged = this.heights.measure(row.dataset.key ?? "", row.getBoundingClientRect().height) || hasChanged;
    }
    if (this.isFollowing) this.scrollBy(this.distanceToEnd());
    else if (this.anchor) this.restoreAnchor(this.anchor);
    if (this.updateIsFar() || hasChanged) this.redraw();
  }

  /**
   * Move the anchor row back to its position. If the row is gone, choose another anchor.
   * @param {{key: string, top: number}} anchor
   */
  restoreAnchor({ key, top }) {
    const row = this.rows().find((row) => row.dataset.key === key);
    const index = row ? 0 : this.heights.ids.indexOf(key);
    if (row) this.restoreRow(row, top);
    else if (index >= 0) this.scrollBy(this.box().list + this.heights.top(index) - top);
    else this.saveAnchor();
  }

  /**
   * Move a row back to its position. If it became so short that it would be out of view, show it from its start.
   * @param {HTMLElement} row @param {number} top
   */
  restoreRow(row, top) {
    const box = row.getBoundingClientRect();
    const target = top + box.height < 0 ? 0 : top;
    if (target !== top) this.anchor = { key: row.dataset.key ?? "", top: target };
    this.scrollBy(box.top - this.box().top - target);
  }

  /** Adapt to live or past: the past does not grow, so it is not followed. @param {boolean} inPast */
  onModeChange(inPast) {
    this.isFollowing = !inPast && this.distanceToEnd() < END_PX;
    this.saveAnchor();
    this.redraw();
  }

  /** @param {number} by */
  scrollBy(by) {
    if (Math.abs(by) < 1) return;
    this.view()?.scrollBy({ top: by, behavior: "instant" });
    this.ownScrollY = this.scrollTop();
  }

  followEnd() {
    this.isFollowing = true;
    this.anchor = null;
    this.redraw();
  }

  /** Scroll to a row. Return whether it exists. @param {number} id */
  scrollTo(id) {
    const index = this.heights.ids.indexOf(`${id}`);
    if (index < 0 || !this.list.current) return false;
    this.isFollowing = false;
    this.lastSeenId = this.lastId;
    this.anchor = { key: `${id}`, top: ABOVE_LINKED_PX };
    this.scrollBy(this.box().list + this.heights.top(index) - this.anchor.top);
    this.redraw();
    return true;
  }
}
