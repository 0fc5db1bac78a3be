// Parse Markdown into a tree of a few known elements; everything else stays text. Links are limited to http, https and
// mailto. The parser runs in linear time.

/**
 * @typedef {string | {kind: "code" | "strong" | "em" | "del" | "link" | "break", inside?: Inline[], text?: string,
 *   href?: string}} Inline
 */
/**
 * @typedef {{kind: "p" | "h" | "quote" | "code" | "list" | "table" | "rule", level?: number, rank?: number,
 *   ordered?: boolean, start?: number, language?: string, text?: string, inside?: Inline[], blocks?: Block[],
 *   items?: Block[][], rows?: Inline[][][]}} Block
 */

const MAX_TEXT_CHARS = 200_000;
const MAX_LINE_CHARS = 20_000;
const MAX_DEPTH = 6;

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

/** Return a URL if it is safe to link to, or undefined. @param {string} address */
export const safeLink = (address) => (SAFE.test(address) ? address : undefined);

/**
 * Parse inline text. `unclosed` remembers marks without a closing mark, so that they are searched for only once.
 * @param {string} text @param {number} [depth] @returns {Inline[]}
 */
export function parseInline(text, depth = 0) {
  if (text.length > MAX_LINE_CHARS || depth > MAX_DEPTH) return [text];
  /** @type {Inline[]} */
  const items = [];
  const unclosed = new Set();
  let plain = "";
  let at = 0;
  const addItem = (/** @type {Inline} */ item, /** @type {number} */ length) => {
    if (plain) items.push(plain);
    plain = "";
    items.push(item);
    at += length;
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    if (at >= text.length) break;
    const result = PARSERS[text[at]]?.(text, at, depth, unclosed);
    if (result) addItem(result[0], result[1]);
    else plain += text[at++];
  }
  if (plain) items.push(plain);
  return items;
}

/** @typedef {[Inline, number] | undefined} Parsed The item and its length. */
/** @typedef {(text: string, at: number, depth: number, unclosed: Set<string>) => Parsed} Parser */

/** @type {Parser} */
function parseCode(text, at, depth, unclosed) {
  const ticks = /`+/y;
  ticks.lastIndex = at;
  const fence = ticks.exec(text)?.[0] ?? "`";
  if (unclosed.has(fence)) return [fence, fence.length];
  for (let end = text.indexOf(fence, at + fence.length); end >= 0; end = text.indexOf(fence, end + 1)) {
    if (text[end + fence.length] === "`" || text[end - 1] === "`") continue;
    const inside = text.slice(at + fence.length, end);
    const padded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim();
    return [{ kind: "code", text: padded ? inside.slice(1, -1) : inside }, end + fence.length - at];
  }
  unclosed.add(fence);
  return [fence, fence.length];
}

/** @type {Parser} */
function parseEmphasis(text, at, depth, unclosed) {
  for (const [mark, kind] of MARKS) {
    if (!text.startsWith(mark, at) || unclosed.has(mark)) continue;
    const from = at + mark.length;
    const inWord = mark[0] === "_" && /\w/.test(text[at - 1] ?? "");
    if (inWord || /\s/.test(text[from] ?? " ")) continue;
    const end = findClosing(text, from, mark);
    if (end < 0) unclosed.add(mark);
    else return [{ kind, inside: parseInline(text.slice(from, end), depth + 1) }, end + mark.length - at];
  }
  return undefined;
}

/** @param {string} text @param {number} from @param {string} mark */
function findClosing(text, from, mark) {
  for (let end = text.indexOf(mark, from + 1); end >= 0; end = text.indexOf(mark, end + 1)) {
    if (/\s/.test(text[end - 1])) continue;
    if (mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark)) continue;
    if (mark[0] === "_" && /\w/.test(text[end + mark.length] ?? "")) continue;
    return end;
  }
  return -1;
}

/** @type {Parser} */
function parseLink(text, at, depth) {
  LINK.lastIndex = at;
  const match = LINK.exec(text);
  const href = match && safeLink(match[2]);
  if (!match || !href) return undefined;
  return [{ kind: "link", href, inside: parseInline(match[1] || match[2], depth + 1) }, match[0].length];
}

/** @type {Parser} */
function parseBareUrl(text, at) {
  BARE.lastIndex = at;
  const run = BARE.exec(text)?.[0] ?? "";
  let end = run.length;
  while (end > 0 && ".,;:!?)]".includes(run[end - 1])) end--; // These end the sentence, not the address.
  const url = run.slice(0, end);
  return url ? [{ kind: "link", href: url, inside: [url] }, url.length] : undefined;
}

/** @type {Parser} */
function parseAngleUrl(text, at) {
  const match = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/.exec(text.slice(at, at + 2020));
  return match ? [{ kind: "link", href: match[1], inside: [match[1]] }, match[0].length] : undefined;
}

