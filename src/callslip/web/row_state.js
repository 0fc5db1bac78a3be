// The rows of a timeline and their UI state. A row that scrolls out of view is removed from the document, so its state
// is kept here and not in its component.

import { computed, effect, signal } from "./ui.js";
import {
  entryIdOfCall, entrySignal, hasOlder, loaded, loadOlderEntries, order, past, seq, sessionName, visibleEntries,
} from "./state.js";

/** @typedef {import("./ui.js").Signal<any>} RowState */

/** UI state by row and field, while the session is shown. @type {Map<string, RowState>} */
const rowStates = new Map();

/**
 * Return a piece of UI state of a row, such as whether it is open; `undefined` until the user sets it.
 * @param {number} id @param {string} field @returns {RowState}
 */
export function rowState(id, field) {
  const key = `${id} ${field}`;
  const state = rowStates.get(key) ?? signal(/** @type {any} */ (undefined));
  rowStates.set(key, state);
  return state;
}

/** Counts sent prompts: the timeline scrolls to its end after each. */
export const promptsSent = signal(0);

/** The state of loading older entries: "", "loading" or an error message. */
export const olderStatus = signal("");

/** The call that the detail panel shows; 0 for none. */
export const pickedId = signal(0);

/** Show a call in the detail panel. @param {number} id */
export const pickCall = (id) => (pickedId.value = id);

effect(() => {
  if (sessionName.value === undefined) return;
  rowStates.clear();
  pickedId.value = 0;
  olderStatus.value = "";
});

const canLoadOlder = () => hasOlder.value && loaded.value && !past.value;

/** @type {Promise<void> | null} */
let pendingLoad = null;

/** Load the page before the oldest loaded entry, unless that is already in progress. */
export const loadOlder = () => (pendingLoad ??= fetchOlder().finally(() => (pendingLoad = null)));

async function fetchOlder() {
  if (!canLoadOlder()) return;
  const session = sessionName.value;
  let problem = "";
  olderStatus.value = "loading";
  try {
    while (canLoadOlder() && !(await loadOlderEntries())); // A snapshot arrived: try again from its oldest entry.
  } catch (error) {
    problem = String(/** @type {Error} */ (error).message);
  }
  olderStatus.value = session === sessionName.value ? problem : "";
}

// Shown entries

/** @type {import("./ui.js").ReadonlySignal<Map<number, any>>} */
const pastById = computed(() => new Map((past.value?.entries ?? []).map((entry) => [entry.id, entry])));

/** The IDs of all loaded entries, in order. @type {import("./ui.js").ReadonlySignal<number[]>} */
export const entryIds = computed(() => (past.value ? past.value.entries.map((entry) => entry.id) : order.value));

/**
 * Return an entry, live or of the past. A component that calls this is redrawn when the entry changes.
 * @param {number} id @returns {any}
 */
export const readEntry = (id) => (past.value ? pastById.value.get(id) : entrySignal(id)?.value);

/** Return an entry without subscribing to its changes. @param {number} id @returns {any} */
export const peekEntry = (id) => (past.peek() ? pastById.peek().get(id) : entrySignal(id)?.peek());

/** @type {import("./ui.js").ReadonlySignal<Map<string, any>>} */
const pastCalls = computed(() =>
  new Map((past.value?.entries ?? []).flatMap((entry) => (entry.type === "tool_call" ? [[entry.callId, entry]] : []))));

/** Return the entry of a call, live or of the past, if it is loaded. @param {string} call @returns {any} */
export const readCall = (call) => (past.value ? pastCalls.value.get(call) : readEntry(entryIdOfCall(call) ?? 0));

/** All shown entries, updated a few times per second at most: enough for counts, filters and the waterfall. */
export const sampledEntries = signal(/** @type {any[]} */ ([]));

/** A change of more entries than this is a new page or another session, and is sampled at once. */
const RESAMPLE_AT_ONCE = 100;

/** @type {ReturnType<typeof setTimeout> | undefined} */
let sampleTimer;

/** @type {unknown} */
let lastPast = null;

effect(() => {
  // Every patch changes `seq`: subscribing to it alone is cheaper than to ten thousand entries.
  const [length, before] = [entryIds.value.length, sampledEntries.peek().length];
  const isJump = lastPast !== past.value || !before || Math.abs(length - before) > RESAMPLE_AT_ONCE;
  lastPast = past.value;
  if (seq.value && !isJump) sampleTimer ??= setTimeout(sample, 300);
  else sample();
});

function sample() {
  clearTimeout(sampleTimer);
  sampleTimer = undefined;
  sampledEntries.value = visibleEntries.peek();
}
