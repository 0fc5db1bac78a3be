// One request of the inbox: what is asked, why, and what came before; below it the buttons of the decision.

import { inert } from "./ansi.js";
import {
  AnswerEditor, AnswerPlace, AnswerResult, Countdown, DecisionForm, Requested, answerFields, commandText, requestFromRow, useAnswer,
} from "./request.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { get, link, sessions } from "./state.js";
import { approvalOf, describeState } from "./states.js";
import { formatAge, formatDuration, isoTime } from "./time.js";

/** How many entries before a request are read, and how many calls of them are shown. */
const ENTRIES_BEFORE = 40;
const CALLS_BEFORE = 3;

/**
 * A request with what came before it.
 * @typedef {{request: any, call: any, said: any, before: any[]}} Context
 */

/** @param {any} row @param {number} limit @returns {Promise<any[]>} */
async function readEntries(row, limit) {
  const query = `?format=entries&limit=${limit}&cursor=${row.entry + 1}`;
  return (await get(`/v1/sessions/${encodeURIComponent(row.session)}${query}`)).entries;
}

/** Return the entry of a request, or throw if it is not in its session any more. @param {any} row @param {any[]} entries */
function findRequest(row, entries) {
  const request = entries.find((entry) => approvalOf(entry) === row.approval);
  if (!request) throw new Error("request not found in its session");
  return request;
}

/** Read the request of a row. @param {any} row */
export const readRequest = async (row) => findRequest(row, await readEntries(row, 1));

/** @param {any} row @returns {Promise<Context>} */
async function readContext(row) {
  const entries = await readEntries(row, ENTRIES_BEFORE);
  const request = findRequest(row, entries);
  const earlier = entries.filter((entry) => entry.id < request.id && entry.turn === request.turn);
  const isSaid = (/** @type {any} */ entry) =>
    entry.type === "thought" || (entry.type === "message" && entry.role === "assistant");
  const calls = earlier.filter((entry) => entry.type === "tool_call" && entry.callId !== request.callId);
  return {
    request,
    call: entries.find((entry) => entry.type === "tool_call" && entry.callId === request.callId),
    said: earlier.filter((entry) => isSaid(entry) && entry.content).pop(),
    before: calls.slice(-CALLS_BEFORE),
  };
}

/** @type {Record<string, [icon: string, look: string]>} */
const STATE_ICONS = {
  completed: ["check", "good"], failed: ["fail", "bad"], running: ["half", "run"], queued: ["queue", "dim"],
  awaiting_approval: ["wait", "wait"], denied: ["deny", "dim"], cancelled: ["stop", "dim"], expired: ["expire", "wait"],
  lost: ["lost", "bad"],
};

