// An approval request: the requested call, the options that the agent offers, and the decision. The first decision
// wins, wherever it was made; afterwards the card is read-only.

import { inert } from "./ansi.js";
import { Arguments, EditForm } from "./edit.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { answeredRequests as answeredRequests, decide, link } from "./state.js";
import { APPROVAL_STATES, approvalOf, describeState } from "./states.js";
import { formatAge, formatRemaining, formatTime, isoTime } from "./time.js";

/** @typedef {{optionId?: string, name?: string, kind?: string}} Option */
/** @typedef {{id: number, at?: number, approvalId?: string, callId: string, state?: string, toolName?: string | null,
 *   description?: string, options?: Option[], rawInput?: unknown, schema?: any, expiresAt?: number, answerAt?: string,
 *   responseOption?: string | null, responseInput?: unknown, responseTime?: number, by?: string,
 *   reason?: string}} Request */


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
function Countdown({ at }) {
  if (!at) return null;
  const remaining = formatRemaining(at);
  const isSoon = at - Date.now() < EXPIRES_SOON_MS;
  const title = `Expires at ${formatTime(at)}`;
  return html`<span class=${classes("countdown", isSoon && "soon")} role="timer" title=${title}>
    ${remaining ? html`<span aria-hidden="true">◷</span> ${remaining} <span class="wide">left</span>` : "Expired"}
  </span>`;
}

/** Whether the request was approved with changed parameters. @param {Request} entry */
const isEdited = (entry) => entry.responseInput !== undefined && entry.responseInput !== null;

/**
 * The decision: what, by whom and when.
 * @param {{entry: Request}} props
 */
function Decision({ entry }) {
  const unknown = { glyph: "·", label: entry.state ?? "", look: "cancelled" };
  const decision = APPROVAL_STATES[entry.state ?? ""] ?? unknown;
  const option = entry.options?.find((one) => one?.optionId && one.optionId === entry.responseOption);
  const time = entry.responseTime;
  return html`<p class="decision">
      <span class=${`state is-${decision.look}`}>
        <span aria-hidden="true">${decision.glyph}</span> ${decision.label}</span>
      ${entry.by ? html` by <b class="untrusted" dir="auto">${inert(entry.by)}</b>` : ""}
      ${time ? html` <${Time} at=${time} />` : ""}
      ${option?.name ? html`<span class="dim">: </span><${Quote} text=${String(option.name)} />` : ""}
      ${entry.reason ? html`<span class="dim">. Reason: </span><${Quote} text=${entry.reason} />` : ""}
      ${isEdited(entry) ? html`<span class="dim">, with changes:</span>` : ""}
    </p>
    ${isEdited(entry) ? html`<${Arguments} input=${entry.responseInput} />` : ""}`;
}

/** @param {{at: number}} props */
const Time = ({ at }) =>
  html`<time class="dim" datetime=${isoTime(at)} title=${isoTime(at)}>at ${formatTime(at)}, ${formatAge(at)}</time>`;

/** @param {{text: string}} props */
const Quote = ({ text }) => html`<q class="untrusted" dir="auto">${inert(text)}</q>`;

/** @param {Option} option @param {string} begin */
const isKind = (option, begin) => String(option.kind ?? "").startsWith(begin);

/** Sort options by what they do. Options of an unknown kind are listed after those that allow, with their own mark. */
function sortOptions(/** @type {Option[]} */ options) {
  const valid = options.filter((option) => option && typeof option === "object");
  const denies = valid.filter((option) => isKind(option, "reject"));
  const allows = valid.filter((option) => isKind(option, "allow"));
  return { allows, denies, others: valid.filter((option) => !denies.includes(option) && !allows.includes(option)) };
}

/** Return the least permissive option that allows: the key `a` selects it. @param {Option[]} allows */
const leastPermissive = (allows) => allows.find((option) => option.kind === "allow_once") ?? allows[0];

/**
 * The decision buttons, and a field for the reason of a denial.
 * @param {{id: string, options: Option[], busy: boolean, onAnswer: (answer: any) => void, onEdit: () => void}} props
 */
