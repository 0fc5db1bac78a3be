// Markdown as a tree of a few known elements; what is not understood stays text. Links lead to http, https and mail
// only. The work grows with the text and no faster.

/**
 * @typedef {string | {kind: "code" | "strong" | "em" | "del" | "link" | "break", inside?: Inline[], text?: string,
 *   href?: string}} Inline
 */
/**
 * @typedef {{kind: "p" | "h" | "quote" | "code" | "list" | "table" | "rule", level?: number, rank?: number,
 *   ordered?: boolean, start?: number, language?: string, text?: string, inside?: Inline[], blocks?: Block[],
 *   items?: Block[][], rows?: Inline[][][]}} Block
 */

const LONGEST = 200_000;
const LONGEST_LINE = 20_000;
const DEEPEST = 6;

// Inline

const MARKS = /** @type {[string, "strong" | "em" | "del"][]} */ ([
  ["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"],
]);
const LINK = new RegExp(
  [
    String.raw`!?\[([^\[\]\n]{0,500})\]`,
    String.raw`\(\s*<?([^\s<>()]{1,2000}(?:\([^\s<>()]{0,500}\)[^\s<>()]{0,500})?)>?`,
    String.raw`(?:\s+["'][^"'\n]{0,300}["'])?\s*\)`,
  ].join(""),
  "y",
);
const BARE = /https?:\/\/[^\s<>"'`|*\[\]]{1,2000}/y;
const SPECIAL = /[`*_~!\[<\\\n]|https?:\/\//g;
const SAFE = /^(https?:\/\/[^\s]|mailto:[^\s])/i;

/** An address that may be followed, or undefined. @param {string} address */
export const safeLink = (address) => (SAFE.test(address) ? address : undefined);

/**
 * Reads one run of text. `closed` remembers which marks have no end further on, so that nobody looks for it again.
 * @param {string} text @param {number} [depth] @returns {Inline[]}
 */
export function inline(text, depth = 0) {
  if (text.length > LONGEST_LINE || depth > DEEPEST) return [text];
  /** @type {Inline[]} */
  const found = [];
  const closed = new Set();
  let plain = "";
  let at = 0;
  const take = (/** @type {Inline} */ item, /** @type {number} */ length) => {
    if (plain) found.push(plain);
    plain = "";
    found.push(item);
    at += length;
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    if (at >= text.length) break;
    const got = READERS[text[at]]?.(text, at, depth, closed);
    if (got) take(got[0], got[1]);
    else plain += text[at++];
  }
  if (plain) found.push(plain);
  return found;
}

/** @typedef {(text: string, at: number, depth: number, closed: Set<string>) => [Inline, number] | undefined} Reader */

/** @type {Reader} */
function code(text, at, depth, closed) {
  const ticks = /`+/y;
  ticks.lastIndex = at;
  const fence = ticks.exec(text)?.[0] ?? "`";
  if (closed.has(fence)) return [fence, fence.length];
  for (let end = text.indexOf(fence, at + fence.length); end >= 0; end = text.indexOf(fence, end + 1)) {
    if (text[end + fence.length] === "`" || text[end - 1] === "`") continue;
    const inside = text.slice(at + fence.length, end);
    const padded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim();
    return [{ kind: "code", text: padded ? inside.slice(1, -1) : inside }, end + fence.length - at];
  }
  closed.add(fence);
  return [fence, fence.length];
}

/** @type {Reader} */
function marked(text, at, depth, closed) {
  for (const [mark, kind] of MARKS) {
    if (!text.startsWith(mark, at) || closed.has(mark)) continue;
    const from = at + mark.length;
    const inWord = mark[0] === "_" && /\w/.test(text[at - 1] ?? "");
    if (inWord || /\s/.test(text[from] ?? " ")) continue;
    const end = closing(text, from, mark);
    if (end < 0) closed.add(mark);
    else return [{ kind, inside: inline(text.slice(from, end), depth + 1) }, end + mark.length - at];
  }
  return undefined;
}

/** @param {string} text @param {number} from @param {string} mark */
function closing(text, from, mark) {
  for (let end = text.indexOf(mark, from + 1); end >= 0; end = text.indexOf(mark, end + 1)) {
    if (/\s/.test(text[end - 1])) continue;
    if (mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark)) continue;
    if (mark[0] === "_" && /\w/.test(text[end + mark.length] ?? "")) continue;
    return end;
  }
  return -1;
}

/** @type {Reader} */
function link(text, at, depth) {
  LINK.lastIndex = at;
  const found = LINK.exec(text);
  const href = found && safeLink(found[2]);
  if (!found || !href) return undefined;
  return [{ kind: "link", href, inside: inline(found[1] || found[2], depth + 1) }, found[0].length];
}

/** @type {Reader} */
function bare(text, at) {
  BARE.lastIndex = at;
  const found = BARE.exec(text)?.[0].replace(/[.,;:!?)\]]+$/, "");
  return found ? [{ kind: "link", href: found, inside: [found] }, found.length] : undefined;
}

/** @type {Reader} */
function angled(text, at) {
  const found = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/.exec(text.slice(at, at + 2020));
  return found ? [{ kind: "link", href: found[1], inside: [found[1]] }, found[0].length] : undefined;
}

