// Which part of a line of time is shown, and the ways to choose another: keys, the wheel with ctrl, a range drawn by
// hand.

import { placeOf, timeAt } from "./axis.js";
import { useEffect, useRef, useState } from "./ui.js";

/** @typedef {import("./axis.js").Axis} Axis */
/** @typedef {{from: number, to: number}} Range */

const LEAST = 5;
const MARGIN = 0.01;

/**
 * The places that are shown: those of a range of time, or the whole line with a little room.
 * @param {Axis} axis @param {Range | null} range
 */
export function windowOf(axis, range) {
  if (!range) return { from: -axis.length * MARGIN, to: axis.length * (1 + 3 * MARGIN) };
  const from = placeOf(axis, range.from);
  return { from, to: Math.max(from + 1, placeOf(axis, range.to)) };
}

/**
 * Another range: of `factor` times the width, so that what is at `share` of it stays there, moved by `shift` of it.
 * Null is the whole line.
 * @param {Axis} axis @param {Range | null} range @param {number} factor @param {number} [share] @param {number} [shift]
 */
export function zoomed(axis, range, factor, share = 0.5, shift = 0) {
  const shown = windowOf(axis, range);
  const width = Math.max(LEAST, (shown.to - shown.from) * factor);
  if (width >= axis.length) return null;
  const wanted = shown.from + (shown.to - shown.from) * (share + shift) - width * share;
  const from = Math.min(Math.max(0, wanted), axis.length - width);
  return { from: timeAt(axis, from), to: timeAt(axis, from + width) };
}

/**
 * A range, if anything of it is on the line: of the past there may be less.
 * @param {Axis} axis @param {Range | null} range
 */
function onLine(axis, range) {
  const [first, last] = [axis.pieces[0], axis.pieces.at(-1)];
  return range && first && last && range.from < last.to && range.to > first.from ? range : null;
}

/**
 * @param {Axis} axis
 * @param {HTMLElement | null} element
 * The element that events come to; what has the class `wf-track` in it is the line.
 */
export function useZoom(axis, element) {
  const [wanted, setRange] = useState(/** @type {Range | null} */ (null));
  const range = onLine(axis, wanted);
  const [drawn, setDrawn] = useState(/** @type {Range | null} */ (null)); // as shares of the line, while it is drawn
  const latest = useRef({ axis, range });
  latest.current = { axis, range };
  const moved = useRef(false);

  const zoom = (/** @type {number} */ factor, share = 0.5, shift = 0) =>
    setRange(zoomed(latest.current.axis, latest.current.range, factor, share, shift));

  useEffect(() => {
    if (!element) return;
    const wheel = (/** @type {WheelEvent} */ event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 150), shareOf(element, event.clientX));
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, [element]);

  const press = (/** @type {PointerEvent} */ event) => {
    moved.current = false;
    if (!element || event.button !== 0) return;
    const begin = event.clientX;
    const start = shareOf(element, begin);
    if (start < 0 || start > 1) return;
    const move = (/** @type {PointerEvent} */ next) => {
      if (!moved.current && Math.abs(next.clientX - begin) < 6) return;
      moved.current = true;
      const end = Math.max(0, Math.min(1, shareOf(element, next.clientX)));
      setDrawn({ from: Math.min(start, end), to: Math.max(start, end) });
    };
    const stop = (/** @type {PointerEvent} */ last) => {
      for (const name of ENDS) removeEventListener(name, /** @type {any} */ (stop));
      removeEventListener("pointermove", move);
      setDrawn(null);
      if (!moved.current || last.type === "pointercancel") return;
      const end = Math.max(0, Math.min(1, shareOf(element, last.clientX)));
      const width = Math.abs(end - start);
      if (width > 0.005) zoom(width, 0, Math.min(start, end));
    };
    addEventListener("pointermove", move);
    for (const name of ENDS) addEventListener(name, /** @type {any} */ (stop));
  };

  return { range, setRange, drawn, zoom, reset: () => setRange(null), press, moved };
}

const ENDS = ["pointerup", "pointercancel"];

/**
 * How far along the line something on the screen is, from 0 to 1 within it.
 * @param {HTMLElement} element @param {number} clientX
 */
function shareOf(element, clientX) {
  const box = (element.querySelector(".wf-track") ?? element).getBoundingClientRect();
  return box.width ? (clientX - box.left) / box.width : 0;
}
