// Parse a filter into terms over entries: `tool:bash status:failed >5s "no such file" -kind:read`. Pure functions.

import { STATES } from "./states.js";

/** @typedef {import("./callslip.js").Entry} Entry */
/** @typedef {Record<string, any> & {id: number, type: string, at?: number, turn?: string}} AnyEntry */
/**
 * @typedef {object} Term
 * @property {string} field One of FIELDS, or "time" or "text".
 * @property {string[]} values
 * @property {boolean} negated
 * @property {number} start Its position in the filter text.
 * @property {number} end
 * @property {string} word The term as typed.
 * @property {(unit: AnyEntry[]) => boolean} holds Whether it matches a call with its requests, or another entry, before
 *   `negated` is applied.
 */
/**
 * @typedef {((entry: AnyEntry, index?: number, among?: AnyEntry[]) => boolean) & {terms: Term[]}} Filter
 */

const OPEN_STATES = Object.keys(STATES).filter((state) => STATES[state].isOpen);
const UNIT_MS = /** @type {Record<string, number>} */ ({ ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000 });
const TYPE_NAMES = /** @type {Record<string, string>} */ ({
  call: "tool_call", calls: "tool_call", approval: "permission_request", request: "permission_request",
  mode: "mode_change", agent: "assistant",
});

/** @param {unknown} value */
const lower = (value) => String(value ?? "").toLowerCase();

/** @type {Record<string, (entry: AnyEntry) => unknown[]>} The values that a field is compared with. */
const FIELDS = {
  tool: ({ type, toolName, rawToolName }) =>
    type === "tool_call" ? [toolName ?? "", rawToolName ?? toolName ?? ""] : [toolName],
  status: (entry) => [entry.status, entry.type === "permission_request" ? (entry.state ?? "pending") : undefined],
  kind: (entry) => (entry.type === "tool_call" ? [entry.kind ?? ""] : []),
  type: (entry) => [entry.type, entry.role],
  turn: (entry) => [entry.turn ?? "", entry.turn?.replace(/^t(?=\d+$)/, "")],
  id: ({ id, callId, toolCallId, requestId, approvalId, messageId }) =>
    [id, callId, callId?.replace(/^exec_/, ""), toolCallId, requestId, approvalId, messageId],
};

/** @type {Record<string, (value: string) => string[]>} Expands short forms, such as `open` for all open states. */
const SYNONYMS = {
  status: (value) => (value === "open" ? OPEN_STATES : [value.replaceAll(" ", "_")]),
  type: (value) => [TYPE_NAMES[value] ?? value],
};

/** Terms are separated by spaces. Quotes keep spaces within a term, also if the last quote is not closed yet. */
const WORD = /-?(?:[a-z]+:)?(?:"[^"]*(?:"|$)|[^\s"]+)(?:,?"[^"]*(?:"|$)|[^\s"]+)*/giu;
const SHAPE = /^(-?)(?:([a-z]+):)?(.*)$/isu;
const TIME = /^([<>]=?)(\d+(?:\.\d+)?)(ms|s|min|m|h)$/iu;

/**
 * Parse the filter text. A term without a known field is text; a field without a value is ignored.
 * @param {string} typed
 * @param {() => number} [now] The current time, for the duration of open calls.
 * @returns {Term[]}
 */
export function parseTerms(typed, now = Date.now) {
  const terms = [];
  for (const { 0: word, index } of typed.matchAll(WORD)) {
    const term = parseTerm(word, now);
    if (term) terms.push({ ...term, word, start: index, end: index + word.length });
  }
  return terms;
}

/** @param {string} word @param {() => number} now */
function parseTerm(word, now) {
  const [, minus, prefix, values] = /** @type {string[]} */ (word.match(SHAPE));
  const negated = minus === "-";
  const name = lower(prefix);
  if (Object.hasOwn(FIELDS, name)) return values ? fieldTerm(name, splitValues(values), negated) : null;
  const body = word.slice(minus.length);
  const time = body.match(TIME);
  if (time) return { field: "time", values: [body], negated, holds: durationTest(time, now) };
  const text = body.replaceAll('"', "");
  return text ? textTerm(text, negated) : null;
}

