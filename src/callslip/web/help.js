// Keyboard shortcuts, and the dialog that lists them.

import { html, signal, useEffect, useRef } from "./ui.js";
import { closeDrawer, scroller } from "./frame.js";
import { go } from "./state.js";

/** Whether the dialog is open. */
export const isHelpOpen = signal(false);

/** Shortcuts by section, with descriptions. @type {[string, [string, string][]][]} */
const KEY_HELP = [
  ["General", [
    ["/", "Search or filter"],
    ["g s", "Go to sessions"],
    ["g i", "Go to inbox"],
    ["g c", "Go to commands"],
    ["j", "Next item"],
    ["k", "Previous item"],
    ["o", "Open or close item"],
    ["?", "Show keyboard shortcuts"],
    ["Esc", "Close, or leave a field"],
  ]],
  ["Open approval request", [
    ["x", "Choose, to answer several"],
    ["a", "Approve once"],
    ["d", "Deny: enter a reason, then press Enter"],
    ["e", "Edit and approve"],
  ]],
];

/** @param {{keys: string, does: string}} props */
const KeyRow = ({ keys, does }) =>
  html`<div><dt>${keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${does}</dd></div>`;

export default function Help() {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const open = isHelpOpen.value;
  useEffect(() => {
    if (open) dialog.current?.showModal();
    else dialog.current?.close();
  }, [open]);
  const close = () => (isHelpOpen.value = false);
  return html`<dialog ref=${dialog} class="help" aria-labelledby="help-title" onClose=${close}
    onClick=${(/** @type {Event} */ event) => event.target === dialog.current && close()}>
    <div class="inside">
      <h2 id="help-title">Keyboard shortcuts</h2>
      ${KEY_HELP.map(([section, keys]) => html`<section key=${section}>
        <h3>${section}</h3>
        <dl>${keys.map(([key, does]) => html`<${KeyRow} keys=${key} does=${does} />`)}</dl>
      </section>`)}
      <button class="button" onClick=${close}>Close</button>
    </div>
  </dialog>`;
}

// Shortcuts do nothing while the user types in a field or holds a modifier key.

/** @param {EventTarget | null} target */
function isTextField(target) {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

const CARD = "#main [data-card], #main [role=article]";
const allCards = () => /** @type {HTMLElement[]} */ ([...document.querySelectorAll(CARD)]);

/** The card that has or contains the focus. */
const focusedCard = () => /** @type {HTMLElement | null} */ (document.activeElement?.closest(CARD) ?? null);

/** @param {number} by */
function moveFocus(by) {
  const all = allCards();
  if (!all.length) return false; // The view may handle the key itself.
  const current = focusedCard();
  const top = scroller()?.getBoundingClientRect().top ?? 0;
  const at = current ? all.indexOf(current) + by : all.findIndex((one) => one.getBoundingClientRect().bottom > top);
  const next = all[Math.max(0, Math.min(all.length - 1, at))];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
  return true;
}

function toggleCard() {
  const button = focusedCard()?.querySelector("[data-toggle], summary, [aria-expanded]");
  if (!(button instanceof HTMLElement)) return false;
  button.click();
  return true;
}

function focusSearch() {
  const field = document.querySelector("#main [role=search] input") ?? document.getElementById("search");
  if (field instanceof HTMLInputElement) {
    field.focus();
    field.select();
  }
}

/** The action of each shortcut; it returns false if there was nothing to do. @type {Record<string, () => unknown>} */
const ACTIONS = {
  "/": focusSearch,
  "?": () => (isHelpOpen.value = !isHelpOpen.value),
  j: () => moveFocus(1),
  k: () => moveFocus(-1),
  o: toggleCard,
  "g s": () => go("/"),
  "g i": () => go("/inbox"),
  "g c": () => go("/commands"),
  Escape: closeDrawer,
};

/** Keys that scroll. They work at once, although it is not the window that scrolls. */
const SCROLL_KEYS = new Set(["PageUp", "PageDown", "Home", "End", "ArrowUp", "ArrowDown", " "]);

let lastKey = "";
let lastKeyAt = 0;

/** @param {KeyboardEvent} event */
export function onKey(event) {
  if (event.key === "Escape" && isTextField(event.target)) /** @type {HTMLElement} */ (event.target).blur();
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTextField(event.target)) return;
  if (document.querySelector("dialog[open]") && event.key !== "?") return;
  const isAtStart = document.activeElement === document.body || document.activeElement?.id === "main";
  if (SCROLL_KEYS.has(event.key) && isAtStart) scroller()?.focus({ preventScroll: true });
  const first = event.timeStamp - lastKeyAt < 1500 ? lastKey : "";
  const action = ACTIONS[first ? `${first} ${event.key}` : event.key] ?? ACTIONS[event.key];
  lastKey = event.key === "g" ? "g" : "";
  lastKeyAt = event.timeStamp;
  if (action && action() !== false) event.preventDefault();
}
