// What a row says of a call without being opened: its result in one line, and for some states the last lines of its
// output. How high a row is depends only on this.

import { parseTerminal } from "./ansi.js";
import { countChanges, parseDiff } from "./diff.js";
import { formatBytes } from "./full_output.js";
import { oneLine, parseJson } from "./jsontree.js";
import { displayKinds, errorText, isErrorPrinted, lastLines, outputParts } from "./outcome.js";
import { describeState } from "./states.js";

/**
 * @typedef {object} Preview
 * @property {string} out The result in one line.
 * @property {"" | "bad" | "wait"} tone
 * @property {number} lines How many lines of output are shown below the title.
 * @property {string} text These lines, unless they must be loaded first.
 * @property {string} [changes] How many lines were added and removed.
 */
/** @typedef {import("./outcome.js").Part} Part */

const PEEK_LINES = 3;
const LIVE_LINES = 4;
const MAX_LINE_CHARS = 400;
const PEEKED = new Set(["failed", "lost"]);
/** States of which the row says the reason. */
const WITH_REASON = new Set(["denied", "cancelled", "expired", "lost"]);

/** Summarize a part in one line. @param {Part} part @param {import("./outcome.js").Kind} kind */
export function summaryLine(part, kind) {
  if (kind === "diff") return `${part.path ?? ""} ${countChanges(part.lines ?? parseDiff(part.text))}`.trim();
  if (kind === "json") return oneLine(part.value ?? parseJson(part.text));
  if (kind === "image" || kind === "block") return part.label;
  if (kind === "binary") return "Binary output";
  return plainLine(lastLines(part.text, 1).text);
}

/** Return a line without its colours. @param {string} line */
const plainLine = (line) => parseTerminal(line).flat().map((run) => run.text).join("").slice(0, MAX_LINE_CHARS);

/** Return the part that matters most: changes and images before text. @param {any} entry @param {any} [loaded] */
export function mainPart(entry, loaded) {
  const parts = outputParts(entry, loaded).filter((part) => !part.folded && part.label !== "Error");
  return parts.find((part) => part.lines || part.src) ?? parts.at(-1);
}

/** Return the exit code as a text, "" if there is none. @param {any} status */
function exitText(status) {
  if (status === undefined || status === null) return "";
  if (typeof status?.signal === "string") return `signal ${status.signal}`;
  return `exit ${typeof status === "object" ? (status.exitCode ?? JSON.stringify(status)) : status}`;
}

/** @param {string} text */
const firstLine = (text) => (text.trim().split("\n", 1)[0] ?? "").slice(0, MAX_LINE_CHARS);

/** Return the result of a call that completed, in one line. @param {any} entry @param {Part | undefined} part */
function resultLine(entry, part) {
  if (!part) return "";
  const [kind] = displayKinds(part, entry);
  if (part.blob && part.extent !== "all") return formatBytes(part.blob.size);
  if (kind === "diff") return "";
  if (kind === "binary") return `Binary, ${formatBytes(part.text.length)}`;
  if (kind === "terminal" || kind === "json" || kind === "image" || kind === "block") return summaryLine(part, kind);
  const count = part.text.trim() ? part.text.trimEnd().split("\n").length : 0;
  return count > 1 ? `${count.toLocaleString("en")} lines` : plainLine(part.text.trim());
}

/** @param {any} entry @returns {Preview} */
function preview(entry) {
  const { status } = entry;
  const exit = exitText(entry.exitStatus);
  const error = entry.error === undefined || entry.error === null ? "" : errorText(entry.error);
  const part = mainPart(entry);
  const isBad = ["failed", "lost"].includes(status);
  const said = WITH_REASON.has(status) ? [describeState(status).label, entry.reason || error].filter(Boolean).join(": ") : "";
  const report = entry.report?.text ?? "";
  let out = said ? firstLine(said) : "";
  if (status === "failed") out = exit && exit !== "exit 0" ? exit : firstLine(entry.reason || error);
  if (status === "completed") out = report ? firstLine(report) : exit && exit !== "exit 0" ? exit : resultLine(entry, part);
  const tone = isBad || (status === "completed" && (report || (exit && exit !== "exit 0"))) ? "bad" : "";
  const changes = part?.lines ? countChanges(part.lines) : "";
  if (status === "running") return { out: "", tone, changes, ...tail(entry.outputText ?? "", LIVE_LINES) };
  if (!PEEKED.has(status)) return { out, tone, changes, lines: 0, text: "" };
  if (part?.blob && part.extent !== "all") return { out, tone, changes, lines: PEEK_LINES, text: "" };
  const isText = part && !part.lines && !part.src && !part.block && !["binary", "json"].includes(displayKinds(part, entry)[0]);
  const printed = isText ? part.text : "";
  const text = [printed.trimEnd(), isErrorPrinted(entry) || printed.includes(error) ? "" : error].filter(Boolean).join("\n");
  const shown = text.trim() === out ? "" : text;
  return { out, tone, changes, ...tail(shown, PEEK_LINES) };
}

/** @param {string} text @param {number} most */
function tail(text, most) {
  const last = text.trim() ? lastLines(text, most).text : "";
  return { text: last, lines: last ? last.split("\n").length : 0 };
}

/** @type {WeakMap<object, Preview>} */
const known = new WeakMap();

/** Return the preview of a call. An entry is replaced when it changes, so it is computed once. @param {any} entry */
export function previewOf(entry) {
  const before = known.get(entry);
  if (before) return before;
  const made = preview(entry);
  known.set(entry, made);
  return made;
}
