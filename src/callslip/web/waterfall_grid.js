// What a line of time is drawn with: its times and turns, what lies behind the bars, and the bars.

import { inert } from "./ansi.js";
import { placeOf } from "./axis.js";
import { classes, html } from "./ui.js";
import { stateOf } from "./states.js";
import { span, timeOf } from "./time.js";

/** @typedef {import("./axis.js").Bar} Bar */
/** @typedef {import("./axis.js").Axis} Axis */
/** @typedef {import("./axis.js").Piece} Piece */
/** @typedef {import("./axis.js").Band & {odd: boolean}} Stripe */
/** @typedef {{from: number, to: number}} Range */
/** @typedef {{x: number, after: number, step: number}} Tick */

const FEW_FOLDS = 8;
const MOST_FOLDS = 60;
/** No digit is wider. */
const DIGIT = 7.5;

/**
 * A place as a share of what is shown, in percent, a little beyond its edges at most.
 * @param {Range} shown @param {number} x
 */
const percent = (shown, x) => Math.max(-1, Math.min(101, (100 * (x - shown.from)) / (shown.to - shown.from)));

/**
 * Where something from one place to another is drawn.
 * @param {Range} shown @param {number} from @param {number} to @param {number} [least]
 */
function drawnAt(shown, from, to, least = -1) {
  const left = Math.max(least, percent(shown, from));
  return { left: `${left}%`, width: `${Math.max(0, percent(shown, to) - left)}%` };
}

const two = (/** @type {number} */ number) => String(number).padStart(2, "0");

/**
 * A time since the line's beginning, as exact as the step from one to the next needs.
 * @param {number} after @param {number} step
 */
function tickWord(after, step) {
  if (!after) return "0";
  const places = step < 10 ? 3 : step < 100 ? 2 : step < 1000 ? 1 : 0;
  const rest = ((after % 60_000) / 1000).toFixed(places);
  const minutes = Math.floor(after / 60_000);
  if (!minutes) return `${rest}s`;
  if (step >= 3_600_000) return `${Math.floor(minutes / 60)}h`;
  const seconds = rest.padStart(places ? places + 3 : 2, "0");
  return minutes < 60 ? `${minutes}:${seconds}` : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${seconds}`;
}

/** @param {string} turn */
const turnWord = (turn) => inert(turn).replace(/^t(?=\d+$)/u, "turn ");

/**
 * A call's bar. From `edge` on there is no room beside it.
 * @param {{bar: Bar, axis: Axis, shown: Range, now: number, edge: number}} props
 */
export function Track({ bar, axis, shown, now, edge }) {
  const end = percent(shown, placeOf(axis, Math.min(bar.to, now)));
  const state = stateOf(bar.call.status);
  return html`<span class="wf-track" aria-hidden="true">
    ${bar.segments.map(({ phase, from, to }) => html`<span key=${from + phase} class=${`wf-bar wf-${phase}`}
      style=${drawnAt(shown, placeOf(axis, from), placeOf(axis, Math.min(to, now)))}></span>`)}
    ${!bar.segments.length && html`<span class="wf-bar wf-instant" style=${{ left: `${end}%` }}></span>`}
    ${bar.to !== Infinity && end > -1 && end < 101 && html`<span
      class=${classes("wf-end", end > edge && "wf-end-in")} style=${{ left: `${end}%` }}>${state.glyph}</span>`}
  </span>`;
}

/**
 * A time beside its line, if it fits between that and the edge.
 * @param {{tick: Tick, left: number, width: number}} props
 */
function TickWord({ tick, left, width }) {
  const word = tickWord(tick.after, tick.step);
  if (((100 - left) / 100) * width < word.length * DIGIT + 4) return null;
  return html`<span class="wf-tick" style=${{ left: `${left}%` }}>${word}</span>`;
}

/**
 * Times and turns, above the bars.
 * @param {{axis: Axis, shown: Range, bands: Stripe[], ticks: Tick[], width: number}} props
 */
export function Head({ axis, shown, bands, ticks, width }) {
  const begun = axis.pieces[0]?.from;
  return html`<div class="wf-head" aria-hidden="true">
    <span class="wf-origin">from ${timeOf(begun)}</span>
    <span class="wf-axis">
      ${bands.map(({ turn, from, to }) => {
        const place = drawnAt(shown, placeOf(axis, from), placeOf(axis, to), 0);
        const word = parseFloat(place.width) > 8 && turnWord(turn);
        return word && html`<span key=${turn} class="wf-turn" style=${place}>${word}</span>`;
      })}
      ${ticks.map((tick) => html`<${TickWord} key=${tick.x} tick=${tick} left=${percent(shown, tick.x)}
        width=${width} />`)}
    </span>
  </div>`;
}

/** @param {Range} range */
const shareOf = ({ from, to }) => ({ left: `${from * 100}%`, width: `${(to - from) * 100}%` });

/**
 * What lies behind the bars: turns, times, folds, the range that is being drawn, and now.
 * @param {{axis: Axis, shown: Range, bands: Stripe[], ticks: Tick[], drawn: Range | null, nowLine: number | null,
 *   height: number}} props
 */
export function Ground({ axis, shown, bands, ticks, drawn, nowLine, height }) {
  const inSight = (/** @type {Piece} */ { x, width }) => x < shown.to && x + width > shown.from;
  const found = axis.pieces.filter((piece) => piece.folded && inSight(piece));
  const folds = found.length > MOST_FOLDS ? [] : found;
  return html`<div class="wf-ground" aria-hidden="true" style=${{ height: `${height}px` }}>
    ${bands.map((band) => html`<span key=${band.turn} class=${classes("wf-band", band.odd && "wf-odd")}
      style=${drawnAt(shown, placeOf(axis, band.from), placeOf(axis, band.to))}></span>`)}
    ${ticks.map(({ x }) => html`<span key=${x} class="wf-grid" style=${{ left: `${percent(shown, x)}%` }}></span>`)}
    ${folds.map((fold) => html`<span key=${fold.x} class=${classes("wf-fold", folds.length > FEW_FOLDS && "wf-thin")}
      title=${`${span(fold.to - fold.from)} in which nothing was going on`}
      style=${drawnAt(shown, fold.x, fold.x + fold.width)}>
      ${folds.length <= FEW_FOLDS && html`<span class="wf-fold-word">${span(fold.to - fold.from)}</span>`}</span>`)}
    ${drawn && html`<span class="wf-drawn" style=${shareOf(drawn)}></span>`}
    ${nowLine !== null && html`<span class="wf-now" style=${{ left: `${percent(shown, nowLine)}%` }}></span>`}
  </div>`;
}
