// The entries of a conversation other than calls: messages, thoughts, plans, mode changes and agent info.

import { inert } from "./ansi.js";
import { JsonTree } from "./jsontree.js";
import { Markdown } from "./markdown.js";
import { classes, html } from "./ui.js";
import { safeLink } from "./markdown_parser.js";
import { rowState } from "./row_state.js";
import { formatTime, isoTime } from "./time.js";

/** @param {{at?: number}} props */
export const Time = ({ at }) =>
  at ? html`<time class="when" dateTime=${isoTime(at)} title=${isoTime(at)}>${formatTime(at)}</time>` : null;

/**
 * Return who wrote a message. What looks like a prompt of the user to a sub-agent is its task.
 * @param {any} entry @returns {string}
 */
export function authorOf({ role, parent }) {
  if (role === "user") return parent ? "Task" : "You";
  return role === "assistant" ? (parent ? "Sub-agent" : "Agent") : (role ?? "");
}

/** @param {{entry: any}} props */
export function Message({ entry }) {
  const isUser = entry.role === "user";
  return html`<div class=${classes("message", isUser ? "from-user" : "from-agent", entry.streaming && "streaming")}>
    <i class=${`i i-${isUser ? "user" : "bot"}`} aria-hidden="true"></i>
    <div><p class=${classes("who", isUser && !entry.parent && "visually-hidden")}><b>${inert(authorOf(entry))}</b>${" "}
      <${Time} at=${entry.at} />${entry.streaming && html` <span class="state is-running">Writing</span>`}</p>
    <${MessageText} id=${entry.id} text=${entry.content ?? ""} />
    <${Blocks} blocks=${entry.blocks} /></div>
  </div>`;
}

/** Longer messages are collapsed. */
const MAX_CHARS = 20_000;
const MAX_LINES = 300;

/** Return the first part of a text, or all of it if it is not very long. @param {string} text */
function firstPart(text) {
  const start = text.slice(0, MAX_CHARS).split("\n").slice(0, MAX_LINES).join("\n");
  return start.length < text.length ? start.replace(/[\ud800-\udbff]$/, "") : text;
}

/**
 * The text of a message. Of a very long one the first part, with a button for the rest.
 * @param {{id: number, text: string}} props
 */
function MessageText({ id, text }) {
  const showAll = rowState(id, "full text");
  const start = firstPart(text);
  if (start === text) return html`<${Markdown} text=${text} />`;
  if (showAll.value) return html`<div class="full-text" tabindex="0"><${Markdown} text=${text} /></div>`;
  const hidden = (text.length - start.length).toLocaleString("en");
  return html`<${Markdown} text=${start} /><p class="note">
    <button type="button" class="link" onClick=${() => (showAll.value = true)}>
      Show ${hidden} more characters</button></p>`;
}

const IMAGE = /^image\/(png|jpeg|gif|webp|avif|bmp)$/;

/** Return the data URL of an image block, or undefined for other blocks. @param {any} block */
export function imageSource(block) {
  const image = block?.content?.type ? block.content : block;
  const type = image?.mimeType ?? image?.mime_type ?? image?.mediaType ?? image?.source?.media_type;
  const data = image?.data ?? image?.source?.data ?? image?.blob;
  const isSafe = IMAGE.test(type ?? "image/png") && typeof data === "string" && /^[A-Za-z0-9+/=\s]+$/.test(data);
  if (image?.type === "image" && isSafe) {
    return `data:${type ?? "image/png"};base64,${data.replace(/\s/g, "")}`;
  }
  return undefined;
}

/** @param {{src: string}} props */
export const Image = ({ src }) =>
  html`<img class="picture" src=${src} alt="Attached image" loading="lazy" />`;

/** The attachments of a message. @param {{blocks: unknown}} props */
function Blocks({ blocks }) {
  if (!Array.isArray(blocks)) return null;
  const others = blocks.filter((block) => block?.type && block.type !== "text");
  if (!others.length) return null;
  return html`<div class="attached">${others.map((block) => html`<${Attachment} block=${block} />`)}</div>`;
}

/** @param {{block: any}} props */
export function Attachment({ block }) {
  const src = imageSource(block);
  if (src) return html`<${Image} src=${src} />`;
  const address = block.uri ?? block.resource?.uri ?? block.url;
  const name = inert(String(block.title ?? block.name ?? address ?? block.type));
  if (typeof address === "string" && safeLink(address)) {
    return html`<a href=${address} target="_blank" rel="noopener noreferrer nofollow" dir="auto">${name}</a>`;
  }
  if (typeof address === "string") {
    return html`<code class="untrusted" dir="auto" title=${inert(address)}>${name}</code>`;
  }
  return html`<${JsonTree} value=${block} />`;
}

/**
 * A collapsible section. `what` names its state in the row.
 * @param {{id: number, what?: string, head: any, icon?: string, children?: any, class?: string}} props
 */
export function Fold({ id, what = "open", head, icon, children, class: css }) {
  const state = rowState(id, what);
  const open = !!state.value;
  return html`<div class=${classes("fold", css)}>
    <button type="button" class="fold-head" aria-expanded=${open} onClick=${() => (state.value = !open)}>
      <i class=${`i i-${icon ?? (open ? "down" : "right")}`} aria-hidden="true"></i> ${head}</button>
    ${open && html`<div class="fold-body">${children}</div>`}
  </div>`;
}

