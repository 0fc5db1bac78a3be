// The output of a call: each part in the format that fits it best. Of a long output only the end is displayed, and of a
// large one only the end is loaded; all of it is loaded on request.

import { inert, parseTerminal } from "./ansi.js";
import { Diff, parseDiff } from "./diff.js";
import {
  blobField, countBytes, decodeTail, formatBytes, hasStoredContent, knownOutput, storedBlobs,
} from "./full_output.js";
import { JsonTree, parseJson } from "./jsontree.js";
import { Markdown } from "./markdown.js";
import { Attachment, Image } from "./message.js";
import { contentText, displayKinds, firstLines, lastLines, outputParts } from "./outcome.js";
import { classes, html, useEffect } from "./ui.js";
import { IconButton } from "./frame.js";
import Log, { drawRun, findLines, LogTools, useLines } from "./log.js";
import { mainPart, summaryLine } from "./preview.js";
import { rowState } from "./row_state.js";
import { Copy } from "./copy.js";
import { fetchOrExplain, hasServer, pageUrl, readError } from "./state.js";
import { describeState } from "./states.js";

/** @typedef {import("./outcome.js").Kind} Kind */
/** @typedef {import("./row_state.js").RowState} RowState */
/** @typedef {import("./outcome.js").Part} Part */

const IN_PLACE_LINES = 8;

/** @param {{text: string}} props */
export function Terminal({ text }) {
  const lines = parseTerminal(text);
  const last = lines.length - 1;
  const drawn = lines.map((line, at) => [line.map(drawRun), at < last ? "\n" : ""]);
  return html`<pre class="terminal" dir="ltr">${drawn}</pre>`;
}

const BINARY_NOTE = "Binary output. Bytes that are not text were replaced when it was recorded.";

/** A part that is no text: a change, a tree, an image. @param {{part: Part, kind: Kind, most: number}} props */
function PartBody({ part, kind, most }) {
  if (kind === "image") return html`<${Image} src=${part.src ?? ""} />`;
  if (kind === "block") return html`<${Attachment} block=${part.block} />`;
  if (kind === "binary") return html`<p class="note">${BINARY_NOTE}</p>`;
  if (kind === "diff") return html`<${Diff} lines=${part.lines ?? parseDiff(part.text)} most=${most} />`;
  if (kind === "json") return html`<${JsonTree} value=${part.value ?? parseJson(part.text)} />`;
  return html`<${Markdown} text=${part.text} />`;
}

const KIND_LABELS = {
  terminal: "Terminal", diff: "Changes", json: "JSON", markdown: "Markdown", image: "Image", plain: "Plain text",
  block: "Block", binary: "Binary",
};
const WITH_LINES = new Set(["plain", "terminal"]);
const MOST_CHANGES = 2000;
const MAX_MARKDOWN_CHARS = 200_000;

/** @param {{label: string, choice: RowState, value: string, among: [string, string][]}} props */
function Select({ label, choice, value, among }) {
  const onChange = (/** @type {any} */ event) => (choice.value = event.currentTarget.value);
  return html`<select class="small-select" aria-label=${label} value=${value} onChange=${onChange}>
    ${among.map(([name, text]) => html`<option value=${name} selected=${name === value}>${text}</option>`)}</select>`;
}

/** @param {Part} part @param {number} count */
function describeSize({ text, blob, extent }, count) {
  const isPart = !!extent && extent !== "all";
  return isPart ? "" : `${count.toLocaleString("en")} line${count === 1 ? "" : "s"}, ${formatBytes(blob && extent !== "all" ? blob.size : countBytes(text))}`;
}

/** A part of an output in the detail panel. @param {{part: Part, entry: any, index: number, loaded: any}} props */
function PartView({ part, entry, index, loaded }) {
  const kinds = displayKinds(part, entry).filter((kind) => kind !== "markdown" || part.text.length < MAX_MARKDOWN_CHARS);
  const kindState = rowState(entry.id, `kind ${index}`);
  const kind = /** @type {Kind} */ (kinds.includes(kindState.value) ? kindState.value : kinds[0]);
  const isLog = WITH_LINES.has(kind);
  const isFolded = rowState(entry.id, `folded ${index}`);
  const folded = isFolded.value ?? !!part.folded;
  const lines = useLines(isLog && !folded ? part.text : "");
  const found = findLines(lines, rowState(entry.id, `find ${part.label}`).value);
  const isEnd = part.extent === "end";
  const beginning = useLines(isEnd ? firstLines(String(entry[blobField(entry)] ?? ""), BEGINNING_LINES) : "");
  const fold = html`<button type="button" class="link" aria-expanded=${String(!folded)}
    onClick=${() => (isFolded.value = !folded)}>${folded ? "Show" : "Hide"}</button>`;
  const hole = isEnd && html`<span>${formatBytes(Math.max(0, part.blob.size - countBytes(part.text)))} hidden</span>`;
  return html`<div class=${classes("part", `part-${kind}`, isLog && !folded && "part-log")} role="group" aria-label=${part.label}>
    <div class="bar2"><span class="cut"><b>${part.label}</b>${part.path && html` <code dir="auto">${inert(part.path)}</code>`}${" "}
      ${folded ? summaryLine(part, kind) : isLog ? describeSize(part, lines.length) : ""}</span><span class="gap"></span>
      ${part.folded && fold}
      ${!folded && kinds.length > 1 && html`<${Select} label=${`${part.label} format`} choice=${kindState} value=${kind}
        among=${kinds.map((name) => [name, KIND_LABELS[name]])} />`}
      ${isLog && !folded && html`<${LogTools} id=${entry.id} name=${part.label} found=${found} />`}
      ${part.text && html`<${CopyPart} part=${part} entry=${entry} /><${Download} part=${part} entry=${entry} />`}
    </div>
    ${!folded && isLog && html`<${Log} id=${entry.id} name=${part.label} lines=${lines} found=${found}
      before=${isEnd ? beginning : null} hole=${hole} />`}
    ${!folded && !isLog && html`<div class="part-body" tabindex="0"><${PartBody} part=${part} kind=${kind} most=${MOST_CHANGES} /></div>`}
    ${index === 0 && html`<${OutputNotes} entry=${entry} loaded=${loaded} part=${part} />`}
  </div>`;
}

