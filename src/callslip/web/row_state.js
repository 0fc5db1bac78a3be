// The rows of a timeline: which there are, and what a person did to them. A row that scrolls out of sight is not
// drawn, so nothing of it may live in its component only.

import { computed, effect, signal } from "./ui.js";
import { entryOf, hasOlder, loaded, name, older, order, past, seq, shown } from "./state.js";

/** @typedef {import("./ui.js").Signal<any>} Choice */

/** What a person chose, by name, for as long as the session is shown. @type {Map<string, Choice>} */
const choices = new Map();

/**
 * Something that a person may choose in a row, such as whether it is open; `undefined` until then.
 * @param {number} id @param {string} what @returns {Choice}
 */
export function kept(id, what) {
  const key = `${id} ${what}`;
  const known = choices.get(key) ?? signal(/** @type {any} */ (undefined));
  choices.set(key, known);
  return known;
}

/** How often somebody has said something, and wants to be where the answer will be. */
export const spoken = signal(0);

/** How it stands with older entries: "" | "asking" | what went wrong. */
export const asking = signal("");

effect(() => {
  if (name.value === undefined) return;
  choices.clear();
  asking.value = "";
});

const canAsk = () => hasOlder.value && loaded.value && !past.value;

/** @type {Promise<void> | null} */
let question = null;

/** Ask for the page before the oldest entry that is here, unless that is being done. */
export const loadOlder = () => (question ??= ask().finally(() => (question = null)));

async function ask() {
  if (!canAsk()) return;
  const session = name.value;
  let problem = "";
  asking.value = "asking";
  try {
    while (canAsk() && !(await older())); // Whoever asked still lacks what is before the new oldest.
  } catch (error) {
    problem = String(/** @type {Error} */ (error).message);
  }
  asking.value = session === name.value ? problem : "";
}

// What there is to show

/** @type {import("./ui.js").ReadonlySignal<Map<number, any>>} */
const pastById = computed(() => new Map((past.value?.entries ?? []).map((entry) => [entry.id, entry])));

/** The ids of all entries that are here, in order. @type {import("./ui.js").ReadonlySignal<number[]>} */
export const ids = computed(() => (past.value ? past.value.entries.map((entry) => entry.id) : order.value));

/**
 * An entry as it is shown, live or of the past; a component that asks is drawn again when it changes.
 * @param {number} id @returns {any}
 */
export const entryAt = (id) => (past.value ? pastById.value.get(id) : entryOf(id)?.value);

/** An entry as it stands, for who only looks once. @param {number} id @returns {any} */
export const peekAt = (id) => (past.peek() ? pastById.peek().get(id) : entryOf(id)?.peek());

/**
 * All that is shown, told anew a few times per second at most: enough for counts, filters and drawings of the whole.
 */
export const slowly = signal(/** @type {any[]} */ ([]));

/** So many at once are a page of entries or another session, and are told at once. */
const MANY = 100;

/** @type {ReturnType<typeof setTimeout> | undefined} */
let sampling;

/** @type {unknown} */
let moment = null;

effect(() => {
  // Every patch moves `seq`: to listen to that alone is cheaper than to ten thousand entries.
  const [length, before] = [ids.value.length, slowly.peek().length];
  const other = moment !== past.value || !before || Math.abs(length - before) > MANY;
  moment = past.value;
  if (seq.value && !other) sampling ??= setTimeout(sample, 300);
  else sample();
});

function sample() {
  clearTimeout(sampling);
  sampling = undefined;
  slowly.value = shown.peek();
}