/** Split a comma-separated list. A quoted part is one value. @param {string} rest */
const splitValues = (rest) => [...rest.matchAll(/"([^"]*)"?|([^,"]+)/gu)].map((match) => match[1] ?? match[2]);

/** @param {string} field @param {string[]} values @param {boolean} negated */
function fieldTerm(field, values, negated) {
  const expanded = values.flatMap((value) => SYNONYMS[field]?.(lower(value)) ?? [lower(value)]);
  const tests = expanded.map((value) => valueTest(field, value));
  const readField = FIELDS[field];
  const matches = (/** @type {unknown} */ value) =>
    value !== undefined && value !== null && tests.some((test) => test(lower(value)));
  const entryMatches = (/** @type {AnyEntry} */ entry) => readField(entry).some(matches);
  return { field, values, negated, holds: (/** @type {AnyEntry[]} */ unit) => unit.some(entryMatches) };
}

/**
 * Return a test for equality, where * matches anything. An ID matches by prefix.
 * @param {string} field @param {string} value @returns {(text: string) => boolean}
 */
function valueTest(field, value) {
  if (field === "id" && !/^\d+$/u.test(value)) return (text) => text.startsWith(value);
  if (!value.includes("*")) return (text) => text === value;
  const [first, ...middle] = value.split("*");
  const last = middle.pop() ?? "";
  return (text) => {
    if (!text.startsWith(first)) return false;
    let at = first.length; // The earliest place for each part leaves the most room for the next ones.
    for (const part of middle) {
      at = text.indexOf(part, at);
      if (at < 0) return false;
      at += part.length;
    }
    return text.length - last.length >= at && text.endsWith(last);
  };
}

/** @param {string} text @param {boolean} negated */
function textTerm(text, negated) {
  const searchText = text.toLowerCase();
  const holds = (/** @type {AnyEntry[]} */ unit) => unit.some((entry) => entryText(entry).includes(searchText));
  return { field: "text", values: [text], negated, holds };
}

/** @param {string[]} time @param {() => number} now */
function durationTest([, sign, amount, unit], now) {
  const limit = Number(amount) * UNIT_MS[unit.toLowerCase()];
  return (/** @type {AnyEntry[]} */ [entry]) => {
    const duration = durationOf(entry, now());
    if (duration === null) return false;
    if (duration === limit) return sign.length === 2;
    return sign[0] === ">" ? duration > limit : duration < limit;
  };
}

/**
 * Return how long a call ran, or for an open one has run or waited; null if that is not known.
 * @param {AnyEntry} entry @param {number} now
 */
export function durationOf(entry, now) {
  if (entry.type !== "tool_call") return null;
  if (!OPEN_STATES.includes(entry.status)) {
    // A call that never started has no duration, and an imported one without times of its own has two equal times.
    const elapsed = entry.startedAt && entry.endedAt > entry.startedAt ? entry.endedAt - entry.startedAt : null;
    return entry.durationMs ?? elapsed;
  }
  const from = entry.startedAt || entry.at;
  return from ? Math.max(0, now - from) : null;
}

// Text search

const SEARCHED_FIELDS = [
  "content", "title", "toolName", "rawToolName", "callId", "toolCallId", "rawInput", "inputText", "output",
  "outputText", "error", "reason", "description", "options", "by", "entries", "previousModeId", "newModeId",
];
/**
 * Cached texts. An entry that changes becomes a new object (state.js), so a cached text is never outdated.
 * @type {WeakMap<object, string>}
 */
const textCache = new WeakMap();