/** Of a large output, so many lines of its beginning are shown above its end. */
const BEGINNING_LINES = 20;

/** Download a part: what is stored of it, else what is shown. @param {{part: Part, entry: any}} props */
function Download({ part, entry }) {
  const name = `${entry.callId}.txt`;
  if (part.blob && hasServer.value) {
    return html`<a class="btn ghost icon" href=${blobUrl(part.blob)} download=${name} aria-label=${`Download ${part.label.toLowerCase()}`}
      title=${`Download ${part.label.toLowerCase()}`}><i class="i i-save" aria-hidden="true"></i></a>`;
  }
  const save = () => {
    const url = URL.createObjectURL(new Blob([part.text], { type: "text/plain" }));
    Object.assign(document.createElement("a"), { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };
  return html`<${IconButton} icon="save" label=${`Download ${part.label.toLowerCase()}`} onClick=${save} />`;
}

/** Copy all of an output, and say so if that is not possible. @param {{part: Part, entry: any}} props */
function CopyPart({ part, entry }) {
  const label = `Copy ${part.label.toLowerCase()}`;
  const isPart = !!part.extent && part.extent !== "all";
  if (isPart && !canLoad(entry)) {
    return html`<${Copy} plain text=${part.text} label=${`${label}: only what is shown`}
      done=${`Copied ${formatBytes(countBytes(part.text))} of ${formatSize(part)}`}>Copy shown part<//>`;
  }
  const icon = html`<i class="i i-copy" aria-hidden="true"></i>`;
  const readAll = async () => {
    const parts = outputParts(entry, await loadFullOutput(entry));
    // The beginning of a change is text; all of it is a part of another kind.
    return /** @type {Part} */ (parts.find((one) => one.label === part.label) ?? parts[0]).text;
  };
  const text = isPart ? readAll : part.text;
  const done = part.extent && entry.cutBytes > 0 ? `Copied without the ${formatBytes(entry.cutBytes)} that were cut` : "";
  return html`<${Copy} plain text=${text} label=${label} done=${done}>${icon}<//>`;
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

/** Say what is not shown of an output, and what was not kept. @param {{entry: any, loaded: any, part: Part}} props */
function OutputNotes({ entry, loaded, part }) {
  if (!part.extent || part.extent === "all") {
    return html`${part.extent && html`<p class="note">Full output, ${formatSize(part)}.</p>`}<${CutNote} entry=${entry} />`;
  }
  const size = formatSize(part);
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

/** The output of a call in the detail panel. @param {{entry: any}} props */
export function Output({ entry }) {
  const loaded = useLoadedOutput(entry);
  const parts = outputParts(entry, loaded);
  // What is stored elsewhere comes first, with a note of how much of it is shown.
  const stored = parts.find(({ extent }) => extent && extent !== "all") ?? parts.find(({ extent }) => extent) ?? parts[0];
  const order = [...parts].sort((one, other) => Number(other === stored) - Number(one === stored));
  return html`<div class="outputs">
    ${order.map((part, index) => html`<${PartView} key=${part.label + index} part=${part} entry=${entry} index=${index}
      loaded=${loaded} />`)}
    ${!order.length && html`<p class="none">${describeState(entry.status).isOpen ? "No output yet." : "No output."}</p>
      <${CutNote} entry=${entry} />`}
  </div>`;
}

/**
 * The output of a call that is open in place: changes, images, and the last lines of a text.
 * @param {{entry: any, onMore: () => void}} props
 */
export function OutputInPlace({ entry, onMore }) {
  const parts = outputParts(entry, useLoadedOutput(entry)).filter((part) => !part.folded);
  const more = (/** @type {string} */ text) => html`<p class="note">${text}${" "}
    <button type="button" class="link" onClick=${onMore}>Open in panel</button></p>`;
  return parts.map((part) => {
    const kind = displayKinds(part, entry)[0];
    if (!WITH_LINES.has(kind) && kind !== "markdown") return html`<${PartBody} part=${part} kind=${kind} most=${60} />`;
    if (part.extent === "beginning") {
      return html`<${Terminal} text=${firstLines(part.text, IN_PLACE_LINES)} />${more(`The beginning of ${formatSize(part)}.${
        hasServer.value ? "" : " This file does not contain the rest."}`)}`;
    }
    const { text, before } = lastLines(part.text, IN_PLACE_LINES);
    const hidden = part.extent === "end" ? `The end of ${formatSize(part)}.`
      : before > 0 ? `${before.toLocaleString("en")} earlier line${before === 1 ? "" : "s"} hidden.` : "";
    return html`${hidden && more(hidden)}<${Terminal} text=${text} />`;
  });
}

/** The last lines of an output that must be loaded first. @param {{entry: any, lines: number}} props */
export function LoadedPeek({ entry, lines }) {
  const part = mainPart(entry, useLoadedOutput(entry));
  return html`<${Terminal} text=${part ? lastLines(part.text, lines).text : ""} />`;
}
