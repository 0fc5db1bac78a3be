// Calls on a line of time: when each waited for approval, was queued, and ran. Rows that are not in sight are not made.

import { inert } from "./ansi.js";
import { PHASES, axisOf, bandsOf, barsOf, placeOf, tellBar, ticksOf } from "./axis.js";
import { classes, html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./parts.js";
import { moment } from "./scrubber.js";
import { hasOlder, older, past, shown as known } from "./state.js";
import { stateOf } from "./states.js";
import { clock, span, timeOf } from "./time.js";
import { useZoom, windowOf } from "./zoom.js";

/** @typedef {import("./terms.js").Any} Any */
/** @typedef {import("./axis.js").Bar} Bar */
/** @typedef {import("./axis.js").Axis} Axis */
/** @typedef {{from: number, to: number}} Range */

const ROW = 28;
const TALL_ROW = 46;
const NARROW = 560;
const SPARE = 8;
const MOST_BANDS = 300;
const FEW_FOLDS = 8;
const MOST_FOLDS = 60;

/** A place as a share of what is shown, in percent, a little beyond its edges at most. @param {Range} shown @param {number} x */
const percent = (shown, x) => Math.max(-1, Math.min(101, (100 * (x - shown.from)) / (shown.to - shown.from)));

/** Where something from one place to another is drawn. @param {Range} shown @param {number} from @param {number} to @param {number} [least] */
function drawnAt(shown, from, to, least = -1) {
  const left = Math.max(least, percent(shown, from));
  return { left: `${left}%`, width: `${Math.max(0, percent(shown, to) - left)}%` };
}

const two = (/** @type {number} */ number) => String(number).padStart(2, "0");

/** A time since the line's beginning, as exact as the step from one to the next needs. @param {number} after @param {number} step */
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

/** @param {Any} call */
const nameOf = (call) => inert(call.toolName || call.title || call.kind || "call");
/** @param {Any} call */
const titleOf = (call) => inert(call.title && call.title !== call.toolName ? call.title : "");
/** @param {string} turn */
const turnWord = (turn) => inert(turn).replace(/^t(?=\d+$)/u, "turn ");

/** A bar in words, for whoever does not see it. @param {Bar} bar @param {number} now */
function wordsOf(bar, now) {
  const { call } = bar;
  const title = titleOf(call);
  return `${nameOf(call)}${title && `, ${title}`}: ${stateOf(call.status).word}. From ${timeOf(bar.from)}: ${tellBar(bar, now, span) || "no time passed"}.`;
}

/** The moment until which open calls are drawn: now, or that of the past that is shown. @param {Bar[]} bars @param {boolean} open */
function useNow(bars, open) {
  const last = useMemo(() => bars.reduce((most, { from, to }) => Math.max(most, from, to === Infinity ? 0 : to), 0), [bars]);
  if (past.value) return Math.max(last, moment.value.seq === past.value.seq ? moment.value.at : 0);
  return open ? Math.max(last, clock.value) : last;
}

/** The size of what is in sight. @param {{current: HTMLElement | null}} scroller */
function useSight(scroller) {
  const [size, setSize] = useState({ width: 800, height: 480 });
  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return;
    const measure = () => setSize({ width: element.clientWidth, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, [scroller.current]);
  return size;
}

/** @param {{bar: Bar, axis: Axis, shown: Range, now: number, edge: number}} props From `edge` on there is no room beside a bar. */
function Track({ bar, axis, shown, now, edge }) {
  const end = percent(shown, placeOf(axis, Math.min(bar.to, now)));
  const state = stateOf(bar.call.status);
  return html`<span class="wf-track" aria-hidden="true">
    ${bar.segments.map(({ phase, from, to }) => html`<span key=${from + phase} class=${`wf-bar wf-${phase}`}
      style=${drawnAt(shown, placeOf(axis, from), placeOf(axis, Math.min(to, now)))}></span>`)}
    ${!bar.segments.length && html`<span class="wf-bar wf-instant" style=${{ left: `${end}%` }}></span>`}
    ${bar.to !== Infinity && end > -1 && end < 101 && html`<span class=${classes("wf-end", end > edge && "wf-end-in")} style=${{ left: `${end}%` }}>${state.glyph}</span>`}
  </span>`;
}

/** @param {{axis: Axis, shown: Range, bands: {turn: string, from: number, to: number}[], ticks: {x: number, after: number, step: number}[]}} props */
function Head({ axis, shown, bands, ticks }) {
  const begun = axis.pieces[0]?.from;
  return html`<div class="wf-head" aria-hidden="true">
    <span class="wf-origin">from ${timeOf(begun)}</span>
    <span class="wf-axis">
      ${bands.map(({ turn, from, to }) => {
        const place = drawnAt(shown, placeOf(axis, from), placeOf(axis, to), 0);
        return parseFloat(place.width) > 8 && html`<span key=${turn} class="wf-turn" style=${place}>${turnWord(turn)}</span>`;
      })}
      ${ticks.map(({ x, after, step }) => html`<span key=${x} class="wf-tick" style=${{ left: `${percent(shown, x)}%` }}>${tickWord(after, step)}</span>`)}
    </span>
  </div>`;
}

/** What lies behind the bars: turns, times, folds, the range that is being drawn, and now. @param {any} props */
function Ground({ axis, shown, bands, ticks, drawn, nowLine, height }) {
  const found = axis.pieces.filter((/** @type {any} */ piece) => piece.folded && piece.x < shown.to && piece.x + piece.width > shown.from);
  const folds = found.length > MOST_FOLDS ? [] : found;
  return html`<div class="wf-ground" aria-hidden="true" style=${{ height: `${height}px` }}>
    ${bands.map((/** @type {any} */ band) => html`<span key=${band.turn} class=${classes("wf-band", band.odd && "wf-odd")}
      style=${drawnAt(shown, placeOf(axis, band.from), placeOf(axis, band.to))}></span>`)}
    ${ticks.map((/** @type {any} */ tick) => html`<span key=${tick.x} class="wf-grid" style=${{ left: `${percent(shown, tick.x)}%` }}></span>`)}
    ${folds.map((/** @type {any} */ fold) => html`<span key=${fold.x} class=${classes("wf-fold", folds.length > FEW_FOLDS && "wf-thin")}
      title=${`${span(fold.to - fold.from)} in which nothing was going on`} style=${drawnAt(shown, fold.x, fold.x + fold.width)}>
      ${folds.length <= FEW_FOLDS && html`<span class="wf-fold-word">${span(fold.to - fold.from)}</span>`}</span>`)}
    ${drawn && html`<span class="wf-drawn" style=${{ left: `${drawn.from * 100}%`, width: `${(drawn.to - drawn.from) * 100}%` }}></span>`}
    ${nowLine !== null && html`<span class="wf-now" style=${{ left: `${percent(shown, nowLine)}%` }}></span>`}
  </div>`;
}

/** @param {{gaps: number, fold: boolean, onFold: () => void, range: Range | null, zoom: (factor: number) => void, reset: () => void, onFit: (() => void) | null, live: boolean}} props */
function Tools({ gaps, fold, onFold, range, zoom, reset, onFit, live }) {
  return html`<div class="wf-tools">
    <ul class="wf-legend" aria-label="What the bars mean">
      ${["waiting", "queued", "running"].map((phase) => html`<li key=${phase}><span class=${`wf-sample wf-${phase}`} aria-hidden="true"></span>
        ${PHASES[/** @type {import("./axis.js").Phase} */ (phase)].word}</li>`)}
      ${live && html`<li><span class="wf-sample-now" aria-hidden="true"></span> now</li>`}
    </ul>
    <div class="wf-buttons" role="group" aria-label="Time shown">
      ${gaps > 0 && html`<button type="button" class="button small" aria-pressed=${String(fold)} onClick=${onFold}>Fold idle time</button>`}
      <button type="button" class="button small" aria-label="Zoom out" disabled=${!range} onClick=${() => zoom(2)}>−</button>
      <button type="button" class="button small" aria-label="Zoom in" onClick=${() => zoom(0.5)}>+</button>
      <button type="button" class="button small" disabled=${!onFit} onClick=${onFit} title="Zoom to the calls in sight">Fit</button>
      <button type="button" class="button small" disabled=${!range} onClick=${reset}>Show all</button>
    </div>
  </div>`;
}

/** A page begins with a session's newest entries; this gets the others. */
function Older() {
  const [asks, setAsks] = useState(false);
  if (!hasOlder.value || past.value) return null;
  const load = async () => {
    setAsks(true);
    try {
      for (let oldest = -1; hasOlder.value && oldest !== known.peek()[0]?.id; ) {
        oldest = known.peek()[0]?.id;
        await older();
      }
    } finally {
      setAsks(false);
    }
  };
  return html`<p class="wf-older">Older calls are not loaded. <button type="button" class="button small" disabled=${asks} onClick=${load}>${asks ? "Loading" : "Load all"}</button></p>`;
}

/** @param {{bar: Bar | undefined, now: number, left: number, all: number}} props */
function Told({ bar, now, left, all }) {
  if (!bar) {
    const count = left === all ? `${all} ${all === 1 ? "call" : "calls"}` : `${left} of ${all} calls in this range`;
    return html`<p class="wf-told"><span role="status">${count}.</span> <span class="wf-keys">Point at a bar or use <kbd>↑</kbd> <kbd>↓</kbd>, <kbd>Enter</kbd> opens it. Drag, <kbd>+</kbd> <kbd>−</kbd> or ctrl and the wheel to zoom, <kbd>0</kbd> for all.</span></p>`;
  }
  const state = stateOf(bar.call.status);
  return html`<div class=${`wf-told is-${bar.call.status}`}>
    <p><span class="state">${state.glyph} ${state.word}</span> <b class="foreign" dir="auto">${nameOf(bar.call)}</b> <span class="wf-told-title foreign" dir="auto">${titleOf(bar.call)}</span></p>
    <p class="wf-told-times">${timeOf(bar.from)}: ${tellBar(bar, now, span) || "no time passed"}</p>
  </div>`;
}

/**
 * @param {{entries: Any[], onPick: (id: number) => void}} props `entries` are those to show.
 */
export function Waterfall({ entries, onPick }) {
  const scroller = useRef(/** @type {HTMLElement | null} */ (null));
  const [top, setTop] = useState(0);
  const [fold, setFold] = useState(true);
  const [active, setActive] = useState(0); // the id of an entry
  const [pointed, setPointed] = useState(0);
  const [focused, setFocused] = useState(false);
  const size = useSight(scroller);
  const bars = useMemo(() => barsOf(entries, known.peek()), [entries]);
  // A filter takes nothing from the line: it is the same for some calls as for all.
  const bands = useMemo(() => bandsOf(known.peek().length ? known.peek() : entries).map((band, index) => ({ ...band, odd: index % 2 === 1 })), [entries]);
  const open = useMemo(() => bars.some(({ to }) => to === Infinity), [bars]);
  const now = useNow(bars, open);
  const axis = useMemo(() => axisOf(bars, bands, now, fold), [bars, bands, now, fold]);
  const { range, setRange, drawn, zoom, reset, press, moved } = useZoom(axis, scroller);
  const shown = windowOf(axis, range);
  const rows = useMemo(() => (range ? bars.filter(({ from, to }) => from <= range.to && to >= range.from) : bars), [bars, range]);

  const narrow = size.width < NARROW;
  const height = narrow ? TALL_ROW : ROW;
  const first = Math.max(0, Math.floor(top / height) - SPARE);
  const sight = rows.slice(first, Math.ceil((top + size.height) / height) + SPARE);
  const at = rows.findIndex(({ id }) => id === active);
  const most = Math.max(2, Math.floor((size.width - (narrow ? 0 : 220)) / 72));
  const ticks = useMemo(() => ticksOf(axis, Math.max(0, shown.from), shown.to, most), [axis, range, most]);
  const turns = useMemo(() => {
    const found = bands.filter(({ from, to }) => placeOf(axis, to) >= shown.from && placeOf(axis, from) <= shown.to);
    return found.length > MOST_BANDS ? [] : found;
  }, [axis, bands, range]);
  const live = open && !past.value;

  const move = (/** @type {number} */ index) => {
    const next = Math.max(0, Math.min(rows.length - 1, index));
    if (!rows.length) return;
    setActive(rows[next].id);
    setPointed(0);
    const element = scroller.current;
    if (!element) return;
    if (next * height < element.scrollTop) element.scrollTop = next * height;
    else if ((next + 1) * height > element.scrollTop + size.height) element.scrollTop = (next + 1) * height - size.height;
    setTop(element.scrollTop);
  };
  useEffect(() => setTop(scroller.current?.scrollTop ?? 0), [rows.length, height]);
  const head = useMemo(() => html`<${Head} axis=${axis} shown=${shown} bands=${turns} ticks=${ticks} />`, [turns, ticks]);
  const tall = Math.min(size.height, rows.length * height);
  const ground = useMemo(
    () => html`<${Ground} axis=${axis} shown=${shown} bands=${turns} ticks=${ticks} drawn=${drawn} height=${tall} nowLine=${live ? placeOf(axis, now) : null} />`,
    [turns, ticks, drawn, tall, live],
  );
  const fit = () => {
    const seen = rows.slice(Math.ceil(top / height), Math.max(1, Math.floor((top + size.height) / height)));
    const last = Math.max(...seen.map(({ from, to }) => (to === Infinity ? now : Math.max(from, to))));
    if (seen.length) setRange({ from: seen[0].from, to: Math.max(last, seen[0].from + 5) });
  };
  /** Zoom so that the call that is chosen stays where it is, if it is in sight. @param {number} factor */
  const zoomHere = (factor) => {
    const middle = rows[at] ? placeOf(axis, (rows[at].from + Math.min(rows[at].to, now)) / 2) : NaN;
    const share = (middle - shown.from) / (shown.to - shown.from);
    zoom(factor, share >= 0 && share <= 1 ? share : 0.5);
  };
  const page = Math.max(1, Math.floor(size.height / height) - 1);
  /** @type {Record<string, () => void>} */
  const keys = {
    ArrowDown: () => move(at + 1), ArrowUp: () => move(at - 1), PageDown: () => move(at + page), PageUp: () => move(at - page),
    Home: () => move(0), End: () => move(rows.length - 1),
    ArrowRight: () => zoom(1, 0.5, 0.2), ArrowLeft: () => zoom(1, 0.5, -0.2),
    "+": () => zoomHere(0.5), "=": () => zoomHere(0.5), "-": () => zoomHere(2), 0: reset,
    Enter: () => at >= 0 && onPick(active), " ": () => at >= 0 && onPick(active),
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  };

  if (!bars.length) return html`<p class="notice wf-none">There is no call to show on a line of time here.</p>`;
  const told = rows.find(({ id }) => id === (pointed || (focused ? active : 0)));
  return html`<section class=${classes("wf", narrow && "wf-narrow")} aria-label="Calls on a line of time">
    <${Tools} gaps=${axis.gaps} fold=${fold} onFold=${() => setFold(!fold)} range=${range} zoom=${zoomHere} reset=${reset} live=${live}
      onFit=${rows.length * height > size.height ? fit : null} />
    <${Older} />
    <div class="wf-frame">
      ${head}
      <div ref=${scroller} class=${classes("wf-scroll", drawn && "wf-drawing")} role="listbox" tabindex="0" aria-label=${`${rows.length} calls, by when they began`}
        aria-activedescendant=${sight.some(({ id }) => id === active) ? `wf-${active}` : undefined}
        onScroll=${(/** @type {any} */ event) => setTop(event.currentTarget.scrollTop)} onKeyDown=${key} onPointerDown=${press}
        onPointerLeave=${() => setPointed(0)} onBlur=${() => setFocused(false)}
        onFocus=${() => { setFocused(true); if (at < 0) move(Math.round(top / height)); }}>
        <div class="wf-all" role="presentation" style=${{ height: `${rows.length * height}px` }}>
          ${ground}
          ${sight.map((bar, index) => html`<div key=${bar.id} id=${`wf-${bar.id}`} role="option" aria-selected=${String(focused && bar.id === active)}
            class=${classes("wf-row", `is-${bar.call.status}`, bar.id === active && "wf-active", bar.id === pointed && "wf-pointed")}
            style=${{ top: `${(first + index) * height}px`, height: `${height}px` }} aria-setsize=${rows.length} aria-posinset=${first + index + 1}
            aria-label=${wordsOf(bar, now)} title=${tellBar(bar, now, span)} onPointerEnter=${() => setPointed(bar.id)}
            onClick=${() => { if (!moved.current) { setActive(bar.id); onPick(bar.id); } }}>
            <span class="wf-name"><span class="wf-glyph" aria-hidden="true">${stateOf(bar.call.status).glyph}</span>
              <span class="wf-tool" dir="auto">${nameOf(bar.call)}</span> <span class="wf-title" dir="auto">${titleOf(bar.call)}</span></span>
            <${Track} bar=${bar} axis=${axis} shown=${shown} now=${now} edge=${narrow ? 94 : 97.5} /></div>`)}
        </div>
      </div>
      <${Told} bar=${told} now=${now} left=${rows.length} all=${bars.length} />
    </div>
  </section>`;
}

export default Waterfall;
