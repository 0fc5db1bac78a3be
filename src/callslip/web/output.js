// What came out of a call: its parts, how each is best shown, and how much of it. A long output is shown by its end;
// the whole is fetched when somebody asks for it.

import { inert, looks, paint } from "./ansi.js";
import { Diff, parseDiff, tally } from "./diff.js";
import { JsonTree, oneLine, readJson } from "./jsontree.js";
import { Markdown } from "./markdown.js";
import { Attached, Picture } from "./message.js";
import { headOf, kindsOf, partsOf, tailOf } from "./outcome.js";
import { html } from "./ui.js";
import { kept } from "./row_state.js";
import { Copy } from "./copy.js";
import { address, whyNot } from "./state.js";

/** @typedef {import("./outcome.js").Kind} Kind */
/** @typedef {import("./outcome.js").Part} Part */

const TAIL = 12;
const FULL = 300_000;

/** @param {import("./ansi.js").Run} run */
const drawRun = ({ style, text }) => (style ? html`<span style=${looks(style)}>${text}</span>` : text);

/** @param {{text: string}} props */
export function Terminal({ text }) {
  const lines = paint(text);
  const last = lines.length - 1;
  const drawn = lines.map((line, at) => [line.map(drawRun), at < last ? "\n" : ""]);
  return html`<pre class="terminal" dir="ltr">${drawn}</pre>`;
}

