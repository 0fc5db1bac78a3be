// An approval request: the requested call, the options that the agent offers, and the decision. The first decision
// wins, wherever it was made; afterwards the request is read-only. The session shows it as a card, the inbox as a page.

import { inert } from "./ansi.js";
import { Arguments, EditForm } from "./edit.js";
import { Markdown } from "./markdown.js";
import { classes, html, lazy, useEffect, useRef, useState } from "./ui.js";
import { answeredRequests, decide, get, link, post } from "./state.js";
import { APPROVAL_STATES, approvalOf } from "./states.js";
import { formatAge, formatRemaining, formatTime, isoTime } from "./time.js";

/** @typedef {{optionId?: string, name?: string, kind?: string}} Option */
/** @typedef {{kind: "call" | "question" | "plan", canAnswer: boolean, canAllow: boolean,
 *   canEdit: boolean}} Offer */
/** @typedef {{id: number, at?: number, approvalId?: string, callId: string, state?: string, toolName?: string | null,
 *   description?: string, options?: Option[], rawInput?: unknown, schema?: any, expiresAt?: number, answerAt?: string,
 *   responseOption?: string | null, responseInput?: unknown, responseTime?: number, by?: string,
 *   reason?: string}} Request */

const RuleEditor = lazy(() => import("./rule_editor.js"));

/** What can be answered as long as the server has not said it: what every agent understands. @type {Offer} */
const UNKNOWN_OFFER = { kind: "call", canAnswer: true, canAllow: false, canEdit: false };

const EXPIRES_SOON_MS = 15_000;
/** @param {any} row */
const alreadyAnswered = ({ by }) => (by ? `Already answered by ${inert(by)}.` : "Already answered.");

/** @param {Request} entry */
export const isPending = (entry) => (entry.state ?? "pending") === "pending";

/**
 * Convert a row of the inbox to a request.
 * @param {any} row @returns {Request}
 */
export const requestFromRow = (row) => ({
  id: row.entry,
  at: row.createdAt,
  approvalId: row.approval,
  callId: row.call,
  description: row.description,
  options: row.options,
  expiresAt: row.expiresAt,
  answerAt: row.answerAt,
  ...answerFields(row),
});

/** Return the fields that an answered row adds to its request. @param {any} row */
export const answerFields = (row) => ({
  state: row.state,
  responseOption: row.option,
  responseTime: row.answeredAt,
  by: row.by,
  reason: row.reason,
});

/**
 * The time left to answer.
 * @param {{at: number | undefined}} props
 */
export function Countdown({ at }) {
  if (!at) return null;
  const remaining = formatRemaining(at);
  const isSoon = at - Date.now() < EXPIRES_SOON_MS;
  const title = `Expires at ${formatTime(at)}`;
  return html`<span class=${classes("countdown", isSoon && "soon")} role="timer" title=${title}>
    ${remaining ? html`${remaining} <span class="wide">left</span>` : "Expired"}
  </span>`;
}

/** Whether the request was approved with changed parameters. @param {Request} entry */
const isEdited = (entry) => entry.responseInput !== undefined && entry.responseInput !== null;

/**
 * The decision: what, by whom and when.
 * @param {{entry: Request}} props
 */
export function Decision({ entry }) {
  const unknown = { glyph: "·", label: entry.state ?? "", look: "cancelled" };
  const decision = APPROVAL_STATES[entry.state ?? ""] ?? unknown;
  const option = entry.options?.find((one) => one?.optionId && one.optionId === entry.responseOption);
  const time = entry.responseTime;
  return html`<p class="decision">
      <span class=${`state is-${decision.look}`}>
        <span aria-hidden="true">${decision.glyph}</span> ${decision.label}</span>
      ${entry.by ? html` by <${Author} by=${entry.by} />` : ""}
      ${time ? html` <${Time} at=${time} />` : ""}
      ${option?.name ? html`<span class="dim">: </span><${Quote} text=${String(option.name)} />` : ""}
      ${entry.reason ? html`<span class="dim">. Reason: </span><${Quote} text=${entry.reason} />` : ""}
      ${isEdited(entry) ? html`<span class="dim">, with changes:</span>` : ""}
    </p>
    ${isEdited(entry) ? html`<${Arguments} input=${entry.responseInput} />` : ""}`;
}

