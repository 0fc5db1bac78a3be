// The card of a tool call: its state and duration, its input and output, its events, and ways to link to it.

import { inert } from "./ansi.js";
import { frames } from "./callslip.js";
import { formatBytes } from "./full_output.js";
import { cliCommand, Copy, curlCommand, callLink, shorten } from "./copy.js";
import { JsonTree, oneLine } from "./jsontree.js";
import { durationOf } from "./filter_terms.js";
import { firstLine, Fold, Time } from "./message.js";
import { errorText, isErrorPrinted } from "./outcome.js";
import { Output, Preview } from "./output.js";
import { classes, html, useEffect, useState } from "./ui.js";
import { result } from "./matches.js";
import { peekEntry, rowState, sampledEntries } from "./row_state.js";
import { cancel, commands, pageUrl, readError, seq, sessionName } from "./state.js";
import { APPROVAL_STATES, approvalOf, describeState } from "./states.js";
import { formatDuration, formatElapsed, formatTime, stoppedAt } from "./time.js";

// Input

/** Return the command line in an input, or "" if there is none. @param {any} input */
export function commandIn(input) {
  const value = input?.command ?? input?.cmd;
  if (typeof value === "string") return value;
  if (!Array.isArray(value) || !value.every((part) => typeof part === "string")) return "";
  const [, flag, line] = value;
  return value.length === 3 && /^-l?c$/.test(flag) ? line : value.join(" ");
}

/** Return the title of a call, or its command, or its tool. @param {any} entry */
export const titleOf = (entry) => entry.title || commandIn(entry.rawInput) || entry.toolName || entry.rawToolName || "Call";

/** @param {any} input */
const hasFields = (input) =>
  typeof input === "object" && input !== null
    ? Object.keys(input).length > 0
    : input !== undefined && input !== null && input !== "";

/** Summarize the input in one line, or return "" if the title already contains it. @param {any} entry */
function summarizeInput(entry) {
  if (entry.rawInput === undefined) return entry.inputText ? firstLine(entry.inputText, 200) : "";
  const title = String(titleOf(entry));
  const command = commandIn(entry.rawInput);
  if (command) return title.includes(command.trim()) ? "" : `$ ${firstLine(command, 300)}`;
  if (!hasFields(entry.rawInput)) return "";
  const values = Object.values(entry.rawInput);
  if (values.length === 1 && typeof values[0] === "string" && title.includes(values[0])) return "";
  return typeof entry.rawInput === "object" ? oneLine(entry.rawInput) : firstLine(String(entry.rawInput), 200);
}

/** @param {{input: any}} props */
const Arguments = ({ input }) =>
  hasFields(input) ? html`<${JsonTree} value=${input} />` : html`<p class="note">No parameters.</p>`;

/** The files that a call concerns. @param {{items: unknown}} props */
function Locations({ items }) {
  const locations = (Array.isArray(items) ? items : []).filter((item) => typeof item?.path === "string");
  if (!locations.length) return null;
  const line = (/** @type {unknown} */ number) => (Number.isInteger(number) ? `:${number}` : "");
  return html`<p class="note">Files: ${locations.map((item, at) =>
    html`${at > 0 && ", "}<code dir="auto">${inert(item.path)}${line(item.line)}</code>`)}</p>`;
}

