// Differences, line by line: of two texts, or as a unified diff tells them.

import { inert } from "./ansi.js";
import { html } from "./ui.js";

/** @typedef {{kind: "same" | "add" | "del" | "gap" | "file", text: string, old?: number, new?: number}} Line */

const CONTEXT = 3;
/** More work than this is not worth it: then all of the old goes and all of the new comes. */
const MOST = 4_000_000;

/** @param {string} text */
const linesOf = (text) => (text === "" ? [] : text.replace(/\n$/, "").split("\n"));

/**
 * Which lines of both stay, by the longest common subsequence.
 * @param {string[]} old @param {string[]} fresh @returns {Line[]}
 */
function middle(old, fresh) {
  const all = [...old.map((text) => made("del", text)), ...fresh.map((text) => made("add", text))];
  if (old.length * fresh.length > MOST) return all;
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
    if (i < old.length && j < fresh.length && old[i] === fresh[j]) lines.push(made("same", old[i++])), j++;
    else if (j >= fresh.length || (i < old.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) {
      lines.push(made("del", old[i++]));
    }
    else lines.push(made("add", fresh[j++]));
  }
  return lines;
}

/** @param {Line["kind"]} kind @param {string} text @returns {Line} */
const made = (kind, text) => ({ kind, text });

/**
 * How one text became another; of what stayed the same only what stands near a change.
 * @param {string} before @param {string} after @returns {Line[]}
 */
export function compare(before, after) {
  const [old, fresh] = [linesOf(before), linesOf(after)];
  let head = 0;
  while (head < old.length && head < fresh.length && old[head] === fresh[head]) head++;
  let tail = 0;
  const most = Math.min(old.length, fresh.length) - head;
  while (tail < most && old[old.length - 1 - tail] === fresh[fresh.length - 1 - tail]) tail++;
  const lines = [
    ...old.slice(0, head).map((text) => made("same", text)),
    ...middle(old.slice(head, old.length - tail), fresh.slice(head, fresh.length - tail)),
    ...old.slice(old.length - tail).map((text) => made("same", text)),
  ];
  return near(numbered(lines, 1, 1));
}

/** @param {Line[]} lines @param {number} old @param {number} fresh */
function numbered(lines, old, fresh) {
  for (const line of lines) {
    if (line.kind === "same" || line.kind === "del") line.old = old++;
    if (line.kind === "same" || line.kind === "add") line.new = fresh++;
  }
  return lines;
}

/** @param {Line[]} lines */
function near(lines) {
  const keep = new Uint8Array(lines.length);
  lines.forEach((line, at) => {
    if (line.kind !== "same") keep.fill(1, Math.max(0, at - CONTEXT), at + CONTEXT + 1);
  });
  /** @type {Line[]} */
  const kept = [];
  let left = 0;
  lines.forEach((line, at) => {
    if (!keep[at]) return void left++;
    if (left) kept.push(made("gap", unchanged(left)));
    left = 0;
    kept.push(line);
  });
  if (left) kept.push(made("gap", unchanged(left)));
  return kept;
}

/** @param {number} count */
const unchanged = (count) => `${count} unchanged line${count === 1 ? "" : "s"}`;

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;
const SIGNS = /** @type {Record<string, Line["kind"]>} */ ({ "+": "add", "-": "del", " ": "same" });

/** Whether a text reads as a unified diff. @param {string} text */
export const isDiff = (text) =>
  /^(diff --git |--- \S.*\r?\n\+\+\+ \S|@@ -\d+(,\d+)? \+\d+)/m.test(text.slice(0, 20_000));

/** The lines of a unified diff. @param {string} text @returns {Line[]} */
export function parseDiff(text) {
  let [old, fresh, inside] = [0, 0, false];
  return linesOf(text).map((line) => {
    const hunk = line.match(HUNK);
    if (hunk) {
      [old, fresh, inside] = [Number(hunk[1]), Number(hunk[2]), true];
      return made("gap", line);
    }
    if (/^(diff |index |--- |\+\+\+ )/.test(line) && !(inside && /^(--- |\+\+\+ )$/.test(line))) {
      inside = inside && !line.startsWith("diff ");
      return made("file", line);
    }
    const kind = SIGNS[line[0]];
    if (!inside || !kind) return made("gap", line);
    const [shown] = numbered([made(kind, line.slice(1))], old, fresh);
    if (shown.old) old++;
    if (shown.new) fresh++;
    return shown;
  });
}

/** How much was changed, as `+3 −1`. @param {Line[]} lines */
export function tally(lines) {
  const count = (/** @type {string} */ kind) => lines.filter((line) => line.kind === kind).length;
  return `+${count("add")} −${count("del")}`;
}

const MARKS = { same: " ", add: "+", del: "−", gap: "", file: "" };
const WORDS = { add: "added", del: "removed" };

/** @param {{lines: Line[], most?: number}} props */
export function Diff({ lines, most = 2000 }) {
  return html`<div class="diff" role="table" aria-label="changes">
    ${lines.slice(0, most).map((line) => html`<div class=${`diff-${line.kind}`} role="row">
      <span class="diff-number" role="cell">${line.old ?? ""}</span>
      <span class="diff-number" role="cell">${line.new ?? ""}</span>
      <span class="diff-mark" role="cell"
        aria-label=${WORDS[/** @type {"add"} */ (line.kind)]}>${MARKS[line.kind]}</span>
      <span class="diff-text" role="cell" dir="auto">${inert(line.text)}</span>
    </div>`)}
    ${lines.length > most && html`<div role="row"><span class="diff-more" role="cell">
      ${(lines.length - most).toLocaleString("en")} more lines are not shown here.</span></div>`}
  </div>`;
}