/** Who answered; a rule is a link to it. @param {{by: string}} props */
function Author({ by }) {
  const [, rule] = by.match(/^rule (rule_\w+)$/) ?? [];
  const name = html`<b class="untrusted" dir="auto">${inert(by)}</b>`;
  return rule ? html`<a ...${link(`/rules#${rule}`)}>${name}</a>` : name;
}

/** @param {{at: number}} props */
const Time = ({ at }) =>
  html`<time class="dim" datetime=${isoTime(at)} title=${isoTime(at)}>at ${formatTime(at)}, ${formatAge(at)}</time>`;

/** @param {{text: string}} props */
const Quote = ({ text }) => html`<q class="untrusted" dir="auto">${inert(text)}</q>`;

/** @param {Option} option @param {string} begin */
const isKind = (option, begin) => String(option.kind ?? "").startsWith(begin);

/**
 * Sort options by what they do. Options of an unknown kind are listed after those that allow, and so is one with which an
 * agent decides by itself.
 * @param {Option[]} options @param {Offer} offer
 */
function sortOptions(options, offer) {
  const valid = options.filter((option) => option && typeof option === "object");
  const denies = valid.filter((option) => isKind(option, "reject"));
  const allows = valid.filter((option) => isKind(option, "allow") && offer.canAllow);
  return { allows, denies, others: valid.filter((option) => !denies.includes(option) && !allows.includes(option)) };
}

/** Return the least permissive option that allows: the key `a` selects it. @param {Option[]} allows */
const leastPermissive = (allows) => allows.find((option) => option.kind === "allow_once") ?? allows[0];

// What is requested

/** Return the command in parameters, if it is one text. @param {any} input */
export const commandText = (input) => [input?.command, input?.cmd].find((value) => typeof value === "string") ?? "";

/** @param {{question: any}} props */
const Question = ({ question }) => html`<div class="question">
  <p class="untrusted" dir="auto">${question?.header ? html`<span class="chip">${inert(String(question.header))}</span>${" "}` : ""}
    <b>${inert(String(question?.question ?? ""))}</b></p>
  ${question?.multiSelect ? html`<p class="dim">Several answers are possible.</p>` : ""}
  <ul>${[question?.options ?? []].flat().map((/** @type {any} */ option) => html`<li class="untrusted" dir="auto">
    <b>${inert(String(option?.label ?? ""))}</b>${option?.description
      ? html`<span class="dim">: ${inert(String(option.description))}</span>` : ""}</li>`)}</ul>
</div>`;

/**
 * What is to be decided: a question, a plan, or the parameters of a call. A command is shown in full.
 * @param {{input: any, kind?: Offer["kind"]}} props
 */
export function Requested({ input, kind = "call" }) {
  if (kind === "question" && Array.isArray(input?.questions)) {
    return html`<div class="questions">${input.questions.map((/** @type {any} */ one) => html`<${Question} question=${one} />`)}</div>`;
  }
  if (kind === "plan" && typeof input?.plan === "string") {
    return html`<div class="plan-text" dir="auto"><${Markdown} text=${input.plan} /></div>`;
  }
  const command = commandText(input);
  if (!command) return html`<${Arguments} input=${input} />`;
  const rest = Object.fromEntries(Object.entries(input).filter(([, value]) => value !== command));
  return html`<pre class="bigcmd untrusted" role="group" aria-label="Command" dir="auto">${inert(command)}</pre>
    ${Object.keys(rest).length ? html`<${Arguments} input=${rest} />` : ""}`;
}

// The answer

/**
 * The state of answering a request: what the agent can honour, and what the user is doing.
 * @param {Request} requested @param {boolean} live
 */
