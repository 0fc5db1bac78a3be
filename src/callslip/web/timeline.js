// The timeline. Only the rows near the viewport are drawn (scroll_anchor.js).

import { inert } from "./ansi.js";
import { classes, html, lazy, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./ui.js";
import ToolCard, { titleOf } from "./card.js";
import { filterStatus, filterText, loadOlderMatches, olderMatchesStatus, result } from "./matches.js";
import { authorOf, firstLine, Message, Meta, Mode, Notice, Plan, Thought, Unknown } from "./message.js";
import { ScrollAnchor } from "./scroll_anchor.js";
import {
  entryIds, loadOlder, olderStatus, peekEntry, promptsSent, readCall, readEntry, rowState,
} from "./row_state.js";
import { hasOlder, hasServer, info, link, loaded, past, pendingHere, selectedId } from "./state.js";

const Request = lazy(() => import("./request.js"));

/** @type {Record<string, any>} */
const COMPONENTS = {
  message: Message, thought: Thought, tool_call: ToolCard, permission_request: Request, plan: Plan, mode_change: Mode,
  meta: Meta, notice: Notice,
};

const TYPE_LABELS = /** @type {Record<string, string>} */ ({
  tool_call: "Tool call", permission_request: "Approval request", mode_change: "Mode change", meta: "Agent info",
});

const capitalize = (/** @type {string} */ text) => text.charAt(0).toUpperCase() + text.slice(1);

/** @param {any} entry */
function rowLabel(entry) {
  const { type } = entry;
  const label = type === "message" ? authorOf(entry) : (TYPE_LABELS[type] ?? capitalize(type));
  return entry.parent && label !== "Sub-agent" ? `Sub-agent: ${label}` : label;
}

/**
 * Names the call whose sub-agent wrote what follows, with a link to it. If the agent did not report that call, `call` is
 * the agent's own id of the sub-agent.
 * @param {{call: string}} props
 */
function ParentCall({ call }) {
  const entry = readCall(call);
  if (!entry && !(hasServer.value && call.startsWith("exec_"))) {
    return html`<p class="parent-call">Sub-agent <code class="untrusted" dir="auto">${inert(call)}</code></p>`;
  }
  const title = entry ? firstLine(String(titleOf(entry)), 100) : call;
  const isListed = entry && (!filterText.value.trim() || !hasServer.value);
  const address = isListed ? { href: `#entry-${entry.id}` } : link(`/c/${encodeURIComponent(call)}`);
  return html`<p class="parent-call">Sub-agent of <a class="untrusted" dir="auto" ...${address}>${title}</a></p>`;
}

/** @param {{id: number, previous: number, at: number, size: number}} props */
function Row({ id, previous, at, size }) {
  const entry = readEntry(id);
  if (!entry) return null;
  const Component = COMPONENTS[entry.type] ?? Unknown;
  const { parent } = entry;
  return html`<div class=${classes(`row row-${entry.type}`, parent && "of-sub-agent")} id=${`entry-${id}`} data-id=${id}
    role="article" tabindex="-1" aria-label=${rowLabel(entry)} aria-posinset=${at + 1} aria-setsize=${size}>
    ${parent && peekEntry(previous)?.parent !== parent && html`<${ParentCall} call=${parent} />`}
    <${Component} entry=${entry} live=${!past.value} /></div>`;
}

export default function Timeline() {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const [, draw] = useState(0);
  const anchor = useMemo(() => new ScrollAnchor(list, () => draw((count) => count + 1)), []);
  const matchingIds = result.value?.ids;
  const isFiltered = !!filterText.value.trim() && !!matchingIds;
  const ids = isFiltered ? matchingIds : entryIds.value;
  anchor.heights.setIds(ids);
  useEffect(() => anchor.attach(), []);
  useLayoutEffect(anchor.settle);
  useModeChange(anchor, !!past.value);
  useFollowOnPrompt(anchor);
  useSelectedEntry(anchor, ids, isFiltered);
  const [from, to] = anchor.range();
  const { heights } = anchor;
  const drawn = ids.slice(from, to);
  return html`<div class="timeline-box">
    <${isFiltered ? LoadEarlierMatches : LoadEarlier} />
    <div class="timeline" ref=${list} role="feed" aria-label="Timeline" aria-busy=${!loaded.value}>
      <div class="spacer" style=${{ height: `${heights.top(from)}px` }}></div>
      ${drawn.map((id, index) => html`<${Row} key=${id} id=${id} previous=${ids[from + index - 1] ?? 0} at=${from + index}
        size=${ids.length} />`)}
      <div class="spacer" style=${{ height: `${heights.total() - heights.top(to)}px` }}></div>
    </div>
    <${EmptyTimeline} count=${ids.length} filtered=${isFiltered} />
    <${JumpButton} anchor=${anchor} ids=${ids} />
  </div>`;
}

/** @param {ScrollAnchor} anchor @param {boolean} inPast */
function useModeChange(anchor, inPast) {
  const wasInPast = useRef(inPast);
  useLayoutEffect(() => {
    if (wasInPast.current !== inPast) anchor.onModeChange(inPast);
    wasInPast.current = inPast;
  }, [inPast]);
}

/** @param {ScrollAnchor} anchor */
function useFollowOnPrompt(anchor) {
  const handled = useRef(promptsSent.value);
  useEffect(() => {
    if (handled.current !== promptsSent.value) anchor.followEnd();
    handled.current = promptsSent.value;
  }, [promptsSent.value]);
}

/**
 * Open, show and focus the entry in the address, loading older pages until it is found.
 * @param {ScrollAnchor} anchor @param {number[]} ids @param {boolean} isFiltered
 */
function useSelectedEntry(anchor, ids, isFiltered) {
  const pendingId = useRef(0);
  const id = selectedId.value;
  useEffect(() => {
    pendingId.current = id;
    if (id) rowState(id, "open").value = true;
  }, [id]);
  useEffect(() => {
    if (!pendingId.current || !loaded.value || !ids.length) return;
    if (!ids.includes(pendingId.current)) {
      return void (pendingId.current < ids[0] && (isFiltered ? loadOlderMatches : loadOlder)());
    }
    const target = pendingId.current;
    if (!anchor.scrollTo(target)) return;
    pendingId.current = 0;
    requestAnimationFrame(() => focusRow(document.getElementById(`entry-${target}`)));
  }, [id, ids]);
}

/** @param {HTMLElement | null} row */
function focusRow(row) {
  /** @type {HTMLElement | null | undefined} */
  const target = row?.querySelector(".call-toggle, .fold-head") ?? row;
  target?.focus({ preventScroll: true });
}

function LoadEarlier() {
  if (past.value || !hasOlder.value) return null;
  return html`<${LoadButton} status=${olderStatus.value} what="earlier entries" load=${loadOlder} />`;
}

function LoadEarlierMatches() {
  if (!result.value?.cursor) return null;
  return html`<${LoadButton} status=${olderMatchesStatus.value} what="earlier matches" load=${loadOlderMatches} />`;
}

/** @param {{status: string, what: string, load: () => void}} props */
function LoadButton({ status, what, load }) {
  const isLoading = status === "loading";
  return html`<p class="before">
    ${!isLoading && status && html`<span role="alert">Could not load ${what}: ${status}</span>${" "}`}
    <button type="button" class="link" disabled=${isLoading}
      onClick=${load}>${isLoading ? `Loading ${what}…` : `Load ${what}`}</button></p>`;
}

/** @param {{count: number, filtered: boolean}} props */
function EmptyTimeline({ count, filtered }) {
  if (count) return null;
  if (!loaded.value && !past.value) return html`<p class="nothing" role="status">Loading session…</p>`;
  if (filtered && filterStatus.value) return null; // The filter bar says what happens.
  if (filtered) {
    return html`<p class="nothing" role="status">No matching entries. Clear the filter to see all.</p>`;
  }
  const isRunning = info.value.turn && !pendingHere.value.length;
  const text = isRunning ? "The agent is running. No activity yet." : "No activity yet.";
  return html`<p class="nothing">${text}</p>`;
}

/** @param {{anchor: ScrollAnchor, ids: number[]}} props */
function JumpButton({ anchor, ids }) {
  if (anchor.isFollowing || !ids.length) return null;
  const seen = ids.lastIndexOf(anchor.lastSeenId);
  const count = seen < 0 ? 0 : ids.length - 1 - seen;
  if (!count && !anchor.isFarFromEnd) return null;
  const label = count ? `Jump to latest (${count} new)` : "Jump to latest";
  const badge = count > 0 && html`<span class="jump-count">${count}</span>`;
  return html`<div class="jump"><button type="button" aria-label=${label} onClick=${() => anchor.followEnd()}>
    <span class="jump-word">${label}</span>${badge} ↓</button></div>`;
}