/** @type {Record<string, Parser>} */
const PARSERS = {
  "`": parseCode, "*": parseEmphasis, _: parseEmphasis, "~": parseEmphasis,
  "[": parseLink, "!": parseLink, "<": parseAngleUrl, h: parseBareUrl,
  "\n": () => [{ kind: "break" }, 1],
  "\\": (text, at) => (/[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? [text[at + 1], 2] : undefined),
};

// Blocks

// No two parts that follow each other match the same characters, unless nothing after them can fail: else a long line
// that does not match would take quadratic time.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+([^]*)$/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])(?:\s+([^]*)|)$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const DIVIDER_CELL = /^:?-+:?$/;

/** Remove the closing hashes of a heading. @param {string} text */
function stripClosingHashes(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (end > 0 && trimmed[end - 1] === "#") end--;
  return end === trimmed.length || (end > 0 && trimmed[end - 1] !== " ") ? trimmed : trimmed.slice(0, end).trimEnd();
}

/** @param {string | undefined} line */
function isDivider(line = "") {
  const cells = line.trim().split("|").map((cell) => cell.trim());
  if (!cells[0]) cells.shift();
  if (!cells.at(-1)) cells.pop();
  return line.length < 1000 && cells.length > 0 && cells.every((cell) => DIVIDER_CELL.test(cell));
}

/** @param {string} line */
const parseCells = (line) => {
  const inner = line.trim().replace(/^\||(?<!\\)\|$/g, "");
  return inner.split(/(?<!\\)\|/).map((cell) => parseInline(cell.trim().replaceAll("\\|", "|")));
};

/** Parse a text into blocks. @param {string} text @returns {Block[]} */
export function parse(text) {
  if (text.length > MAX_TEXT_CHARS) return [{ kind: "code", text }];
  return parseBlocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

/** @param {string[]} lines @param {number} depth @returns {Block[]} */
function parseBlocks(lines, depth) {
  /** @type {Block[]} */
  const parsed = [];
  /** @type {string[]} */
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) parsed.push({ kind: "p", inside: parseInline(paragraph.join("\n")) });
    paragraph = [];
  };
  for (let at = 0; at < lines.length; ) {
    const blank = !lines[at].trim();
    const result = blank ? /** @type {const} */ ([null, at + 1]) : parseBlock(lines, at, depth, paragraph.length > 0);
    if (!result) paragraph.push(lines[at++]);
    else {
      flush();
      if (result[0]) parsed.push(result[0]);
      at = result[1];
    }
  }
  flush();
  return parsed;
}

/**
 * Return the block that starts at a line and the index after it; undefined for a line of a paragraph.
 * @param {string[]} lines @param {number} at @param {number} depth @param {boolean} within
 * @returns {[Block, number] | undefined}
 */
function parseBlock(lines, at, depth, within) {
  const line = lines[at];
  const fence = line.match(FENCE);
  if (fence) return parseFence(lines, at, fence[1], fence[2].trim());
  const heading = line.match(HEADING);
  if (heading) {
    return [{ kind: "h", level: heading[1].length, inside: parseInline(stripClosingHashes(heading[2])) }, at + 1];
  }
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth >= MAX_DEPTH) return undefined;
  if (/^ {0,3}>/.test(line)) return parseQuote(lines, at, depth);
  const item = line.match(ITEM);
  if (item && !(within && !item[3])) return parseList(lines, at, depth, /\d/.test(item[2]));
  if (line.includes("|") && isDivider(lines[at + 1])) return parseTable(lines, at);
  return undefined;
}

/**
 * @param {string[]} lines @param {number} at @param {string} fence @param {string} language @returns {[Block, number]}
 */
function parseFence(lines, at, fence, language) {
  let end = at + 1;
  const closes = (/** @type {string} */ line) => line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "");
  while (end < lines.length && !closes(lines[end])) end++;
  return [{ kind: "code", language, text: lines.slice(at + 1, end).join("\n") }, end + 1];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function parseQuote(lines, at, depth) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end++;
  const inside = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return [{ kind: "quote", blocks: parseBlocks(inside, depth + 1) }, end];
}

/**
 * @param {string[]} lines @param {number} at @param {number} depth @param {boolean} ordered @returns {[Block, number]}
 */
function parseList(lines, at, depth, ordered) {
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
      if (!/^\s+\S/.test(lines[end + 1] ?? "") && !isSameList(lines[end + 1], indent, ordered)) break;
      items[items.length - 1].push("");
    } else if (/^\s/.test(line) && line.search(/\S/) > indent) {
      items[items.length - 1].push(line.slice(Math.min(line.search(/\S/), indent + first[2].length + 1)));
    } else if (lines[end - 1]?.trim() && !item && !line.match(HEADING) && !line.match(FENCE)) {
      items[items.length - 1].push(line);
    } else break;
  }
  const start = ordered ? parseInt(first[2], 10) : undefined;
  return [{ kind: "list", ordered, start, items: items.map((item) => parseBlocks(item, depth + 1)) }, end];
}

/** @param {string | undefined} line @param {number} indent @param {boolean} ordered */
function isSameList(line, indent, ordered) {
  const item = line?.match(ITEM);
  return !!item && item[1].length === indent && /\d/.test(item[2]) === ordered;
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function parseTable(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end++;
  return [{ kind: "table", rows: [lines[at], ...lines.slice(at + 2, end)].map(parseCells) }, end];
}