export function useAnswer(requested, live) {
  const [answerHere, setAnswerHere] = useState(/** @type {any} */ (null));
  const [isBusy, setIsBusy] = useState(false);
  const [error, setError] = useState("");
  const [note, setNote] = useState("");
  const [mode, setMode] = useState(/** @type {"decide" | "edit" | "rule"} */ ("decide"));
  const [offer, setOffer] = useState(/** @type {Offer | null} */ (null));
  const approval = approvalOf(requested);
  const row = answeredRequests.value.get(approval);
  const answer = live && (answerHere ?? (row && answerFields(row)));
  const editedInput = live ? answerHere?.responseInput : undefined; // Rows do not contain the changed parameters.
  const inputField = editedInput === undefined ? {} : { responseInput: editedInput };
  const entry = /** @type {Request} */ ({ ...requested, ...(answer && isPending(requested) ? answer : {}), ...inputField });
  const isWaiting = isPending(entry);
  const place = isWaiting && live ? entry.answerAt : "";
  const path = `/v1/approvals/${encodeURIComponent(approval)}`;
  const isAsked = isWaiting && live;
  useEffect(() => {
    if (isAsked && !offer) get(`${path}/offer`).then(setOffer, () => setOffer(UNKNOWN_OFFER));
  }, [isAsked]);

  /** Send a decision. Return whether it counts. @param {any} decision */
  async function send(decision) {
    setIsBusy(true);
    setError("");
    try {
      const row = await decide(approval, decision);
      setAnswerHere({ ...answerFields(row), responseInput: decision.input });
      return true;
    } catch (cause) {
      const current = /** @type {any} */ (cause).body?.current;
      if (current?.state && current.state !== "pending") setAnswerHere(answerFields(current));
      setError(current?.state ? alreadyAnswered(current) : /** @type {Error} */ (cause).message);
      return false;
    } finally {
      setIsBusy(false);
    }
  }

  /** Approve, and save a rule if the approval counts. @param {import("./rule_editor.js").Rule} rule */
  async function approveAndSave(rule) {
    if (!(await send({ decision: "approve" }))) throw new Error("The rule was not saved.");
    try {
      await post("/v1/rules", rule);
      setNote("The rule was saved.");
    } catch (cause) {
      setError(`Approved, but the rule was not saved: ${/** @type {Error} */ (cause).message}`);
    }
  }

  const change = (/** @type {"decide" | "edit" | "rule"} */ next) => (setMode(next), setError(""));
  return {
    id: `request-${approval}`, path, entry, offer, isWaiting, place, isBusy, error, note, mode, change, send, approveAndSave,
    hasAnswer: Boolean(answerHere), showsForm: isWaiting && live && !place && offer?.canAnswer !== false, canAnswer: isWaiting && live && !place && offer?.canAnswer === true,
    isForbidden: isWaiting && live && !place && offer?.canAnswer === false,
  };
}

/** @typedef {ReturnType<typeof useAnswer>} Answer */

/**
 * The buttons of the decision, and a field for the reason of a denial.
 * @param {{answer: Answer}} props
 */