function DecisionForm({ id, options, busy, onAnswer, onEdit }) {
  const [reason, setReason] = useState("");
  const { allows, denies, others } = sortOptions(options);
  if (!allows.length && !others.length) allows.push({ name: "Approve" });
  if (!denies.length) denies.push({ name: "Deny" });
  const deny = (/** @type {Option} */ option) => onAnswer({ decision: "deny", ...optionField(option), reason });
  const allow = (/** @type {Option} */ option) => onAnswer({ decision: "approve", ...optionField(option) });
  const primary = leastPermissive(allows);
  const button = (/** @type {Option} */ option, kind = "", glyph = "", /** @type {(option: Option) => void} */ act) =>
    html`<button type="button" class=${classes("button", kind, option === primary && "primary")} disabled=${busy}
      data-action=${option === primary || option === denies[0] ? kind : undefined} onClick=${() => act(option)}>
      <span aria-hidden="true">${glyph}</span>
      <span class="untrusted" dir="auto">${inert(String(option.name ?? option.optionId ?? ""))}</span>
    </button>`;
  const submit = (/** @type {Event} */ event) => (event.preventDefault(), deny(denies[0]));
  return html`<form class="answer" onSubmit=${submit}>
    <div class="button-row" role="group" aria-label="Approve">
      ${allows.map((option) => button(option, "allow", "✓", allow))}
      ${others.map((option) => button(option, "other", "?", allow))}
      <button type="button" class="button" data-action="edit" disabled=${busy} onClick=${onEdit}>
        <span aria-hidden="true">✎</span> Edit…
      </button>
    </div>
    <div class="button-row" role="group" aria-label="Deny">
      ${denies.map((option) => button(option, "deny", "⊘", deny))}
      <label class="visually-hidden" for=${`${id}-reason`}>Reason (sent to the agent)</label>
      <input id=${`${id}-reason`} class="field reason" maxlength="2000" autocomplete="off" dir="auto"
        placeholder="Reason (sent to the agent)" disabled=${busy} value=${reason}
        onInput=${(/** @type {any} */ event) => setReason(event.target.value)} />
    </div>
  </form>`;
}

const optionField = (/** @type {Option} */ option) => (option.optionId ? { option: option.optionId } : {});

/** Keyboard shortcuts click the buttons of the card, so that a key can do nothing that is not visible. */
const KEY_ACTIONS = /** @type {Record<string, ((card: HTMLElement) => void) | undefined>} */ ({
  a: (card) => pressButton(card, "allow"),
  e: (card) => pressButton(card, "edit"),
  d: (card) => /** @type {HTMLElement | null} */ (card.querySelector(".reason"))?.focus(),
});
const pressButton = (/** @type {HTMLElement} */ card, /** @type {string} */ kind) =>
  /** @type {HTMLElement | null} */ (card.querySelector(`[data-action="${kind}"]`))?.click();

/**
 * The header of a request: the call, the time left, the tool, the session and the time of the request.
 * @param {{id: string, entry: Request, session: string, live: boolean, open: boolean, onOpen?: () => void}} props
 */
function RequestHeader({ id, entry, session, live, open, onOpen }) {
  const isWaiting = isPending(entry);
  const title = html`<span class="untrusted" dir="auto">${inert(entry.description || entry.toolName || "Call")}</span>`;
  return html`<header>
    <h2 id=${`${id}-title`}>
      ${isWaiting
        ? html`<span class="state"><span aria-hidden="true">${describeState("awaiting_approval").glyph}</span>
            <span class="visually-hidden">Approval request: </span></span>`
        : ""}
      ${onOpen
        ? html`<button type="button" class="opener" aria-expanded=${open ? "true" : "false"}
            onClick=${onOpen}>${title}</button>`
        : title}
    </h2>
    ${isWaiting && live ? html`<${Countdown} at=${entry.expiresAt} />` : ""}
    <p class="about dim">
      ${entry.toolName ? html`<code class="untrusted">${inert(entry.toolName)}</code>` : ""}
      ${session
        ? html`<a class="untrusted" dir="auto" ...${link(`/s/${encodeURIComponent(session)}#entry-${entry.id}`)}>
            ${inert(session)}</a>`
        : ""}
      <time datetime=${isoTime(entry.at)} title=${isoTime(entry.at)}>Requested ${formatAge(entry.at)}</time>
    </p>
  </header>`;
}

/**
 * Where to answer a request that cannot be answered on this page.
 * @param {{place: string}} props
 */
const AnswerPlace = ({ place }) =>
  html`<p class="note">Answer in <b class="untrusted" dir="auto">${inert(place)}</b>. An answer from here would not
    reach the agent.</p>`;

/** @param {{input: unknown}} props */
const RequestedParameters = ({ input }) =>
  html`<details class="hints"><summary>Requested parameters</summary><${Arguments} input=${input} /></details>`;

/**
 * The card of an approval request. `session` is its session, for lists of many sessions. A card that is not `open`
 * shows no parameters and accepts no decision, so that nothing is approved unseen. `hasInput` means that the parameters
 * are loaded, `loadError` that loading them failed. A card that is not `live` shows a past moment and is read-only.
 * @param {{entry: Request, live?: boolean, session?: string, open?: boolean, hasInput?: boolean, loadError?: string,
 *   onOpen?: () => void}} props
 */
