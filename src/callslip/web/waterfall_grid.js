// The parts of the waterfall: the axis with times and turns, the grid behind the bars, and the bars.

import { inert } from "./ansi.js";
import { timeToX } from "./axis.js";
import { classes, html } from "./ui.js";
import { describeState } from "./states.js";
import { formatDuration, formatTime } from "./time.js";

/** @typedef {import("./axis.js").Bar} Bar */
/** @typedef {import("./axis.js").Axis} Axis */
/** @typedef {import("./axis.js").Piece} Piece */
/** @typedef {import("./axis.js").Band & {odd: boolean}} Stripe */
/** @typedef {{from: number, to: number}} Range */
/** @typedef {{x: number, after: number, step: number}} Tick */

const MAX_LABELLED_FOLDS = 8;
const MAX_FOLDS = 60;
/** The maximum width of a digit. */
const DIGIT_PX = 7.5;

/**
 * Convert a position to a percentage of the visible range, clamped just beyond its edges.
 * @param {Range} view @param {number} x
 */
const percent = (view, x) => Math.max(-1, Math.min(101, (100 * (x - view.from)) / (view.to - view.from)));

/**
 * Return the CSS position and width of a bar.
 * @param {Range} view @param {number} from @param {number} to @param {number} [minLeft]
 */
function barStyle(view, from, to, minLeft = -1) {
  const left = Math.max(minLeft, percent(view, from));
  return { left: `${left}%`, width: `${Math.max(0, percent(view, to) - left)}%` };
}

const pad = (/** @type {number} */ number) => String(number).padStart(2, "0");

/**
 * Format the time since the start of the axis, as precisely as the tick step requires.
 * @param {number} after @param {number} step
 */
function tickLabel(after, step) {
  if (!after) return "0";
  const digits = step < 10 ? 3 : step < 100 ? 2 : step < 1000 ? 1 : 0;
  const rest = ((after % 60_000) / 1000).toFixed(digits);
  const minutes = Math.floor(after / 60_000);
  if (!minutes) return `${rest}s`;
  if (step >= 3_600_000) return `${Math.floor(minutes / 60)}h`;
  const seconds = rest.padStart(digits ? digits + 3 : 2, "0");
  return minutes < 60 ? `${minutes}:${seconds}` : `${Math.floor(minutes / 60)}:${pad(minutes % 60)}:${seconds}`;
}

/** @param {string} turn */
const turnLabel = (turn) => inert(turn).replace(/^t(?=\d+$)/u, "Turn ");

/**
 * The bar of a call. Beyond `edge` percent, the end glyph is drawn inside the bar.
 * @param {{bar: Bar, axis: Axis, view: Range, now: number, edge: number}} props
 */
export function Track({ bar, axis, view, now, edge }) {
  const end = percent(view, timeToX(axis, Math.min(bar.to, now)));
  const state = describeState(bar.call.status);
  return html`<span class="wf-track" aria-hidden="true">
    ${bar.segments.map(({ phase, from, to }) => html`<span key=${from + phase} class=${`wf-bar wf-${phase}`}
      style=${barStyle(view, timeToX(axis, from), timeToX(axis, Math.min(to, now)))}></span>`)}
    ${!bar.segments.length && html`<span class="wf-bar wf-instant" style=${{ left: `${end}%` }}></span>`}
    ${bar.to !== Infinity && end > -1 && end < 101 && html`<span
      class=${classes("wf-end", end > edge && "wf-end-in")} style=${{ left: `${end}%` }}>${state.glyph}</span>`}
  </span>`;
}

/**
 * The label of a tick, if it fits before the right edge.
 * @param {{tick: Tick, left: number, width: number}} props
 */
function TickLabel({ tick, left, width }) {
  const label = tickLabel(tick.after, tick.step);
  if (((100 - left) / 100) * width < label.length * DIGIT_PX + 4) return null;
  return html`<span class="wf-tick" style=${{ left: `${left}%` }}>${label}</span>`;
}

/**
 * The times and turns above the bars.
 * @param {{axis: Axis, view: Range, bands: Stripe[], ticks: Tick[], width: number}} props
 */
export function AxisHeader({ axis, view, bands, ticks, width }) {
  const start = axis.pieces[0]?.from;
  return html`<div class="wf-head" aria-hidden="true">
    <span class="wf-origin">Start ${formatTime(start)}</span>
    <span class="wf-axis">
      ${bands.map(({ turn, from, to }) => {
        const style = barStyle(view, timeToX(axis, from), timeToX(axis, to), 0);
        const label = parseFloat(style.width) > 8 && turnLabel(turn);
        return label && html`<span key=${turn} class="wf-turn" style=${style}>${label}</span>`;
      })}
      ${ticks.map((tick) => html`<${TickLabel} key=${tick.x} tick=${tick} left=${percent(view, tick.x)}
        width=${width} />`)}
    </span>
  </div>`;
}

/** @param {Range} range */
const rangeStyle = ({ from, to }) => ({ left: `${from * 100}%`, width: `${(to - from) * 100}%` });

/**
 * The grid behind the bars: turns, ticks, collapsed gaps, the range being selected, and the current time.
 * @param {{axis: Axis, view: Range, bands: Stripe[], ticks: Tick[], drawn: Range | null, nowX: number | null,
 *   height: number}} props
 */
export function Grid({ axis, view, bands, ticks, drawn, nowX, height }) {
  const isVisible = (/** @type {Piece} */ { x, width }) => x < view.to && x + width > view.from;
  const visible = axis.pieces.filter((piece) => piece.folded && isVisible(piece));
  const folds = visible.length > MAX_FOLDS ? [] : visible;
  const hasLabels = folds.length <= MAX_LABELLED_FOLDS;
  return html`<div class="wf-backdrop" aria-hidden="true" style=${{ height: `${height}px` }}>
    ${bands.map((band) => html`<span key=${band.turn} class=${classes("wf-band", band.odd && "wf-odd")}
      style=${barStyle(view, timeToX(axis, band.from), timeToX(axis, band.to))}></span>`)}
    ${ticks.map(({ x }) => html`<span key=${x} class="wf-grid" style=${{ left: `${percent(view, x)}%` }}></span>`)}
    ${folds.map((fold) => html`<span key=${fold.x} class=${classes("wf-fold", !hasLabels && "wf-thin")}
      title=${`${formatDuration(fold.to - fold.from)} idle`}
      style=${barStyle(view, fold.x, fold.x + fold.width)}>
      ${hasLabels && html`<span class="wf-fold-word">${formatDuration(fold.to - fold.from)}</span>`}</span>`)}
    ${drawn && html`<span class="wf-drawn" style=${rangeStyle(drawn)}></span>`}
    ${nowX !== null && html`<span class="wf-now" style=${{ left: `${percent(view, nowX)}%` }}></span>`}
  </div>`;
}
