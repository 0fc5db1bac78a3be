// The output of a call: each part in the format that fits it best. Of a long output only the end is displayed, and of a
// large one only the end is loaded; all of it is loaded on request.

import { inert, styleProperties, parseTerminal } from "./ansi.js";
import { Diff, parseDiff, countChanges } from "./diff.js";
import {
  blobField, countBytes, decodeTail, formatBytes, hasStoredContent, knownOutput, storedBlobs,
} from "./full_output.js";
import { JsonTree, oneLine, parseJson } from "./jsontree.js";
import { Markdown } from "./markdown.js";
import { Attachment, Image } from "./message.js";
import { contentText, displayKinds, firstLines, lastLines, outputParts } from "./outcome.js";
import { html, useEffect } from "./ui.js";
import { rowState } from "./row_state.js";
import { Copy } from "./copy.js";
import { fetchOrExplain, hasServer, pageUrl, readError } from "./state.js";

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

const BINARY_NOTE = "Binary output. Bytes that are not text were replaced when it was recorded.";

/** @param {{part: Part, kind: Kind, text: string, size: string}} props */
function PartBody({ part, kind, text, size }) {
  if (kind === "image") return html`<${Image} src=${part.src ?? ""} />`;
  if (kind === "block") return html`<${Attachment} block=${part.block} />`;
  if (kind === "binary") return html`<p class="note">${BINARY_NOTE}</p>`;
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
  if (kind === "binary") return "Binary output";
  return parseTerminal(lastLines(part.text, 1).text).flat().map((run) => run.text).join("").slice(0, 500);
}

const KIND_LABELS = {
  terminal: "Terminal", diff: "Changes", json: "JSON", markdown: "Markdown", image: "Image", plain: "Plain text",
  block: "Block", binary: "Binary",
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
  const isBeginning = part.extent === "beginning";
  const shortText = isBeginning ? firstLines(part.text, TAIL_LINES) : tail.text;
  const text = size === "tail" ? shortText : part.text.slice(hidden).replace(/\n$/, "");
  const byLines = kind === "plain" || kind === "terminal";
  const needsAll = size === "full" && !!part.extent && part.extent !== "all";
  useEffect(() => {
    if (needsAll && canLoad(entry)) loadFullOutput(entry).catch(() => {}); // The note shows the problem.
  }, [needsAll]);
  const sizes = Object.entries({ ...SIZE_LABELS, ...(isBeginning && { tail: "First lines" }) });
  return html`<div class=${`part part-${kind} size-${size}`} role="group" aria-label=${part.label}>
    <div class="part-head">
      <p class="part-name">${part.label}${part.path && html` <code dir="auto">${inert(part.path)}</code>`}</p>
      <div class="tools">
        ${kinds.length > 1 && html`<${Select} label=${`${part.label} format`} choice=${kindState} value=${kind}
          among=${kinds.map((name) => [name, KIND_LABELS[name]])} />`}
        ${kind !== "image" && kind !== "block" && kind !== "binary" && html`<${Select} label=${`${part.label} length`}
          choice=${sizeState} value=${size} among=${sizes} />`}
        ${part.text && html`<${CopyPart} part=${part} entry=${entry} />`}
      </div></div>
    ${size === "line" && html`<p class="one-line" dir="auto">${summaryLine(part, kind)}</p>`}
    ${size === "tail" && byLines && tail.before > 0 && (part.extent ?? "all") === "all" && html`<p class="note">
      <button type="button" class="link" onClick=${() => (sizeState.value = "full")}>Show ${earlierLines(tail.before)}
      </button></p>`}
    ${hidden > 0 && html`<p class="note"><button type="button" class="link"
      onClick=${() => (showAllState.value = true)}>Show ${hidden.toLocaleString("en")} earlier characters</button></p>`}
    ${size !== "line" && html`<div class="part-body" tabindex="0">
      <${PartBody} part=${part} kind=${kind} text=${text} size=${size} /></div>`}
  </div>`;
}

/** Copy all of an output, and say so if that is not possible. @param {{part: Part, entry: any}} props */
function CopyPart({ part, entry }) {
  const label = `Copy ${part.label.toLowerCase()}`;
  const isPart = !!part.extent && part.extent !== "all";
  if (isPart && !canLoad(entry)) {
    return html`<${Copy} plain text=${part.text} label=${`${label}: only what is shown`}
      done=${`Copied ${formatBytes(countBytes(part.text))} of ${formatSize(part)}`}>Copy shown part<//>`;
  }
  const readAll = async () => {
    const parts = outputParts(entry, await loadFullOutput(entry));
    // The beginning of a change is text; all of it is a part of another kind.
    return /** @type {Part} */ (parts.find((one) => one.label === part.label) ?? parts[0]).text;
  };
  const text = isPart ? readAll : part.text;
  const done = part.extent && entry.cutBytes > 0 ? `Copied without the ${formatBytes(entry.cutBytes)} that were cut` : "";
  return html`<${Copy} plain text=${text} label=${label} done=${done}>Copy<//>`;
}