export default function PermissionCard(props) {
  const { entry: requested, live = true, session = "", open = true, hasInput = true, onOpen } = props;
  const { loadError = "" } = props;
  const [answerHere, setAnswerHere] = useState(/** @type {any} */ (null));
  const [isBusy, setIsBusy] = useState(false);
  const [error, setError] = useState("");
  const [isEditing, setIsEditing] = useState(false);
  const card = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const hadAnswer = useRef(false);
  const row = answeredRequests.value.get(approvalOf(requested));
  const answer = live && (answerHere ?? (row && answerFields(row)));
  const editedInput = live ? answerHere?.responseInput : undefined; // Rows do not contain the changed parameters.
  const inputField = editedInput === undefined ? {} : { responseInput: editedInput };
  const entry = { ...requested, ...(answer && isPending(requested) ? answer : {}), ...inputField };
  const isWaiting = isPending(entry);
  const id = `request-${approvalOf(entry)}`;
  useEffect(() => {
    const isFocusLost = document.activeElement === document.body; // The button that had the focus is gone.
    if (!isWaiting && hadAnswer.current && isFocusLost) card.current?.focus();
  }, [isWaiting]);

  async function sendDecision(/** @type {any} */ decision) {
    setIsBusy(true);
    setError("");
    hadAnswer.current = true;
    try {
      const row = await decide(approvalOf(entry), decision);
      setAnswerHere({ ...answerFields(row), responseInput: decision.input });
    } catch (cause) {
      const current = /** @type {any} */ (cause).body?.current;
      if (current?.state && current.state !== "pending") setAnswerHere(answerFields(current));
      setError(current?.state ? alreadyAnswered(current) : /** @type {Error} */ (cause).message);
    } finally {
      setIsBusy(false);
    }
  }

  function onKey(/** @type {KeyboardEvent} */ event) {
    if (event.key === "Escape" && event.target !== card.current) card.current?.focus();
    if (event.target !== card.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = KEY_ACTIONS[event.key];
    if (event.key === "Enter" && onOpen) onOpen();
    else if (action && !open) onOpen?.();
    else if (action && canAnswer && !event.repeat) action(/** @type {HTMLElement} */ (card.current));
    else return;
    event.preventDefault();
  }

  const startEdit = () => (setIsEditing(true), setError(""));
  const stopEdit = () => (setIsEditing(false), setError(""), card.current?.focus());
  const place = isWaiting && live ? entry.answerAt : "";
  const canAnswer = open && hasInput && isWaiting && live && !place;
  const showsForm = canAnswer && isEditing;
  return html`<article class=${classes("request", isWaiting ? "is-awaiting_approval" : "answered", !open && "closed")}
    ref=${card} tabindex="0" data-card=${onOpen ? "" : undefined} aria-labelledby=${`${id}-title`}
    aria-keyshortcuts=${isWaiting && live && !place ? "a d e" : undefined} onKeyDown=${onKey}>
    <${RequestHeader} id=${id} entry=${entry} session=${session} live=${live} open=${open} onOpen=${onOpen} />
    ${open && loadError ? html`<p class="error-text" role="alert">Could not load parameters: ${loadError}</p>` : ""}
    ${open && !hasInput && !loadError ? html`<p class="dim">Loading parameters…</p>` : ""}
    ${open && hasInput && (isWaiting || onOpen) && !showsForm ? html`<${Arguments} input=${entry.rawInput} />` : ""}
    ${showsForm
      ? html`<${EditForm} id=${id} input=${entry.rawInput} schema=${entry.schema} busy=${isBusy} error=${error}
          onSend=${(/** @type {unknown} */ input) => sendDecision({ decision: "edit", input })} onCancel=${stopEdit} />`
      : ""}
    ${canAnswer && !isEditing
      ? html`<${DecisionForm} id=${id} options=${entry.options ?? []} busy=${isBusy} onAnswer=${sendDecision}
          onEdit=${startEdit} />`
      : ""}
    ${showsForm ? "" : html`<p class="error-text" role="alert">${error}</p>`}
    ${place ? html`<${AnswerPlace} place=${place} />` : ""}
    ${isWaiting && !live ? html`<p class="dim">Not answered yet at this point.</p>` : ""}
    <div role="status">${isWaiting ? "" : html`<${Decision} entry=${entry} />`}</div>
    ${!isWaiting && !onOpen ? html`<${RequestedParameters} input=${entry.rawInput} />` : ""}
  </article>`;
}
