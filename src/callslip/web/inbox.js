// The requests of all sessions that wait for a person: a list, and the chosen request. Keys answer the chosen request only
// while it has the focus, and not shortly after the list has changed. While the pointer or the focus is in the list, its
// order does not change, so that no request moves away.

import { inert } from "./ansi.js";
import BatchReview from "./inbox_batch.js";
import RequestDetail from "./inbox_detail.js";
import { NotifyButton } from "./notifications.js";
import { isAnswerKey, pressKey } from "./request.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { answerableRequests, answeredRequests, get, go, inbox, loadedTopics, sessions } from "./state.js";
import { APPROVAL_STATES } from "./states.js";
import { clock, formatAge, formatRemaining, formatTime } from "./time.js";

/**
 * @typedef {{approval: string, session: string, entry: number, createdAt: number, expiresAt: number, inputHash: string,
 *   description: string, answerAt?: string, state: string, answeredAt: number, by: string, reason: string}} Row
 */

const SHOW_ANSWERED_MS = 6000;
/** For how long keys answer nothing after a change of the list: it may have changed under the finger. */
const SETTLE_MS = 500;
const MAX_DECIDED = 12;
const EXPIRES_SOON_MS = 60_000;
const NEVER = Number.MAX_SAFE_INTEGER;
const SORT_ORDERS = /** @type {Record<string, (one: Row, two: Row) => number>} */ ({
  soonest: (one, two) => (one.expiresAt || NEVER) - (two.expiresAt || NEVER) || one.createdAt - two.createdAt,
  newest: (one, two) => two.createdAt - one.createdAt,
});

/** Whether the list and the request are side by side. */
const isWide = () => matchMedia("(min-width: 900px)").matches;

/** Return the pending rows, and for a few seconds those that were answered. @param {Map<string, Row>} rows */
function useRecentRows(rows) {
  const visible = useRef(/** @type {Map<string, Row>} */ (new Map())).current;
  const leaving = useRef(/** @type {Map<string, number>} */ (new Map())).current;
  const [, redraw] = useState(0);
  for (const [id, row] of rows) visible.set(id, row);
  useEffect(() => () => leaving.forEach((timer) => clearTimeout(timer)), []);
  useEffect(() => {
    for (const id of visible.keys()) {
      if (!rows.has(id) && !leaving.has(id)) keepForAWhile(id);
    }
  }, [rows]);

  async function keepForAWhile(/** @type {string} */ id) {
    leaving.set(id, 0);
    const path = `/v1/approvals/${encodeURIComponent(id)}`;
    const answeredRow = answeredRequests.peek().get(id) ?? (await get(path).catch(() => null));
    // Otherwise it was deleted with its session. The place of the answer keeps its position in the list.
    if (answeredRow) visible.set(id, /** @type {Row} */ ({ answerAt: visible.get(id)?.answerAt, ...answeredRow }));
    leaving.set(id, setTimeout(() => remove(id), answeredRow ? SHOW_ANSWERED_MS : 0));
    redraw((count) => count + 1);
  }

  function remove(/** @type {string} */ id) {
    leaving.delete(id);
    visible.delete(id);
    redraw((count) => count + 1);
  }

  return visible;
}

/** Return the IDs in order. While the list is held, the IDs that it already contains do not move. */
function useOrder(/** @type {Row[]} */ rows, /** @type {string} */ sortOrder, /** @type {boolean} */ isHeld) {
  const before = useRef(/** @type {string[]} */ ([]));
  const elsewhereLast = (/** @type {Row} */ one, /** @type {Row} */ two) => Number(!!one.answerAt) - Number(!!two.answerAt);
  const compare = SORT_ORDERS[sortOrder];
  const ids = [...rows].sort((one, two) => elsewhereLast(one, two) || compare(one, two)).map((row) => row.approval);
  const unmoved = isHeld ? before.current.filter((id) => ids.includes(id)) : [];
  before.current = [...unmoved, ...ids.filter((id) => !unmoved.includes(id))];
  return before.current;
}

/** Whether a text has been the same for a while. @param {string} text */
function useSettled(text) {
  const [settled, setSettled] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), SETTLE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return settled === text && text !== "";
}

