// The output of a call: each part in the format that fits it best. Of a long output only the end is displayed; the full
// output is loaded on request.

import { inert, styleProperties, parseTerminal } from "./ansi.js";
import { Diff, parseDiff, countChanges } from "./diff.js";
import { JsonTree, oneLine, parseJson } from "./jsontree.js";
import { Markdown } from "./markdown.js";
import { Attachment, Image } from "./message.js";
import { contentText, displayKinds, firstLines, lastLines, outputParts } from "./outcome.js";
import { html } from "./ui.js";
import { rowState } from "./row_state.js";
import { Copy } from "./copy.js";
import { pageUrl, readError } from "./state.js";

/** @typedef {import("./outcome.js").Kind} Kind */
/** @typedef {import("./row_state.js").RowState} RowState */
/** @typedef {import("./outcome.js").Part} Part */

const TAIL_LINES = 12;
const MAX_FULL_CHARS = 300_000;

/** @param {import("./ansi.js").Run} run */
const drawRun = ({ style, text }) => (style ? html`<span style=${styleProperties(style)}>${text}</span>` : text);

/** @param {{text: string}} props */
export function Terminal({ text }) {
  const lines = parseTerminal(text);
  const last = lines.length - 1;
  const drawn = lines.map((line, at) => [line.map(drawRun), at < last ? "\n" : ""]);
  return html`<pre class="terminal" dir="ltr">${drawn}</pre>`;
}

/** @param {{part: Part, kind: Kind, text: string, size: string}} props */
function PartBody({ part, kind, text, size }) {
  if (kind === "image") return html`<${Image} src=${part.src ?? ""} />`;
  if (kind === "block") return html`<${Attachment} block=${part.block} />`;
  if (kind === "diff") {
    return html`<${Diff} lines=${part.lines ?? parseDiff(part.text)} most=${size === "tail" ? 60 : 2000} />`;
  }
  if (kind === "json") return html`<${JsonTree} value=${part.value ?? parseJson(part.text)} />`;
  if (kind === "markdown") return html`<${Markdown} text=${part.text} />`;
  if (kind === "terminal") return html`<${Terminal} text=${text} />`;
  return html`<pre class="plain" dir="auto">${inert(text)}</pre>`;
}

/** Summarize a part in one line. @param {Part} part @param {Kind} kind */
function summaryLine(part, kind) {
  if (kind === "diff") return `${part.path ?? ""} ${countChanges(part.lines ?? parseDiff(part.text))}`.trim();
  if (kind === "json") return oneLine(part.value ?? parseJson(part.text));
  if (kind === "image" || kind === "block") return part.label;
  return parseTerminal(lastLines(part.text, 1).text).flat().map((run) => run.text).join("").slice(0, 500);
}

const KIND_LABELS = {
  terminal: "Terminal", diff: "Changes", json: "JSON", markdown: "Markdown", image: "Image", plain: "Plain text",
  block: "Block",
};
const SIZE_LABELS = /** @type {const} */ ({ line: "One line", tail: "Last lines", full: "Full" });

/** @param {{label: string, choice: RowState, value: string, among: [string, string][]}} props */
function Select({ label, choice, value, among }) {
  const onChange = (/** @type {any} */ event) => (choice.value = event.currentTarget.value);
  return html`<select class="small-select" aria-label=${label} value=${value} onChange=${onChange}>
    ${among.map(([name, text]) => html`<option value=${name} selected=${name === value}>${text}</option>`)}</select>`;
}

/** @param {number} count */
const earlierLines = (count) => `${count.toLocaleString("en")} earlier line${count === 1 ? "" : "s"}`;

