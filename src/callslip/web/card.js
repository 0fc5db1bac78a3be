// A tool call as a card: what state it is in and since when, what it was given, what came out, and how to find it
// elsewhere.

import { inert } from "./ansi.js";
import { frames } from "./callslip.js";
import { cliLine, Copy, curlLine, linkTo, short } from "./copy.js";
import { JsonTree, oneLine } from "./jsontree.js";
import { firstLine, Fold, Time } from "./message.js";
import { errorText, isPrinted } from "./outcome.js";
import { Output, Preview } from "./output.js";
import { classes, html, useEffect, useState } from "./ui.js";
import { kept, slowly } from "./row_state.js";
import { address, cancel, commands, name, seq, whyNot } from "./state.js";
import { stateOf } from "./states.js";
import { elapsed, timeOf } from "./time.js";

// What it was given

/** The command line in an input, if that is what it is. @param {any} input */
export function commandIn(input) {
  const said = input?.command ?? input?.cmd;
  if (typeof said === "string") return said;
  if (!Array.isArray(said) || !said.every((part) => typeof part === "string")) return "";
  const [, flag, line] = said;
  return said.length === 3 && /^-l?c$/.test(flag) ? line : said.join(" ");
}

/** What stands in the first line: the title, else the command, else the tool. @param {any} entry */
const titleOf = (entry) => entry.title || commandIn(entry.rawInput) || entry.toolName || entry.rawToolName || "a call";

/** @param {any} input */
const hasFields = (input) =>
  typeof input === "object" && input !== null
    ? Object.keys(input).length > 0
    : input !== undefined && input !== null && input !== "";

/** Arguments in a line, where the title does not say them already. @param {any} entry */
function gist(entry) {
  if (entry.rawInput === undefined) return entry.inputText ? firstLine(entry.inputText, 200) : "";
  const title = String(titleOf(entry));
  const command = commandIn(entry.rawInput);
  if (command) return title.includes(command.trim()) ? "" : `$ ${firstLine(command, 300)}`;
  if (!hasFields(entry.rawInput)) return "";
  const only = Object.values(entry.rawInput);
  if (only.length === 1 && typeof only[0] === "string" && title.includes(only[0])) return "";
  return typeof entry.rawInput === "object" ? oneLine(entry.rawInput) : firstLine(String(entry.rawInput), 200);
}

/** @param {{input: any}} props */
const Arguments = ({ input }) =>
  hasFields(input) ? html`<${JsonTree} value=${input} />` : html`<p class="note">No arguments.</p>`;

/** Files that it is about. @param {{places: unknown}} props */
function Places({ places }) {
  const named = (Array.isArray(places) ? places : []).filter((place) => typeof place?.path === "string");
  if (!named.length) return null;
  const line = (/** @type {unknown} */ number) => (Number.isInteger(number) ? `:${number}` : "");
  return html`<p class="note">At ${named.map((place, at) =>
    html`${at > 0 && ", "}<code dir="auto">${inert(place.path)}${line(place.line)}</code>`)}</p>`;
}