/** Return all text of an entry in lower case. @param {AnyEntry} entry */
export function entryText(entry) {
  let text = textCache.get(entry);
  if (text !== undefined) return text;
  const parts = [];
  for (const name of SEARCHED_FIELDS) if (entry[name]) parts.push(asText(entry[name]));
  if (entry.report) parts.push(entry.report.text);
  text = parts.join("\n").toLowerCase();
  textCache.set(entry, text);
  return text;
}

/**
 * Convert a value to text with unescaped strings, so that quotes and line breaks in them can be found.
 * @param {any} value @returns {string}
 */
function asText(value) {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object") return value === undefined || value === null ? "" : String(value);
  if (Array.isArray(value)) return value.map(asText).join("\n");
  return Object.entries(value).map(([name, inside]) => `${name}: ${asText(inside)}`).join("\n");
}

// Filters

/**
 * Return the filter text with a term replaced by another word, or removed.
 * @param {string} typed @param {Term} term @param {string} [word]
 */
export const replaceTerm = (typed, term, word = "") =>
  [typed.slice(0, term.start).trimEnd(), word, typed.slice(term.end).trimStart()].filter(Boolean).join(" ");

/**
 * Return a predicate over entries, with its terms. Passed to `entries.filter`, it keeps a call and its approval
 * requests together (like `filterEntries`); called with one entry, it judges that entry alone.
 * @param {string} typed @param {() => number} [now] @returns {Filter}
 */
export function parseFilter(typed, now = Date.now) {
  const terms = parseTerms(typed, now);
  /** @type {WeakMap<AnyEntry[], Set<AnyEntry>>} */
  const matchesByList = new WeakMap();
  /** @param {AnyEntry} entry @param {number} [index] @param {AnyEntry[]} [among] */
  const accepts = (entry, index = 0, among = []) => {
    if (among[index] !== entry) return terms.every((term) => term.holds([entry]) !== term.negated);
    if (!matchesByList.has(among) || index === 0) matchesByList.set(among, matchingEntries(among, terms));
    return /** @type {Set<AnyEntry>} */ (matchesByList.get(among)).has(entry);
  };
  return Object.assign(accepts, { terms });
}

/**
 * Group entries: a call with its approval requests, and every other entry alone.
 * @param {AnyEntry[]} entries @returns {AnyEntry[][]}
 */
export function groupEntries(entries) {
  /** @type {Map<string, AnyEntry[]>} */
  const calls = new Map();
  for (const entry of entries) if (entry.type === "tool_call") calls.set(entry.callId, [entry]);
  const units = [];
  for (const entry of entries) {
    const isPaired = entry.type === "tool_call" || entry.type === "permission_request";
    const unit = isPaired ? calls.get(entry.callId) : undefined;
    if (entry.type === "tool_call") units.push(/** @type {AnyEntry[]} */ (unit));
    else if (unit) unit.push(entry);
    else units.push([entry]);
  }
  return units;
}

/** @param {AnyEntry[]} entries @param {Term[]} terms @returns {Set<AnyEntry>} */
function matchingEntries(entries, terms) {
  const hidingTerms = terms.filter((term) => term.field === "type" && term.negated);
  const otherTerms = terms.filter((term) => !hidingTerms.includes(term));
  const units = groupEntries(entries).filter((unit) => otherTerms.every((term) => term.holds(unit) !== term.negated));
  return new Set(units.flat().filter((entry) => !hidingTerms.some((term) => term.holds([entry]))));
}

/**
 * Return the entries that match a filter. A call and its approval requests match together; only `-type:approval` hides
 * the requests of a matching call.
 * @param {AnyEntry[]} entries @param {string | Filter} filter
 */
export function filterEntries(entries, filter) {
  const { terms } = typeof filter === "string" ? parseFilter(filter) : filter;
  if (!terms.length) return entries;
  const matching = matchingEntries(entries, terms);
  return entries.filter((entry) => matching.has(entry));
}