export function DecisionForm({ answer }) {
  const { id, entry, isBusy, send, change } = answer;
  const offer = answer.offer ?? UNKNOWN_OFFER;
  const isOff = isBusy || !answer.offer; // The buttons have their place before the server says what the agent can honour.
  const [reason, setReason] = useState("");
  const { allows, denies, others } = sortOptions(entry.options ?? [], answer.offer ? offer : { ...offer, canAllow: true });
  if (!allows.length && !others.length) allows.push({ name: "Approve" });
  if (!denies.length) denies.push({ name: "Deny" });
  const deny = (/** @type {Option} */ option) => send({ decision: "deny", ...optionField(option), reason });
  const allow = (/** @type {Option} */ option) => send({ decision: "approve", ...optionField(option) });
  const primary = leastPermissive(allows);
  /** @param {Option} option @param {string} css @param {string} key @param {string} action @param {(option: Option) => void} act */
  const button = (option, css, key, action, act) =>
    html`<button type="button" class=${classes("btn", css)} disabled=${isOff} data-action=${action || undefined}
      onClick=${() => act(option)}>
      <span class="untrusted" dir="auto">${inert(String(option.name ?? option.optionId ?? ""))}</span>
      ${key ? html`<kbd aria-hidden="true">${key}</kbd>` : ""}</button>`;
  const submit = (/** @type {Event} */ event) => (event.preventDefault(), deny(denies[0]));
  return html`<form class="answer decide" onSubmit=${submit}>
    <div class="button-row" role="group" aria-label="Approve">
      ${allows.map((option) => button(option, option === primary ? "yes" : "", option === primary ? "A" : "",
        option === primary ? "allow" : "", allow))}
      ${others.map((option) => button(option, "", "", "", allow))}
      ${offer.canEdit ? html`<button type="button" class="btn" data-action="edit" disabled=${isOff}
        onClick=${() => change("edit")}><i class="i i-edit" aria-hidden="true"></i>Edit…<kbd aria-hidden="true">E</kbd></button>` : ""}
      ${offer.canAllow ? html`<button type="button" class="btn" data-action="rule" disabled=${isOff}
        onClick=${() => change("rule")}><i class="i i-shield" aria-hidden="true"></i>Always allow…</button>` : ""}
    </div>
    <div class="button-row grow" role="group" aria-label="Deny">
      ${denies.map((option) => button(option, "no", option === denies[0] ? "D" : "", option === denies[0] ? "deny" : "", deny))}
      <label class="visually-hidden" for=${`${id}-reason`}>Reason (sent to the agent)</label>
      <input id=${`${id}-reason`} class="field reason" maxlength="2000" autocomplete="off" dir="auto"
        placeholder="Reason (sent to the agent)" disabled=${isBusy} value=${reason}
        onInput=${(/** @type {any} */ event) => setReason(event.target.value)} />
    </div>
  </form>`;
}

const optionField = (/** @type {Option} */ option) => (option.optionId ? { option: option.optionId } : {});

/**
 * The form of a rule that would have allowed the request; or why there can be none.
 * @param {{answer: Answer, onCancel: () => void}} props
 */
function RuleForm({ answer, onCancel }) {
  const [proposal, setProposal] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  useEffect(() => {
    get(`${answer.path}/rule`).then(
      (found) => (setProposal(found), setProblem(found.problem ?? "")),
      (error) => setProblem(error.message),
    );
  }, []);
  if (problem) {
    return html`<div class="rule"><div class="foot">
      <p class="grow" role="alert"><i class="i i-wait wait" aria-hidden="true"></i> ${inert(problem)}</p>
      <button type="button" class="btn" onClick=${onCancel}>Close</button></div></div>`;
  }
  if (!proposal) return html`<p class="dim" role="status">Loading a proposal…</p>`;
  return html`<${RuleEditor} id=${`${answer.id}-rule`} start=${proposal.rule} label="Approve and save rule"
    places=${{ session: proposal.session, project: proposal.project }} onSave=${answer.approveAndSave} onCancel=${onCancel} />`;
}

/**
 * The form that the user has opened, if any: to change the parameters, or for a rule.
 * @param {{answer: Answer, onCancel: () => void}} props
 */
export function AnswerEditor({ answer, onCancel }) {
  const { id, entry, isBusy, error, mode, send, change } = answer;
  const cancel = () => (change("decide"), onCancel());
  if (mode === "decide" || !answer.canAnswer) return null;
  if (mode === "rule") return html`<section class="rule-sec"><h3>Always allow</h3>
    <${RuleForm} answer=${answer} onCancel=${cancel} /></section>`;
  return html`<${EditForm} id=${id} input=${entry.rawInput} schema=${entry.schema} busy=${isBusy} error=${error}
    onSend=${(/** @type {unknown} */ input) => send({ decision: "edit", input })} onCancel=${cancel} />`;
}

/**
 * Do what a key does on a focused request, by its buttons, so that a key can do nothing that is not visible.
 * @param {HTMLElement} element The request. @param {string} key
 */
export function pressKey(element, key) {
  const find = (/** @type {string} */ selector) => /** @type {HTMLElement | null} */ (element.querySelector(selector));
  if (key === "d") find(".reason")?.focus();
  else find(`[data-action="${key === "a" ? "allow" : "edit"}"]`)?.click();
}

/** @param {KeyboardEvent} event */
export const isAnswerKey = (event) =>
  ["a", "e", "d"].includes(event.key) && !event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey;

