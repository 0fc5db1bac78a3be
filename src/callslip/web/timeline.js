// The timeline. Only the rows near the viewport are drawn (scroll_anchor.js).

import { inert } from "./ansi.js";
import { classes, html, lazy, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./ui.js";
import ApprovalLine from "./approval_line.js";
import { titleOf } from "./call_text.js";
import ToolCard from "./card.js";
import { filterStatus, filterText, loadOlderMatches, olderMatchesStatus, result } from "./matches.js";
import { authorOf, firstLine, Message, Meta, Mode, Notice, Plan, Thought, Unknown } from "./message.js";
import { arrange } from "./rows.js";
import { ScrollAnchor } from "./scroll_anchor.js";
import {
  entryIds, loadOlder, olderStatus, peekEntry, pickCall, promptsSent, readCall, readEntry, rowState, sampledEntries,
} from "./row_state.js";
import {
  hasOlder, hasServer, info, link, loaded, past, pendingHere, selectedId, sessionName, sessions,
} from "./state.js";
import { formatDuration } from "./time.js";
import TurnHeading, { foldedTurns, foldTurn, loadUsage, readFolded } from "./turn.js";

/** @typedef {import("./rows.js").Item} Item */

const Request = lazy(() => import("./request.js"));

/** A request: a form while it waits for an answer, then one line. @param {{entry: any, live: boolean}} props */
const ApprovalRow = ({ entry, live }) => (entry.state ?? "pending") === "pending"
  ? html`<div class="ask"><${Request} entry=${entry} live=${live} /></div>` : html`<${ApprovalLine} entry=${entry} />`;

/** @type {Record<string, any>} */
const COMPONENTS = {
  message: Message, thought: Thought, tool_call: ToolCard, permission_request: ApprovalRow, plan: Plan, mode_change: Mode,
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

/** @param {{item: Item, at: number, size: number}} props */
function Row({ item, at, size }) {
  const { id, parent, depth } = item;
  const entry = readEntry(id);
  if (!entry) return null;
  const Component = COMPONENTS[entry.type] ?? Unknown;
  return html`<div class=${classes(`row row-${entry.type}`, entry.parent && "of-sub-agent", depth > 0 && "in", item.isLast && "last")}
    style=${{ "--d": depth }} id=${`entry-${id}`} data-id=${id} data-key=${item.key} role="article" tabindex="-1"
    aria-label=${rowLabel(entry)} aria-posinset=${at} aria-setsize=${size}>
    ${parent && html`<${ParentCall} call=${parent} />`}
    <${Component} entry=${entry} live=${!past.value} item=${item} /></div>`;
}

/** Calls that ran in parallel. @param {{item: Item}} props */
const Parallel = ({ item }) => html`<div class="row group-row" data-key=${item.key}><div class="call-head group">
  <i class="i i-fork dim" aria-hidden="true"></i>
  <span class="what">${item.count} calls in parallel</span>
  <span class="dur">${item.ms ? formatDuration(item.ms) : ""}</span></div></div>`;

/** The rest of a group. @param {{item: Item, onOpen: () => void}} props */
const More = ({ item, onOpen }) => html`<div class="row group-row in last" style=${{ "--d": item.depth }} data-key=${item.key}>
  <button type="button" class="call-head group" onClick=${onOpen}><i class="i i-right dim" aria-hidden="true"></i>
    <span class="what">${item.count} more ${item.count === 1 ? "entry" : "entries"}</span></button></div>`;

/** @param {{item: Item, at: number, size: number, onOpen: (key: string) => void}} props */
function AnyRow({ item, at, size, onOpen }) {
  if (item.kind === "turn" && item.turn) {
    return html`<div class=${classes("row turn-row", item.hasGap && "spaced")} data-key=${item.key}><${TurnHeading} turn=${item.turn} /></div>`;
  }
  if (item.kind === "parallel") return html`<${Parallel} item=${item} />`;
  if (item.kind === "more") return html`<${More} item=${item} onOpen=${() => onOpen(item.key)} />`;
  return html`<${Row} item=${item} at=${at} size=${size} />`;
}

/**
 * Arrange the entries as rows, again when there are others, or when one has changed.
 * @param {number[]} ids @param {boolean} isFiltered
 */
function useItems(ids, isFiltered) {
  const [openGroups, setOpenGroups] = useState(/** @type {Set<string>} */ (new Set()));
  const session = sessionName.value;
  const { turn: openTurn = "" } = past.value ? past.value.info : info.value;
  const lastNumber = past.value ? 0 : (sessions.value.get(session)?.turns ?? 0);
  const seen = useRef({ session: "", last: "" });
  if (seen.current.session !== session) {
    seen.current = { session, last: "" };
    readFolded(session);
  }
  const selected = selectedId.value;
  const items = useMemo(() => {
    const entries = ids.map(peekEntry).filter(Boolean);
    const chosen = peekEntry(selected)?.turn;
    return arrange(entries, {
      openTurn, lastNumber: hasOlder.peek() ? lastNumber : 0, isPart: hasOlder.peek() && !past.peek(), isFlat: isFiltered,
      isFolded: (turn, isLast) => foldedTurns.value[turn] ?? (!isLast && turn !== chosen),
      isGroupOpen: (key) => openGroups.has(key),
    });
  }, [ids, sampledEntries.value, foldedTurns.value, openGroups, isFiltered, openTurn, lastNumber, selected]);
  const last = peekEntry(ids.at(-1) ?? 0)?.turn ?? "";
  useEffect(() => {
    // A turn that was the last one while the page was open stays open when the next one begins.
    const before = seen.current.last;
    if (before && last && before !== last && !past.peek() && foldedTurns.peek()[before] === undefined) foldTurn(before, false);
    if (last && !past.peek()) seen.current.last = last;
  }, [last]);
  useEffect(() => {
    if (loaded.value && lastNumber) loadUsage(session, `${lastNumber} ${openTurn}`);
  }, [session, loaded.value, lastNumber, openTurn]);
  const openGroup = (/** @type {string} */ key) => setOpenGroups(new Set(openGroups).add(key));
  return { items, openGroup };
}

export default function Timeline() {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const [, draw] = useState(0);
  const anchor = useMemo(() => new ScrollAnchor(list, () => draw((count) => count + 1)), []);
  const matchingIds = result.value?.ids;
  const isFiltered = !!filterText.value.trim() && !!matchingIds;
  const ids = isFiltered ? matchingIds : entryIds.value;
  const { items, openGroup } = useItems(ids, isFiltered);
  anchor.setItems(items, ids.at(-1) ?? 0);
  useEffect(() => anchor.attach(), []);
  useLayoutEffect(anchor.settle);
  useModeChange(anchor, !!past.value);
  useFollowOnPrompt(anchor);
  useSelectedEntry(anchor, ids, items, isFiltered);
  const positions = useMemo(() => new Map(ids.map((id, at) => [id, at + 1])), [ids]);
  const [from, to] = anchor.range();
  const { heights } = anchor;
  const current = anchor.currentTurn();
  return html`<div class="timeline-box">
    <${isFiltered ? LoadEarlierMatches : LoadEarlier} />
    ${current && html`<div class="turn-now"><${TurnHeading} turn=${current} /></div>`}
    <div class="timeline" ref=${list} role="group" aria-label="Timeline" aria-busy=${!loaded.value}>
      <div class="spacer" style=${{ height: `${heights.top(from)}px` }}></div>
      ${items.slice(from, to).map((item) => html`<${AnyRow} key=${item.key} item=${item} at=${positions.get(item.id) ?? 0}
        size=${ids.length} onOpen=${openGroup} />`)}
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
 * @param {ScrollAnchor} anchor @param {number[]} ids @param {Item[]} items @param {boolean} isFiltered
 */
function useSelectedEntry(anchor, ids, items, isFiltered) {
  const pendingId = useRef(0);
  const id = selectedId.value;
  useEffect(() => {
    pendingId.current = id;
    if (id) rowState(id, "open").value = true;
    if (id) pickCall(id);
  }, [id]);
  useEffect(() => {
    if (!pendingId.current || !loaded.value || !ids.length) return;
    if (!ids.includes(pendingId.current)) {
      return void (pendingId.current < ids[0] && (isFiltered ? loadOlderMatches : loadOlder)());
    }
    const target = pendingId.current;
    const { turn } = peekEntry(target) ?? {};
    if (turn && foldedTurns.peek()[turn]) foldTurn(turn, false);
    if (!anchor.scrollTo(target)) return;
    pendingId.current = 0;
    requestAnimationFrame(() => focusRow(document.getElementById(`entry-${target}`)));
  }, [id, items]);
}

/** @param {HTMLElement | null} row */
function focusRow(row) {
  /** @type {HTMLElement | null | undefined} */
  const target = row?.querySelector(".call-title, .fold-head") ?? row;
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
  return html`<div class="jump"><button type="button" class="btn main" aria-label=${label} onClick=${() => anchor.followEnd()}>
    <i class="i i-down" aria-hidden="true"></i>${count ? `${count} new` : "Latest"}</button></div>`;
}
