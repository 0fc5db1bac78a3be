// What a person asks for, as terms over entries: `tool:bash status:failed >5s "no such file" -kind:read`. Pure.

import { STATES } from "./states.js";

/** @typedef {import("./callslip.js").Entry} Entry */
/** @typedef {Record<string, any> & {id: number, type: string, at?: number, turn?: string}} Any An entry of any type. */
/**
 * @typedef {object} Term
 * @property {string} field One of FIELDS, or "time" or "text".
 * @property {string[]} values
 * @property {boolean} negated
 * @property {number} start Where it stands in what was typed.
 * @property {number} end
 * @property {string} word The term as it was typed.
 * @property {(unit: Any[]) => boolean} holds Of a call with its requests, or of any other entry alone; not yet negated.
 */
/**
 * @typedef {((entry: Any, index?: number, among?: Any[]) => boolean) & {terms: Term[]}} Filter
 */

const OPEN = Object.keys(STATES).filter((state) => STATES[state].open);
const UNITS = /** @type {Record<string, number>} */ ({ ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000 });
const TYPES = /** @type {Record<string, string>} */ ({
  call: "tool_call", calls: "tool_call", approval: "permission_request", request: "permission_request",
  mode: "mode_change", agent: "assistant",
});

/** @param {unknown} value */
const small = (value) => String(value ?? "").toLowerCase();

/** @type {Record<string, (entry: Any) => unknown[]>} What the words after a field are compared with. */
const FIELDS = {
  tool: ({ type, toolName, rawToolName }) =>
    type === "tool_call" ? [toolName ?? "", rawToolName ?? toolName ?? ""] : [toolName],
  status: (entry) => [entry.status, entry.type === "permission_request" ? (entry.state ?? "pending") : undefined],
  kind: (entry) => (entry.type === "tool_call" ? [entry.kind ?? ""] : []),
  type: (entry) => [entry.type, entry.role],
  turn: (entry) => [entry.turn ?? "", entry.turn?.replace(/^t(?=\d+$)/, "")],
  id: ({ id, callId, toolCallId, requestId, messageId }) =>
    [id, callId, callId?.replace(/^exec_/, ""), toolCallId, requestId, messageId],
};

/** @type {Record<string, (value: string) => string[]>} Short words for several, or for a longer one. */
const MEANT = {
  status: (value) => (value === "open" ? OPEN : [value.replaceAll(" ", "_")]),
  type: (value) => [TYPES[value] ?? value],
};

/** Terms are apart by blanks; quotes keep blanks within one, also if the last is not closed yet. */
const WORD = /-?(?:[a-z]+:)?(?:"[^"]*(?:"|$)|[^\s"]+)(?:,?"[^"]*(?:"|$)|[^\s"]+)*/giu;
const SHAPE = /^(-?)(?:([a-z]+):)?(.*)$/isu;
const TIME = /^([<>]=?)(\d+(?:\.\d+)?)(ms|s|min|m|h)$/iu;

/**
 * What was typed as terms. What no field is known for is text, and a field without a value asks for nothing yet.
 * @param {string} typed
 * @param {() => number} [now] The moment until which open calls are taken to have lasted.
 * @returns {Term[]}
 */
export function termsOf(typed, now = Date.now) {
  const found = [];
  for (const { 0: word, index } of typed.matchAll(WORD)) {
    const made = termOf(word, now);
    if (made) found.push({ ...made, word, start: index, end: index + word.length });
  }
  return found;
}

/** @param {string} word @param {() => number} now */
function termOf(word, now) {
  const [, minus, given, rest] = /** @type {string[]} */ (word.match(SHAPE));
  const negated = minus === "-";
  const name = small(given);
  if (Object.hasOwn(FIELDS, name)) return rest ? fieldTerm(name, valuesOf(rest), negated) : null;
  const body = word.slice(minus.length);
  const time = body.match(TIME);
  if (time) return { field: "time", values: [body], negated, holds: lasting(time, now) };
  const text = body.replaceAll('"', "");
  return text ? textTerm(text, negated) : null;
}

/** The values of a list with commas; what is in quotes is one. @param {string} rest */
const valuesOf = (rest) => [...rest.matchAll(/"([^"]*)"?|([^,"]+)/gu)].map((found) => found[1] ?? found[2]);

/** @param {string} field @param {string[]} values @param {boolean} negated */
function fieldTerm(field, values, negated) {
  const meant = values.flatMap((value) => MEANT[field]?.(small(value)) ?? [small(value)]);
  const tests = meant.map((value) => testOf(field, value));
  const given = FIELDS[field];
  const fits = (/** @type {unknown} */ told) =>
    told !== undefined && told !== null && tests.some((test) => test(small(told)));
  const one = (/** @type {Any} */ entry) => given(entry).some(fits);
  return { field, values, negated, holds: (/** @type {Any[]} */ unit) => unit.some(one) };
}

/**
 * Equal, where a star stands for anything; of an id its beginning is enough.
 * @param {string} field @param {string} value @returns {(told: string) => boolean}
 */