/** @param {{part: Part, kind: Kind, text: string, size: string}} props */
function Shown({ part, kind, text, size }) {
  if (kind === "image") return html`<${Picture} src=${part.src ?? ""} />`;
  if (kind === "block") return html`<${Attached} block=${part.block} />`;
  if (kind === "diff") {
    return html`<${Diff} lines=${part.lines ?? parseDiff(part.text)} most=${size === "tail" ? 60 : 2000} />`;
  }
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

const NAMES = {
  terminal: "terminal", diff: "changes", json: "JSON", markdown: "markdown", image: "image", plain: "plain",
  block: "block",
};
const SIZES = /** @type {const} */ ({ line: "one line", tail: "tail", full: "full" });

/** @param {{label: string, choice: import("./row_state.js").Choice, value: string, among: [string, string][]}} props */
function Choose({ label, choice, value, among }) {
  const chosen = (/** @type {any} */ event) => (choice.value = event.currentTarget.value);
  return html`<select class="small-select" aria-label=${label} value=${value} onChange=${chosen}>
    ${among.map(([name, word]) => html`<option value=${name} selected=${name === value}>${word}</option>`)}</select>`;
}

/** @param {number} count */
const linesBefore = (count) => `${count.toLocaleString("en")} line${count === 1 ? "" : "s"} before this`;

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
    <div class="part-head">
      <p class="part-name">${part.label}${part.path && html` <code dir="auto">${inert(part.path)}</code>`}</p>
      <div class="tools">
        ${kinds.length > 1 && html`<${Choose} label=${`Show ${part.label} as`} choice=${kindChoice} value=${kind}
          among=${kinds.map((name) => [name, NAMES[name]])} />`}
        ${kind !== "image" && kind !== "block" && html`<${Choose} label=${`How much of ${part.label}`}
          choice=${sizeChoice} value=${size} among=${Object.entries(SIZES)} />`}
        ${part.text && html`<${Copy} plain text=${part.text} label=${`Copy ${part.label.toLowerCase()}`}>copy<//>`}
      </div></div>
    ${size === "line" && html`<p class="one-line" dir="auto">${lineOf(part, kind)}</p>`}
    ${size === "tail" && byLines && tail.before > 0 && html`<p class="note"><button type="button" class="link"
      onClick=${() => (sizeChoice.value = "full")}>${linesBefore(tail.before)}</button></p>`}
    ${hidden > 0 && html`<p class="note"><button type="button" class="link"
      onClick=${() => (wholeChoice.value = true)}>${hidden.toLocaleString("en")} characters before this</button></p>`}
    ${size !== "line" && html`<div class="part-body" tabindex="0">
      <${Shown} part=${part} kind=${kind} text=${text} size=${size} /></div>`}
  </div>`;
}

// The whole of what was cut

/** A number of bytes. @param {number} count */
export function bytes(count) {
  if (count < 1000) return `${count} bytes`;
  return count < 1_000_000 ? `${(count / 1000).toFixed(1)} kB` : `${(count / 1_000_000).toFixed(1)} MB`;
}

const MOST = 20_000_000;

/** Where the whole is. @param {any} entry */
const blobAt = (entry) => address(`/v1/blobs/${encodeURIComponent(entry.blob.hash)}`);

/** @param {any} entry */
async function loadWhole(entry) {
  const choice = kept(entry.id, "whole");
  const { hash } = entry.blob;
  choice.value = { hash, asking: true };
  try {
    const answer = await fetch(blobAt(entry));
    if (!answer.ok) throw new Error(await whyNot(answer));
    const text = await answer.text();
    choice.value = { hash, output: entry.blob.media === "application/json" ? (readJson(text) ?? text) : text };
  } catch (error) {
    choice.value = { hash, problem: String(/** @type {Error} */ (error).message) };
  }
}

/** @param {{entry: any, whole: any}} props */
function Cut({ entry, whole }) {
  if (!entry.truncated) return null;
  if (whole?.output !== undefined) {
    return html`<p class="note">This is the whole output, ${bytes(entry.blob.size)}.</p>`;
  }
  const size = entry.blob ? ` The whole has ${bytes(entry.blob.size)}.` : "";
  return html`<p class="note warn">The output is cut short here (truncated).${size}
    ${entry.blob && entry.blob.size <= MOST && html` <button type="button" class="button small"
      disabled=${!!whole?.asking} onClick=${() => loadWhole(entry)}>
      ${whole?.asking ? "Loading…" : "Load the whole"}</button>`}
    ${entry.blob && html` <a href=${blobAt(entry)} download=${`${entry.callId}.txt`}>Download</a>`}
    ${whole?.problem && html` <span role="alert">It did not come: ${whole.problem}</span>`}</p>`;
}

/** All that came out of a call. @param {{entry: any}} props */
export function Output({ entry }) {
  const got = kept(entry.id, "whole").value;
  const whole = got?.hash === entry.blob?.hash ? got : undefined; // In the past it had not come out yet.
  const shown = whole?.output !== undefined ? { ...entry, output: whole.output } : entry;
  const parts = partsOf(shown);
  return html`<div class="outputs">
    ${parts.map((part, index) => html`<${PartView} key=${part.label + index} part=${part} entry=${entry}
      index=${index} />`)}
    <${Cut} entry=${entry} whole=${whole} />
  </div>`;
}

/** What best tells what came out: changes and pictures before texts. @param {any} entry */
function mainPart(entry) {
  const parts = partsOf(entry).filter((part) => !part.folded && part.label !== "Error");
  return parts.find((part) => part.lines || part.src) ?? parts.at(-1);
}

/**
 * Some of what came out, for a closed card: its end, or the beginning if the end is not here.
 * @param {{entry: any, lines?: number}} props
 */
export function Preview({ entry, lines = 5 }) {
  const part = mainPart(entry);
  if (!part) return null;
  const [kind] = kindsOf(part, entry);
  if (kind === "image") return html`<${Picture} src=${part.src ?? ""} />`;
  if (kind === "diff") {
    const changed = (part.lines ?? parseDiff(part.text)).filter(({ kind }) => kind === "add" || kind === "del");
    return html`<div class="preview"><p class="one-line" dir="auto">${lineOf(part, kind)}</p>
      <${Diff} lines=${changed.slice(0, lines)} /></div>`;
  }
  if (kind === "json" || kind === "block") {
    return html`<p class="preview one-line" dir="auto">${lineOf(part, kind)}</p>`;
  }
  const { text, before } = entry.truncated ? { text: headOf(part.text, lines), before: 0 } : tailOf(part.text, lines);
  const cutShort = `… cut short here${entry.blob ? `; the whole has ${bytes(entry.blob.size)}` : ""}`;
  return html`<div class="preview">${before > 0 && html`<p class="note">… ${linesBefore(before)}</p>`}
    ${kind === "terminal"
      ? html`<${Terminal} text=${text} />` : html`<pre class="plain" dir="auto">${inert(text)}</pre>`}
    ${entry.truncated && html`<p class="note">${cutShort}</p>`}</div>`;
}
