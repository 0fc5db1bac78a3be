// The output of a call: its parts, the ways to display each, and the first or last lines of a long one. Pure functions.

import { isTerminal } from "./ansi.js";
import { compare, isDiff } from "./diff.js";
import { hasStoredContent, isBinary, knownOutput } from "./full_output.js";
import { parseJson } from "./jsontree.js";
import { isMarkdown } from "./markdown.js";
import { imageSource } from "./message.js";

/** @typedef {"terminal" | "diff" | "json" | "markdown" | "image" | "plain" | "block" | "binary"} Kind */
/**
 * @typedef {{label: string, text: string, value?: unknown, lines?: import("./diff.js").Line[], src?: string,
 *   block?: any, path?: string, folded?: boolean, extent?: import("./full_output.js").KnownOutput["extent"],
 *   blob?: any}} Part
 * `extent` and `blob` are set on a part whose text is stored outside of the entry.
 */

const MAX_LINE_CHARS = 4000;

// Parts

/** Return the text of a text block, wrapped as content or not; undefined for other blocks. @param {any} block */
function blockText(block) {
  const content = block?.content?.type ? block.content : block;
  return typeof content?.text === "string" && (content.type ?? "text") === "text" ? content.text : undefined;
}

/** Return the texts of content, one below the other. @param {any} content */
export const contentText = (content) =>
  typedBlocks(content).map(blockText).filter((text) => text).join("\n");

/** Remove the Markdown fence in which agents wrap the output of a program. @param {string} text */
export function stripFence(text) {
  const [opening = "", fence = ""] = text.match(/^\s*(`{3,})(?!`)[\w-]*\n/) ?? [];
  const end = text.trimEnd().length - fence.length;
  if (!fence || end < opening.length || !text.startsWith(fence, end)) return text;
  return text.slice(opening.length, end > opening.length && text[end - 1] === "\n" ? end - 1 : end);
}

/** @param {any} block @returns {Part | null} */
function blockPart(block) {
  const content = block?.content?.type ? block.content : block;
  if (block?.type === "diff") {
    const [before, after] = [String(block.oldText ?? ""), String(block.newText ?? "")];
    return { label: "Changes", text: after, lines: compare(before, after), path: String(block.path ?? "") };
  }
  const src = imageSource(content);
  if (src) return { label: "Image", text: "", src };
  if (!content || content.type === "terminal" || blockText(content) !== undefined) return null;
  return { label: "Attachment", text: "", block: content };
}

/** @param {unknown} value @returns {any[]} */
const typedBlocks = (value) => (Array.isArray(value) ? value : []).filter((block) => typeof block?.type === "string");

/** @param {any} output */
const resultBlocks = (output) => typedBlocks(typedBlocks(output?.content).length ? output.content : output);

/** @param {unknown} value */
export const asText = (value) =>
  value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2);

/** Return an object or array, to be displayed as a tree. @param {unknown} value */
const asTree = (value) => (typeof value === "object" ? value : undefined);

/**
 * Return the parts of an output: one for the output itself, and others for what differs from it. Content that the agent
 * displayed comes first; content that it only recorded is collapsed.
 * @param {any} entry @param {import("./full_output.js").Loaded} [loaded] @returns {Part[]}
 */
