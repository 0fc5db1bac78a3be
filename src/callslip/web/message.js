// The entries of a conversation that are no calls: messages, thoughts, plans, and notes of what changed.

import { inert } from "./ansi.js";
import { JsonTree } from "./jsontree.js";
import { Markdown } from "./markdown.js";
import { classes, html } from "./ui.js";
import { safeLink } from "./markdown_parser.js";
import { kept } from "./row_state.js";
import { exactly, timeOf } from "./time.js";

/** @param {{at?: number}} props */
export const Time = ({ at }) =>
  at ? html`<time class="when" dateTime=${exactly(at)} title=${exactly(at)}>${timeOf(at)}</time>` : null;

/** @param {{entry: any}} props */
export function Message({ entry }) {
  const user = entry.role === "user";
  return html`<div class=${classes("message", user ? "from-user" : "from-agent", entry.streaming && "streaming")}>
    <p class="who"><b>${user ? "You" : entry.role === "assistant" ? "Agent" : inert(entry.role ?? "")}</b>${" "}
      <${Time} at=${entry.at} />${entry.streaming && html` <span class="state is-running">● writing</span>`}</p>
    <${Prose} id=${entry.id} text=${entry.content ?? ""} />
    <${Blocks} blocks=${entry.blocks} />
  </div>`;
}

/** Nobody reads more than this at once: characters, and lines. */
const MUCH = 20_000;
const MANY = 300;

/** The beginning of a text; all of it, if it is not very long. @param {string} text */
function beginning(text) {
  const begun = text.slice(0, MUCH).split("\n").slice(0, MANY).join("\n");
  return begun.length < text.length ? begun.replace(/[\ud800-\udbff]$/, "") : text;
}

/** A text; of a very long one its beginning, and the rest for who asks. @param {{id: number, text: string}} props */
function Prose({ id, text }) {
  const whole = kept(id, "whole text");
  const begun = beginning(text);
  if (begun === text) return html`<${Markdown} text=${text} />`;
  if (whole.value) return html`<div class="whole" tabindex="0"><${Markdown} text=${text} /></div>`;
  const left = (text.length - begun.length).toLocaleString("en");
  return html`<${Markdown} text=${begun} /><p class="note">
    <button type="button" class="link" onClick=${() => (whole.value = true)}>… ${left} more characters</button></p>`;
}

const IMAGE = /^image\/(png|jpeg|gif|webp|avif|bmp)$/;

/** The address of a picture that stands in a block, or undefined. @param {any} block */
export function pictureOf(block) {
  const told = block?.content?.type ? block.content : block;
  const type = told?.mimeType ?? told?.mime_type ?? told?.mediaType ?? told?.source?.media_type;
  const data = told?.data ?? told?.source?.data ?? told?.blob;
  const harmless = IMAGE.test(type ?? "image/png") && typeof data === "string" && /^[A-Za-z0-9+/=\s]+$/.test(data);
  if (told?.type === "image" && harmless) {
    return `data:${type ?? "image/png"};base64,${data.replace(/\s/g, "")}`;
  }
  return undefined;
}

/** @param {{src: string}} props */
export const Picture = ({ src }) =>
  html`<img class="picture" src=${src} alt="An image that came with it" loading="lazy" />`;

/** What came with a message beside its text. @param {{blocks: unknown}} props */
function Blocks({ blocks }) {
  if (!Array.isArray(blocks)) return null;
  const others = blocks.filter((block) => block?.type && block.type !== "text");
  if (!others.length) return null;
  return html`<div class="attached">${others.map((block) => html`<${Attached} block=${block} />`)}</div>`;
}

/** @param {{block: any}} props */
export function Attached({ block }) {
  const src = pictureOf(block);
  if (src) return html`<${Picture} src=${src} />`;
  const address = block.uri ?? block.resource?.uri ?? block.url;
  const name = inert(String(block.title ?? block.name ?? address ?? block.type));
  if (typeof address === "string" && safeLink(address)) {
    return html`<a href=${address} target="_blank" rel="noopener noreferrer nofollow" dir="auto">${name}</a>`;
  }
  if (typeof address === "string") return html`<code class="foreign" dir="auto" title=${inert(address)}>${name}</code>`;
  return html`<${JsonTree} value=${block} />`;
}

/**
 * A line that opens.
 * @param {{id: number, what?: string, head: any, children?: any, class?: string}} props
 */
export function Fold({ id, what = "open", head, children, class: css }) {
  const choice = kept(id, what);
  const open = !!choice.value;
  return html`<div class=${classes("fold", css)}>
    <button type="button" class="fold-head" aria-expanded=${open} onClick=${() => (choice.value = !open)}>
      <span class="turn" aria-hidden="true">${open ? "▾" : "▸"}</span> ${head}</button>
    ${open && html`<div class="fold-body">${children}</div>`}
  </div>`;
}