/** @param {{call: any, session: string}} props */
function CallRow({ call, session }) {
  const [icon, look] = STATE_ICONS[call.status] ?? STATE_ICONS.queued;
  const { label } = describeState(call.status);
  const took = call.startedAt && call.endedAt ? formatDuration(call.endedAt - call.startedAt) : "";
  return html`<li><i class=${`i i-${icon} ${look}`} role="img" aria-label=${label} title=${label}></i>
    <a class="cut mono untrusted" dir="auto" ...${link(`/s/${encodeURIComponent(session)}#entry-${call.id}`)}>
      ${inert(call.title || call.toolName || "Call")}</a>
    <span class="cut untrusted dim tool" dir="auto">${inert(call.toolName ?? "")}</span>
    <span class="num dim">${took}</span></li>`;
}

/** The files that a call concerns, if it names them. @param {{call: any}} props */
function Touches({ call }) {
  const paths = (Array.isArray(call?.locations) ? call.locations : [])
    .map((/** @type {any} */ one) => one?.path).filter((/** @type {any} */ path) => typeof path === "string");
  if (!paths.length) return null;
  return html`<ul class="touches" aria-label="Files">${[...new Set(paths)].map((path) => html`
    <li class="chip"><i class="i i-file" aria-hidden="true"></i><code class="untrusted" dir="auto">${inert(path)}</code></li>`)}</ul>`;
}

/** The agent, the session and the turn of a request. @param {{row: any, request: any}} props */
function Source({ row, request }) {
  const session = sessions.value.get(row.session);
  const name = session?.title || session?.prompt || row.session;
  const turn = session?.turns > 0 && request?.turn && session.turn === request.turn ? `, turn ${session.turns}` : "";
  return html`<p class="mid about">
    ${session?.agent ? html`<span class="untrusted" dir="auto">${inert(session.agent)}</span> in ` : ""}
    <a class="untrusted" dir="auto" ...${link(`/s/${encodeURIComponent(row.session)}#entry-${row.entry}`)}>${inert(name)}</a>${turn},
    ${" "}<time datetime=${isoTime(row.createdAt)} title=${isoTime(row.createdAt)}>asked ${formatAge(row.createdAt)}</time>
    ${request?.toolName ? html`, with <code class="untrusted" dir="auto">${inert(request.toolName)}</code>` : ""}</p>`;
}

/**
 * The page of a request. `keys` says whether keys answer it now. `onBack` leads back to the list of a narrow window.
 * @param {{row: any, keys: boolean, onBack: () => void}} props
 */
export default function RequestDetail({ row, keys, onBack }) {
  const [context, setContext] = useState(/** @type {Context | null} */ (null));
  const [problem, setProblem] = useState("");
  const article = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const fields = { ...requestFromRow(row), ...context?.request, ...(row.state === "pending" ? {} : answerFields(row)) };
  const answer = useAnswer(fields, true);
  const { id, entry, isWaiting } = answer;
  const canAnswer = answer.canAnswer && context !== null;
  // Parameters that change make it another request: its hash names them.
  useEffect(() => {
    let isCurrent = true;
    setProblem("");
    setContext(null);
    readContext(row).then(
      (found) => isCurrent && setContext(found),
      (error) => isCurrent && setProblem(error.message),
    );
    return () => void (isCurrent = false);
  }, [row.inputHash]);
  useEffect(() => {
    const isFocusLost = document.activeElement === document.body; // The button that had the focus is gone.
    if (!isWaiting && answer.hasAnswer && isFocusLost) article.current?.focus();
  }, [isWaiting, answer.hasAnswer]);
  const focus = () => article.current?.focus();
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    if (event.target !== article.current) focus();
    else onBack();
  };
  const title = entry.description || context?.call?.title || "Request";
  const isOpenForm = answer.mode !== "decide" && canAnswer;
  return html`<article class="request whole" ref=${article} tabindex="-1" data-detail=${row.approval}
    aria-labelledby=${`${id}-title`} aria-keyshortcuts=${keys && canAnswer ? "a d e" : undefined} onKeyDown=${onKeyDown}>
    <div class="scroll" data-scroller tabindex="0">
      <div class="line">
        <button type="button" class="btn ghost icon back" aria-label="Back to the list" onClick=${onBack}>
          <i class="i i-left" aria-hidden="true"></i></button>
        ${isWaiting ? html`<span class="chip is-wait"><i class="i i-wait" aria-hidden="true"></i>Waiting for approval</span>
          <${Countdown} at=${entry.expiresAt} />` : ""}
        <span class="gap"></span>
        <a class="btn ghost open-session" aria-label="Open in session"
          ...${link(`/s/${encodeURIComponent(row.session)}#entry-${row.entry}`)}>
          <span class="word">Open in session</span><i class="i i-right" aria-hidden="true"></i></a>
      </div>
      <h2 id=${`${id}-title`} class=${classes("untrusted", title === commandText(entry.rawInput) && "visually-hidden")} dir="auto">${inert(title)}</h2>
      <${Source} row=${row} request=${context?.request} />
      ${problem ? html`<p class="error-text" role="alert">Could not load parameters: ${inert(problem)}</p>` : ""}
      ${!context && !problem ? html`<p class="dim" role="status">Loading parameters…</p>` : ""}
      ${context && (answer.mode !== "edit" || !canAnswer) ? html`<section>
        <${Requested} input=${entry.rawInput} kind=${answer.offer?.kind} /><${Touches} call=${context.call} /></section>` : ""}
      ${answer.place ? html`<${AnswerPlace} place=${answer.place} />` : ""}
      <${AnswerResult} answer=${answer} />
      ${isOpenForm ? html`<${AnswerEditor} answer=${answer} onCancel=${focus} />` : ""}
      ${context?.said ? html`<section><h3>Why</h3>
        <p class="prose untrusted" dir="auto" tabindex="0" role="group" aria-label="What the agent said">${inert(context.said.content)}</p></section>` : ""}
      ${context?.before.length ? html`<section><h3>Just before</h3>
        <ol class="flat-rows">${context.before.map((call) => html`<${CallRow} key=${call.id} call=${call} session=${row.session} />`)}</ol>
      </section>` : ""}
    </div>
    ${answer.showsForm && context && !isOpenForm ? html`<${DecisionForm} answer=${answer} />` : ""}
  </article>`;
}