export function outputParts(entry, loaded) {
  if (loaded?.values) entry = { ...entry, ...loaded.values };
  const { output, error, printed, extent } = knownOutput(entry, loaded);
  const blocks = typedBlocks(entry.content);
  const inner = blocks.length ? [] : resultBlocks(output);
  const all = [...blocks, ...inner];
  const displayed = stripFence(all.map(blockText).filter((text) => text !== undefined).join("\n"));
  const result = inner.length && (displayed || all.some(blockPart)) ? displayed : asText(output);
  const value = typeof output === "string" || result === displayed ? undefined : output;
  // The blob of a call that ended without an output is that of its content.
  const isOfContent = (entry.output ?? null) === null && entry.blob?.hash === entry.contentBlob?.hash;
  const stored = entry.blob && !isOfContent ? { extent, blob: entry.blob } : {};
  /** @type {Pick<Part, "extent" | "blob">} */
  const storedContent = hasStoredContent(entry)
    ? { extent: loaded?.values ? "all" : "beginning", blob: entry.contentBlob } : {};
  /** @type {Part[]} */
  const parts = all.map(blockPart).filter((part) => part !== null);
  const isDuplicate = (/** @type {string} */ text) =>
    text.trim() === displayed.trim() || (!!result && text.trim() === result.trim());
  if (printed && !isDuplicate(printed)) {
    const hasResult = !!(displayed || result);
    parts.push({ label: printedLabel(entry, hasResult), text: printed, folded: hasResult });
  }
  if (displayed) parts.push({ label: "Output", text: displayed, ...storedContent });
  else if (result) parts.push({ label: "Output", text: result, value, ...stored });
  if (error !== undefined && asText(error) !== result && !isErrorPrinted(entry)) {
    parts.push({ label: "Error", text: errorText(error), value: asTree(error), ...(result ? {} : stored) });
  }
  if (displayed && result && ![result, stripFence(result)].some((text) => text.trim() === displayed.trim())) {
    parts.push({ label: "Raw output", text: result, value, folded: true, ...stored });
  }
  if (entry.progress !== undefined) {
    parts.push({ label: "Progress", text: asText(entry.progress), value: asTree(entry.progress), folded: true });
  }
  return parts;
}

/** @param {any} entry @param {unknown} hasResult */
const printedLabel = (entry, hasResult) =>
  hasResult ? "Console output" : entry.status === "running" ? "Live output" : "Output";

/** Whether the printed output is the error text, so that the error is not displayed twice. @param {any} entry */
export const isErrorPrinted = (entry) =>
  !!entry.outputText && errorText(entry.error).trim() === entry.outputText.trim();

/** @param {any} error */
export const errorText = (error) => (typeof error?.message === "string" ? error.message : asText(error));

// Kinds

const SHELL_NAMES = /^(execute|shell|bash|sh|run|run_shell_command|exec_command|terminal)$/i;

/** Return the ways to display a part, the best first. @param {Part} part @param {any} entry @returns {Kind[]} */
export function displayKinds(part, entry) {
  if (part.src) return ["image"];
  if (part.block) return ["block"];
  if (part.lines) return ["diff", "plain"];
  const { text } = part;
  if (isBinary(text)) return ["binary", "plain"];
  /** @type {Kind[]} */
  const kinds = [];
  if (isTerminal(text)) kinds.push("terminal");
  if (isDiff(text)) kinds.push("diff");
  if (part.value !== undefined || parseJson(text) !== undefined) kinds.push("json");
  if (SHELL_NAMES.test(entry.kind ?? "") || SHELL_NAMES.test(entry.toolName ?? "")) kinds.push("terminal");
  if (isMarkdown(text)) kinds.push("markdown");
  return [...new Set(/** @type {Kind[]} */ ([...kinds, "plain", "terminal", "markdown"]))];
}

/** @param {string} line */
function shortenLine(line) {
  if (line.length <= MAX_LINE_CHARS) return line;
  const hidden = (line.length - MAX_LINE_CHARS).toLocaleString("en");
  return `${line.slice(0, MAX_LINE_CHARS / 2)} … ${hidden} characters … ${line.slice(-MAX_LINE_CHARS / 2)}`;
}

/**
 * Return the last lines of a text, with long lines shortened, and the number of lines before them.
 * @param {string} text @param {number} maxLines
 */
export function lastLines(text, maxLines) {
  const trimmed = text.trimEnd();
  let from = trimmed.length;
  for (let count = 0; count < maxLines && from >= 0; count++) from = trimmed.lastIndexOf("\n", from - 1);
  const head = from > 0 ? trimmed.slice(0, from) : "";
  const before = head ? head.split("\n").length : 0;
  return { text: trimmed.slice(Math.max(0, from + 1)).split("\n").map(shortenLine).join("\n"), before };
}

/** Return the first lines of a text, with long lines shortened. @param {string} text @param {number} maxLines */
export const firstLines = (text, maxLines) =>
  text.slice(0, maxLines * MAX_LINE_CHARS).split("\n").slice(0, maxLines).map(shortenLine).join("\n");