/** @param {{entry: any}} props */
function Input({ entry }) {
  const command = commandIn(entry.rawInput);
  const rest = Object.keys(entry.rawInput ?? {}).length;
  if (entry.rawInput === undefined && !entry.inputText) return null;
  const text = () => command || JSON.stringify(entry.rawInput ?? entry.inputText, null, 2);
  return html`<div class="part" role="group" aria-label="Input">
    <div class="part-head"><p class="part-name">Input${entry.rawInput === undefined && " (streaming)"}</p>
      <div class="tools"><${Copy} plain text=${text} label="Copy input">Copy<//></div></div>
    ${command && html`<pre class="command-line" tabindex="0" dir="ltr">
      <span class="sign" aria-hidden="true">$ </span>${inert(command)}</pre>`}
    ${command && rest > 1 && html`<${Fold} id=${entry.id} what="parameters" head="All parameters">
      <${JsonTree} value=${entry.rawInput} /><//>`}
    ${!command && entry.rawInput !== undefined && html`<${Arguments} input=${entry.rawInput} />`}
    ${entry.rawInput === undefined && html`<pre class="plain" tabindex="0" dir="auto">${inert(entry.inputText)}</pre>`}
    <${Locations} items=${entry.locations} />
  </div>`;
}

// Facts

/** Describe how a process ended: by its exit code or a signal. @param {any} status */
function exitText(status) {
  if (status === undefined || status === null) return "";
  if (typeof status?.signal === "string") return `Killed by signal ${inert(status.signal)}`;
  const code = typeof status === "object" ? (status.exitCode ?? JSON.stringify(status)) : status;
  return `Exit code ${inert(String(code))}`;
}

/** @param {{entry: any}} props */
function Facts({ entry }) {
  const exit = exitText(entry.exitStatus);
  const isDetached = entry.scope === "detached";
  const client = isDetached ? (entry.client ?? /** @type {any} */ (commands.value.get(entry.callId))?.client) : "";
  const facts = [
    exit && html`<span class=${classes(exit !== "Exit code 0" && "bad")}>${exit}</span>`,
    isDetached && !entry.parent && "Background",
    client && html`For <b dir="auto">${inert(client)}</b>`,
    (entry.attempt > 1 || (isDetached && entry.attempt > 0)) && `Attempt ${entry.attempt}`,
    entry.worker && html`Worker <span dir="auto">${inert(entry.worker)}</span>`,
    entry.cutBytes > 0 && html`<span class="warn">${formatBytes(entry.cutBytes)} cut</span>`,
    entry.truncated && !entry.blob && html`<span class="warn">Truncated</span>`,
    entry.late && html`<span class="warn">Late event</span>`,
  ].filter(Boolean);
  if (!facts.length) return null;
  const dot = html`<span aria-hidden="true"> · </span>`;
  return html`<p class="facts">${facts.map((fact, at) => html`${at > 0 && dot}${fact}`)}</p>`;
}


/** Return the loaded request of an approval. @param {string} approval */
function findRequest(approval) {
  const isRequest = (/** @type {any} */ entry) => entry?.type === "permission_request" && approvalOf(entry) === approval;
  return sampledEntries.value.find(isRequest) ?? (result.value?.ids ?? []).map(peekEntry).find(isRequest);
}

/** @param {{entry: any}} props */
function Approval({ entry }) {
  if (!entry.approval) return null;
  const request = findRequest(entry.approval);
  if (!request || (request.state ?? "pending") === "pending") {
    if (entry.status !== "awaiting_approval") return null;
    const place = request?.answerAt;
    return html`<p class="note warn">Waiting for approval${place && html` in <span dir="auto">${inert(place)}</span>`}.</p>`;
  }
  const option = (request.options ?? []).find((/** @type {any} */ one) => one?.optionId === request.responseOption);
  return html`<p class="note">${APPROVAL_STATES[request.state]?.label ?? inert(request.state)}
    ${request.by && html` by <b dir="auto">${inert(request.by)}</b>`}
    ${request.responseTime ? ` at ${formatTime(request.responseTime)}` : ""}
    ${request.responseInput !== undefined && " with changes"}
    ${option?.name && html`: “<span dir="auto">${inert(option.name)}</span>”`}
    ${request.reason && html`. Reason: <span dir="auto">${inert(request.reason)}</span>`}</p>`;
}

/** @param {{entry: any}} props */
const Notes = ({ entry }) => html`
  ${entry.reason && entry.reason !== entry.error && html`<p class="note reason">
    <b>Reason:</b> <span dir="auto">${inert(entry.reason)}</span></p>`}
  ${entry.report && html`<p class="note reason">
    <b>The agent’s report:</b> <span dir="auto">${inert(entry.report.text)}</span></p>`}
  ${entry.late && html`<p class="note warn">Event ${entry.late} arrived after the call had ended. It was logged and
    changed nothing.</p>`}`;

// Events

/** How many events of the session are searched at most for those of one call. */
const MAX_EVENTS_READ = 20_000;

/** Load the events of a call. @param {any} entry */
async function loadEvents(entry) {
  const last = Math.max(entry.end ?? 0, entry.late ?? 0) || seq.peek();
  const controller = new AbortController();
  const path = `/v1/sessions/${encodeURIComponent(sessionName.peek())}/stream`;
  const url = pageUrl(`${path}?format=events&follow=false&after=${entry.id - 1}`);
  const response = await fetch(url, { signal: controller.signal });
  if (!response.ok || !response.body) throw new Error(await readError(response));
  const events = [];
  let read = 0;
  for await (const frame of frames(response.body)) {
    if (!frame.data) continue;
    const event = JSON.parse(frame.data);
    if (event.seq > last || ++read > MAX_EVENTS_READ) break;
    if (event.call === entry.callId) events.push(event);
  }
  controller.abort();
  return { events, isIncomplete: read > MAX_EVENTS_READ };
}

/** @param {{id: number, event: any}} props */
function EventRow({ id, event }) {
  const { seq, type, verdict, at } = event;
  const verdictLabel = verdict && verdict !== "applied" && html` <span class="warn">${inert(verdict)}</span>`;
  const head = html`<span class="seq">${seq}</span> <code>${inert(type)}</code>${verdictLabel} <${Time} at=${at} />`;
  return html`<li><${Fold} id=${id} what=${`event ${seq}`} head=${head}><${JsonTree} value=${event} /><//></li>`;
}

