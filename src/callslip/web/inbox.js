// What waits for a person's answer, in all sessions. Nothing is decided by a key unless its card has the focus and
// shows what is decided; the page's own keys walk from card to card. While somebody points at the list it keeps its
// order, so that no card moves under a hand.

import { html, useEffect, useRef, useState } from "./ui.js";
import PermissionCard, { answerOf, ofRow } from "./request.js";
import { answered, get, inbox, told } from "./state.js";

/**
 * @typedef {{approval: string, session: string, entry: number, createdAt: number, expiresAt: number,
 *   state: string}} Row
 */

const MOMENT = 6000;
const NEVER = Number.MAX_SAFE_INTEGER;
const ORDERS = /** @type {Record<string, (one: Row, two: Row) => number>} */ ({
  soonest: (one, two) => (one.expiresAt || NEVER) - (two.expiresAt || NEVER) || one.createdAt - two.createdAt,
  newest: (one, two) => two.createdAt - one.createdAt,
});

/** The rows, and for a moment those that were answered, with who did and when. @param {Map<string, Row>} rows */
function useLingering(rows) {
  const shown = useRef(/** @type {Map<string, Row>} */ (new Map())).current;
  const leaving = useRef(/** @type {Map<string, number>} */ (new Map())).current;
  const [, again] = useState(0);
  for (const [id, row] of rows) shown.set(id, row);
  useEffect(() => () => leaving.forEach((timer) => clearTimeout(timer)), []);
  useEffect(() => {
    for (const id of shown.keys()) {
      if (!rows.has(id) && !leaving.has(id)) leave(id);
    }
  }, [rows]);

  async function leave(/** @type {string} */ id) {
    leaving.set(id, 0);
    const known = answered.peek().get(id) ?? (await get(`/v1/approvals/${encodeURIComponent(id)}`).catch(() => null));
    if (known) shown.set(id, /** @type {Row} */ (known)); // Else it was deleted, with its session.
    leaving.set(id, setTimeout(() => gone(id), known ? MOMENT : 0));
    again((count) => count + 1);
  }

  function gone(/** @type {string} */ id) {
    leaving.delete(id);
    shown.delete(id);
    again((count) => count + 1);
  }

  return shown;
}

/** The ids in order; while the list is held, those that were there keep their places. */
function useOrder(/** @type {Row[]} */ rows, /** @type {string} */ wanted, /** @type {boolean} */ held) {
  const before = useRef(/** @type {string[]} */ ([]));
  const ids = [...rows].sort(ORDERS[wanted]).map((row) => row.approval);
  const kept = held ? before.current.filter((id) => ids.includes(id)) : [];
  before.current = [...kept, ...ids.filter((id) => !kept.includes(id))];
  return before.current;
}

/**
 * One request, whose arguments are asked for when it is opened.
 * @param {{row: any, opened: boolean}} props
 */
function Item({ row, opened }) {
  const [open, setOpen] = useState(opened);
  const [entry, setEntry] = useState(/** @type {any} */ (null));
  const [failed, setFailed] = useState("");
  useEffect(() => {
    if (!open || entry) return;
    setFailed("");
    const which = `?format=entries&limit=1&cursor=${row.entry + 1}`;
    get(`/v1/sessions/${encodeURIComponent(row.session)}${which}`).then(
      (page) => {
        const found = page.entries.find((/** @type {any} */ one) => one.requestId === row.approval);
        if (found) setEntry(found);
        else setFailed("the session does not have the request");
      },
      (error) => setFailed(error.message),
    );
  }, [open]);
  const shown = { ...ofRow(row), ...entry, ...(row.state === "pending" ? {} : answerOf(row)) };
  return html`<li data-approval=${row.approval}>
    <${PermissionCard} entry=${shown} session=${row.session} open=${open} known=${Boolean(entry)} failed=${failed}
      onOpen=${() => setOpen(!open)} />
  </li>`;
}

/**
 * Focus that a card took with it goes to the list, not to the next card: a key must not mean another call than before.
 * @param {{current: HTMLElement | null}} list @param {string[]} ids
 */
function useFocusKept(list, ids) {
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

function Nothing() {
  if (!told.value.has("inbox")) return html`<p class="empty" role="status">Asking what waits…</p>`;
  return html`<div class="empty">
    <p class="large" aria-hidden="true">✓</p>
    <p><b>Nothing waits for you.</b></p>
    <p class="dim">When an agent asks before it acts, in any session, the question appears here. Nothing runs before it
      is answered.</p>
  </div>`;
}

const waiting = (/** @type {number} */ count) => (count === 1 ? "1 request waits" : `${count} requests wait`);

const Keys = () =>
  html`<p class="dim keys"><kbd>j</kbd> <kbd>k</kbd> move, <kbd>Enter</kbd> opens, then <kbd>a</kbd> approves,
    ${" "}<kbd>d</kbd> denies, <kbd>e</kbd> edits</p>`;

/** @param {{value: string, onChange: (value: string) => void}} props */
const Order = ({ value, onChange }) =>
  html`<label class="order dim">Order
    <select class="field" value=${value} onChange=${(/** @type {any} */ event) => onChange(event.target.value)}>
      <option value="soonest">soonest to expire</option><option value="newest">newest</option>
    </select></label>`;

export default function Inbox() {
  const [wanted, setWanted] = useState("soonest");
  const [pointed, setPointed] = useState(false);
  const [focused, setFocused] = useState(false);
  const list = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const rows = /** @type {Map<string, Row>} */ (inbox.value);
  const all = useLingering(rows);
  const ids = useOrder([...all.values()], wanted, pointed || focused);
  const onFocus = useFocusKept(list, ids);
  return html`<section class="inbox column" aria-labelledby="inbox-title">
    <div class="bar">
      <h1 id="inbox-title">Inbox</h1>
      <p class="dim" role="status">${rows.size ? waiting(rows.size) : ""}</p>
      ${all.size > 1 ? html`<${Order} value=${wanted} onChange=${setWanted} />` : ""}
    </div>
    ${all.size ? html`<${Keys} />` : html`<${Nothing} />`}
    <ol class="cards" ref=${list} tabindex="-1" aria-label="Requests"
      onPointerEnter=${() => setPointed(true)} onPointerLeave=${() => setPointed(false)}
      onFocusIn=${(/** @type {FocusEvent} */ event) => (setFocused(true), onFocus(event))}
      onFocusOut=${() => setFocused(false)}>
      ${ids.map((id) => html`<${Item} key=${id} row=${all.get(id)} opened=${all.size === 1} />`)}
    </ol>
  </section>`;
}
