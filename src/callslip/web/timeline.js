// The timeline: only what is near the window is drawn (scroll_anchor.js).

import { html, lazily, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./ui.js";
import ToolCard from "./card.js";
import { Message, Meta, Mode, Plan, Thought, Unknown } from "./message.js";
import { Place } from "./scroll_anchor.js";
import { asking, entryAt, ids as allIds, kept, loadOlder, slowly, spoken } from "./row_state.js";
import { hasOlder, info, loaded, past, picked } from "./state.js";

const Request = lazily(() => import("./request.js"));

/** @type {Record<string, any>} */
const SHOWN = {
  message: Message, thought: Thought, tool_call: ToolCard, permission_request: Request, plan: Plan, mode_change: Mode,
  meta: Meta,
};

const NAMES = /** @type {Record<string, string>} */ ({
  tool_call: "tool call", permission_request: "approval", mode_change: "mode", meta: "agent",
});

/** @param {any} entry */
const labelOf = ({ type, role }) =>
  type === "message" ? (role === "user" ? "You" : "Agent") : (NAMES[type] ?? type);

/** @param {{id: number, at: number, size: number}} props */
function Row({ id, at, size }) {
  const entry = entryAt(id);
  if (!entry) return null;
  const Shown = SHOWN[entry.type] ?? Unknown;
  return html`<div class=${`row row-${entry.type}`} id=${`entry-${id}`} data-id=${id} role="article" tabindex="-1"
    aria-label=${labelOf(entry)} aria-posinset=${at + 1} aria-setsize=${size}>
    <${Shown} entry=${entry} live=${!past.value} /></div>`;
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
  useSpoken(place);
  usePicked(place, ids);
  const [from, to] = place.range();
  const { heights } = place;
  const drawn = ids.slice(from, to);
  return html`<div class="timeline-box">
    <${Before} />
    <div class="timeline" ref=${list} role="feed" aria-label="Timeline" aria-busy=${!loaded.value}>
      <div class="spacer" style=${{ height: `${heights.top(from)}px` }}></div>
      ${drawn.map((id, index) => html`<${Row} key=${id} id=${id} at=${from + index} size=${ids.length} />`)}
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

/** @param {Place} place */
function useSpoken(place) {
  const heard = useRef(spoken.value);
  useEffect(() => {
    if (heard.current !== spoken.value) place.end();
    heard.current = spoken.value;
  }, [spoken.value]);
}

/**
 * Open, show and focus the entry that the address names, loading older pages until it is there.
 * @param {Place} place @param {number[]} ids
 */
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
  const asks = asking.value === "asking";
  const word = asks ? "Loading earlier entries…" : "Load earlier entries";
  return html`<p class="before">
    ${!asks && asking.value && html`<span role="alert">Earlier entries did not come: ${asking.value}</span>${" "}`}
    <button type="button" class="link" disabled=${asks} onClick=${loadOlder}>${word}</button></p>`;
}

/** @param {{count: number, filtered: boolean}} props */
function Nothing({ count, filtered }) {
  if (count) return null;
  if (!loaded.value && !past.value) return html`<p class="nothing" role="status">Loading the session…</p>`;
  if (filtered) {
    return html`<p class="nothing" role="status">Nothing here fits the filter. Clear it to see all entries.</p>`;
  }
  const why = info.value.turn ? "The agent is at work; nothing to show yet." : "Nothing has happened here yet.";
  return html`<p class="nothing">${why}</p>`;
}

/** @param {{place: Place, ids: number[]}} props */
function Jump({ place, ids }) {
  if (place.following || !ids.length) return null;
  const seen = ids.lastIndexOf(place.seen);
  const count = seen < 0 ? 0 : ids.length - 1 - seen;
  if (!count && !place.far) return null;
  const word = count ? `${count} new, jump to the end` : "Jump to the end";
  const short = count > 0 && html`<span class="jump-count">${count}</span>`;
  return html`<div class="jump"><button type="button" aria-label=${word} onClick=${() => place.end()}>
    <span class="jump-word">${word}</span>${short} ↓</button></div>`;
}
