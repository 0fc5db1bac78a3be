// The card of a tool call: its state and duration, its input and output, its events, and ways to link to it.

import { inert } from "./ansi.js";
import { frames } from "./callslip.js";
import { formatBytes } from "./full_output.js";
import { callLink, cliCommand, Copy, curlCommand } from "./copy.js";
import { commandIn, titleOf } from "./call_text.js";
import { JsonTree } from "./jsontree.js";
import { durationOf } from "./filter_terms.js";
import { firstLine, Fold, Time } from "./message.js";
import { detailPanel } from "./frame.js";
import Menu from "./menu.js";
import { LoadedPeek, OutputInPlace, Terminal } from "./output.js";
import { previewOf } from "./preview.js";
import { classes, html, useEffect, useState } from "./ui.js";
import { result } from "./matches.js";
import { peekEntry, pickCall, pickedId, rowState, sampledEntries } from "./row_state.js";
import { cancel, commands, pageUrl, readError, seq, sessionName } from "./state.js";
import { APPROVAL_STATES, approvalOf, describeState } from "./states.js";
import { formatDuration, formatElapsed, formatTime, stoppedAt } from "./time.js";

// Input

/** @param {any} input */
const hasFields = (input) =>
  typeof input === "object" && input !== null
    ? Object.keys(input).length > 0
    : input !== undefined && input !== null && input !== "";

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
export function Input({ entry }) {
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
export function Facts({ entry }) {
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
export function Approval({ entry }) {
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
export const Notes = ({ entry }) => html`
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
export function Events({ entry }) {
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
  return html`<button type="button" onClick=${cancelCall}><i class="i i-stop" aria-hidden="true"></i>Cancel call</button>
    ${problem && html` <span class="warn" role="alert">${problem}</span>`}`;
}

/** @param {{entry: any, live: boolean}} props */
export const Actions = ({ entry, live }) => html`<div class="actions">
  <${Copy} text=${() => callLink(entry.callId)} label="Copy link" />
  <${Copy} text=${entry.callId} label="Copy ID" />
  <${Copy} text=${() => curlCommand(entry.callId)} label="Copy as curl" />
  <${Copy} text=${() => cliCommand(entry.callId)} label="Copy as CLI command" />
  ${live && describeState(entry.status).isOpen && html`<hr /><${CancelButton} entry=${entry} />`}
</div>`;

/** What is open of a call in the list: its input unless the title says it, its result, and why it ended. @param {{entry: any}} props */
function InPlace({ entry }) {
  const command = commandIn(entry.rawInput);
  const isSaid = command ? String(titleOf(entry)).includes(command.trim()) : !hasFields(entry.rawInput);
  return html`<${Facts} entry=${entry} />
    ${entry.status === "awaiting_approval" && html`<${Approval} entry=${entry} />`}
    ${!isSaid && (command ? html`<pre class="command-line" tabindex="0" dir="ltr">${inert(command)}</pre>`
      : html`<${JsonTree} value=${entry.rawInput} />`)}
    <${OutputInPlace} entry=${entry} onMore=${() => pick(entry.id)} />
    <${Notes} entry=${entry} />`;
}

/** Show a call in the detail panel. @param {number} id */
function pick(id) {
  pickCall(id);
  detailPanel.open();
}

/**
 * The duration of a call. An open call has none in the past, where the clock does not run.
 * @param {{entry: any, live: boolean}} props
 */
export function Duration({ entry, live }) {
  const { isOpen } = describeState(entry.status);
  const ms = isOpen ? null : durationOf(entry, 0);
  const duration = isOpen ? live && formatElapsed(entry.startedAt || entry.at) : ms !== null && formatDuration(ms);
  const title = !isOpen ? "Duration" : stoppedAt.value ? "Elapsed when the connection was lost" : "Elapsed";
  return duration ? html`<span class="duration" title=${title}>${duration}</span>` : null;
}

// Row

/** The icon of a state, with its name for screen readers. @param {{status: string}} props */
export function StateIcon({ status }) {
  const { icon, label, hint } = describeState(status);
  const sign = icon === "ring" ? html`<span class="ring" aria-hidden="true"></span>`
    : html`<i class=${`i i-${icon}`} aria-hidden="true"></i>`;
  return html`<span class="sign" title=${hint ?? label}>${sign}<span class="state visually-hidden">${label}</span></span>`;
}

/** What is unusual about a call, in a few words. @param {{entry: any, changes?: string}} props */
function Tags({ entry, changes }) {
  const [added, removed] = changes ? changes.split(" ") : [];
  const isApproved = entry.approval && entry.status !== "awaiting_approval";
  return html`<span class="tags">
    ${added && added !== "+0" && html`<span class="good">${added}</span>`}
    ${removed && removed !== "−0" && html`<span class="bad">${removed}</span>`}
    ${(entry.attempt > 1 || (entry.scope === "detached" && entry.attempt > 0)) && html`<span>Attempt ${entry.attempt}</span>`}
    ${entry.scope === "detached" && !entry.parent && html`<span class="opt">Background</span>`}
    ${entry.cutBytes > 0 && html`<span class="warn">${formatBytes(entry.cutBytes)} cut</span>`}
    ${entry.truncated && !entry.blob && html`<span class="warn">Truncated</span>`}
    ${entry.late && html`<span class="warn">Late event</span>`}
    ${isApproved && html`<i class="i i-shield" title="Needed an approval" aria-label="Needed an approval" role="img"></i>`}
  </span>`;
}

/** The last lines of a call that failed, or of one that runs. @param {{entry: any, preview: import("./preview.js").Preview}} props */
function Peek({ entry, preview }) {
  if (!preview.lines) return null;
  if (entry.status === "running") {
    const count = (entry.outputText ?? "").trimEnd().split("\n").length;
    return html`<div class="inner"><div class="livebar"><span class="dot run" aria-hidden="true"></span>Live output
      <span class="gap"></span><span class="num">${count.toLocaleString("en")} line${count === 1 ? "" : "s"}</span></div>
      <${Terminal} text=${preview.text} /></div>`;
  }
  return html`<div class="inner peek-box">${preview.text
    ? html`<${Terminal} text=${preview.text} />` : html`<${LoadedPeek} entry=${entry} lines=${preview.lines} />`}</div>`;
}

/**
 * A call as one line: its state, its title, its result, its tool and its duration; below it what is open of it.
 * @param {{entry: any, live?: boolean, item?: import("./rows.js").Item}} props
 */
export default function ToolCard({ entry, live = true, item }) {
  const openState = rowState(entry.id, "open");
  const isOpen = !!openState.value;
  const preview = previewOf(entry);
  const { toolName: tool, rawToolName: raw } = entry;
  const title = String(titleOf(entry));
  const body = `call-${entry.id}`;
  return html`<div class=${classes("call", `is-${entry.status}`, isOpen && "open")} data-call=${entry.callId}
    data-status=${entry.status}>
    <div class="call-head" aria-current=${pickedId.value === entry.id ? "true" : undefined}>
      <button type="button" class="call-toggle" aria-expanded=${isOpen} aria-controls=${body}
        aria-label=${isOpen ? "Close in place" : "Open in place"} onClick=${() => (openState.value = !isOpen)}>
        <i class=${`i i-${isOpen ? "down" : "right"}`} aria-hidden="true"></i></button>
      <${StateIcon} status=${entry.status} />
      <span class="what">
        <button type="button" class=${classes("call-title cut untrusted", item?.hasChildren && "of-agent")} dir="auto"
          title=${firstLine(title, 300)} onClick=${() => pick(entry.id)}>${firstLine(title, 300)}</button>
        <span class=${classes("out cut untrusted", preview.tone)} dir="auto">${inert(preview.out)}</span></span>
      <${Tags} entry=${entry} changes=${preview.changes} />
      <span class="tool cut">${tool && tool !== title && html`<span class="untrusted" dir="auto"
        title=${inert(raw ?? tool)}>${inert(tool)}</span>`}</span>
      <span class="dur"><${Duration} entry=${entry} live=${live} /></span>
      <${Menu} label=${`Link, copy: ${firstLine(title, 60)}`} class="acts">${() =>
        html`<${Actions} entry=${entry} live=${live} />`}<//>
    </div>
    <div id=${body}>${isOpen
      ? html`<div class="inner call-body"><${InPlace} entry=${entry} /></div>`
      : html`<${Peek} entry=${entry} preview=${preview} />`}</div>
  </div>`;
}
