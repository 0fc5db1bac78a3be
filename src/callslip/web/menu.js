// A button that opens a list of actions. The browser closes it by a click outside and by Escape.

import { html, useRef, useState } from "./ui.js";

const GAP_PX = 4;
let lastId = 0;

/**
 * `children` are links and buttons, or a function that returns them when the menu is opened. A button with `data-stays`
 * leaves the menu open.
 * @param {{label: string, icon?: string, class?: string, children?: any}} props
 */
export default function Menu({ label, icon = "more", class: css = "", children }) {
  const { current: id } = useRef(`menu-${++lastId}`);
  const button = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const list = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const [isOpen, setIsOpen] = useState(false);
  const place = (/** @type {any} */ { newState }) => {
    setIsOpen(newState === "open");
    const box = button.current?.getBoundingClientRect();
    if (newState !== "open" || !box || !list.current) return;
    const isLow = box.bottom > innerHeight * 0.6;
    Object.assign(list.current.style, {
      top: isLow ? "auto" : `${box.bottom + GAP_PX}px`,
      bottom: isLow ? `${innerHeight - box.top + GAP_PX}px` : "auto",
      right: `${Math.max(GAP_PX, innerWidth - box.right)}px`,
    });
  };
  const close = (/** @type {any} */ { target }) =>
    target.closest("a, button:not([data-stays])") && list.current?.hidePopover();
  return html`<button type="button" ref=${button} class=${`btn ghost icon ${css}`} aria-label=${label} title=${label}
      popovertarget=${id}><i class=${`i i-${icon}`} aria-hidden="true"></i></button>
    <div class="menu" id=${id} ref=${list} popover="auto" onBeforeToggle=${place} onClick=${close}>
      ${typeof children === "function" ? isOpen && children() : children}</div>`;
}