/** @param {{entry: any}} props */
function Events({ entry }) {
  const state = rowState(entry.id, "events");
  const load = () =>
    loadEvents(entry).then(
      (result) => (state.value = result),
      (error) => (state.value = { problem: String(error.message) }),
    );
  useEffect(() => {
    if (!state.value) load();
  }, []);
  const { events, problem, isIncomplete } = state.value ?? {};
  if (problem) {
    return html`<p class="note warn" role="alert">Could not load events: ${problem}${" "}
      <button type="button" class="link" onClick=${load}>Try again</button></p>`;
  }
  if (!events) return html`<p class="note" role="status">Loading events…</p>`;
  const rows = events.map((/** @type {any} */ one) => html`<${EventRow} key=${one.seq} id=${entry.id} event=${one} />`);
  return html`<ol class="events">${rows}</ol>
    ${isIncomplete && html`<p class="note">There may be later events.</p>`}
    ${describeState(entry.status).isOpen && html`<p class="note">
      <button type="button" class="link" onClick=${load}>Reload</button></p>`}`;
}

// Card

/** @param {{entry: any}} props */
function CancelButton({ entry }) {
  const [problem, setProblem] = useState("");
  const cancelCall = () => cancel(entry.callId).catch((/** @type {Error} */ error) => setProblem(error.message));
  return html`<button type="button" class="button small" onClick=${cancelCall}>Cancel call</button>
    ${problem && html` <span class="warn" role="alert">${problem}</span>`}`;
}

/** @param {{entry: any, live: boolean}} props */
const Actions = ({ entry, live }) => html`<div class="actions">
  ${live && describeState(entry.status).isOpen && html`<${CancelButton} entry=${entry} />`}
  <span class="dim">Copy</span>
  <${Copy} text=${() => callLink(entry.callId)} label="Copy link">Link<//>
  <${Copy} text=${() => curlCommand(entry.callId)} label="Copy as curl">curl<//>
  <${Copy} text=${() => cliCommand(entry.callId)} label="Copy as CLI command">CLI<//>
  <${Copy} text=${entry.callId} label="Copy ID">ID<//>
</div>`;

