// The pending approvals of all sessions. A key decides a request only if its card has the focus and shows its
// parameters. While the pointer or the focus is in the list, its order does not change, so that no card moves away.

import { html, useEffect, useRef, useState } from "./ui.js";
import { NotifyButton } from "./notifications.js";
import PermissionCard, { answerFields, requestFromRow } from "./request.js";
import { answerableRequests, answeredRequests, get, inbox, loadedTopics } from "./state.js";
import { approvalOf } from "./states.js";

/**
 * @typedef {{approval: string, session: string, entry: number, createdAt: number, expiresAt: number,
 *   answerAt?: string, state: string}} Row
 */

const SHOW_ANSWERED_MS = 6000;
const NEVER = Number.MAX_SAFE_INTEGER;
const SORT_ORDERS = /** @type {Record<string, (one: Row, two: Row) => number>} */ ({
  soonest: (one, two) => (one.expiresAt || NEVER) - (two.expiresAt || NEVER) || one.createdAt - two.createdAt,
  newest: (one, two) => two.createdAt - one.createdAt,
});

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

/**
 * A request. Its parameters are loaded when it is opened.
 * @param {{row: any, opened: boolean}} props
 */
function RequestItem({ row, opened }) {
  const [open, setOpen] = useState(opened);
  const [entry, setEntry] = useState(/** @type {any} */ (null));
  const [failed, setFailed] = useState("");
  useEffect(() => {
    if (!open || entry) return;
    setFailed("");
    const query = `?format=entries&limit=1&cursor=${row.entry + 1}`;
    get(`/v1/sessions/${encodeURIComponent(row.session)}${query}`).then(
      (page) => {
        const match = page.entries.find((/** @type {any} */ one) => approvalOf(one) === row.approval);
        if (match) setEntry(match);
        else setFailed("request not found in its session");
      },
      (error) => setFailed(error.message),
    );
  }, [open]);
  const request = { ...requestFromRow(row), ...entry, ...(row.state === "pending" ? {} : answerFields(row)) };
  return html`<li data-approval=${row.approval}>
    <${PermissionCard} entry=${request} session=${row.session} open=${open} hasInput=${Boolean(entry)}
      loadError=${failed} onOpen=${() => setOpen(!open)} />
  </li>`;
}

/**
 * Move the focus of a removed card to the list and not to the next card, so that a key never acts on another request.
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

function EmptyInbox() {
  if (!loadedTopics.value.has("inbox")) return html`<p class="empty" role="status">Loading approvals…</p>`;
  return html`<div class="empty">
    <p class="large" aria-hidden="true">✓</p>
    <p><b>You're all caught up.</b></p>
    <p class="dim">No pending approvals. New requests appear here.</p>
  </div>`;
}

/** @param {number} count @param {number} elsewhereCount */
const pendingText = (count, elsewhereCount) =>
  [count && `${count} pending`, elsewhereCount && `${elsewhereCount} to answer elsewhere`].filter(Boolean).join(", ");

const KeyHints = () =>
  html`<p class="dim keys"><kbd>j</kbd> <kbd>k</kbd> to move, <kbd>Enter</kbd> to open, then <kbd>a</kbd> to approve,
    ${" "}<kbd>d</kbd> to deny, <kbd>e</kbd> to edit</p>`;

/** @param {{value: string, onChange: (value: string) => void}} props */
const SortSelect = ({ value, onChange }) =>
  html`<label class="order dim">Sort by
    <select class="field" value=${value} onChange=${(/** @type {any} */ event) => onChange(event.target.value)}>
      <option value="soonest">Expiring first</option><option value="newest">Newest first</option>
    </select></label>`;

export default function Inbox() {
  const [sortOrder, setSortOrder] = useState("soonest");
  const [isPointed, setIsPointed] = useState(false);
  const [isFocused, setIsFocused] = useState(false);
  const list = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const rows = /** @type {Map<string, Row>} */ (inbox.value);
  const answerableCount = answerableRequests.value.length;
  const all = useRecentRows(rows);
  const ids = useOrder([...all.values()], sortOrder, isPointed || isFocused);
  const onFocus = useFocusRecovery(list, ids);
  return html`<section class="inbox column" aria-labelledby="inbox-title">
    <div class="bar">
      <h1 id="inbox-title">Inbox</h1>
      <p class="dim" role="status">${pendingText(answerableCount, rows.size - answerableCount)}</p>
      <${NotifyButton} />
      ${all.size > 1 ? html`<${SortSelect} value=${sortOrder} onChange=${setSortOrder} />` : ""}
    </div>
    ${[...all.values()].some((row) => !row.answerAt) ? html`<${KeyHints} />` : ""}
    ${all.size ? "" : html`<${EmptyInbox} />`}
    <ol class="cards" ref=${list} tabindex="-1" aria-label="Approval requests"
      onPointerEnter=${() => setIsPointed(true)} onPointerLeave=${() => setIsPointed(false)}
      onFocusIn=${(/** @type {FocusEvent} */ event) => (setIsFocused(true), onFocus(event))}
      onFocusOut=${() => setIsFocused(false)}>
      ${ids.map((id) => html`<${RequestItem} key=${id} row=${all.get(id)} opened=${all.size === 1} />`)}
    </ol>
  </section>`;
}