function testOf(field, value) {
  if (field === "id" && !/^\d+$/u.test(value)) return (told) => told.startsWith(value);
  if (!value.includes("*")) return (told) => told === value;
  const pattern = new RegExp(`^${value.split("*").map(escaped).join(".*")}$`, "su");
  return (told) => pattern.test(told);
}

/** @param {string} text */
const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|/]/gu, "\\$&");

/** @param {string} text @param {boolean} negated */
function textTerm(text, negated) {
  const wanted = text.toLowerCase();
  const holds = (/** @type {Any[]} */ unit) => unit.some((entry) => textOf(entry).includes(wanted));
  return { field: "text", values: [text], negated, holds };
}

/** @param {string[]} time @param {() => number} now */
function lasting([, sign, amount, unit], now) {
  const limit = Number(amount) * UNITS[unit.toLowerCase()];
  return (/** @type {Any[]} */ [entry]) => {
    const lasted = durationOf(entry, now());
    if (lasted === null) return false;
    if (lasted === limit) return sign.length === 2;
    return sign[0] === ">" ? lasted > limit : lasted < limit;
  };
}

/** How long a call has run, or has waited if it never ran. @param {Any} entry @param {number} now */
export function durationOf(entry, now) {
  const from = entry.startedAt || entry.at;
  return entry.type === "tool_call" && from ? Math.max(0, (entry.endedAt || now) - from) : null;
}

// What of an entry can be found by text

const SEARCHED = [
  "content", "title", "toolName", "rawToolName", "callId", "toolCallId", "rawInput", "inputText", "output",
  "outputText", "error", "reason", "description", "options", "by", "entries", "previousModeId", "newModeId",
];
/** An entry that changes is another object (state.js), so what was read once holds. @type {WeakMap<object, string>} */
const known = new WeakMap();

/** All text of an entry, in small letters. @param {Any} entry */
export function textOf(entry) {
  let text = known.get(entry);
  if (text !== undefined) return text;
  const told = [];
  for (const name of SEARCHED) if (entry[name]) told.push(plain(entry[name]));
  text = told.join("\n").toLowerCase();
  known.set(entry, text);
  return text;
}

/**
 * Strings as they are read, not as JSON writes them: a quote or a line break in them is found as such.
 * @param {any} value @returns {string}
 */
function plain(value) {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object") return value === undefined || value === null ? "" : String(value);
  if (Array.isArray(value)) return value.map(plain).join("\n");
  return Object.entries(value).map(([name, inside]) => `${name}: ${plain(inside)}`).join("\n");
}

// Filters

/**
 * What was typed, with another word (or none) where a term stood.
 * @param {string} typed @param {Term} term @param {string} [word]
 */
export const replaced = (typed, term, word = "") =>
  [typed.slice(0, term.start).trimEnd(), word, typed.slice(term.end).trimStart()].filter(Boolean).join(" ");

/**
 * A predicate over entries, with its terms. Given to `entries.filter` it keeps a call's requests for approval with it
 * (`filterEntries`); of an entry alone it knows only that.
 * @param {string} typed @param {() => number} [now] @returns {Filter}
 */
export function parseFilter(typed, now = Date.now) {
  const terms = termsOf(typed, now);
  /** @type {WeakMap<Any[], Set<Any>>} */
  const left = new WeakMap();
  const all = (/** @type {Any} */ entry, /** @type {number} */ index = 0, /** @type {Any[]} */ among = []) => {
    if (among[index] !== entry) return terms.every((term) => term.holds([entry]) !== term.negated);
    if (!left.has(among) || index === 0) left.set(among, keptOf(among, terms));
    return /** @type {Set<Any>} */ (left.get(among)).has(entry);
  };
  return Object.assign(all, { terms });
}

/**
 * Entries as units: a call with its requests for approval, and every other entry alone.
 * @param {Any[]} entries @returns {Any[][]}
 */
export function unitsOf(entries) {
  /** @type {Map<string, Any[]>} */
  const calls = new Map();
  for (const entry of entries) if (entry.type === "tool_call") calls.set(entry.callId, [entry]);
  const units = [];
  for (const entry of entries) {
    const paired = entry.type === "tool_call" || entry.type === "permission_request";
    const unit = paired ? calls.get(entry.callId) : undefined;
    if (entry.type === "tool_call") units.push(/** @type {Any[]} */ (unit));
    else if (unit) unit.push(entry);
    else units.push([entry]);
  }
  return units;
}

/** @param {Any[]} entries @param {Term[]} terms @returns {Set<Any>} */
function keptOf(entries, terms) {
  const hides = terms.filter((term) => term.field === "type" && term.negated);
  const asks = terms.filter((term) => !hides.includes(term));
  const units = unitsOf(entries).filter((unit) => asks.every((term) => term.holds(unit) !== term.negated));
  return new Set(units.flat().filter((entry) => !hides.some((term) => term.holds([entry]))));
}

/**
 * The entries that a filter leaves. A call and its requests for approval stay or go together; only `-type:approval`
 * takes a request from its call.
 * @param {Any[]} entries @param {string | Filter} filter
 */
export function filterEntries(entries, filter) {
  const { terms } = typeof filter === "string" ? parseFilter(filter) : filter;
  if (!terms.length) return entries;
  const kept = keptOf(entries, terms);
  return entries.filter((entry) => kept.has(entry));
}