/** @param {{entry: any, live: boolean}} props */
const Body = ({ entry, live }) => html`
  <${Approval} entry=${entry} />
  <${Input} entry=${entry} />
  <${Output} entry=${entry} />
  <${Notes} entry=${entry} />
  <div class="more">
    <${Fold} id=${entry.id} what="show events" head="Events"><${Events} entry=${entry} /><//>
    <${Fold} id=${entry.id} what="raw" head="Raw entry"><${JsonTree} value=${entry} /><//>
  </div>
  <${Actions} entry=${entry} live=${live} />`;

/**
 * The duration of a call. An open call has none in the past, where the clock does not run.
 * @param {{entry: any, live: boolean}} props
 */
function Duration({ entry, live }) {
  const { isOpen } = describeState(entry.status);
  const ms = isOpen ? null : durationOf(entry, 0);
  const duration = isOpen ? live && formatElapsed(entry.startedAt || entry.at) : ms !== null && formatDuration(ms);
  const title = !isOpen ? "Duration" : stoppedAt.value ? "Elapsed when the connection was lost" : "Elapsed";
  return duration ? html`<span class="duration" title=${title}>${duration}</span>` : null;
}

/** The error and the reason of a call, else what its agent reported, for a closed card. @param {{entry: any}} props */
function EndReason({ entry }) {
  const hasError = entry.error !== undefined && entry.error !== null && !isErrorPrinted(entry);
  const error = hasError ? errorText(entry.error) : "";
  const reason = entry.reason || (error ? "" : entry.report?.text);
  return [...new Set([error, reason])].filter(Boolean).map((text) =>
    html`<p class=${classes("call-summary reason", text === error && "bad")} dir="auto">${firstLine(text, 300)}</p>`);
}

/** @param {{entry: any, live: boolean}} props */
function CallDetails({ entry, live }) {
  const { toolName: tool, rawToolName: raw, callId } = entry;
  return html`<span class="call-side">
    ${tool && tool !== titleOf(entry) && html`<code class="call-tool" dir="auto"
      title=${inert(raw ?? tool)}>${inert(tool)}</code>`}
    <${Duration} entry=${entry} live=${live} />
    <${Copy} plain text=${callId} label=${`Copy ID ${callId}`}><code>${shorten(callId)}</code><//></span>`;
}

/** @param {{entry: any, live?: boolean, open?: boolean}} props */
export default function ToolCard({ entry, live = true, open: openByDefault = false }) {
  const openState = rowState(entry.id, "open");
  const isOpen = openState.value ?? openByDefault;
  const state = describeState(entry.status);
  const summary = summarizeInput(entry);
  const body = `call-${entry.id}`;
  return html`<div class=${classes("call", `is-${entry.status}`, isOpen && "open")} data-call=${entry.callId}
    data-status=${entry.status}>
    <div class="call-head">
      <button type="button" class="call-toggle" aria-expanded=${isOpen} aria-controls=${body}
        onClick=${() => (openState.value = !isOpen)}>
        <span class="arrow" aria-hidden="true">${isOpen ? "▾" : "▸"}</span>
        <span class="state" title=${state.hint}>
          <span class="glyph" aria-hidden="true">${state.glyph}</span> ${state.label}</span>
        <span class="call-title untrusted" dir="auto">${firstLine(String(titleOf(entry)), 300)}</span>
      </button>
      <${CallDetails} entry=${entry} live=${live} />
    </div>
    <${Facts} entry=${entry} />
    ${!isOpen && summary && html`<p class="call-summary" dir="auto">${summary}</p>`}
    <div class="call-body" id=${body}>
      ${isOpen
        ? html`<${Body} entry=${entry} live=${live} />`
        : html`<${EndReason} entry=${entry} /><${Preview} entry=${entry} />`}
    </div>
  </div>`;
}