// Large output

/** The page loads at most so much of an output; more can be downloaded. */
const MAX_LOAD_BYTES = 20_000_000;
/** JSON has no useful end, so it is loaded as a whole up to this size without being asked for. */
const MAX_JSON_BYTES = 2_000_000;
const TAIL_BYTES = 64 * 1024;

/** @param {any} blob */
const blobUrl = (blob) => pageUrl(`/v1/blobs/${encodeURIComponent(blob.hash)}`);

/** Identify what is stored outside of an entry, "" for nothing. @param {any} entry */
const storedHash = ({ blob, contentBlob }) => [contentBlob?.hash, blob?.hash].join(" ").trim();

/** @param {any} entry @returns {number} */
const storedSize = (entry) => storedBlobs(entry).reduce((sum, { size }) => sum + size, 0);

/** @param {any} blob */
const isJsonBlob = (blob) => blob.media === "application/json";

/**
 * Return the fields of an entry that a blob contains.
 * @param {any} entry @param {any} blob @param {any} value @returns {Record<string, unknown>}
 */
function blobValues(entry, { hash, fields = [] }, value) {
  const values = fields.length > 1 ? value : { [fields[0] ?? blobField(entry)]: value };
  if (hash !== entry.blob?.hash) return { content: values.content }; // The output is another one.
  // The output of a call without another one is the text of its content, and was shortened with it.
  const isText = values.content && entry.output === contentText(entry.content);
  return isText ? { ...values, output: contentText(values.content) } : values;
}

/** @param {any} entry */
const canLoad = (entry) => hasServer.value && storedBlobs(entry).length > 0 && storedSize(entry) <= MAX_LOAD_BYTES;

/** @param {any} blob @param {Record<string, string>} [headers] */
async function fetchBlob(blob, headers) {
  const response = await fetchOrExplain(blobUrl(blob), { headers });
  if (!response.ok) throw new Error(await readError(response));
  return response;
}

/** Loads in progress, by output and part. @type {Map<string, Promise<any>>} */
const pendingLoads = new Map();

/**
 * Load a part of an output unless that was done, and keep it with the row. Throws if it cannot be loaded.
 * @param {any} entry @param {"output" | "tail"} part @param {() => Promise<Record<string, unknown>>} load
 */
function loadPart(entry, part, load) {
  const hash = storedHash(entry);
  const key = `${entry.id} ${hash} ${part}`;
  const state = rowState(entry.id, "full output");
  const current = () => (state.peek()?.hash === hash ? state.peek() : { hash });
  const start = async () => {
    state.value = { ...current(), isLoading: true, problem: "" };
    let update = {};
    try {
      update = await load();
    } catch (error) {
      update = { problem: String(/** @type {Error} */ (error).message) };
      throw error;
    } finally {
      pendingLoads.delete(key);
      state.value = { ...current(), ...update, isLoading: false };
    }
    return state.value;
  };
  if (current()[part] !== undefined) return Promise.resolve(current());
  const pending = pendingLoads.get(key) ?? start();
  pendingLoads.set(key, pending);
  return pending;
}

