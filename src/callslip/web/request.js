// A request for approval: what is asked, the answers in the agent's own words, and how it was answered in the end.
// The first answer counts, wherever it was given: from then on the card is a record.

import { inert } from "./ansi.js";
import { Arguments, EditForm } from "./edit.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { answered as elsewhere, decide, link } from "./state.js";
import { stateOf } from "./states.js";
import { ago, exactly, timeOf, until } from "./time.js";

/** @typedef {{optionId?: string, name?: string, kind?: string}} Option */
/** @typedef {{id: number, at?: number, requestId: string, callId: string, state?: string, toolName?: string | null,
 *   description?: string, options?: Option[], rawInput?: unknown, schema?: any, expiresAt?: number,
 *   responseOption?: string | null, responseInput?: unknown, responseTime?: number, by?: string, reason?: string}} Request */

/** How a request came to its end: a glyph, a word, and the state whose colour it has. */
const ENDS = /** @type {Record<string, {glyph: string, word: string, is: string}>} */ ({
  granted: { glyph: "✓", word: "approved", is: "completed" },
  refused: { glyph: "⊘", word: "denied", is: "denied" },
  withdrawn: { glyph: "■", word: "withdrawn", is: "cancelled" },
  moot: { glyph: "■", word: "not needed any more, the call had ended", is: "cancelled" },
  superseded: { glyph: "↻", word: "asked anew further on", is: "cancelled" },
});
const SOON = 15_000;
const SECOND = "Somebody else was first: your answer did not count.";

/** @param {Request} entry */
export const isPending = (entry) => (entry.state ?? "pending") === "pending";

/**
 * A request as its row, which lists give, tells it.
 * @param {any} row @returns {Request}
 */
export const ofRow = (row) => ({
  id: row.entry,
  at: row.createdAt,
  requestId: row.approval,
  callId: row.call,
  description: row.description,
  options: row.options,
  expiresAt: row.expiresAt,
  ...answerOf(row),
});

/** What an answered row adds to its request. @param {any} row */
export const answerOf = (row) => ({
  state: row.state,
  responseOption: row.option,
  responseTime: row.answeredAt,
  by: row.by,
  reason: row.reason,
});

/**
 * How long there is left to answer.
 * @param {{at: number | undefined}} props
 */
function Countdown({ at }) {
  if (!at) return null;
  const left = until(at);
  const soon = at - Date.now() < SOON;
  const title = `No answer means no, at ${timeOf(at)}`;
  return html`<span class=${classes("countdown", soon && "soon")} role="timer" title=${title}>
    ${left ? html`<span aria-hidden="true">◷</span> ${left} <span class="wide">left</span>` : "time is up"}
  </span>`;
}

/** Whether other arguments were approved than were asked for. @param {Request} entry */
const isEdited = (entry) => entry.responseInput !== undefined && entry.responseInput !== null;

/**
 * Who answered what, and when.
 * @param {{entry: Request}} props
 */
function Verdict({ entry }) {
  const end = ENDS[entry.state ?? ""] ?? { glyph: "·", word: entry.state ?? "", is: "cancelled" };
  const option = entry.options?.find((one) => one?.optionId && one.optionId === entry.responseOption);
  const time = entry.responseTime;
  return html`<p class="verdict">
      <span class=${`state is-${end.is}`}><span aria-hidden="true">${end.glyph}</span> ${end.word}</span>
      ${entry.by ? html` by <b class="foreign" dir="auto">${inert(entry.by)}</b>` : ""}
      ${time ? html` <${Time} at=${time} />` : ""}
      ${option?.name ? html`<span class="dim">: </span><${Quote} text=${String(option.name)} />` : ""}
      ${entry.reason ? html`<span class="dim">. Reason: </span><${Quote} text=${entry.reason} />` : ""}
      ${isEdited(entry) ? html`<span class="dim">, with other arguments:</span>` : ""}
    </p>
    ${isEdited(entry) ? html`<${Arguments} input=${entry.responseInput} />` : ""}`;
}

/** @param {{at: number}} props */
const Time = ({ at }) =>
  html`<time class="dim" datetime=${exactly(at)} title=${exactly(at)}>at ${timeOf(at)}, ${ago(at)}</time>`;

/** @param {{text: string}} props */
const Quote = ({ text }) => html`<q class="foreign" dir="auto">${inert(text)}</q>`;

/** @param {Option} option @param {string} begin */
const isKind = (option, begin) => String(option.kind ?? "").startsWith(begin);