/** @type {Record<string, Reader>} */
const READERS = {
  "`": code, "*": marked, _: marked, "~": marked, "[": link, "!": link, "<": angled, h: bare,
  "\n": () => [{ kind: "break" }, 1],
  "\\": (text, at) => (/[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? [text[at + 1], 2] : undefined),
};

// Blocks

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])(?:\s+(.*)|)$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** A heading may end as it began. @param {string} text */
function unhashed(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (end > 0 && trimmed[end - 1] === "#") end--;
  return end === trimmed.length || (end > 0 && trimmed[end - 1] !== " ") ? trimmed : trimmed.slice(0, end).trimEnd();
}

/** @param {string | undefined} line */
const divides = (line = "") => line.length < 1000 && line.includes("-") && DIVIDER.test(line.trim());

/** @param {string} line */
const cells = (line) => {
  const inner = line.trim().replace(/^\||(?<!\\)\|$/g, "");
  return inner.split(/(?<!\\)\|/).map((cell) => inline(cell.trim().replaceAll("\\|", "|")));
};

/** The blocks of a text. @param {string} text @returns {Block[]} */
export function parse(text) {
  if (text.length > LONGEST) return [{ kind: "code", text }];
  return blocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

/** @param {string[]} lines @param {number} depth @returns {Block[]} */
function blocks(lines, depth) {
  /** @type {Block[]} */
  const made = [];
  /** @type {string[]} */
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) made.push({ kind: "p", inside: inline(paragraph.join("\n")) });
    paragraph = [];
  };
  for (let at = 0; at < lines.length; ) {
    const blank = !lines[at].trim();
    const got = blank ? /** @type {const} */ ([null, at + 1]) : block(lines, at, depth, paragraph.length > 0);
    if (!got) paragraph.push(lines[at++]);
    else {
      flush();
      if (got[0]) made.push(got[0]);
      at = got[1];
    }
  }
  flush();
  return made;
}

/**
 * The block that begins here and the line after it; undefined for a line of a paragraph.
 * @param {string[]} lines @param {number} at @param {number} depth @param {boolean} within
 * @returns {[Block, number] | undefined}
 */
function block(lines, at, depth, within) {
  const line = lines[at];
  const fence = line.match(FENCE);
  if (fence) return fenced(lines, at, fence[1], fence[2].trim());
  const heading = line.match(HEADING);
  if (heading) return [{ kind: "h", level: heading[1].length, inside: inline(unhashed(heading[2])) }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth >= DEEPEST) return undefined;
  if (/^ {0,3}>/.test(line)) return quoted(lines, at, depth);
  const item = line.match(ITEM);
  if (item && !(within && !item[3])) return listed(lines, at, depth, /\d/.test(item[2]));
  if (line.includes("|") && divides(lines[at + 1])) return tabled(lines, at);
  return undefined;
}

/**
 * @param {string[]} lines @param {number} at @param {string} fence @param {string} language @returns {[Block, number]}
 */
function fenced(lines, at, fence, language) {
  let end = at + 1;
  const closes = (/** @type {string} */ line) => line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "");
  while (end < lines.length && !closes(lines[end])) end++;
  return [{ kind: "code", language, text: lines.slice(at + 1, end).join("\n") }, end + 1];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function quoted(lines, at, depth) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end++;
  const inside = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return [{ kind: "quote", blocks: blocks(inside, depth + 1) }, end];
}

/**
 * @param {string[]} lines @param {number} at @param {number} depth @param {boolean} ordered @returns {[Block, number]}
 */
function listed(lines, at, depth, ordered) {
  const first = /** @type {RegExpMatchArray} */ (lines[at].match(ITEM));
  const indent = first[1].length;
  /** @type {string[][]} */
  const items = [];
  let end = at;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const item = line.match(ITEM);
    if (item && item[1].length <= indent + 1 && item[1].length >= indent) {
      if (/\d/.test(item[2]) !== ordered || RULE.test(line)) break;
      items.push([item[3] ?? ""]);
    } else if (!line.trim()) {
      if (!/^\s+\S/.test(lines[end + 1] ?? "") && !sameList(lines[end + 1], indent, ordered)) break;
      items[items.length - 1].push("");
    } else if (/^\s/.test(line) && line.search(/\S/) > indent) {
      items[items.length - 1].push(line.slice(Math.min(line.search(/\S/), indent + first[2].length + 1)));
    } else if (lines[end - 1]?.trim() && !item && !line.match(HEADING) && !line.match(FENCE)) {
      items[items.length - 1].push(line);
    } else break;
  }
  const start = ordered ? parseInt(first[2], 10) : undefined;
  return [{ kind: "list", ordered, start, items: items.map((item) => blocks(item, depth + 1)) }, end];
}

/** @param {string | undefined} line @param {number} indent @param {boolean} ordered */
function sameList(line, indent, ordered) {
  const item = line?.match(ITEM);
  return !!item && item[1].length === indent && /\d/.test(item[2]) === ordered;
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function tabled(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end++;
  return [{ kind: "table", rows: [lines[at], ...lines.slice(at + 2, end)].map(cells) }, end];
}