/** @param {string} text @param {number} [maxChars] */
export function firstLine(text, maxChars = 160) {
  const line = text.slice(0, 4 * maxChars).trim().split("\n", 1)[0] ?? "";
  return inert(line.length > maxChars || line.length < text.trim().length ? `${line.slice(0, maxChars)} …` : line);
}

/** @param {{entry: any}} props */
export function Thought({ entry }) {
  const text = entry.content ?? "";
  const open = rowState(entry.id, "open").value;
  const head = html`<span class="label">${entry.streaming ? "Thinking" : "Thought"}</span>
    ${!open && html` <span class="peek" dir="auto">${firstLine(text)}</span>`}`;
  return html`<${Fold} id=${entry.id} class="thought" icon="thought" head=${head}><${MessageText} id=${entry.id} text=${text} /><//>`;
}

// Plans

const ENDED_STEPS = new Set(["completed", "cancelled"]);

const STEP_STATES = /** @type {Record<string, {icon: string, label: string, look: string}>} */ ({
  pending: { icon: "todo", label: "To do", look: "queued" },
  in_progress: { icon: "half", label: "In progress", look: "running" },
  completed: { icon: "check", label: "Done", look: "completed" },
  cancelled: { icon: "minus", label: "Cancelled", look: "cancelled" },
});

/** Draw the priority of a step, if it has one. @param {any} step */
const priorityOf = (step) => typeof step?.priority === "string" && step.priority
  && html` <small class="priority">${inert(step.priority)} priority</small>`;

/** @param {{steps: any[]}} props */
export const Steps = ({ steps }) => html`<ol class="steps">${steps.map((step) => {
  const status = typeof step?.status === "string" ? step.status : "pending";
  const state = STEP_STATES[status] ?? { icon: "todo", label: inert(status), look: "queued" };
  const text = typeof step === "string" ? step : (step?.content ?? step?.step ?? step?.title ?? JSON.stringify(step));
  return html`<li class=${`is-${state.look}`}>
    <span class="sign" title=${state.label}><i class=${`i i-${state.icon}`} aria-hidden="true"></i>
      <span class="state visually-hidden">${state.label}</span></span>${" "}
    <span class="untrusted" dir="auto">${inert(String(text))}${priorityOf(step)}</span></li>`;
})}</ol>`;

/** @param {any[]} steps */
export function planProgress(steps) {
  const done = steps.filter((step) => step?.status === "completed").length;
  return `${done} of ${steps.length} done`;
}

/** @param {{entry: any}} props */
export function Plan({ entry }) {
  const steps = Array.isArray(entry.entries) ? entry.entries : [];
  const first = (/** @type {(step: any) => boolean} */ matches) => steps.find(matches);
  const next = first((step) => step?.status === "in_progress") ?? first((step) => !ENDED_STEPS.has(step?.status));
  const nextStep = next?.content ? ` · ${firstLine(String(next.content), 100)}` : "";
  const head = html`<span class="label">Plan</span>${" "}
    <span class="peek" dir="auto">${planProgress(steps)}${nextStep}</span>`;
  return html`<${Fold} id=${entry.id} class="plan" icon="list" head=${head}><${Steps} steps=${steps} /><//>`;
}

// Notes

/** @param {{entry: any}} props */
export const Mode = ({ entry: { previousModeId: before, newModeId: after } }) => html`<p class="note-row">
  <span class="label">Mode</span>${" "}
  ${before && html`<span dir="auto">${inert(before)}</span> <span aria-label="to">→</span>`}${" "}
  <b dir="auto">${inert(after ?? "")}</b></p>`;

/** A notice of the agent: its severity and its text. @param {{entry: any}} props */
export const Notice = ({ entry: { severity, content, details } }) => html`<p class="note-row agent-notice"
  data-severity=${severity ?? ""}><span class="label">${inert(severity ? sentence(severity) : "Notice")}</span>${" "}
  <span class="untrusted" dir="auto">${inert(content || JSON.stringify(details ?? ""))}</span></p>`;

/** @param {string} word */
const sentence = (word) => word.charAt(0).toUpperCase() + word.slice(1);

/** @param {unknown} list @param {string} noun */
const countOf = (list, noun) =>
  Array.isArray(list) && list.length ? `${list.length} ${noun}${list.length === 1 ? "" : "s"}` : "";

/** @param {{entry: any}} props */
export function Meta({ entry }) {
  const { availableModes, availableModels, availableCommands, currentModeId: mode, currentModelId: model } = entry;
  const counts = [countOf(availableModes, "mode"), countOf(availableModels, "model")];
  const offers = [...counts, countOf(availableCommands, "command")].filter(Boolean).join(", ");
  const set = [mode && `Mode ${mode}`, model && `Model ${model}`, offers].filter(Boolean);
  const { id, at, type, turn, ...rest } = entry;
  const summary = inert(set.join(" · ")) || "Ready";
  const head = html`<span class="label">Agent</span> <span class="peek" dir="auto">${summary}</span>`;
  return html`<${Fold} id=${entry.id} class="meta" icon="bot" head=${head}><${JsonTree} value=${rest} /><//>`;
}

/** An entry of an unknown type, sent by a newer server. @param {{entry: any}} props */
export function Unknown({ entry }) {
  const head = html`<span class="label">${inert(String(entry.type))}</span>`;
  return html`<${Fold} id=${entry.id} class="meta" icon="bot" head=${head}><${JsonTree} value=${entry} /><//>`;
}
