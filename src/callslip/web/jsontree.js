// A JSON value as a tree. What is closed is not drawn, so a value of any size costs what is seen of it.

import { inert } from "./ansi.js";
import { html, useState } from "./ui.js";

const PAGE = 100;
const LONG = 600;

/** @param {unknown} value @returns {[string, unknown][]} */
const partsOf = (value) =>
  Array.isArray(value) ? value.map((item, at) => [String(at), item]) : Object.entries(/** @type {object} */ (value));

/** @param {unknown} value */
const isBranch = (value) => typeof value === "object" && value !== null;

/** @param {number} count @param {string} noun */
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/**
 * What a closed branch says of itself: as much of it as fits, else how much is in it.
 * @param {unknown} value
 */
export function summary(value) {
  const parts = partsOf(value);
  const many = Array.isArray(value);
  if (!parts.length) return many ? "[]" : "{}";
  const short = parts.length <= 4 && parts.every(([, part]) => !isBranch(part) && String(part).length <= 40);
  if (!short) return many ? `[${counted(parts.length, "item")}]` : `{${counted(parts.length, "field")}}`;
  const told = parts.map(([key, part]) => (many ? JSON.stringify(part) : `${key}: ${JSON.stringify(part)}`)).join(", ");
  return inert(many ? `[${told}]` : `{${told}}`);
}

/** A value in one line, as much of it as anybody reads. @param {unknown} value */
export function oneLine(value) {
  const said = isBranch(value) ? summary(value) : "";
  if (said && !/^[[{]\d+ (item|field)/.test(said)) return said;
  return inert((JSON.stringify(value) ?? "").slice(0, 500));
}

/** @param {{value: unknown}} props */
function Leaf({ value }) {
  const [whole, setWhole] = useState(false);
  if (typeof value !== "string") return html`<span class="json-plain">${String(value)}</span>`;
  const shown = whole || value.length <= LONG ? value : value.slice(0, LONG);
  const left = (value.length - shown.length).toLocaleString("en");
  const text = inert(value.includes("\n") ? shown : JSON.stringify(shown));
  return html`<span class="json-text" dir="auto">${text}</span>
    ${shown.length < value.length && html`<button type="button" class="link"
      onClick=${() => setWhole(true)}>… ${left} more characters</button>`}`;
}

/** Some of the parts, and more of them for who asks. @param {{parts: [string, unknown][], depth: number}} props */
function Parts({ parts, depth }) {
  const [most, setMost] = useState(PAGE);
  const shown = parts.slice(0, most);
  return html`<ul>
    ${shown.map(([key, part]) => html`<li key=${key}><${Node} name=${key} value=${part} depth=${depth} /></li>`)}
    ${parts.length > most && html`<li><button type="button" class="link"
      onClick=${() => setMost(most * 10)}>${parts.length - most} more</button></li>`}</ul>`;
}

/** @param {{name?: string, value: unknown, open?: boolean, depth: number}} props */
function Branch({ name, value, open, depth }) {
  const [isOpen, setOpen] = useState(!!open);
  const toggled = (/** @type {any} */ event) => setOpen(event.currentTarget.open);
  return html`<details class="json-branch" open=${isOpen} onToggle=${toggled}>
    <summary>${name !== undefined && html`<span class="json-key" dir="auto">${inert(name)}</span>`}${" "}
      <span class="json-sum" dir="auto">${summary(value)}</span></summary>
    ${isOpen && html`<${Parts} parts=${partsOf(value)} depth=${depth + 1} />`}
  </details>`;
}

/** @param {{name?: string, value: unknown, depth: number}} props */
function Node({ name, value, depth }) {
  const count = isBranch(value) ? partsOf(value).length : 0;
  if (count) return html`<${Branch} name=${name} value=${value} depth=${depth} open=${depth < 2 && count <= 12} />`;
  return html`<div class="json-leaf"><span class="json-key" dir="auto">${inert(name ?? "")}</span>${" "}
    <${Leaf} value=${isBranch(value) ? summary(value) : value} /></div>`;
}

/** The outermost value needs no line of its own. @param {{value: unknown}} props */
export function JsonTree({ value }) {
  if (!isBranch(value)) return html`<div class="json"><${Leaf} value=${value} /></div>`;
  const parts = partsOf(value);
  if (!parts.length) return html`<div class="json"><span class="json-plain">${summary(value)}</span></div>`;
  return html`<div class="json"><${Parts} parts=${parts} depth=${1} /></div>`;
}

/**
 * The value in a text that is JSON from its first sign to its last; undefined if it is something else.
 * @param {string} text
 */
export function readJson(text) {
  const trimmed = text.trim();
  if (trimmed.length > 2_000_000 || !/^[[{]/.test(trimmed) || !/[\]}]$/.test(trimmed)) return undefined;
  try {
    return JSON.parse(trimmed);
  } catch {
    return undefined;
  }
}