/** Options by what they mean; those of a kind that nobody knows stand with the ones that allow, marked. */
function sorted(/** @type {Option[]} */ options) {
  const known = options.filter((option) => option && typeof option === "object");
  const denies = known.filter((option) => isKind(option, "reject"));
  const allows = known.filter((option) => isKind(option, "allow"));
  return { allows, denies, others: known.filter((option) => !denies.includes(option) && !allows.includes(option)) };
}

/** What the key `a` means: the least that allows. @param {Option[]} allows */
const least = (allows) => allows.find((option) => option.kind === "allow_once") ?? allows[0];

/**
 * The buttons, and the reason for a no.
 * @param {{id: string, options: Option[], busy: boolean, onAnswer: (answer: any) => void, onEdit: () => void}} props
 */
function Ways({ id, options, busy, onAnswer, onEdit }) {
  const [reason, setReason] = useState("");
  const { allows, denies, others } = sorted(options);
  if (!allows.length && !others.length) allows.push({ name: "Approve" });
  if (!denies.length) denies.push({ name: "Deny" });
  const deny = (/** @type {Option} */ option) => onAnswer({ decision: "deny", ...named(option), reason });
  const allow = (/** @type {Option} */ option) => onAnswer({ decision: "approve", ...named(option) });
  const first = least(allows);
  const button = (/** @type {Option} */ option, way = "", glyph = "", /** @type {(option: Option) => void} */ act) =>
    html`<button type="button" class=${classes("button", way, option === first && "first")} disabled=${busy}
      data-way=${option === first || option === denies[0] ? way : undefined} onClick=${() => act(option)}>
      <span aria-hidden="true">${glyph}</span>
      <span class="foreign" dir="auto">${inert(String(option.name ?? option.optionId ?? ""))}</span>
    </button>`;
  const submit = (/** @type {Event} */ event) => (event.preventDefault(), deny(denies[0]));
  return html`<form class="answer" onSubmit=${submit}>
    <div class="ways" role="group" aria-label="Allow">
      ${allows.map((one) => button(one, "allow", "✓", allow))}
      ${others.map((one) => button(one, "other", "?", allow))}
      <button type="button" class="button" data-way="edit" disabled=${busy} onClick=${onEdit}>
        <span aria-hidden="true">✎</span> Edit, then approve
      </button>
    </div>
    <div class="ways" role="group" aria-label="Deny">
      ${denies.map((one) => button(one, "deny", "⊘", deny))}
      <label class="unseen" for=${`${id}-reason`}>Reason to deny, which the model reads</label>
      <input id=${`${id}-reason`} class="field reason" maxlength="2000" autocomplete="off" dir="auto"
        placeholder="Why not? The model reads this" disabled=${busy} value=${reason}
        onInput=${(/** @type {any} */ event) => setReason(event.target.value)} />
    </div>
  </form>`;
}

const named = (/** @type {Option} */ option) => (option.optionId ? { option: option.optionId } : {});

/** The key presses the button that a hand would press: all that a key can do is on the card, and only there. */
const KEYS = /** @type {Record<string, ((card: HTMLElement) => void) | undefined>} */ ({
  a: (card) => press(card, "allow"),
  e: (card) => press(card, "edit"),
  d: (card) => /** @type {HTMLElement | null} */ (card.querySelector(".reason"))?.focus(),
});
const press = (/** @type {HTMLElement} */ card, /** @type {string} */ way) =>
  /** @type {HTMLElement | null} */ (card.querySelector(`[data-way="${way}"]`))?.click();

/**
 * What stands above a request: what is asked, how long there is, by which tool, where and when.
 * @param {{id: string, entry: Request, session: string, live: boolean, open: boolean, onOpen?: () => void}} props
 */
function Head({ id, entry, session, live, open, onOpen }) {
  const pending = isPending(entry);
  const title = html`<span class="foreign" dir="auto">${inert(entry.description || entry.toolName || "A call")}</span>`;
  return html`<header>
    <h2 id=${`${id}-title`}>
      ${pending
        ? html`<span class="state"><span aria-hidden="true">${stateOf("awaiting_approval").glyph}</span>
            <span class="unseen">May this run: </span></span>`
        : ""}
      ${onOpen
        ? html`<button type="button" class="opener" aria-expanded=${open ? "true" : "false"}
            onClick=${onOpen}>${title}</button>`
        : title}
    </h2>
    ${pending && live ? html`<${Countdown} at=${entry.expiresAt} />` : ""}
    <p class="about dim">
      ${entry.toolName ? html`<code class="foreign">${inert(entry.toolName)}</code>` : ""}
      ${session
        ? html`<a class="foreign" dir="auto" ...${link(`/s/${encodeURIComponent(session)}#entry-${entry.id}`)}>
            ${inert(session)}</a>`
        : ""}
      <time datetime=${exactly(entry.at)} title=${exactly(entry.at)}>asked ${ago(entry.at)}</time>
    </p>
  </header>`;
}

