// The frame of a view: a line below the header of the page, and columns that scroll on their own. Where the window is too
// narrow for three columns, the panels at the sides are drawers, and on a phone sheets from below.

import { classes, computed, effect, html, signal, useEffect, useRef } from "./ui.js";
import { route } from "./route.js";

/** The element that scrolls the content of the view. @returns {HTMLElement | null} */
export const scroller = () => document.querySelector("#main [data-scroller]");

/**
 * @typedef {object} Panel
 * @property {import("./ui.js").ReadonlySignal<boolean>} isColumn Whether the window has room for it as a column.
 * @property {import("./ui.js").ReadonlySignal<boolean>} isOpen
 * @property {() => void} open
 * @property {() => void} close
 * @property {() => void} toggle
 */

/**
 * A panel beside the content. Whether its column is shown is saved; a drawer is closed at first.
 * @param {string} name @param {number} columnFrom The width of the window in px from which it is a column.
 * @returns {Panel}
 */
function panel(name, columnFrom) {
  const query = matchMedia(`(min-width: ${columnFrom}px)`);
  const isColumn = signal(query.matches);
  const isColumnShown = signal(readSaved(name) !== "closed");
  const isDrawerOpen = signal(false);
  query.addEventListener("change", () => {
    isColumn.value = query.matches;
    isDrawerOpen.value = false;
  });
  let lastAddress = "";
  effect(() => {
    const { view, session } = route.value;
    if (`${view} ${session}` !== lastAddress) isDrawerOpen.value = false;
    lastAddress = `${view} ${session}`;
  });
  const set = (/** @type {boolean} */ open) => {
    if (!isColumn.peek()) return void (isDrawerOpen.value = open);
    isColumnShown.value = open;
    save(name, open ? "open" : "closed");
  };
  const isOpen = computed(() => (isColumn.value ? isColumnShown.value : isDrawerOpen.value));
  return { isColumn, isOpen, open: () => set(true), close: () => set(false), toggle: () => set(!isOpen.peek()) };
}

/** @param {string} name */
function readSaved(name) {
  try {
    return localStorage.getItem(`callslip.${name}`);
  } catch {
    return null; // Storage may be forbidden.
  }
}

/** @param {string} name @param {string} value */
function save(name, value) {
  try {
    localStorage.setItem(`callslip.${name}`, value);
  } catch {
    // Storage may be forbidden; the choice then lasts until the page is reloaded.
  }
}

export const sidePanel = panel("side", 1400);
export const detailPanel = panel("detail", 1200);

/** Close an open drawer. Return whether there was one. */
export function closeDrawer() {
  const drawer = [detailPanel, sidePanel].find((one) => !one.isColumn.value && one.isOpen.value);
  drawer?.close();
  return !!drawer;
}

/** A button of one icon. @param {{icon: string, label: string, class?: string, [attribute: string]: any}} props */
export const IconButton = ({ icon, label, class: css, ...attributes }) =>
  html`<button type="button" class=${classes("btn ghost icon", css)} aria-label=${label} title=${label} ...${attributes}>
    <i class=${`i i-${icon}`} aria-hidden="true"></i></button>`;

/** @param {{of: Panel, icon: string, label: string, class?: string}} props */
export const PanelToggle = ({ of, icon, label, class: css }) =>
  html`<${IconButton} icon=${icon} label=${label} class=${css} aria-pressed=${String(of.isOpen.value)} onClick=${of.toggle} />`;

/** @param {{of: Panel, kind: "side" | "detail", label: string, children?: any}} props */
function SidePanel({ of, kind, label, children }) {
  const box = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const isSheet = of.isOpen.value && !of.isColumn.value && matchMedia("(max-width: 640px)").matches;
  useEffect(() => {
    // A sheet covers the content, so the keyboard must not stay behind it.
    const before = isSheet ? document.activeElement : null;
    if (isSheet) box.current?.focus();
    return () => before instanceof HTMLElement && before.focus({ preventScroll: true });
  }, [isSheet]);
  if (!of.isOpen.value) return null;
  return html`${!of.isColumn.value && html`<div class="scrim" onClick=${of.close}></div>`}
    <section class=${kind} aria-label=${label} ref=${box} tabindex="-1">
      <span class="grab" aria-hidden="true"></span>
      ${kind === "side" && html`<div class="panel-head"><b>${label}</b>
        <${IconButton} icon="close" label="Close (Esc)" onClick=${of.close} /></div>`}
      ${children}
    </section>`;
}

/**
 * A view with a line of its own and columns. `head` is the content of that line; `side` and `detail` are the content of
 * the panels, with their names; `above` and `below` stay in place while the content between them scrolls.
 * @param {{head: any, side?: any, sideLabel?: string, detail?: any, detailLabel?: string, above?: any, below?: any,
 *   children?: any}} props
 */
export function Frame({ head, side, sideLabel = "", detail, detailLabel = "", above, below, children }) {
  return html`<div class="frame">
    <div class="head two">${head}</div>
    <div class="cols">
      ${side && html`<${SidePanel} of=${sidePanel} kind="side" label=${sideLabel}>${side}<//>`}
      <div class="middle">
        <div class="above">${above}</div>
        <div class="stream" data-scroller tabindex="0">${children}</div>
        <div class="below">${below}</div>
      </div>
      ${detail && html`<${SidePanel} of=${detailPanel} kind="detail" label=${detailLabel}>${detail}<//>`}
    </div>
  </div>`;
}
