// The visible range of the waterfall, and the ways to change it: keys, Ctrl and the wheel, and dragging.

import { timeToX, xToTime } from "./axis.js";
import { useEffect, useRef, useState } from "./ui.js";

/** @typedef {import("./axis.js").Axis} Axis */
/** @typedef {{from: number, to: number}} Range */

const MIN_WIDTH = 5;
const MARGIN = 0.01;

/**
 * Return the visible positions: those of a time range, or the full axis with a small margin.
 * @param {Axis} axis @param {Range | null} range
 */
export function visibleWindow(axis, range) {
  if (!range) return { from: -axis.length * MARGIN, to: axis.length * (1 + 3 * MARGIN) };
  const from = timeToX(axis, range.from);
  return { from, to: Math.max(from + 1, timeToX(axis, range.to)) };
}

/**
 * Return a range of `factor` times the width, with the point at `share` of it kept in place, then moved by `shift` of
 * the width. Null is the full axis.
 * @param {Axis} axis @param {Range | null} range @param {number} factor @param {number} [share] @param {number} [shift]
 */
export function zoomRange(axis, range, factor, share = 0.5, shift = 0) {
  const view = visibleWindow(axis, range);
  const width = Math.max(MIN_WIDTH, (view.to - view.from) * factor);
  if (width >= axis.length) return null;
  const target = view.from + (view.to - view.from) * (share + shift) - width * share;
  const from = Math.min(Math.max(0, target), axis.length - width);
  return { from: xToTime(axis, from), to: xToTime(axis, from + width) };
}

/**
 * Return a range if any part of it is on the axis, which is shorter in the past.
 * @param {Axis} axis @param {Range | null} range
 */
function rangeOnAxis(axis, range) {
  const [first, last] = [axis.pieces[0], axis.pieces.at(-1)];
  return range && first && last && range.from < last.to && range.to > first.from ? range : null;
}

/**
 * @param {Axis} axis
 * @param {HTMLElement | null} element
 * The element that receives events. Its elements with the class `wf-track` span the axis.
 */
export function useZoom(axis, element) {
  const [requested, setRange] = useState(/** @type {Range | null} */ (null));
  const range = rangeOnAxis(axis, requested);
  // The dragged range, as shares of the width.
  const [drawn, setDrawn] = useState(/** @type {Range | null} */ (null));
  const latest = useRef({ axis, range });
  latest.current = { axis, range };
  const hasMoved = useRef(false);

  const zoom = (/** @type {number} */ factor, share = 0.5, shift = 0) =>
    setRange(zoomRange(latest.current.axis, latest.current.range, factor, share, shift));

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
    hasMoved.current = false;
    if (!element || event.button !== 0) return;
    const begin = event.clientX;
    const start = shareOf(element, begin);
    if (start < 0 || start > 1) return;
    const move = (/** @type {PointerEvent} */ next) => {
      if (!hasMoved.current && Math.abs(next.clientX - begin) < 6) return;
      hasMoved.current = true;
      const end = Math.max(0, Math.min(1, shareOf(element, next.clientX)));
      setDrawn({ from: Math.min(start, end), to: Math.max(start, end) });
    };
    const stop = (/** @type {PointerEvent} */ last) => {
      for (const name of END_EVENTS) removeEventListener(name, /** @type {any} */ (stop));
      removeEventListener("pointermove", move);
      setDrawn(null);
      if (!hasMoved.current || last.type === "pointercancel") return;
      const end = Math.max(0, Math.min(1, shareOf(element, last.clientX)));
      const width = Math.abs(end - start);
      if (width > 0.005) zoom(width, 0, Math.min(start, end));
    };
    addEventListener("pointermove", move);
    for (const name of END_EVENTS) addEventListener(name, /** @type {any} */ (stop));
  };

  return { range, setRange, drawn, zoom, reset: () => setRange(null), press, moved: hasMoved };
}

const END_EVENTS = ["pointerup", "pointercancel"];

/**
 * Return the horizontal position as a share of the axis, from 0 to 1 within it.
 * @param {HTMLElement} element @param {number} clientX
 */
function shareOf(element, clientX) {
  const box = (element.querySelector(".wf-track") ?? element).getBoundingClientRect();
  return box.width ? (clientX - box.left) / box.width : 0;
}