/** @param {{input: unknown}} props */
const Asked = ({ input }) =>
  html`<details class="hints"><summary>What was asked</summary><${Arguments} input=${input} /></details>`;

/**
 * `session` names where it was asked, for lists of many sessions. A card that is not `open` shows no arguments and
 * takes no answer: what was not looked at is not approved. `known` says that the arguments are there to be shown. One
 * that is not `live` is shown as it was, and cannot be answered in the past.
 * @param {{entry: Request, live?: boolean, session?: string, open?: boolean, known?: boolean, failed?: string,
 *   onOpen?: () => void}} props
 */
export default function PermissionCard(props) {
  const { entry: given, live = true, session = "", open = true, known = true, failed = "", onOpen } = props;
  const [answered, setAnswered] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const [wrong, setWrong] = useState("");
  const [editing, setEditing] = useState(false);
  const card = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const held = useRef(false);
  const row = elsewhere.value.get(given.requestId);
  const end = live && (answered ?? (row && answerOf(row)));
  const edited = live ? answered?.responseInput : undefined; // A row that comes meanwhile does not tell of it.
  const told = edited === undefined ? {} : { responseInput: edited };
  const entry = { ...given, ...(end && isPending(given) ? end : {}), ...told };
  const pending = isPending(entry);
  const id = `request-${entry.requestId}`;
  useEffect(() => {
    const lost = document.activeElement === document.body; // The button that had the focus is gone.
    if (!pending && held.current && lost) card.current?.focus();
  }, [pending]);

  async function answer(/** @type {any} */ said) {
    setBusy(true);
    setWrong("");
    held.current = true;
    try {
      const row = await decide(entry.requestId, said);
      setAnswered({ ...answerOf(row), responseInput: said.input });
    } catch (error) {
      const winner = /** @type {any} */ (error).told?.current;
      if (winner?.state && winner.state !== "pending") setAnswered(answerOf(winner));
      setWrong(winner?.state ? SECOND : /** @type {Error} */ (error).message);
    } finally {
      setBusy(false);
    }
  }

  function onKey(/** @type {KeyboardEvent} */ event) {
    if (event.key === "Escape" && event.target !== card.current) card.current?.focus();
    if (event.target !== card.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = KEYS[event.key];
    if (event.key === "Enter" && onOpen) onOpen();
    else if (pressed && !open) onOpen?.();
    else if (pressed && pending && live && known && !event.repeat) pressed(/** @type {HTMLElement} */ (card.current));
    else return;
    event.preventDefault();
  }

  const edit = () => (setEditing(true), setWrong(""));
  const back = () => (setEditing(false), setWrong(""), card.current?.focus());
  const answerable = open && known && pending && live;
  const changing = answerable && editing;
  return html`<article class=${classes("request", pending ? "is-awaiting_approval" : "answered", !open && "closed")}
    ref=${card} tabindex="0" data-card=${onOpen ? "" : undefined} aria-labelledby=${`${id}-title`}
    aria-keyshortcuts=${pending && live ? "a d e" : undefined} onKeyDown=${onKey}>
    <${Head} id=${id} entry=${entry} session=${session} live=${live} open=${open} onOpen=${onOpen} />
    ${open && failed ? html`<p class="wrong" role="alert">The arguments could not be had: ${failed}</p>` : ""}
    ${open && !known && !failed ? html`<p class="dim">Asking for the arguments…</p>` : ""}
    ${open && known && (pending || onOpen) && !changing ? html`<${Arguments} input=${entry.rawInput} />` : ""}
    ${changing
      ? html`<${EditForm} id=${id} input=${entry.rawInput} schema=${entry.schema} busy=${busy} wrong=${wrong}
          onSend=${(/** @type {unknown} */ input) => answer({ decision: "edit", input })} onBack=${back} />`
      : ""}
    ${answerable && !editing
      ? html`<${Ways} id=${id} options=${entry.options ?? []} busy=${busy} onAnswer=${answer} onEdit=${edit} />`
      : ""}
    ${changing ? "" : html`<p class="wrong" role="alert">${wrong}</p>`}
    ${pending && !live ? html`<p class="dim">It had no answer yet at this point.</p>` : ""}
    <div role="status">${pending ? "" : html`<${Verdict} entry=${entry} />`}</div>
    ${!pending && !onOpen ? html`<${Asked} input=${entry.rawInput} />` : ""}
  </article>`;
}