/** Return the requests that were answered last, the latest answer first. */
function useDecided() {
  const [stored, setStored] = useState(/** @type {Row[]} */ ([]));
  useEffect(() => {
    get(`/v1/approvals?state=answered&limit=${MAX_DECIDED}`).then((found) => setStored(found.approvals), () => {});
  }, []);
  const all = new Map([...stored.map((row) => /** @type {[string, Row]} */ ([row.approval, row])), ...answeredRequests.value]);
  return [...all.values()].sort((one, two) => two.answeredAt - one.answeredAt).slice(0, MAX_DECIDED);
}

/** The ID of the chosen request in the address. */
const readChosen = () => location.hash.match(/^#(appr_\w+)$/)?.[1] ?? "";

/** Return the chosen request and how to choose one. In a narrow window it is a step in the history. */
function useChosen() {
  const [chosen, setChosen] = useState(readChosen);
  useEffect(() => {
    const read = () => setChosen(readChosen());
    addEventListener("popstate", read);
    return () => removeEventListener("popstate", read);
  }, []);
  const choose = (/** @type {string} */ id) => {
    if (id === readChosen()) return;
    go(`/inbox${id ? `#${id}` : ""}`, { replace: isWide() || !id });
    setChosen(id);
  };
  return { chosen, choose };
}

/**
 * A request in the list.
 * @param {{row: Row, isChosen: boolean, isChecked: boolean, onChoose: () => void, onFocus: () => void,
 *   onCheck: (checked: boolean) => void}} props
 */
function RequestRow({ row, isChosen, isChecked, onChoose, onFocus, onCheck }) {
  const session = sessions.value.get(row.session);
  const title = inert(row.description || "Request");
  const isPending = row.state === "pending";
  return html`<li class="req" data-approval=${row.approval} data-chosen=${isChosen ? "" : undefined}>
    ${isPending && !row.answerAt
      ? html`<input type="checkbox" aria-label=${`Choose ${title}`} checked=${isChecked}
          onChange=${(/** @type {any} */ event) => onCheck(event.target.checked)} />`
      : html`<${DecidedMark} row=${row} />`}
    <button type="button" class="opener" data-card aria-current=${isChosen ? "true" : undefined} onClick=${onChoose}
      onFocus=${onFocus}>
      <b class="cut untrusted" dir="auto">${title}</b>
      <small class="cut untrusted" dir="auto">${isPending ? "" : `${decisionText(row)} · `}
        ${session?.agent ? `${inert(session.agent)} · ` : ""}${inert(session?.title || session?.prompt || row.session)}</small>
    </button>
    <${When} row=${row} />
  </li>`;
}

/** @param {{row: Row}} props */
function When({ row }) {
  if (row.state !== "pending") return html`<span class="when num">${formatTime(row.answeredAt)}</span>`;
  if (row.answerAt) return html`<span class="when">Elsewhere</span>`;
  const left = formatRemaining(row.expiresAt);
  if (!left) return html`<span class="when">${row.expiresAt ? "Expired" : `asked ${formatAge(row.createdAt)}`}</span>`;
  const soon = row.expiresAt - clock.value < EXPIRES_SOON_MS;
  return html`<span class=${`when num ${soon ? "bad" : "wait"}`}>${left} left</span>`;
}

/** @type {Record<string, [icon: string, look: string]>} */
const DECISION_ICONS = { pending: ["wait", "wait"], granted: ["shield", "good"], refused: ["deny", "dim"], released: ["key", "dim"] };

/** @param {{row: Row}} props */
function DecidedMark({ row }) {
  const [icon, look] = DECISION_ICONS[row.state] ?? ["stop", "dim"];
  return html`<i class=${`i i-${icon} ${look}`} aria-hidden="true"></i>`;
}

/** Say how a request was answered, by whom, and why. @param {Row} row */
function decisionText({ state, by, reason }) {
  const isRule = /^rules? /.test(by);
  const label = isRule && state === "granted" ? "Allowed" : (APPROVAL_STATES[state]?.label ?? state);
  const why = reason && !(isRule && reason.startsWith("allowed by")) && reason !== `denied by ${by}` ? `: ${inert(reason)}` : "";
  return `${label}${by ? ` by ${inert(by)}` : ""}${why}`;
}

/** @param {{rows: Row[], chosen: string, onChoose: (id: string) => void}} props */
const Decided = ({ rows, chosen, onChoose }) => html`<section aria-labelledby="decided-title">
  <h2 id="decided-title" class="cap">Decided recently</h2>
  <ol>${rows.map((row) => html`<li class="req" key=${row.approval} data-decided=${row.approval}
    data-chosen=${row.approval === chosen ? "" : undefined}>
    <${DecidedMark} row=${row} />
    <button type="button" class="opener" aria-current=${row.approval === chosen ? "true" : undefined}
      onClick=${() => onChoose(row.approval)}>
      <b class="cut untrusted" dir="auto">${inert(row.description || "Request")}</b>
      <small class="cut untrusted" dir="auto">${decisionText(row)}</small></button>
    <span class="when num">${formatTime(row.answeredAt)}</span></li>`)}</ol>
</section>`;

/**
 * Move the focus of a removed row to the list and not to the next row, so that a key never acts on another request.
 * @param {{current: HTMLElement | null}} list @param {string[]} ids
 */
function useFocusRecovery(list, ids) {
  const last = useRef("");
  useEffect(() => {
    if (!last.current || ids.includes(last.current)) return;
    last.current = "";
    if (!document.activeElement || document.activeElement === document.body) list.current?.focus();
  }, [ids.join()]);
  return (/** @type {FocusEvent} */ event) => {
    last.current = /** @type {HTMLElement} */ (event.target).closest("li")?.dataset.approval ?? "";
  };
}

const EmptyInbox = () => loadedTopics.value.has("inbox")
  ? html`<div class="void"><i class="i i-check good" aria-hidden="true"></i><h2>You're all caught up.</h2>
      <p>No pending approvals. New requests appear here.</p></div>`
  : html`<p class="empty" role="status">Loading approvals…</p>`;

/** @param {number} count @param {number} elsewhereCount */
const pendingText = (count, elsewhereCount) =>
  [count && `${count} pending`, elsewhereCount && `${elsewhereCount} to answer elsewhere`].filter(Boolean).join(", ");

/** @param {{value: string, onChange: (value: string) => void}} props */
const SortSelect = ({ value, onChange }) =>
  html`<select class="field soft" aria-label="Order" value=${value}
    onChange=${(/** @type {any} */ event) => onChange(event.target.value)}>
    <option value="soonest">Expires first</option><option value="newest">Newest first</option></select>`;

/** @param {EventTarget | null} target */
const isTextField = (target) => target instanceof Element && target.matches("textarea, select, input:not([type=checkbox])");

export default function Inbox() {
  const [sortOrder, setSortOrder] = useState("soonest");
  const [isPointed, setIsPointed] = useState(false);
  const [isFocused, setIsFocused] = useState(false);
  const [checked, setChecked] = useState(/** @type {Set<string>} */ (new Set()));
  const [review, setReview] = useState(/** @type {{rows: Row[], action: "approve" | "deny"} | null} */ (null));
  const { chosen, choose } = useChosen();
  const list = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const shown = useRef(/** @type {Row | null} */ (null));
  const rows = /** @type {Map<string, Row>} */ (inbox.value);
  const answerableCount = answerableRequests.value.length;
  const all = useRecentRows(rows);
  const ids = useOrder([...all.values()], sortOrder, isPointed || isFocused);
  const decided = useDecided().filter((row) => !all.has(row.approval));
  const onFocus = useFocusRecovery(list, ids);
  const chosenRow = all.get(chosen) ?? decided.find((row) => row.approval === chosen);
  const row = chosenRow ?? (shown.current?.approval === chosen ? shown.current : undefined);
  shown.current = row ?? null;
  const keys = useSettled(ids.map((id) => `${id} ${all.get(id)?.inputHash} ${all.get(id)?.state}`).join());
  const selected = ids.filter((id) => checked.has(id) && rows.has(id) && !rows.get(id)?.answerAt);
  useEffect(() => {
    if (!chosen && isWide() && ids.length) choose(ids[0]);
  }, [chosen, ids.join()]);
  const check = (/** @type {string} */ id, /** @type {boolean} */ isOn) => {
    const next = new Set(selected);
    if (isOn) next.add(id);
    else next.delete(id);
    setChecked(next);
  };
  const rowButton = (/** @type {string} */ id) =>
    /** @type {HTMLElement | null} */ (list.current?.querySelector(`[data-approval="${id}"] .opener`) ?? null);
  const detail = () => /** @type {HTMLElement | null} */ (document.querySelector(".request.whole"));
  const open = (/** @type {string} */ id) => {
    choose(id);
    requestAnimationFrame(() => !isWide() && detail()?.focus());
  };
  const back = () => {
    const before = chosen;
    if (!isWide()) choose("");
    requestAnimationFrame(() => rowButton(before)?.focus());
  };

  /** Move to the next request, from the one that has the focus or is shown. @param {number} by */
  function move(by) {
    const at = ids.indexOf(chosen);
    const next = ids[at < 0 ? 0 : Math.max(0, Math.min(ids.length - 1, at + by))];
    if (next && !isWide() && detail()?.contains(document.activeElement)) return open(next);
    rowButton(next)?.focus();
    rowButton(next)?.scrollIntoView({ block: "nearest" });
  }

  function onKeyDown(/** @type {KeyboardEvent} */ event) {
    if (event.ctrlKey || event.metaKey || event.altKey || isTextField(event.target)) return;
    const target = /** @type {HTMLElement} */ (event.target);
    const focusedId = target.closest("li")?.dataset.approval ?? target.closest("article")?.dataset.detail ?? "";
    if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
    else if (event.key === "x" && all.has(focusedId)) check(focusedId, !checked.has(focusedId));
    else if (isAnswerKey(event) && focusedId && focusedId === chosen) {
      const shownDetail = detail();
      if (!event.repeat && keys && shownDetail?.checkVisibility()) pressKey(shownDetail, event.key);
      else if (!event.repeat && shownDetail && !shownDetail.checkVisibility()) open(chosen);
    } else return;
    event.preventDefault();
  }

  const isEmpty = !row && !all.size && !decided.length;
  return html`<div class=${classes("list-detail", row && "has-open", isEmpty && "is-empty")} onKeyDown=${onKeyDown}>
    <h1 id="inbox-title" class="visually-hidden">Inbox</h1>
    <section class="left inbox" aria-labelledby="inbox-title">
      <div class="lhead"><b class="title" aria-hidden="true">Inbox</b>
        ${answerableCount ? html`<span class="count hot" aria-hidden="true">${answerableCount}</span>` : ""}
        <p class="visually-hidden" role="status">${pendingText(answerableCount, rows.size - answerableCount)}</p>
        <span class="gap"></span>
        <${NotifyButton} />
        ${all.size > 1 ? html`<${SortSelect} value=${sortOrder} onChange=${setSortOrder} />` : ""}
      </div>
      <div class="items">
        ${all.size ? "" : html`<${EmptyInbox} />`}
        <ol ref=${list} tabindex="-1" aria-label="Approval requests"
          onPointerEnter=${() => setIsPointed(true)} onPointerLeave=${() => setIsPointed(false)}
          onFocusIn=${(/** @type {FocusEvent} */ event) => (setIsFocused(true), onFocus(event))}
          onFocusOut=${() => setIsFocused(false)}>
          ${ids.map((id) => html`<${RequestRow} key=${id} row=${all.get(id)} isChosen=${id === chosen}
            isChecked=${checked.has(id)} onChoose=${() => open(id)} onFocus=${() => isWide() && choose(id)}
            onCheck=${(/** @type {boolean} */ isOn) => check(id, isOn)} />`)}
        </ol>
        ${decided.length ? html`<${Decided} rows=${decided} chosen=${chosen} onChoose=${open} />` : ""}
      </div>
      ${selected.length ? html`<div class="batch" role="group" aria-label="Chosen requests">
        <b role="status">${selected.length} selected</b><span class="gap"></span>
        ${["approve", "deny"].map((action) => html`<button type="button" class=${`btn ${action === "approve" ? "yes" : "no"}`}
          onClick=${() => setReview({ rows: selected.map((id) => /** @type {Row} */ (rows.get(id))), action: /** @type {any} */ (action) })}>
          ${action === "approve" ? "Approve" : "Deny"} ${selected.length}…</button>`)}
        <button type="button" class="btn ghost icon" aria-label="Clear selection" title="Clear selection"
          onClick=${() => setChecked(new Set())}><i class="i i-close" aria-hidden="true"></i></button></div>` : ""}
    </section>
    ${row ? html`<${RequestDetail} key=${row.approval} row=${row} keys=${keys} onBack=${back} />`
      : isEmpty ? "" : html`<div class="request nothing"><p class="dim">Choose a request.</p></div>`}
    ${review ? html`<${BatchReview} ...${review} onClose=${() => (setReview(null), setChecked(new Set()))} />` : ""}
  </div>`;
}