/**
 * Where to answer a request that cannot be answered on this page.
 * @param {{place: string}} props
 */
export const AnswerPlace = ({ place }) =>
  html`<p class="note">Answer in <b class="untrusted" dir="auto">${inert(place)}</b>. An answer from here would not
    reach the agent.</p>`;

/**
 * The problem and the result of an answer.
 * @param {{answer: Answer}} props
 */
export const AnswerResult = ({ answer }) => html`
  ${answer.isForbidden ? html`<p class="note">You may not answer this request.</p>` : ""}
  ${answer.mode !== "edit" || !answer.isWaiting ? html`<p class="error-text" role="alert">${inert(answer.error)}</p>` : ""}
  <div role="status">${answer.isWaiting ? "" : html`<${Decision} entry=${answer.entry} />`}
    ${answer.note ? html`<p class="good">${answer.note}</p>` : ""}</div>`;

// The card in a session

/** @param {{id: string, entry: Request, live: boolean}} props */
const RequestHeader = ({ id, entry, live }) => html`<header>
    <h2 id=${`${id}-title`}>
      ${isPending(entry) ? html`<i class="i i-wait wait" aria-hidden="true"></i>
        <span class="visually-hidden">Approval request: </span>` : ""}
      <span class="untrusted" dir="auto">${inert(entry.description || entry.toolName || "Call")}</span>
    </h2>
    ${isPending(entry) && live ? html`<${Countdown} at=${entry.expiresAt} />` : ""}
    <p class="about dim">
      ${entry.toolName ? html`<code class="untrusted">${inert(entry.toolName)}</code>` : ""}
      <time datetime=${isoTime(entry.at)} title=${isoTime(entry.at)}>Requested ${formatAge(entry.at)}</time>
    </p>
  </header>`;

/** @param {{input: unknown}} props */
const RequestedParameters = ({ input }) =>
  html`<details class="hints"><summary>Requested parameters</summary><${Arguments} input=${input} /></details>`;

/**
 * The card of an approval request. A card that is not `live` shows a past moment and is read-only.
 * @param {{entry: Request, live?: boolean}} props
 */
export default function PermissionCard({ entry: requested, live = true }) {
  const answer = useAnswer(requested, live);
  const { id, entry, isWaiting, canAnswer, mode } = answer;
  const card = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  useEffect(() => {
    const isFocusLost = document.activeElement === document.body; // The button that had the focus is gone.
    if (!isWaiting && answer.hasAnswer && isFocusLost) card.current?.focus();
  }, [isWaiting, answer.hasAnswer]);

  function onKey(/** @type {KeyboardEvent} */ event) {
    if (event.key === "Escape" && event.target !== card.current) card.current?.focus();
    else if (event.target !== card.current || !isAnswerKey(event)) return;
    else if (canAnswer && !event.repeat) pressKey(/** @type {HTMLElement} */ (card.current), event.key);
    event.preventDefault();
  }

  const showsEditor = canAnswer && mode !== "decide";
  return html`<article class=${classes("request", isWaiting ? "is-awaiting_approval" : "answered")}
    ref=${card} tabindex="0" aria-labelledby=${`${id}-title`}
    aria-keyshortcuts=${canAnswer ? "a d e" : undefined} onKeyDown=${onKey}>
    <${RequestHeader} id=${id} entry=${entry} live=${live} />
    ${isWaiting && mode !== "edit" ? html`<${Requested} input=${entry.rawInput} kind=${answer.offer?.kind} />` : ""}
    <${AnswerEditor} answer=${answer} onCancel=${() => card.current?.focus()} />
    ${answer.showsForm && !showsEditor ? html`<${DecisionForm} answer=${answer} />` : ""}
    ${answer.place ? html`<${AnswerPlace} place=${answer.place} />` : ""}
    ${isWaiting && !live ? html`<p class="dim">Not answered yet at this point.</p>` : ""}
    <${AnswerResult} answer=${answer} />
    ${isWaiting ? "" : html`<${RequestedParameters} input=${entry.rawInput} />`}
  </article>`;
}