/** @param {{part: Part, entry: any, index: number}} props */
function PartView({ part, entry, index }) {
  const kinds = displayKinds(part, entry);
  const kindState = rowState(entry.id, `kind ${index}`);
  const sizeState = rowState(entry.id, `size ${index}`);
  const showAllState = rowState(entry.id, `all ${index}`);
  const kind = /** @type {Kind} */ (kinds.includes(kindState.value) ? kindState.value : kinds[0]);
  const size = sizeState.value ?? (part.folded ? "line" : "tail");
  const tail = lastLines(part.text, TAIL_LINES);
  const hidden = size === "full" && !showAllState.value ? Math.max(0, part.text.length - MAX_FULL_CHARS) : 0;
  const text = size === "tail" ? tail.text : part.text.slice(hidden).replace(/\n$/, "");
  const byLines = kind === "plain" || kind === "terminal";
  return html`<div class=${`part part-${kind} size-${size}`} role="group" aria-label=${part.label}>
    <div class="part-head">
      <p class="part-name">${part.label}${part.path && html` <code dir="auto">${inert(part.path)}</code>`}</p>
      <div class="tools">
        ${kinds.length > 1 && html`<${Select} label=${`${part.label} format`} choice=${kindState} value=${kind}
          among=${kinds.map((name) => [name, KIND_LABELS[name]])} />`}
        ${kind !== "image" && kind !== "block" && html`<${Select} label=${`${part.label} length`}
          choice=${sizeState} value=${size} among=${Object.entries(SIZE_LABELS)} />`}
        ${part.text && html`<${Copy} plain text=${part.text} label=${`Copy ${part.label.toLowerCase()}`}>Copy<//>`}
      </div></div>
    ${size === "line" && html`<p class="one-line" dir="auto">${summaryLine(part, kind)}</p>`}
    ${size === "tail" && byLines && tail.before > 0 && html`<p class="note"><button type="button" class="link"
      onClick=${() => (sizeState.value = "full")}>Show ${earlierLines(tail.before)}</button></p>`}
    ${hidden > 0 && html`<p class="note"><button type="button" class="link"
      onClick=${() => (showAllState.value = true)}>Show ${hidden.toLocaleString("en")} earlier characters</button></p>`}
    ${size !== "line" && html`<div class="part-body" tabindex="0">
      <${PartBody} part=${part} kind=${kind} text=${text} size=${size} /></div>`}
  </div>`;
}

// Truncated output

/** Format a number of bytes. @param {number} count */
export function formatBytes(count) {
  if (count < 1000) return `${count} bytes`;
  return count < 1_000_000 ? `${(count / 1000).toFixed(1)} kB` : `${(count / 1_000_000).toFixed(1)} MB`;
}

const MAX_LOAD_BYTES = 20_000_000;

/** Return the URL of the full output. @param {any} entry */
const blobUrl = (entry) => pageUrl(`/v1/blobs/${encodeURIComponent(entry.blob.hash)}`);

/**
 * Return the fields of an entry that a blob contains: the output, or those that the blob names.
 * @param {any} entry @param {any} value
 */
function fullFields(entry, value) {
  const fields = entry.blob.fields ?? ["output"];
  const full = fields.length > 1 ? value : { [fields[0]]: value };
  // The output of a call without another one is the text of its content, and was shortened with it.
  const isText = full.content && entry.output === contentText(entry.content);
  return { values: isText ? { ...full, output: contentText(full.content) } : full };
}

/** @param {any} entry */
async function loadFullOutput(entry) {
  const state = rowState(entry.id, "full output");
  const { hash } = entry.blob;
  state.value = { hash, isLoading: true };
  try {
    const response = await fetch(blobUrl(entry));
    if (!response.ok) throw new Error(await readError(response));
    const text = await response.text();
    const value = entry.blob.media === "application/json" ? (parseJson(text) ?? text) : text;
    state.value = { hash, ...fullFields(entry, value) };
  } catch (error) {
    state.value = { hash, problem: String(/** @type {Error} */ (error).message) };
  }
}

/** @param {{entry: any, full: any}} props */
function TruncatedNote({ entry, full }) {
  if (!entry.truncated) return null;
  if (full?.values) {
    return html`<p class="note">Full output, ${formatBytes(entry.blob.size)}.</p>`;
  }
  const size = entry.blob ? ` Full output: ${formatBytes(entry.blob.size)}.` : "";
  return html`<p class="note warn">Truncated.${size}
    ${entry.blob && entry.blob.size <= MAX_LOAD_BYTES && html` <button type="button" class="button small"
      disabled=${!!full?.isLoading} onClick=${() => loadFullOutput(entry)}>
      ${full?.isLoading ? "Loading…" : "Load full output"}</button>`}
    ${entry.blob && html` <a href=${blobUrl(entry)} download=${`${entry.callId}.txt`}>Download</a>`}
    ${full?.problem && html` <span role="alert">Could not load: ${full.problem}</span>`}</p>`;
}

/** The output of an open card. @param {{entry: any}} props */
export function Output({ entry }) {
  const saved = rowState(entry.id, "full output").value;
  const full = saved?.hash === entry.blob?.hash ? saved : undefined; // A past moment may have had another output.
  const shownEntry = full?.values ? { ...entry, ...full.values } : entry;
  const parts = outputParts(shownEntry);
  return html`<div class="outputs">
    ${parts.map((part, index) => html`<${PartView} key=${part.label + index} part=${part} entry=${entry}
      index=${index} />`)}
    <${TruncatedNote} entry=${entry} full=${full} />
  </div>`;
}

/** Return the part to preview: changes and images before text. @param {any} entry */
function mainPart(entry) {
  const parts = outputParts(entry).filter((part) => !part.folded && part.label !== "Error");
  return parts.find((part) => part.lines || part.src) ?? parts.at(-1);
}

/**
 * A few lines of the output, for a closed card: the last ones, or the first ones if the end was truncated.
 * @param {{entry: any, lines?: number}} props
 */
export function Preview({ entry, lines = 5 }) {
  const part = mainPart(entry);
  if (!part) return null;
  const [kind] = displayKinds(part, entry);
  if (kind === "image") return html`<${Image} src=${part.src ?? ""} />`;
  if (kind === "diff") {
    const changedLines = (part.lines ?? parseDiff(part.text)).filter(({ kind }) => kind === "add" || kind === "del");
    return html`<div class="preview"><p class="one-line" dir="auto">${summaryLine(part, kind)}</p>
      <${Diff} lines=${changedLines.slice(0, lines)} /></div>`;
  }
  if (kind === "json" || kind === "block") {
    return html`<p class="preview one-line" dir="auto">${summaryLine(part, kind)}</p>`;
  }
  const { text, before } =
    entry.truncated ? { text: firstLines(part.text, lines), before: 0 } : lastLines(part.text, lines);
  const truncatedText = `… Truncated${entry.blob ? `; full output: ${formatBytes(entry.blob.size)}` : ""}`;
  return html`<div class="preview">${before > 0 && html`<p class="note">… ${earlierLines(before)}</p>`}
    ${kind === "terminal"
      ? html`<${Terminal} text=${text} />` : html`<pre class="plain" dir="auto">${inert(text)}</pre>`}
    ${entry.truncated && html`<p class="note">${truncatedText}</p>`}</div>`;
}
