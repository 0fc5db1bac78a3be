// A JSON value as a tree. Closed branches are not drawn, so large values cost only what is visible.

import { inert } from "./ansi.js";
import { html, useState } from "./ui.js";

const PAGE_ITEMS = 100;
const MAX_TEXT_CHARS = 600;

/** @param {unknown} value @returns {[string, unknown][]} */
const childrenOf = (value) =>
  Array.isArray(value) ? value.map((item, at) => [String(at), item]) : Object.entries(/** @type {object} */ (value));

/** @param {unknown} value */
const isBranch = (value) => typeof value === "object" && value !== null;

/** @param {number} count @param {string} noun */
const countOf = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/**
 * Summarize a branch: its content if it is short, or the number of its children.
 * @param {unknown} value
 */
export function summary(value) {
  const parts = childrenOf(value);
  const isList = Array.isArray(value);
  if (!parts.length) return isList ? "[]" : "{}";
  const isShort = parts.length <= 4 && parts.every(([, part]) => !isBranch(part) && String(part).length <= 40);
  if (!isShort) return isList ? `[${countOf(parts.length, "item")}]` : `{${countOf(parts.length, "field")}}`;
  const items = parts.map(([key, part]) => (isList ? "" : `${key}: `) + JSON.stringify(part)).join(", ");
  return inert(isList ? `[${items}]` : `{${items}}`);
}

/** Format a value in one line, shortened if needed. @param {unknown} value */
export function oneLine(value) {
  const text = isBranch(value) ? summary(value) : "";
  if (text && !/^[[{]\d+ (item|field)/.test(text)) return text;
  return inert((JSON.stringify(value) ?? "").slice(0, 500));
}

/** @param {{value: unknown}} props */
function Leaf({ value }) {
  const [showAll, setShowAll] = useState(false);
  if (typeof value !== "string") return html`<span class="json-plain">${String(value)}</span>`;
  const visible = showAll || value.length <= MAX_TEXT_CHARS ? value : value.slice(0, MAX_TEXT_CHARS);
  const hidden = (value.length - visible.length).toLocaleString("en");
  const text = inert(value.includes("\n") ? visible : JSON.stringify(visible));
  return html`<span class="json-text" dir="auto">${text}</span>
    ${visible.length < value.length && html`<button type="button" class="link"
      onClick=${() => setShowAll(true)}>Show ${hidden} more characters</button>`}`;
}

/** The children of a branch, with a button to show more. @param {{parts: [string, unknown][], depth: number}} props */
function Parts({ parts, depth }) {
  const [limit, setLimit] = useState(PAGE_ITEMS);
  const visible = parts.slice(0, limit);
  return html`<ul>
    ${visible.map(([key, part]) => html`<li key=${key}><${Node} name=${key} value=${part} depth=${depth} /></li>`)}
    ${parts.length > limit && html`<li><button type="button" class="link"
      onClick=${() => setLimit(limit * 10)}>Show ${parts.length - limit} more</button></li>`}</ul>`;
}

/** @param {{name?: string, value: unknown, open?: boolean, depth: number}} props */
function Branch({ name, value, open, depth }) {
  const [isOpen, setOpen] = useState(!!open);
  const onToggle = (/** @type {any} */ event) => setOpen(event.currentTarget.open);
  return html`<details class="json-branch" open=${isOpen} onToggle=${onToggle}>
    <summary>${name !== undefined && html`<span class="json-key" dir="auto">${inert(name)}</span>`}${" "}
      <span class="json-sum" dir="auto">${summary(value)}</span></summary>
    ${isOpen && html`<${Parts} parts=${childrenOf(value)} depth=${depth + 1} />`}
  </details>`;
}

/** @param {{name?: string, value: unknown, depth: number}} props */
function Node({ name, value, depth }) {
  const count = isBranch(value) ? childrenOf(value).length : 0;
  if (count) return html`<${Branch} name=${name} value=${value} depth=${depth} open=${depth < 2 && count <= 12} />`;
  return html`<div class="json-leaf"><span class="json-key" dir="auto">${inert(name ?? "")}</span>${" "}
    <${Leaf} value=${isBranch(value) ? summary(value) : value} /></div>`;
}

/** The tree of a value. The outermost value has no line of its own. @param {{value: unknown}} props */
export function JsonTree({ value }) {
  if (!isBranch(value)) return html`<div class="json"><${Leaf} value=${value} /></div>`;
  const parts = childrenOf(value);
  if (!parts.length) return html`<div class="json"><span class="json-plain">${summary(value)}</span></div>`;
  return html`<div class="json"><${Parts} parts=${parts} depth=${1} /></div>`;
}

/**
 * Parse a text that is a JSON object or array, or return undefined.
 * @param {string} text
 */
export function parseJson(text) {
  const trimmed = text.trim();
  if (trimmed.length > 2_000_000 || !/^[[{]/.test(trimmed) || !/[\]}]$/.test(trimmed)) return undefined;
  try {
    return JSON.parse(trimmed);
  } catch {
    return undefined;
  }
}
