// The keys of the page, and the dialog that tells them.

import { html, signal, useEffect, useRef } from "./ui.js";
import { go } from "./state.js";

/** Whether the dialog is open. */
export const helping = signal(false);

/** Where, which keys, and what they do. @type {[string, [string, string][]][]} */
const KEYS = [
  ["Everywhere", [
    ["/", "search or filter"],
    ["g s", "sessions"],
    ["g i", "inbox"],
    ["g c", "commands"],
    ["j", "next card"],
    ["k", "previous card"],
    ["o", "open or close the card"],
    ["?", "this help"],
    ["Esc", "close, or leave a field"],
  ]],
  ["On a request that is open", [
    ["a", "approve it, once"],
    ["d", "deny it: say why, then Enter"],
    ["e", "edit, then approve"],
  ]],
];

/** @param {{keys: string, does: string}} props */
const Key = ({ keys, does }) =>
  html`<div><dt>${keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${does}</dd></div>`;

export default function Help() {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const open = helping.value;
  useEffect(() => {
    if (open) dialog.current?.showModal();
    else dialog.current?.close();
  }, [open]);
  const close = () => (helping.value = false);
  return html`<dialog ref=${dialog} class="help" aria-labelledby="help-title" onClose=${close}
    onClick=${(/** @type {Event} */ event) => event.target === dialog.current && close()}>
    <div class="inside">
      <h2 id="help-title">Keys</h2>
      ${KEYS.map(([where, keys]) => html`<section key=${where}>
        <h3>${where}</h3>
        <dl>${keys.map(([key, does]) => html`<${Key} keys=${key} does=${does} />`)}</dl>
      </section>`)}
      <button class="button" onClick=${close}>Close</button>
    </div>
  </dialog>`;
}

// What keys do. Whoever writes in a field, or holds a modifier, means something else.

/** @param {EventTarget | null} target */
function writes(target) {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

const CARD = "#main [data-card], #main [role=article]";
const cards = () => /** @type {HTMLElement[]} */ ([...document.querySelectorAll(CARD)]);

/** The card that has the focus, or holds what has it. */
const card = () => /** @type {HTMLElement | null} */ (document.activeElement?.closest(CARD) ?? null);

/** @param {number} by */
function step(by) {
  const all = cards();
  if (!all.length) return false; // The view may have its own way.
  const now = card();
  const at = now ? all.indexOf(now) + by : all.findIndex((one) => one.getBoundingClientRect().bottom > 80);
  const next = all[Math.max(0, Math.min(all.length - 1, at))];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
  return true;
}

function toggle() {
  const button = card()?.querySelector("[data-toggle], summary, [aria-expanded]");
  if (!(button instanceof HTMLElement)) return false;
  button.click();
  return true;
}

function search() {
  const field = document.querySelector("#main [role=search] input") ?? document.getElementById("search");
  if (field instanceof HTMLInputElement) {
    field.focus();
    field.select();
  }
}

/** What each does; false if there was nothing to do. @type {Record<string, () => unknown>} */
const DOES = {
  "/": search,
  "?": () => (helping.value = !helping.value),
  j: () => step(1),
  k: () => step(-1),
  o: toggle,
  "g s": () => go("/"),
  "g i": () => go("/inbox"),
  "g c": () => go("/commands"),
};

let before = "";
let pressed = 0;

/** @param {KeyboardEvent} event */
export function onKey(event) {
  if (event.key === "Escape" && writes(event.target)) /** @type {HTMLElement} */ (event.target).blur();
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || writes(event.target)) return;
  if (document.querySelector("dialog[open]") && event.key !== "?") return;
  const first = event.timeStamp - pressed < 1500 ? before : "";
  const does = DOES[first ? `${first} ${event.key}` : event.key] ?? DOES[event.key];
  before = event.key === "g" ? "g" : "";
  pressed = event.timeStamp;
  if (does && does() !== false) event.preventDefault();
}
