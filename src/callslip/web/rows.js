// The rows of a timeline: the entries of a session, below the heading of their turn, with the work of sub-agents below
// the call that started them and calls that ran in parallel below one row. Heights are known before a row is drawn.

import { previewOf } from "./preview.js";
import { describeState } from "./states.js";

/**
 * @typedef {object} Item
 * @property {string} key
 * @property {"turn" | "entry" | "parallel" | "more"} kind
 * @property {number} id The entry, or the first one below a heading.
 * @property {number} depth How far it is indented.
 * @property {boolean} [isLast] Whether it is the last one below its parent.
 * @property {Turn} [turn]
 * @property {number} [count] How many calls are in a group, or not shown of it.
 * @property {number} [ms] How long a group took.
 * @property {string} [parent] The call whose sub-agent wrote it, if that call is not above it.
 * @property {boolean} [hasChildren]
 * @property {boolean} [hasGap] Whether there is space above a heading.
 */
/** @typedef {{turn: string, number: number, id: number, at: number, prompt: string, calls: number, begin: number,
 *   end: number, isOpen: boolean, isFolded: boolean, isPart: boolean}} Turn */
/** @typedef {any} AnyEntry */

/** So many children of a group are shown at least. */
const MAX_CHILDREN = 5;
const FIRST_CHILDREN = 3;
const PARALLEL_MS = 1000;

/**
 * Arrange entries as rows.
 * @param {AnyEntry[]} entries
 * @param {{openTurn: string, lastNumber: number, isPart: boolean, isFolded: (turn: string, isLast: boolean) => boolean,
 *   isGroupOpen: (key: string) => boolean, isFlat: boolean}} options
 * `lastNumber` is the number of the last turn; with `isPart`, there are entries before these. `isFlat` leaves out groups.
 * @returns {Item[]}
 */
export function arrange(entries, options) {
  const turns = listTurns(entries, options);
  const children = options.isFlat ? new Map() : childrenByCall(entries);
  /** @type {Item[]} */
  const items = [];
  let shown = "";
  for (let at = 0; at < entries.length; at++) {
    const entry = entries[at];
    const turn = turns.get(entry.turn);
    if (turn && turn.turn !== shown) {
      const before = items.at(-1);
      const hasGap = !!before && !before.turn?.isFolded;
      items.push({ key: `turn ${turn.turn}`, kind: "turn", id: entry.id, depth: 0, turn, hasGap });
    }
    if (entry.turn) shown = entry.turn;
    if ((turn?.isFolded && !options.isFlat) || (entry.parent && children.has(entry.parent))) continue;
    const group = options.isFlat ? 1 : countParallel(entries, at, children);
    if (group > 1) addGroup(items, entries.slice(at, at + group), options, children);
    else addEntry(items, entry, 0, options, children);
    at += group - 1;
  }
  return items;
}

/** @param {AnyEntry[]} entries @param {Parameters<typeof arrange>[1]} options */
function listTurns(entries, { openTurn, lastNumber, isPart, isFolded, isFlat }) {
  /** @type {Map<string, Turn>} */
  const turns = new Map();
  for (const entry of entries) {
    if (!entry.turn) continue;
    let turn = turns.get(entry.turn);
    if (!turn) {
      turn = {
        turn: entry.turn, number: 0, id: entry.id, at: entry.at ?? 0, prompt: "", calls: 0, begin: entry.at ?? 0, end: 0,
        isOpen: entry.turn === openTurn, isFolded: false, isPart: isPart && !turns.size,
      };
      turns.set(entry.turn, turn);
    }
    if (entry.type === "tool_call") turn.calls++;
    if (entry.type === "message" && entry.role === "user" && !entry.parent && !turn.prompt) turn.prompt = entry.content ?? "";
    turn.end = Math.max(turn.end, entry.endedAt ?? 0, entry.at ?? 0);
  }
  const first = Math.max(1, lastNumber - turns.size + 1);
  [...turns.values()].forEach((turn, at) => {
    turn.number = first + at;
    turn.isFolded = !isFlat && isFolded(turn.turn, at === turns.size - 1);
  });
  return turns;
}

/** Return the entries of sub-agents, by the call that started them, if that is above them. @param {AnyEntry[]} entries */
function childrenByCall(entries) {
  const calls = new Set();
  /** @type {Map<string, AnyEntry[]>} */
  const children = new Map();
  for (const entry of entries) {
    const { parent, callId, type } = entry;
    if (parent && calls.has(parent)) children.set(parent, [...(children.get(parent) ?? []), entry]);
    if (type === "tool_call") calls.add(callId);
  }
  return children;
}

/**
 * Return how many calls from here on ran in parallel: each was requested before the one above it had ended, and at about
 * the same time.
 * @param {AnyEntry[]} entries @param {number} at @param {Map<string, AnyEntry[]>} children
 */
