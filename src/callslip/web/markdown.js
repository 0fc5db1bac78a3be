// Safe Markdown: the elements that markdown_parser.js knows, and everything else as text. Images are shown as links.

import { inert } from "./ansi.js";
import { html } from "./ui.js";
import { parse } from "./markdown_parser.js";

/** @typedef {import("./markdown_parser.js").Inline} Inline */
/** @typedef {import("./markdown_parser.js").Block} Block */

/** @param {Inline[]} items @returns {any[]} */
function drawInline(items) {
  return items.map((item) => {
    if (typeof item === "string") return inert(item);
    if (item.kind === "break") return html`<br />`;
    if (item.kind === "code") return html`<code>${inert(item.text ?? "")}</code>`;
    const inside = drawInline(item.inside ?? []);
    if (item.kind === "link") {
      return html`<a href=${item.href} rel="noopener noreferrer nofollow" target="_blank">${inside}</a>`;
    }
    return html`<${item.kind}>${inside}<//>`;
  });
}

/** @type {Record<Block["kind"], (block: Block) => any>} */
const DRAW = {
  p: (block) => html`<p dir="auto">${drawInline(block.inside ?? [])}</p>`,
  h: ({ level = 1, rank = Math.min(6, level + 1), inside = [] }) =>
    html`<${`h${rank}`} dir="auto">${drawInline(inside)}<//>`,
  quote: (block) => html`<blockquote dir="auto">${(block.blocks ?? []).map(draw)}</blockquote>`,
  code: (block) => html`<pre class="code" tabindex="0"
    data-language=${block.language || undefined}><code>${inert(block.text ?? "")}</code></pre>`,
  list: (block) => html`<${block.ordered ? "ol" : "ul"} start=${block.start}>
    ${(block.items ?? []).map((item) => html`<li dir="auto">${item.map(drawItem)}</li>`)}<//>`,
  table: ({ rows: [head, ...rest] = [] }) => html`<div class="md-table" tabindex="0"><table>
    <thead><tr>${head.map((cell) => html`<th dir="auto">${drawInline(cell)}</th>`)}</tr></thead>
    <tbody>${rest.map((row) => html`<tr>
      ${row.map((cell) => html`<td dir="auto">${drawInline(cell)}</td>`)}</tr>`)}</tbody>
  </table></div>`,
  rule: () => html`<hr />`,
};

/** @param {Block} block */
const draw = (block) => DRAW[block.kind](block);

/**
 * Draw a block of a list item. A single paragraph needs no element.
 * @param {Block} block @param {number} at @param {Block[]} all
 */
function drawItem(block, at, all) {
  const alone = block.kind === "p" && at === 0 && !all.slice(1).some(({ kind }) => kind === "p");
  return alone ? drawInline(block.inside ?? []) : draw(block);
}

/** Assign heading ranks below those of the page and without gaps: the highest is h2. @param {Block[]} all */
function assignRanks(all) {
  const levels = [...new Set(all.filter(({ kind }) => kind === "h").map(({ level }) => level ?? 1))].sort();
  const rank = (/** @type {Block} */ { level = 1 }) => Math.min(6, levels.indexOf(level) + 2);
  return all.map((block) => (block.kind === "h" ? { ...block, rank: rank(block) } : block));
}

/** @param {{text: string}} props */
export const Markdown = ({ text }) => html`<div class="md">${assignRanks(parse(text)).map(draw)}</div>`;

/**
 * Whether a text looks like Markdown. Comments in code are not headings.
 * @param {string} text
 */
export const isMarkdown = (text) =>
  /^(#{1,6} \S.*\n\s*\n|```|\|.+\|\s*$)|\*\*\S|\]\(https?:/m.test(text.slice(0, 20_000)) &&
  !/^\s*([{[<]|#!)/.test(text);
