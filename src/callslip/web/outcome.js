// What came out of a call: its parts, the ways to show each, and the beginning or the end of a long one. Pure.

import { isTerminal } from "./ansi.js";
import { compare, isDiff } from "./diff.js";
import { readJson } from "./jsontree.js";
import { isMarkdown } from "./markdown.js";
import { pictureOf } from "./message.js";

/** @typedef {"terminal" | "diff" | "json" | "markdown" | "image" | "plain" | "block"} Kind */
/**
 * @typedef {{label: string, text: string, value?: unknown, lines?: import("./diff.js").Line[], src?: string,
 *   block?: any, path?: string, folded?: boolean}} Part
 */

const LINE = 4000;

// Parts

/** The text of a text block, wrapped as content or not; undefined for any other. @param {any} block */
function textOf(block) {
  const told = block?.content?.type ? block.content : block;
  return typeof told?.text === "string" && (told.type ?? "text") === "text" ? told.text : undefined;
}

/** Agents wrap what a program printed in a fence; the fence says nothing. @param {string} text */
export const unfenced = (text) => text.match(/^\s*(`{3,})[\w-]*\n([\s\S]*?)\n?\1\s*$/)?.[2] ?? text;

/** @param {any} block @returns {Part | null} */
function blockPart(block) {
  const told = block?.content?.type ? block.content : block;
  if (block?.type === "diff") {
    const [before, after] = [String(block.oldText ?? ""), String(block.newText ?? "")];
    return { label: "Changes", text: after, lines: compare(before, after), path: String(block.path ?? "") };
  }
  const src = pictureOf(told);
  if (src) return { label: "Image", text: "", src };
  if (!told || told.type === "terminal" || textOf(told) !== undefined) return null;
  return { label: "Attached", text: "", block: told };
}

/** @param {unknown} value @returns {any[]} */
const blocksIn = (value) => (Array.isArray(value) ? value : []).filter((block) => typeof block?.type === "string");

/** @param {any} output */
const wrapped = (output) => (blocksIn(output?.content).length ? blocksIn(output.content) : blocksIn(output));

/** @param {unknown} value */
export const plain = (value) =>
  value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2);

/** A value that is worth a tree. @param {unknown} value */
const tree = (value) => (typeof value === "object" ? value : undefined);

/**
 * The parts of what came out. What the agent showed comes first; what it only recorded can be opened; nothing stands
 * twice.
 * @param {any} entry @returns {Part[]}
 */
export function partsOf(entry) {
  const blocks = blocksIn(entry.content);
  const inner = blocks.length ? [] : wrapped(entry.output);
  const all = [...blocks, ...inner];
  const shown = unfenced(all.map(textOf).filter((text) => text !== undefined).join("\n"));
  const result = inner.length && (shown || all.some(blockPart)) ? shown : plain(entry.output);
  const value = typeof entry.output === "string" || result === shown ? undefined : entry.output;
  const printed = entry.outputText ?? "";
  /** @type {Part[]} */
  const parts = all.map(blockPart).filter((part) => part !== null);
  const same = (/** @type {string} */ text) =>
    text.trim() === shown.trim() || (!!result && text.trim() === result.trim());
  if (printed && !same(printed)) parts.push({ label: shown || result ? "Printed" : "Output", text: printed });
  if (shown) parts.push({ label: "Output", text: shown });
  else if (result) parts.push({ label: "Output", text: result, value });
  if (entry.error !== undefined && plain(entry.error) !== result && !isPrinted(entry)) {
    parts.push({ label: "Error", text: errorText(entry.error), value: tree(entry.error) });
  }
  if (shown && result && ![result, unfenced(result)].some((text) => text.trim() === shown.trim())) {
    parts.push({ label: "Raw output", text: result, value, folded: true });
  }
  if (entry.progress !== undefined) {
    parts.push({ label: "Progress", text: plain(entry.progress), value: tree(entry.progress), folded: true });
  }
  return parts;
}

/** Whether its error is all that a call printed, and need not be said twice. @param {any} entry */
export const isPrinted = (entry) => !!entry.outputText && errorText(entry.error).trim() === entry.outputText.trim();

/** @param {any} error */
export const errorText = (error) => (typeof error?.message === "string" ? error.message : plain(error));

// Kinds

const SHELLS = /^(execute|shell|bash|sh|run|run_shell_command|exec_command|terminal)$/i;

/** Which ways there are to show a part, the best first. @param {Part} part @param {any} entry @returns {Kind[]} */
export function kindsOf(part, entry) {
  if (part.src) return ["image"];
  if (part.block) return ["block"];
  if (part.lines) return ["diff", "plain"];
  const { text } = part;
  /** @type {Kind[]} */
  const kinds = [];
  if (isTerminal(text)) kinds.push("terminal");
  if (isDiff(text)) kinds.push("diff");
  if (part.value !== undefined || readJson(text) !== undefined) kinds.push("json");
  if (SHELLS.test(entry.kind ?? "") || SHELLS.test(entry.toolName ?? "")) kinds.push("terminal");
  if (isMarkdown(text)) kinds.push("markdown");
  return [...new Set(/** @type {Kind[]} */ ([...kinds, "plain", "terminal", "markdown"]))];
}

/** @param {string} line */
function cut(line) {
  if (line.length <= LINE) return line;
  const left = (line.length - LINE).toLocaleString("en");
  return `${line.slice(0, LINE / 2)} … ${left} characters … ${line.slice(-LINE / 2)}`;
}

/**
 * The last lines of a text, none of them too long, and how many are left out.
 * @param {string} text @param {number} most
 */
export function tailOf(text, most) {
  const trimmed = text.trimEnd();
  let from = trimmed.length;
  for (let count = 0; count < most && from >= 0; count++) from = trimmed.lastIndexOf("\n", from - 1);
  const head = from > 0 ? trimmed.slice(0, from) : "";
  const before = head ? head.split("\n").length : 0;
  return { text: trimmed.slice(Math.max(0, from + 1)).split("\n").map(cut).join("\n"), before };
}

/** The first lines of a text. @param {string} text @param {number} most */
export const headOf = (text, most) => text.slice(0, most * LINE).split("\n").slice(0, most).map(cut).join("\n");