/** @param {any} blob */
async function readBlob(blob) {
  const text = await (await fetchBlob(blob)).text();
  if (!isJsonBlob(blob)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** @param {any} entry */
async function readFullOutput(entry) {
  if (!hasStoredContent(entry)) return { output: await readBlob(entry.blob) };
  const read = async (/** @type {any} */ blob) => blobValues(entry, blob, await readBlob(blob));
  const values = Object.assign({}, ...(await Promise.all(storedBlobs(entry).map(read))));
  return { output: values.output ?? null, values };
}

/** @param {any} entry */
const loadFullOutput = (entry) => loadPart(entry, "output", () => readFullOutput(entry));

/** @param {any} entry */
const loadTail = (entry) =>
  loadPart(entry, "tail", async () => {
    const response = await fetchBlob(entry.blob, { range: `bytes=-${TAIL_BYTES}` });
    if (response.status !== 206) return { output: await response.text() };
    return { tail: decodeTail(new Uint8Array(await response.arrayBuffer())) };
  });

/**
 * Return what is loaded of a large output, and load its end.
 * @param {any} entry @returns {import("./full_output.js").Loaded & {isLoading?: boolean, problem?: string}}
 */
function useLoadedOutput(entry) {
  const saved = rowState(entry.id, "full output").value;
  const hash = storedHash(entry);
  // A past moment may have had another output, and an exported file has no more than its entries.
  const loaded = hasServer.value && saved?.hash === hash ? saved : undefined;
  const hasTail = !hasStoredContent(entry) && !!entry.blob && !isJsonBlob(entry.blob);
  const isPart = hasStoredContent(entry) || knownOutput(entry).extent !== "all";
  const isWanted = hasServer.value && !!hash && !loaded && isPart;
  useEffect(() => {
    if (!isWanted) return;
    const loading = hasTail ? loadTail(entry) : storedSize(entry) <= MAX_JSON_BYTES ? loadFullOutput(entry) : null;
    loading?.catch(() => {}); // The note shows the problem.
  }, [isWanted, hash]);
  return loaded ?? {};
}

/** Say what is not shown of an output, and what was not kept. @param {{entry: any, loaded: any, parts: Part[]}} props */
function OutputNotes({ entry, loaded, parts }) {
  const part = parts.find(({ extent }) => extent && extent !== "all") ?? parts.find(({ extent }) => extent);
  const size = part && formatSize(part);
  if (!part || part.extent === "all") {
    return html`${part && html`<p class="note">Full output, ${size}.</p>`}<${CutNote} entry=${entry} />`;
  }
  const isEnd = part.extent === "end";
  return html`<p class="note">${isEnd ? "The end" : "The beginning"} of ${size}.
      ${hasServer.value ? "" : " This file does not contain the rest."}
      ${canLoad(entry) && html` <button type="button" class="button small"
        disabled=${!!loaded.isLoading} onClick=${() => loadFullOutput(entry).catch(() => {})}>
        ${loaded.isLoading ? "Loading…" : "Load full output"}</button>`}
      ${hasServer.value && storedBlobs(entry).map((blob) => html` <a href=${blobUrl(blob)}
        download=${`${entry.callId}.txt`}>${blob.hash === part.blob.hash ? "Download" : "Download raw output"}</a>`)}
      ${loaded.problem && html` <span class="warn" role="alert">Could not load: ${loaded.problem}</span>`}</p>
    <${CutNote} entry=${entry} />`;
}

/** Return the size of an output: of its text, or of the JSON that contains it. @param {Part} part */
function formatSize({ text, value, extent, blob }) {
  if (!isJsonBlob(blob)) return formatBytes(blob.size);
  return extent === "all" && value === undefined ? formatBytes(countBytes(text)) : `${formatBytes(blob.size)} of JSON`;
}

/** What was cut for good. @param {{entry: any}} props */
function CutNote({ entry }) {
  if (entry.cutBytes > 0) {
    return html`<p class="note warn">${formatBytes(entry.cutBytes)} in the middle of the output were cut when the tool ran.
      They were not stored.</p>`;
  }
  return entry.truncated && !entry.blob ? html`<p class="note warn">Truncated. The rest was not stored.</p>` : null;
}

/** The output of an open card. @param {{entry: any}} props */
export function Output({ entry }) {
  const loaded = useLoadedOutput(entry);
  const parts = outputParts(entry, loaded);
  return html`<div class="outputs">
    ${parts.map((part, index) => html`<${PartView} key=${part.label + index} part=${part} entry=${entry}
      index=${index} />`)}
    <${OutputNotes} entry=${entry} loaded=${loaded} parts=${parts} />
  </div>`;
}

/** Return the part to preview: changes and images before text. @param {any} entry @param {any} loaded */
function mainPart(entry, loaded) {
  const parts = outputParts(entry, loaded).filter((part) => !part.folded && part.label !== "Error");
  return parts.find((part) => part.lines || part.src) ?? parts.at(-1);
}

/**
 * A few lines of the output, for a closed card: the last ones, or the first ones if the end is not known.
 * @param {{entry: any, lines?: number}} props
 */
export function Preview({ entry, lines = 5 }) {
  const part = mainPart(entry, useLoadedOutput(entry));
  if (!part) return null;
  const [kind] = displayKinds(part, entry);
  if (kind === "image") return html`<${Image} src=${part.src ?? ""} />`;
  if (kind === "diff") {
    const changedLines = (part.lines ?? parseDiff(part.text)).filter(({ kind }) => kind === "add" || kind === "del");
    return html`<div class="preview"><p class="one-line" dir="auto">${summaryLine(part, kind)}</p>
      <${Diff} lines=${changedLines.slice(0, lines)} /></div>`;
  }
  if (kind === "json" || kind === "block" || kind === "binary") {
    return html`<p class="preview one-line" dir="auto">${summaryLine(part, kind)}</p>`;
  }
  const isBeginning = part.extent === "beginning";
  const { text, before } = isBeginning
    ? { text: firstLines(part.text, lines), before: 0 } : lastLines(part.text, lines);
  const beforeNote =
    part.extent === "end" ? `… the end of ${formatSize(part)}` : before > 0 ? `… ${earlierLines(before)}` : "";
  return html`<div class="preview">${beforeNote && html`<p class="note">${beforeNote}</p>`}
    ${kind === "terminal"
      ? html`<${Terminal} text=${text} />` : html`<pre class="plain" dir="auto">${inert(text)}</pre>`}
    ${isBeginning && html`<p class="note">… the beginning of ${formatSize(part)}</p>`}</div>`;
}