/** @param {{entry: any}} props */
function Input({ entry }) {
  const command = commandIn(entry.rawInput);
  const rest = Object.keys(entry.rawInput ?? {}).length;
  if (entry.rawInput === undefined && !entry.inputText) return null;
  const text = () => command || JSON.stringify(entry.rawInput ?? entry.inputText, null, 2);
  return html`<div class="part" role="group" aria-label="Input">
    <div class="part-head"><p class="part-name">Input${entry.rawInput === undefined && " (as it comes)"}</p>
      <div class="tools"><${Copy} plain text=${text} label="Copy input">copy<//></div></div>
    ${command && html`<pre class="command-line" tabindex="0" dir="ltr">
      <span class="sign" aria-hidden="true">$ </span>${inert(command)}</pre>`}
    ${command && rest > 1 && html`<${Fold} id=${entry.id} what="arguments" head="All arguments">
      <${JsonTree} value=${entry.rawInput} /><//>`}
    ${!command && entry.rawInput !== undefined && html`<${Arguments} input=${entry.rawInput} />`}
    ${entry.rawInput === undefined && html`<pre class="plain" tabindex="0" dir="auto">${inert(entry.inputText)}</pre>`}
    <${Places} places=${entry.locations} />
  </div>`;
}

// What there is to know about it

/** How a process ended: with a status, or by a signal. @param {any} status */
function exitText(status) {
  if (status === undefined || status === null) return "";
  if (typeof status?.signal === "string") return `ended by signal ${inert(status.signal)}`;
  const code = typeof status === "object" ? (status.exitCode ?? JSON.stringify(status)) : status;
  return `exit status ${inert(String(code))}`;
}

/** @param {{entry: any}} props */
function Facts({ entry }) {
  const exit = exitText(entry.exitStatus);
  const detached = entry.scope === "detached";
  const client = detached ? (entry.client ?? /** @type {any} */ (commands.value.get(entry.callId))?.client) : "";
  const facts = [
    exit && html`<span class=${classes(exit !== "exit status 0" && "bad")}>${exit}</span>`,
    detached && "runs beside the turn",
    client && html`for <b dir="auto">${inert(client)}</b>`,
    (entry.attempt > 1 || (detached && entry.attempt > 0)) && `attempt ${entry.attempt}`,
    entry.worker && html`by <span dir="auto">${inert(entry.worker)}</span>`,
    entry.truncated && html`<span class="warn">truncated</span>`,
    entry.late && html`<span class="warn">late event</span>`,
  ].filter(Boolean);
  if (!facts.length) return null;
  const dot = html`<span aria-hidden="true"> · </span>`;
  return html`<p class="facts">${facts.map((fact, at) => html`${at > 0 && dot}${fact}`)}</p>`;
}

const ANSWERS = /** @type {Record<string, string>} */ ({
  granted: "Approved", refused: "Denied", withdrawn: "The request was withdrawn",
  moot: "The call ended before anybody answered", superseded: "Asked anew",
});

/** @param {{entry: any}} props */
function Approval({ entry }) {
  if (!entry.approval) return null;
  const asked = slowly.value.find((one) => one.type === "permission_request" && one.requestId === entry.approval);
  if (!asked || (asked.state ?? "pending") === "pending") {
    return entry.status === "awaiting_approval"
      ? html`<p class="note warn">This call waits for somebody to approve it.</p>` : null;
  }
  const option = (asked.options ?? []).find((/** @type {any} */ one) => one?.optionId === asked.responseOption);
  return html`<p class="note">${ANSWERS[asked.state] ?? inert(asked.state)}
    ${asked.by && html` by <b dir="auto">${inert(asked.by)}</b>`}
    ${asked.responseTime ? ` at ${timeOf(asked.responseTime)}` : ""}
    ${option?.name && html`: “<span dir="auto">${inert(option.name)}</span>”`}
    ${asked.reason && html`. Reason: <span dir="auto">${inert(asked.reason)}</span>`}
    ${asked.responseInput !== undefined && ", with other arguments than were asked for"}</p>`;
}

/** @param {{entry: any}} props */
const Notes = ({ entry }) => html`
  ${entry.reason && entry.reason !== entry.error && html`<p class="note reason">
    <b>Reason</b> <span dir="auto">${inert(entry.reason)}</span></p>`}
  ${entry.late && html`<p class="note warn">Something came after this call had ended (late, event ${entry.late}). It is
    in the log and changed nothing.</p>`}`;

// Its events

/** How many events are read at most in search of those of one call. */
const MOST = 20_000;

/** The events of a call, from the first to the last that is known of. @param {any} entry */
async function eventsOf(entry) {
  const last = Math.max(entry.end ?? 0, entry.late ?? 0) || seq.peek();
  const controller = new AbortController();
  const path = `/v1/sessions/${encodeURIComponent(name.peek())}/stream`;
  const asked = address(`${path}?format=events&follow=false&after=${entry.id - 1}`);
  const answer = await fetch(asked, { signal: controller.signal });
  if (!answer.ok || !answer.body) throw new Error(await whyNot(answer));
  const found = [];
  let read = 0;
  for await (const frame of frames(answer.body)) {
    if (!frame.data) continue;
    const event = JSON.parse(frame.data);
    if (event.seq > last || ++read > MOST) break;
    if (event.call === entry.callId) found.push(event);
  }
  controller.abort();
  return { found, more: read > MOST };
}

/** @param {{id: number, event: any}} props */
function OneEvent({ id, event }) {
  const { seq, type, verdict, at } = event;
  const odd = verdict && verdict !== "applied" && html` <span class="warn">${inert(verdict)}</span>`;
  const head = html`<span class="seq">${seq}</span> <code>${inert(type)}</code>${odd} <${Time} at=${at} />`;
  return html`<li><${Fold} id=${id} what=${`event ${seq}`} head=${head}><${JsonTree} value=${event} /><//></li>`;
}

