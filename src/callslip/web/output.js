// What came out of a call: its parts, how each is best shown, and how much of it. A long output is shown by its end; the
// whole is fetched when somebody asks for it.

import { inert, isTerminal, looks, paint } from "./ansi.js";
import { compare, Diff, isDiff, parseDiff, tally } from "./diff.js";
import { JsonTree, oneLine, readJson } from "./jsontree.js";
import { isMarkdown, Markdown } from "./markdown.js";
import { Attached, Picture, pictureOf } from "./message.js";
import { html } from "./parts.js";
import { kept } from "./rows.js";
import { Copy } from "./copy.js";
import { address } from "./state.js";

/** @typedef {"terminal" | "diff" | "json" | "markdown" | "image" | "plain" | "block"} Kind */
/** @typedef {{label: string, text: string, value?: unknown, lines?: import("./diff.js").Line[], src?: string, block?: any, path?: string, folded?: boolean}} Part */

const TAIL = 12;
const LINE = 4000;
const FULL = 300_000;

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
  if (block?.type === "diff") return { label: "Changes", text: String(block.newText ?? ""), lines: compare(String(block.oldText ?? ""), String(block.newText ?? "")), path: String(block.path ?? "") };
  const src = pictureOf(told);
  if (src) return { label: "Image", text: "", src };
  if (!told || told.type === "terminal" || textOf(told) !== undefined) return null;
  return { label: "Attached", text: "", block: told };
}

/** @param {unknown} value @returns {any[]} */
const blocksIn = (value) => (Array.isArray(value) ? value : []).filter((block) => block && typeof block === "object" && typeof block.type === "string");

/** @param {any} output */
const wrapped = (output) => (blocksIn(output?.content).length ? blocksIn(output.content) : blocksIn(output));

/** @param {unknown} value */
export const plain = (value) => (value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2));

/**
 * The parts of what came out. What the agent showed comes first; what it only recorded can be opened; nothing stands twice.
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
  const same = (/** @type {string} */ text) => text.trim() === shown.trim() || (!!result && text.trim() === result.trim());
  if (printed && !same(printed)) parts.push({ label: shown || result ? "Printed" : "Output", text: printed });
  if (shown) parts.push({ label: "Output", text: shown });
  else if (result) parts.push({ label: "Output", text: result, value });
  if (entry.error !== undefined && plain(entry.error) !== result) parts.push({ label: "Error", text: errorText(entry.error), value: typeof entry.error === "object" ? entry.error : undefined });
  if (shown && result && result.trim() !== shown.trim() && unfenced(result).trim() !== shown.trim()) parts.push({ label: "Raw output", text: result, value, folded: true });
  if (entry.progress !== undefined) parts.push({ label: "Progress", text: plain(entry.progress), value: typeof entry.progress === "object" ? entry.progress : undefined, folded: true });
  return parts;
}

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
const cut = (line) => (line.length > LINE ? `${line.slice(0, LINE / 2)} … ${(line.length - LINE).toLocaleString("en")} characters … ${line.slice(-LINE / 2)}` : line);

/** The last lines of a text, none of them too long, and how many are left out. @param {string} text @param {number} most */
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

/** @param {{text: string}} props */
export function Terminal({ text }) {
  const lines = paint(text);
  return html`<pre class="terminal" dir="ltr">${lines.map((line, at) => [...line.map((run) => (run.style ? html`<span style=${looks(run.style)}>${run.text}</span>` : run.text)), at < lines.length - 1 ? "\n" : ""])}</pre>`;
}

/** @param {{part: Part, kind: Kind, text: string, size: string}} props */
function Shown({ part, kind, text, size }) {
  if (kind === "image") return html`<${Picture} src=${part.src ?? ""} />`;
  if (kind === "block") return html`<${Attached} block=${part.block} />`;
  if (kind === "diff") return html`<${Diff} lines=${part.lines ?? parseDiff(part.text)} most=${size === "tail" ? 60 : 5000} />`;
  if (kind === "json") return html`<${JsonTree} value=${part.value ?? readJson(part.text)} />`;
  if (kind === "markdown") return html`<${Markdown} text=${part.text} />`;
  if (kind === "terminal") return html`<${Terminal} text=${text} />`;
  return html`<pre class="plain" dir="auto">${inert(text)}</pre>`;
}