/** @param {string} text @param {number} [most] */
export function firstLine(text, most = 160) {
  const line = text.slice(0, 4 * most).trim().split("\n", 1)[0] ?? "";
  return inert(line.length > most || line.length < text.trim().length ? `${line.slice(0, most)} …` : line);
}

/** @param {{entry: any}} props */
export function Thought({ entry }) {
  const text = entry.content ?? "";
  const open = kept(entry.id, "open").value;
  const head = html`<span class="label">${entry.streaming ? "Thinking" : "Thought"}</span>
    ${!open && html` <span class="peek" dir="auto">${firstLine(text)}</span>`}`;
  return html`<${Fold} id=${entry.id} class="thought" head=${head}><${Prose} id=${entry.id} text=${text} /><//>`;
}

// Plans

const STEPS = /** @type {Record<string, {glyph: string, word: string, is: string}>} */ ({
  pending: { glyph: "○", word: "to do", is: "queued" },
  in_progress: { glyph: "●", word: "under way", is: "running" },
  completed: { glyph: "✓", word: "done", is: "completed" },
  cancelled: { glyph: "–", word: "dropped", is: "cancelled" },
});

/** @param {{steps: any[]}} props */
export const Steps = ({ steps }) => html`<ol class="steps">${steps.map((step) => {
  const status = typeof step?.status === "string" ? step.status : "pending";
  const shown = STEPS[status] ?? { glyph: "·", word: inert(status), is: "queued" };
  const text = typeof step === "string" ? step : (step?.content ?? step?.step ?? step?.title ?? JSON.stringify(step));
  return html`<li class=${`is-${shown.is}`}>
    <span class="state"><span aria-hidden="true">${shown.glyph}</span> ${shown.word}</span>${" "}
    <span class="foreign" dir="auto">${inert(String(text))}</span></li>`;
})}</ol>`;

/** @param {any[]} steps */
export function progressOf(steps) {
  const done = steps.filter((step) => step?.status === "completed").length;
  return `${done} of ${steps.length} done`;
}

/** @param {{entry: any}} props */
export function Plan({ entry }) {
  const steps = Array.isArray(entry.entries) ? entry.entries : [];
  const first = (/** @type {(step: any) => boolean} */ fits) => steps.find(fits);
  const next = first((step) => step?.status === "in_progress") ?? first((step) => step?.status !== "completed");
  const then = next?.content ? ` · ${firstLine(String(next.content), 100)}` : "";
  const head = html`<span class="label">Plan</span> <span class="peek" dir="auto">${progressOf(steps)}${then}</span>`;
  return html`<${Fold} id=${entry.id} class="plan" head=${head}><${Steps} steps=${steps} /><//>`;
}

// Notes

/** @param {{entry: any}} props */
export const Mode = ({ entry: { previousModeId: before, newModeId: after } }) => html`<p class="note-row">
  <span class="label">Mode</span>${" "}
  ${before && html`<span dir="auto">${inert(before)}</span> <span aria-label="became">→</span>`}${" "}
  <b dir="auto">${inert(after ?? "")}</b></p>`;

/** @param {unknown} list @param {string} noun */
const counted = (list, noun) =>
  Array.isArray(list) && list.length ? `${list.length} ${noun}${list.length === 1 ? "" : "s"}` : "";

/** @param {{entry: any}} props */
export function Meta({ entry }) {
  const { availableModes, availableModels, availableCommands, currentModeId: mode, currentModelId: model } = entry;
  const offered = [counted(availableModes, "mode"), counted(availableModels, "model")];
  const offers = [...offered, counted(availableCommands, "command")].filter(Boolean).join(", ");
  const set = [mode && `mode ${mode}`, model && `model ${model}`, offers && `offers ${offers}`].filter(Boolean);
  const { id, at, type, turn, ...rest } = entry;
  const told = inert(set.join(" · ")) || "is ready";
  const head = html`<span class="label">Agent</span> <span class="peek" dir="auto">${told}</span>`;
  return html`<${Fold} id=${entry.id} class="meta" head=${head}><${JsonTree} value=${rest} /><//>`;
}

/** An entry of a kind that this page does not know: the server is newer. @param {{entry: any}} props */
export function Unknown({ entry }) {
  const head = html`<span class="label">${inert(String(entry.type))}</span>`;
  return html`<${Fold} id=${entry.id} class="meta" head=${head}><${JsonTree} value=${entry} /><//>`;
}