/** @param {{entry: any}} props */
function Events({ entry }) {
  const told = kept(entry.id, "events");
  const load = () =>
    eventsOf(entry).then(
      (got) => (told.value = got),
      (error) => (told.value = { problem: String(error.message) }),
    );
  useEffect(() => {
    if (!told.value) load();
  }, []);
  const { found, problem, more } = told.value ?? {};
  if (problem) {
    return html`<p class="note warn" role="alert">The events did not come: ${problem}${" "}
      <button type="button" class="link" onClick=${load}>Try again</button></p>`;
  }
  if (!found) return html`<p class="note" role="status">Loading the events…</p>`;
  const all = found.map((/** @type {any} */ one) => html`<${OneEvent} key=${one.seq} id=${entry.id} event=${one} />`);
  return html`<ol class="events">${all}</ol>
    ${more && html`<p class="note">There may be more further on.</p>`}
    ${stateOf(entry.status).open && html`<p class="note">
      <button type="button" class="link" onClick=${load}>Load again</button></p>`}`;
}

// The card

/** @param {{entry: any}} props */
function Stop({ entry }) {
  const [problem, setProblem] = useState("");
  const stop = () => cancel(entry.callId).catch((/** @type {Error} */ error) => setProblem(error.message));
  return html`<button type="button" class="button small" onClick=${stop}>Cancel call</button>
    ${problem && html` <span class="warn" role="alert">${problem}</span>`}`;
}

/** @param {{entry: any, live: boolean}} props */
const Actions = ({ entry, live }) => html`<div class="actions">
  ${live && stateOf(entry.status).open && html`<${Stop} entry=${entry} />`}
  <span class="dim">Copy</span>
  <${Copy} text=${() => linkTo(entry.callId)} label="Copy a link to this call">link<//>
  <${Copy} text=${() => curlLine(entry.callId)} label="Copy a curl line that reads this call">curl<//>
  <${Copy} text=${() => cliLine(entry.callId)} label="Copy a command line that shows this call">CLI<//>
  <${Copy} text=${entry.callId} label="Copy the whole id">id<//>
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

/** How long it took, or takes by now. In the past there is no now. @param {{entry: any, live: boolean}} props */
function Took({ entry, live }) {
  const { open } = stateOf(entry.status);
  const from = entry.startedAt || entry.at;
  const told = open ? live && elapsed(from) : entry.endedAt && elapsed(from, entry.endedAt);
  return told ? html`<span class="took" title=${open ? "so far" : "took"}>${told}</span>` : null;
}

/** Why a call ended as it did, in a closed card. @param {{entry: any}} props */
function Why({ entry }) {
  const told = entry.error !== undefined && entry.error !== null && !isPrinted(entry);
  const error = told ? errorText(entry.error) : "";
  return [...new Set([error, entry.reason])].filter(Boolean).map((said) =>
    html`<p class=${classes("gist reason", said === error && "bad")} dir="auto">${firstLine(said, 300)}</p>`);
}

/** @param {{entry: any, live: boolean}} props */
function Side({ entry, live }) {
  const { toolName: tool, rawToolName: raw, callId } = entry;
  return html`<span class="call-side">
    ${tool && tool !== titleOf(entry) && html`<code class="call-tool" dir="auto"
      title=${inert(raw ?? tool)}>${inert(tool)}</code>`}
    <${Took} entry=${entry} live=${live} />
    <${Copy} plain text=${callId} label=${`Copy the id ${callId}`}><code>${short(callId)}</code><//></span>`;
}

/** @param {{entry: any, live?: boolean, open?: boolean}} props */
export default function ToolCard({ entry, live = true, open = false }) {
  const choice = kept(entry.id, "open");
  const isOpen = choice.value ?? open;
  const state = stateOf(entry.status);
  const said = gist(entry);
  const body = `call-${entry.id}`;
  return html`<div class=${classes("call", `is-${entry.status}`, isOpen && "open")} data-call=${entry.callId}
    data-status=${entry.status}>
    <div class="call-head">
      <button type="button" class="call-toggle" aria-expanded=${isOpen} aria-controls=${body}
        onClick=${() => (choice.value = !isOpen)}>
        <span class="turn" aria-hidden="true">${isOpen ? "▾" : "▸"}</span>
        <span class="state"><span class="glyph" aria-hidden="true">${state.glyph}</span> ${state.word}</span>
        <span class="call-title foreign" dir="auto">${firstLine(String(titleOf(entry)), 300)}</span>
      </button>
      <${Side} entry=${entry} live=${live} />
    </div>
    <${Facts} entry=${entry} />
    ${!isOpen && said && html`<p class="gist" dir="auto">${said}</p>`}
    <div class="call-body" id=${body}>
      ${isOpen
        ? html`<${Body} entry=${entry} live=${live} />`
        : html`<${Why} entry=${entry} /><${Preview} entry=${entry} />`}
    </div>
  </div>`;
}
