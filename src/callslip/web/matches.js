// The entries that match the filter of a session, and counts of the session. The server computes both, as the page has
// only a part of a long session. An exported file has no server and contains the whole session: there the page does.

import { countFacets } from "./facets.js";
import { filterEntries, groupEntries, parseTerms } from "./filter_terms.js";
import { sampledEntries } from "./row_state.js";
import { hasOlder, hasServer, loaded, past, readEntries, seq, sessionName, snapshots, status } from "./state.js";
import { effect, signal, untracked } from "./ui.js";

/**
 * @typedef {object} Result
 * @property {string} key The session, the filter and the moment that it belongs to.
 * @property {number[] | null} ids The loaded entries that match, in order; null without a filter.
 * @property {number} matched How many entries of the session match.
 * @property {number} total How many entries the session has.
 * @property {Record<string, number>} calls How many calls of the session are in each state.
 * @property {Record<string, {value: string, count: number}[]>} facets
 * @property {string} cursor Where older matches continue; "" if all are loaded.
 */

const PAGE_ENTRIES = 200;
const MAX_PAGE_ENTRIES = 1000;
const TYPING_DELAY_MS = 150;
const REFRESH_DELAY_MS = 500;
/** A refresh may take this part of the time at most, so that a page does not keep the server busy. */
const MAX_LOAD = 0.2;

/** The filter as typed. */
export const filterText = signal("");

/** @type {import("./ui.js").Signal<Result | null>} */
export const result = signal(/** @type {Result | null} */ (null));

/** "", "loading" while another filter is applied, or why it could not be. */
export const filterStatus = signal("");

/** "", "loading" while older matches are read, or why they could not be. */
export const olderMatchesStatus = signal("");

/** Whether the page has all entries, so that it can count them. */
const hasAllEntries = () => !hasServer.value || !!past.value || !hasOlder.value;

/** Whether the page computes the result: in an exported file, and counts without a filter if it has all entries. */
const isComputedHere = () => !hasServer.value || (!filterText.value.trim() && hasAllEntries());

const resultKey = () => JSON.stringify([sessionName.value, filterText.value.trim(), past.value?.seq ?? null]);

/** @param {any[]} entries @param {string} typed @param {string} key @returns {Result} */
export function computeResult(entries, typed, key) {
  const terms = parseTerms(typed);
  const ids = terms.length ? filterEntries(entries, typed).map(({ id }) => id) : null;
  /** @type {Record<string, number>} */
  const calls = {};
  for (const { type, status: state } of entries) if (type === "tool_call") calls[state] = (calls[state] ?? 0) + 1;
  const matched = ids?.length ?? entries.length;
  return {
    key, ids, matched, total: entries.length, calls, cursor: "",
    get facets() { // Counted only if they are shown.
      return Object.fromEntries(countFacets(groupEntries(entries), terms));
    },
  };
}

/** @param {string} typed @param {number} limit @param {string} [cursor] */
function matchesPath(typed, limit, cursor = "") {
  const query = new URLSearchParams({ q: typed, limit: String(limit) });
  if (cursor) query.set("cursor", cursor);
  if (past.value) query.set("at", String(past.value.seq));
  return `/v1/sessions/${encodeURIComponent(sessionName.value)}/entries?${query}`;
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
/** The request in progress. @type {AbortController | null} */
let request = null;
let requestedKey = "";
let isOutdated = false;
let nextRefreshAt = 0;

/** Ask the server soon: for another filter after the user stops typing, for a changed session at a limited rate. */
function schedule(/** @type {string} */ key) {
  const isSame = key === requestedKey;
  if (isSame && request) return void (isOutdated = true);
  clearTimeout(timer);
  if (!isSame) request?.abort();
  const isTyping = !isSame && result.peek()?.ids;
  const delay = isSame ? Math.max(REFRESH_DELAY_MS, nextRefreshAt - Date.now()) : isTyping ? TYPING_DELAY_MS : 0;
  timer = setTimeout(() => load(key), delay);
}

async function load(/** @type {string} */ key) {
  const controller = new AbortController();
  const typed = filterText.peek().trim();
  const shown = result.peek()?.key === key ? (result.peek()?.ids ?? []) : [];
  const limit = typed ? Math.min(MAX_PAGE_ENTRIES, Math.max(PAGE_ENTRIES, shown.length)) : 0;
  request = controller;
  requestedKey = key;
  isOutdated = false;
  const startedAt = Date.now();
  try {
    const page = await untracked(() => readEntries(matchesPath(typed, limit), controller.signal));
    if (!page || controller.signal.aborted) return;
    const ids = page.entries.map((/** @type {any} */ entry) => entry.id);
    const older = page.cursor ? shown.filter((id) => id < ids[0]) : [];
    const cursor = older.length ? (result.peek()?.cursor ?? "") : page.cursor;
    result.value = { ...page, key, ids: typed ? [...older, ...ids] : null, cursor };
    filterStatus.value = "";
  } catch (error) {
    if (!controller.signal.aborted) filterStatus.value = String(/** @type {Error} */ (error).message);
  } finally {
    if (request === controller) {
      request = null;
      const now = Date.now();
      nextRefreshAt = now + (now - startedAt) / MAX_LOAD;
      if (isOutdated) schedule(key);
    }
  }
}

/** Try a filter again that could not be applied. */
export const retryFilter = () => {
  requestedKey = "";
  filterStatus.value = "loading";
  schedule(resultKey());
};

/** @type {Promise<void> | null} */
let pendingOlder = null;

/** Load the page of matches before the oldest loaded one, unless that is already in progress. */
export const loadOlderMatches = () => (pendingOlder ??= fetchOlderMatches().finally(() => (pendingOlder = null)));

async function fetchOlderMatches() {
  const before = result.peek();
  if (!before?.ids || !before.cursor) return;
  olderMatchesStatus.value = "loading";
  let problem = "";
  try {
    const page = await readEntries(matchesPath(filterText.peek().trim(), PAGE_ENTRIES, before.cursor));
    const current = result.peek();
    if (page && current?.ids && current.key === before.key && current.cursor === before.cursor) {
      const ids = page.entries.map((/** @type {any} */ entry) => entry.id);
      result.value = { ...current, ids: [...ids, ...current.ids], cursor: page.cursor };
    }
  } catch (error) {
    problem = String(/** @type {Error} */ (error).message);
  }
  olderMatchesStatus.value = problem;
}

effect(() => {
  if (!loaded.value) {
    clearTimeout(timer);
    request?.abort();
    requestedKey = "";
    result.value = null;
    return;
  }
  const key = resultKey();
  if (isComputedHere()) {
    clearTimeout(timer);
    request?.abort();
    requestedKey = "";
    filterStatus.value = "";
    result.value = computeResult(sampledEntries.value, filterText.value, key);
    return;
  }
  // A changed session, a new snapshot and a restored connection may change the result.
  void [seq.value, snapshots.value, status.value === "live"];
  untracked(() => {
    if (result.peek()?.key !== key && !(filterStatus.peek() && requestedKey === key)) filterStatus.value = "loading";
    schedule(key);
  });
});