function countParallel(entries, at, children) {
  let count = 1;
  while (entries[at + count] && areParallel(entries[at + count - 1], entries[at + count])) count++;
  const group = entries.slice(at, at + count);
  return group.some(({ callId }) => children.has(callId)) ? 1 : count;
}

/** @param {AnyEntry} first @param {AnyEntry} second */
function areParallel(first, second) {
  if (first.type !== "tool_call" || second.type !== "tool_call") return false;
  if (first.turn !== second.turn || first.parent || second.parent || second.scope === "detached") return false;
  if (Math.abs((second.at ?? 0) - (first.at ?? 0)) > PARALLEL_MS) return false;
  if (!describeState(first.status).isOpen) return second.id < (first.end ?? 0);
  return describeState(second.status).isOpen || (!!first.startedAt && (second.startedAt ?? 0) >= first.startedAt);
}

/**
 * @param {Item[]} items @param {AnyEntry[]} group @param {Parameters<typeof arrange>[1]} options
 * @param {Map<string, AnyEntry[]>} children
 */
function addGroup(items, group, options, children) {
  const [{ id }] = group;
  const begin = Math.min(...group.map(({ startedAt, at }) => startedAt || at || 0));
  const end = group.every((one) => one.endedAt) ? Math.max(...group.map((one) => one.endedAt)) : 0;
  items.push({ key: `parallel ${id}`, kind: "parallel", id, depth: 0, count: group.length, ms: end && begin ? end - begin : 0 });
  addChildren(items, group, `parallel ${id}`, 1, options, children);
}

/**
 * @param {Item[]} items @param {AnyEntry} entry @param {number} depth @param {Parameters<typeof arrange>[1]} options
 * @param {Map<string, AnyEntry[]>} children @param {boolean} [isLast]
 */
function addEntry(items, entry, depth, options, children, isLast = false) {
  const own = entry.type === "tool_call" ? children.get(entry.callId) : undefined;
  const parent = !depth && entry.parent ? entry.parent : "";
  items.push({ key: `${entry.id}`, kind: "entry", id: entry.id, depth, isLast, parent, hasChildren: !!own });
  if (own) addChildren(items, own, `children ${entry.id}`, depth + 1, options, children);
}

/**
 * @param {Item[]} items @param {AnyEntry[]} entries @param {string} key @param {number} depth
 * @param {Parameters<typeof arrange>[1]} options @param {Map<string, AnyEntry[]>} children
 */
function addChildren(items, entries, key, depth, options, children) {
  const needed = entries.findLastIndex(needsAttention) + 1;
  const isCut = entries.length > MAX_CHILDREN && !options.isGroupOpen(key);
  const count = isCut ? Math.max(FIRST_CHILDREN, needed) : entries.length;
  const hidden = entries.slice(count);
  entries.slice(0, count).forEach((entry, at) =>
    addEntry(items, entry, depth, options, children, !hidden.length && at === count - 1));
  if (hidden.length) items.push({ key, kind: "more", id: hidden[0].id, depth, count: hidden.length, isLast: true });
}

/** Whether an entry is never hidden in a group. @param {AnyEntry} entry */
const needsAttention = ({ type, status, state }) =>
  type === "permission_request" ? (state ?? "pending") === "pending"
    : type === "tool_call" && ["queued", "awaiting_approval", "running", "failed", "lost", "expired"].includes(status);

// Heights

const isTall = matchMedia("(pointer: coarse), (max-width: 640px)");
const TURN_PX = 36;
const SPACE_PX = 16;
const LINE_PX = 20;
/** The bar above live output, and the space in its box. */
const LIVE_PX = 28 + 18;
/** States of which the last lines are shown. */
const WITH_LINES = new Set(["failed", "lost", "running"]);

export const rowPx = () => (isTall.matches ? 40 : 32);

/**
 * Return the height of a row. Only that of messages and open rows is a guess.
 * @param {Item} item @param {AnyEntry} entry
 */
export function heightOf(item, entry) {
  if (item.kind === "turn") return TURN_PX + (item.hasGap ? SPACE_PX : 0);
  if (item.kind !== "entry") return rowPx();
  const type = entry?.type;
  if (type === "tool_call") {
    const lines = WITH_LINES.has(entry.status) ? previewOf(entry).lines : 0;
    return rowPx() + (lines ? LINE_PX * lines + 8 + (entry.status === "running" ? LIVE_PX : 0) : 0);
  }
  if (type === "message") return 40 + Math.ceil(Math.min(20_000, entry.content?.length ?? 0) / 90) * 22;
  if (type === "permission_request") return (entry.state ?? "pending") === "pending" ? 150 : 24;
  return rowPx();
}

