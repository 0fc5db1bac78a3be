// A text as numbered lines: the first and the last ones, and in between what is hidden, with its number. A search shows
// the lines that it finds.

import { parseTerminal, styleProperties } from "./ansi.js";
import { IconButton } from "./frame.js";
import { rowState } from "./row_state.js";
import { classes, html, signal, useEffect, useMemo, useRef } from "./ui.js";

const HEAD_LINES = 300;
const TAIL_LINES = 700;
const MORE_LINES = 500;
const MAX_FOUND = 10_000;

/** @typedef {import("./ansi.js").Run[]} Line */

const isWrapped = signal(true);

/** @param {import("./ansi.js").Run} run */
export const drawRun = ({ style, text }) =>
  (style ? html`<span style=${styleProperties(style)}>${text}</span>` : text);

/** @param {Line} line */
const textOf = (line) => line.map(({ text }) => text).join("");

/** @param {number} count */
const countOf = (count) => `${count.toLocaleString("en")} line${count === 1 ? "" : "s"}`;

/**
 * @param {{line: Line, number: number | string, isCurrent: boolean}} props
 */
const Numbered = ({ line, number, isCurrent }) => html`<p class=${classes(isCurrent && "current")}>
  <i aria-hidden="true">${number}</i><span dir="auto">${line.map(drawRun)}</span></p>`;

/** What the user does with a log: searches in it, and wraps its lines. @param {{id: number, name: string, found: number[]}} props */
export function LogTools({ id, name, found }) {
  const query = rowState(id, `find ${name}`);
  const at = rowState(id, `found ${name}`);
  const box = /** @type {{current: HTMLInputElement | null}} */ (useRef(null));
  const isOpen = query.value !== undefined;
  useEffect(() => {
    if (isOpen) box.current?.focus();
  }, [isOpen]);
  const move = (/** @type {number} */ by) => found.length && (at.value = ((at.value ?? 0) + by + found.length) % found.length);
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") query.value = undefined;
    else if (event.key === "Enter") move(event.shiftKey ? -1 : 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const onInput = (/** @type {any} */ event) => {
    query.value = event.currentTarget.value;
    at.value = 0;
  };
  const place = !query.value ? "" : found.length ? `${(at.value ?? 0) + 1} of ${found.length.toLocaleString("en")}` : "No match";
  return html`${isOpen && html`<label class="field soft"><input ref=${box} type="text" value=${query.value} placeholder="Find"
      aria-label="Find in output" onInput=${onInput} onKeyDown=${onKey} /><span class="dim" role="status">${place}</span></label>`}
    <${IconButton} icon="find" label="Find in output" aria-pressed=${String(isOpen)}
      onClick=${() => (query.value = isOpen ? undefined : "")} />
    <${IconButton} icon="wrap" label="Wrap lines" aria-pressed=${String(isWrapped.value)}
      onClick=${() => (isWrapped.value = !isWrapped.value)} />`;
}

/** Return the numbers of the lines with a text, the first being 0. @param {Line[]} lines @param {string | undefined} query */
export function findLines(lines, query) {
  if (!query) return [];
  const wanted = query.toLowerCase();
  const found = [];
  for (let at = 0; at < lines.length && found.length < MAX_FOUND; at++) {
    if (textOf(lines[at]).toLowerCase().includes(wanted)) found.push(at);
  }
  return found;
}

/** Parse a text as lines, without the empty one after its last line break. @param {string} text @returns {Line[]} */
export const useLines = (text) => useMemo(() => parseTerminal(text.replace(/\n$/, "")), [text]);

/**
 * `before` are the first lines of a text of which `lines` are the last; what is between them is not loaded.
 * @param {{id: number, name: string, lines: Line[], found: number[], before?: Line[] | null, hole?: any}} props
 */
export default function Log({ id, name, lines, found, before = null, hole }) {
  const box = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const shown = rowState(id, `head ${name}`);
  const at = rowState(id, `found ${name}`).value ?? 0;
  const current = found.length ? found[Math.min(at, found.length - 1)] : -1;
  const head = before ? 0 : Math.max(shown.value ?? HEAD_LINES, 0);
  const isCut = lines.length > head + TAIL_LINES && !(current >= head && current < lines.length - TAIL_LINES);
  const tail = isCut ? lines.length - TAIL_LINES : before ? 0 : Math.min(head, lines.length);
  const first = before ? 0 : isCut ? head : tail;
  useEffect(() => {
    box.current?.querySelector(".current")?.scrollIntoView({ block: "nearest" });
  }, [current]);
  const draw = (/** @type {number} */ from, /** @type {number} */ to, numbered = true) => lines.slice(from, to).map((line, index) =>
    html`<${Numbered} key=${from + index} line=${line} number=${numbered ? from + index + 1 : ""} isCurrent=${from + index === current} />`);
  const hidden = tail - first;
  return html`<div class=${classes("log", isWrapped.value && "wrap")} ref=${box} tabindex="0" role="group" aria-label=${name} dir="ltr">
    ${before?.map((line, index) => html`<${Numbered} line=${line} number=${index + 1} isCurrent=${false} />`)}
    ${hole && html`<div class="hole">${hole}</div>`}
    ${draw(0, first)}
    ${hidden > 0 && html`<div class="hole"><span>${countOf(hidden)} hidden</span>
      <button type="button" class="link" onClick=${() => (shown.value = head + MORE_LINES)}>Show ${Math.min(MORE_LINES, hidden)} more</button>
      <button type="button" class="link" onClick=${() => (shown.value = lines.length)}>Show all</button></div>`}
    ${draw(tail, lines.length, !before)}
  </div>`;
}
