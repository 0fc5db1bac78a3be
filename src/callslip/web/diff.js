// Line diffs of two texts, and parsed unified diffs.

import { inert } from "./ansi.js";
import { html } from "./ui.js";

/** @typedef {{kind: "same" | "add" | "del" | "gap" | "file", text: string, old?: number, new?: number}} Line */

const CONTEXT = 3;
/** For larger comparisons, all old lines are shown as removed and all new lines as added. */
const MAX_CELLS = 4_000_000;

/** @param {string} text */
const linesOf = (text) => (text === "" ? [] : text.replace(/\n$/, "").split("\n"));

/**
 * Diff two lists of lines by their longest common subsequence.
 * @param {string[]} old @param {string[]} fresh @returns {Line[]}
 */
function diffMiddle(old, fresh) {
  const all = [...old.map((text) => makeLine("del", text)), ...fresh.map((text) => makeLine("add", text))];
  if (old.length * fresh.length > MAX_CELLS) return all;
  const width = fresh.length + 1;
  const lengths = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = fresh.length - 1; j >= 0; j--) {
      const here = i * width + j;
      const longer = Math.max(lengths[here + width], lengths[here + 1]);
      lengths[here] = old[i] === fresh[j] ? lengths[here + width + 1] + 1 : longer;
    }
  }
  /** @type {Line[]} */
  const lines = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < fresh.length) {
    if (i < old.length && j < fresh.length && old[i] === fresh[j]) lines.push(makeLine("same", old[i++])), j++;
    else if (j >= fresh.length || (i < old.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) {
      lines.push(makeLine("del", old[i++]));
    }
    else lines.push(makeLine("add", fresh[j++]));
  }
  return lines;
}

/** @param {Line["kind"]} kind @param {string} text @returns {Line} */
const makeLine = (kind, text) => ({ kind, text });

/**
 * Diff two texts. Of the unchanged lines, only those near a change are kept.
 * @param {string} before @param {string} after @returns {Line[]}
 */
export function compare(before, after) {
  const [old, fresh] = [linesOf(before), linesOf(after)];
  let head = 0;
  while (head < old.length && head < fresh.length && old[head] === fresh[head]) head++;
  let tail = 0;
  const maxTail = Math.min(old.length, fresh.length) - head;
  while (tail < maxTail && old[old.length - 1 - tail] === fresh[fresh.length - 1 - tail]) tail++;
  const lines = [
    ...old.slice(0, head).map((text) => makeLine("same", text)),
    ...diffMiddle(old.slice(head, old.length - tail), fresh.slice(head, fresh.length - tail)),
    ...old.slice(old.length - tail).map((text) => makeLine("same", text)),
  ];
  return withContext(numberLines(lines, 1, 1));
}

/** @param {Line[]} lines @param {number} old @param {number} fresh */
function numberLines(lines, old, fresh) {
  for (const line of lines) {
    if (line.kind === "same" || line.kind === "del") line.old = old++;
    if (line.kind === "same" || line.kind === "add") line.new = fresh++;
  }
  return lines;
}

/** @param {Line[]} lines */
function withContext(lines) {
  const keep = new Uint8Array(lines.length);
  lines.forEach((line, at) => {
    if (line.kind !== "same") keep.fill(1, Math.max(0, at - CONTEXT), at + CONTEXT + 1);
  });
  /** @type {Line[]} */
  const result = [];
  let skipped = 0;
  lines.forEach((line, at) => {
    if (!keep[at]) return void skipped++;
    if (skipped) result.push(makeLine("gap", gapText(skipped)));
    skipped = 0;
    result.push(line);
  });
  if (skipped) result.push(makeLine("gap", gapText(skipped)));
  return result;
}

/** @param {number} count */
const gapText = (count) => `${count} unchanged line${count === 1 ? "" : "s"}`;

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;
const SIGNS = /** @type {Record<string, Line["kind"]>} */ ({ "+": "add", "-": "del", " ": "same" });

/** Whether a text looks like a unified diff. @param {string} text */
export const isDiff = (text) =>
  /^(diff --git |--- \S.*\r?\n\+\+\+ \S|@@ -\d+(,\d+)? \+\d+)/m.test(text.slice(0, 20_000));

/** Parse the lines of a unified diff. @param {string} text @returns {Line[]} */
export function parseDiff(text) {
  let [old, fresh, inside] = [0, 0, false];
  return linesOf(text).map((line) => {
    const hunk = line.match(HUNK);
    if (hunk) {
      [old, fresh, inside] = [Number(hunk[1]), Number(hunk[2]), true];
      return makeLine("gap", line);
    }
    if (/^(diff |index |--- |\+\+\+ )/.test(line) && !(inside && /^(--- |\+\+\+ )$/.test(line))) {
      inside = inside && !line.startsWith("diff ");
      return makeLine("file", line);
    }
    const kind = SIGNS[line[0]];
    if (!inside || !kind) return makeLine("gap", line);
    const [numberedLine] = numberLines([makeLine(kind, line.slice(1))], old, fresh);
    if (numberedLine.old) old++;
    if (numberedLine.new) fresh++;
    return numberedLine;
  });
}

/** Count the changed lines, as `+3 −1`. @param {Line[]} lines */
export function countChanges(lines) {
  const count = (/** @type {string} */ kind) => lines.filter((line) => line.kind === kind).length;
  return `+${count("add")} −${count("del")}`;
}

const SIGN_MARKS = { same: " ", add: "+", del: "−", gap: "", file: "" };
const CHANGE_NAMES = { add: "Added", del: "Removed" };

/** @param {{lines: Line[], most?: number}} props */
export function Diff({ lines, most: maxLines = 2000 }) {
  return html`<div class="diff" role="table" aria-label="Changes">
    ${lines.slice(0, maxLines).map((line) => html`<div class=${`diff-${line.kind}`} role="row">
      <span class="diff-number" role="cell">${line.old ?? ""}</span>
      <span class="diff-number" role="cell">${line.new ?? ""}</span>
      <span class="diff-mark" role="cell"
        aria-label=${CHANGE_NAMES[/** @type {"add"} */ (line.kind)]}>${SIGN_MARKS[line.kind]}</span>
      <span class="diff-text" role="cell" dir="auto">${inert(line.text)}</span>
    </div>`)}
    ${lines.length > maxLines && html`<div role="row"><span class="diff-more" role="cell">
      ${(lines.length - maxLines).toLocaleString("en")} more lines not shown</span></div>`}
  </div>`;
}