/** One line of a part, for who only wants to know what it is about. @param {Part} part @param {Kind} kind */
function lineOf(part, kind) {
  if (kind === "diff") return `${part.path ?? ""} ${tally(part.lines ?? parseDiff(part.text))}`.trim();
  if (kind === "json") return oneLine(part.value ?? readJson(part.text));
  if (kind === "image" || kind === "block") return part.label;
  return paint(tailOf(part.text, 1).text).flat().map((run) => run.text).join("").slice(0, 500);
}

const NAMES = { terminal: "terminal", diff: "changes", json: "JSON", markdown: "markdown", image: "image", plain: "plain", block: "block" };
const SIZES = /** @type {const} */ ({ line: "one line", tail: "tail", full: "full" });

/** @param {{part: Part, entry: any, index: number}} props */
function PartView({ part, entry, index }) {
  const kinds = kindsOf(part, entry);
  const kindChoice = kept(entry.id, `kind ${index}`);
  const sizeChoice = kept(entry.id, `size ${index}`);
  const wholeChoice = kept(entry.id, `all ${index}`);
  const kind = /** @type {Kind} */ (kinds.includes(kindChoice.value) ? kindChoice.value : kinds[0]);
  const size = sizeChoice.value ?? (part.folded ? "line" : "tail");
  const tail = tailOf(part.text, TAIL);
  const hidden = size === "full" && !wholeChoice.value ? Math.max(0, part.text.length - FULL) : 0;
  const text = size === "tail" ? tail.text : part.text.slice(hidden).replace(/\n$/, "");
  const byLines = kind === "plain" || kind === "terminal";
  return html`<div class=${`part part-${kind} size-${size}`} role="group" aria-label=${part.label}>
    <div class="part-head"><p class="part-name">${part.label}${part.path && html` <code dir="auto">${inert(part.path)}</code>`}</p>
      <div class="tools">
        ${kinds.length > 1 && html`<select class="small-select" aria-label=${`Show ${part.label} as`} value=${kind} onChange=${(/** @type {any} */ event) => (kindChoice.value = event.currentTarget.value)}>${kinds.map((name) => html`<option value=${name} selected=${name === kind}>${NAMES[name]}</option>`)}</select>`}
        ${kind !== "image" && kind !== "block" && html`<select class="small-select" aria-label=${`How much of ${part.label}`} value=${size} onChange=${(/** @type {any} */ event) => (sizeChoice.value = event.currentTarget.value)}>${Object.entries(SIZES).map(([name, word]) => html`<option value=${name} selected=${name === size}>${word}</option>`)}</select>`}
        ${part.text && html`<${Copy} plain text=${part.text} label=${`Copy ${part.label.toLowerCase()}`}>copy<//>`}
      </div></div>
    ${size === "line" && html`<p class="one-line" dir="auto">${lineOf(part, kind)}</p>`}
    ${size === "tail" && byLines && tail.before > 0 && html`<p class="note"><button type="button" class="link" onClick=${() => (sizeChoice.value = "full")}>${tail.before.toLocaleString("en")} line${tail.before === 1 ? "" : "s"} before this</button></p>`}
    ${hidden > 0 && html`<p class="note"><button type="button" class="link" onClick=${() => (wholeChoice.value = true)}>${hidden.toLocaleString("en")} characters before this</button></p>`}
    ${size !== "line" && html`<div class="part-body" tabindex="0"><${Shown} part=${part} kind=${kind} text=${text} size=${size} /></div>`}
  </div>`;
}

// The whole of what was cut

/** A number of bytes. @param {number} count */
export function bytes(count) {
  if (count < 1000) return `${count} bytes`;
  return count < 1_000_000 ? `${(count / 1000).toFixed(1)} kB` : `${(count / 1_000_000).toFixed(1)} MB`;
}

const MOST = 20_000_000;

/** @param {any} entry */
async function loadWhole(entry) {
  const choice = kept(entry.id, "whole");
  choice.value = { asking: true };
  try {
    const answer = await fetch(address(`/v1/blobs/${encodeURIComponent(entry.blob.hash)}`));
    if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.detail ?? `the server answered ${answer.status}`);
    const text = await answer.text();
    choice.value = { output: entry.blob.media === "application/json" ? (readJson(text) ?? text) : text };
  } catch (error) {
    choice.value = { problem: String(/** @type {Error} */ (error).message) };
  }
}

/** @param {{entry: any, whole: any}} props */
function Cut({ entry, whole }) {
  if (!entry.truncated) return null;
  if (whole?.output !== undefined) return html`<p class="note">This is the whole output, ${bytes(entry.blob.size)}.</p>`;
  const size = entry.blob ? ` The whole has ${bytes(entry.blob.size)}.` : "";
  return html`<p class="note warn">The output is cut short here (truncated).${size}
    ${entry.blob && entry.blob.size <= MOST && html` <button type="button" class="button small" disabled=${!!whole?.asking} onClick=${() => loadWhole(entry)}>${whole?.asking ? "Loading…" : "Load the whole"}</button>`}
    ${entry.blob && html` <a href=${address(`/v1/blobs/${encodeURIComponent(entry.blob.hash)}`)} download=${`${entry.callId}.txt`}>Download</a>`}
    ${whole?.problem && html` <span role="alert">It did not come: ${whole.problem}</span>`}</p>`;
}

/** All that came out of a call. @param {{entry: any}} props */
export function Output({ entry }) {
  const whole = kept(entry.id, "whole").value;
  const shown = whole?.output !== undefined ? { ...entry, output: whole.output } : entry;
  const parts = partsOf(shown);
  return html`<div class="outputs">
    ${parts.map((part, index) => html`<${PartView} key=${part.label + index} part=${part} entry=${entry} index=${index} />`)}
    <${Cut} entry=${entry} whole=${whole} />
  </div>`;
}

/** What best tells what came out: changes and pictures before texts. @param {any} entry */
function mainPart(entry) {
  const parts = partsOf(entry).filter((part) => !part.folded && part.label !== "Error");
  return parts.find((part) => part.lines || part.src) ?? parts.at(-1);
}

/** Some of what came out, for a closed card: its end, or the beginning if the end is not here. @param {{entry: any, lines?: number}} props */
export function Preview({ entry, lines = 5 }) {
  const part = mainPart(entry);
  if (!part) return null;
  const [kind] = kindsOf(part, entry);
  if (kind === "image") return html`<${Picture} src=${part.src ?? ""} />`;
  if (kind === "diff") return html`<div class="preview"><p class="one-line" dir="auto">${lineOf(part, kind)}</p><${Diff} lines=${(part.lines ?? parseDiff(part.text)).filter(({ kind }) => kind === "add" || kind === "del").slice(0, lines)} /></div>`;
  if (kind === "json" || kind === "block") return html`<p class="preview one-line" dir="auto">${lineOf(part, kind)}</p>`;
  const { text, before } = entry.truncated ? { text: headOf(part.text, lines), before: 0 } : tailOf(part.text, lines);
  return html`<div class="preview">${before > 0 && html`<p class="note">… ${before.toLocaleString("en")} line${before === 1 ? "" : "s"} before this</p>`}
    ${kind === "terminal" ? html`<${Terminal} text=${text} />` : html`<pre class="plain" dir="auto">${inert(text)}</pre>`}
    ${entry.truncated && html`<p class="note">… cut short here${entry.blob ? `; the whole has ${bytes(entry.blob.size)}` : ""}</p>`}</div>`;
}
