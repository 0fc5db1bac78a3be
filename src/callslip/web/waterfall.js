// Calls on a line of time: when each waited for approval, was queued, and ran. Rows that are not in sight are not made.

import { inert } from "./ansi.js";
import { PHASES, axisOf, bandsOf, barsOf, placeOf, tellBar, ticksOf } from "./axis.js";
import { Ground, Head, Track } from "./waterfall_grid.js";
import { classes, html, useEffect, useLayoutEffect, useMemo, useState } from "./ui.js";
import { asking, loadOlder } from "./row_state.js";
import { hasOlder, order, past, shown as known } from "./state.js";
import { stateOf } from "./states.js";
import { clock, span, timeOf } from "./time.js";
import { useZoom, windowOf } from "./zoom.js";

/** @typedef {import("./filter_terms.js").Any} Any */
/** @typedef {import("./axis.js").Bar} Bar */
/** @typedef {import("./axis.js").Axis} Axis */
/** @typedef {{from: number, to: number}} Range */

const ROW = 28;
const TALL_ROW = 46;
const NARROW = 560;
const SPARE = 8;
const MOST_BANDS = 300;
/** How wide the names are, in a window that is not narrow: as in tools.css. */
const NAMES = 220;

/** @param {Any} call */
const nameOf = (call) => inert(call.toolName || call.title || call.kind || "call");
/** @param {Any} call */
const titleOf = (call) => inert(call.title && call.title !== call.toolName ? call.title : "");

/** A bar in words, for whoever does not see it. @param {Bar} bar @param {number} now */
function wordsOf(bar, now) {
  const { call } = bar;
  const title = titleOf(call);
  const times = tellBar(bar, now, span) || "no time passed";
  return `${nameOf(call)}${title && `, ${title}`}: ${stateOf(call.status).word}. From ${timeOf(bar.from)}: ${times}.`;
}

/**
 * The moment until which open calls are drawn: now, or that of the past that is shown.
 * @param {Bar[]} bars @param {boolean} open
 */
function useNow(bars, open) {
  const ends = (/** @type {Bar} */ { from, to }) => (to === Infinity ? from : Math.max(from, to));
  const last = useMemo(() => bars.reduce((most, bar) => Math.max(most, ends(bar)), 0), [bars]);
  if (past.value) return Math.max(last, past.value.at);
  return open ? Math.max(last, clock.value) : last;
}

/** The size of what is in sight. @param {HTMLElement | null} element */
function useSight(element) {
  const [size, setSize] = useState({ width: 800, height: 480 });
  useLayoutEffect(() => {
    if (!element) return;
    const measure = () => setSize({ width: element.clientWidth, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, [element]);
  return size;
}

const LEGEND = /** @type {const} */ (["waiting", "queued", "running"]);

/**
 * @param {{gaps: number, fold: boolean, onFold: () => void, range: Range | null, zoom: (factor: number) => void,
 *   reset: () => void, onFit: (() => void) | null, live: boolean}} props
 */
function Tools({ gaps, fold, onFold, range, zoom, reset, onFit, live }) {
  return html`<div class="wf-tools">
    <ul class="wf-legend" aria-label="What the bars mean">
      ${LEGEND.map((phase) => html`<li key=${phase}><span class=${`wf-sample wf-${phase}`} aria-hidden="true"></span>
        ${PHASES[phase].word}</li>`)}
      ${live && html`<li><span class="wf-sample-now" aria-hidden="true"></span> now</li>`}
    </ul>
    <div class="wf-buttons" role="group" aria-label="Time shown">
      ${gaps > 0 && html`<button type="button" class="button small" aria-pressed=${String(fold)}
        onClick=${onFold}>Fold idle time</button>`}
      <button type="button" class="button small" aria-label="Zoom out" disabled=${!range}
        onClick=${() => zoom(2)}>−</button>
      <button type="button" class="button small" aria-label="Zoom in" onClick=${() => zoom(0.5)}>+</button>
      <button type="button" class="button small" disabled=${!onFit} onClick=${onFit}
        title="Zoom to the calls in sight">Fit</button>
      <button type="button" class="button small" disabled=${!range} onClick=${reset}>Show all</button>
    </div>
  </div>`;
}

/** A page begins with a session's newest entries; this gets the others. */
function Older() {
  if (!hasOlder.value || past.value) return null;
  const asks = asking.value === "asking";
  const load = async () => {
    for (let oldest = -1; hasOlder.value && oldest !== order.peek()[0]; ) {
      oldest = order.peek()[0];
      await loadOlder();
    }
  };
  return html`<p class="wf-older">Older calls are not loaded.${" "}
    <button type="button" class="button small" disabled=${asks}
      onClick=${load}>${asks ? "Loading" : "Load all"}</button>
    ${!asks && asking.value && html` <span role="alert">They did not come: ${asking.value}</span>`}</p>`;
}

/** @param {{bar: Bar | undefined, now: number, left: number, all: number}} props */
function Told({ bar, now, left, all }) {
  if (!bar) {
    const count = left === all ? `${all} ${all === 1 ? "call" : "calls"}` : `${left} of ${all} calls in this range`;
    return html`<p class="wf-told"><span role="status">${count}.</span>${" "}
      <span class="wf-keys">Point at a bar or use <kbd>↑</kbd> <kbd>↓</kbd>, <kbd>Enter</kbd> opens it.${" "}
        Drag, <kbd>+</kbd> <kbd>−</kbd> or ctrl and the wheel to zoom, <kbd>0</kbd> for all.</span></p>`;
  }
  const state = stateOf(bar.call.status);
  return html`<div class=${`wf-told is-${bar.call.status}`}>
    <p><span class="state">${state.glyph} ${state.word}</span>${" "}
      <b class="foreign" dir="auto">${nameOf(bar.call)}</b>${" "}
      <span class="wf-told-title foreign" dir="auto">${titleOf(bar.call)}</span></p>
    <p class="wf-told-times">${timeOf(bar.from)}: ${tellBar(bar, now, span) || "no time passed"}</p>
  </div>`;
}

/** Turns, every second of them told apart. A filter takes nothing from the line of time. @param {Any[]} entries */
function useBands(entries) {
  return useMemo(() => {
    const all = known.peek().length ? known.peek() : entries;
    return bandsOf(all).map((band, index) => ({ ...band, odd: index % 2 === 1 }));
  }, [entries]);
}

/** What is in sight of the rows, and which is chosen. @param {Bar[]} rows @param {HTMLElement | null} element */
function useChoice(rows, element) {
  const size = useSight(element);
  const [top, setTop] = useState(0);
  const [active, setActive] = useState(0); // the id of an entry
  const [pointed, setPointed] = useState(0);
  const narrow = size.width < NARROW;
  const height = narrow ? TALL_ROW : ROW;
  const first = Math.max(0, Math.floor(top / height) - SPARE);
  const sight = rows.slice(first, Math.ceil((top + size.height) / height) + SPARE);
  const whole = rows.slice(Math.ceil(top / height), Math.max(1, Math.floor((top + size.height) / height)));
  const move = (/** @type {number} */ index) => {
    const next = Math.max(0, Math.min(rows.length - 1, index));
    if (!rows.length) return;
    setActive(rows[next].id);
    setPointed(0);
    if (!element) return;
    if (next * height < element.scrollTop) element.scrollTop = next * height;
    const bottom = (next + 1) * height - size.height;
    if (bottom > element.scrollTop) element.scrollTop = bottom;
    setTop(element.scrollTop);
  };
  useEffect(() => setTop(element?.scrollTop ?? 0), [rows.length, height]);
  const at = rows.findIndex(({ id }) => id === active);
  return { size, narrow, height, top, setTop, first, sight, whole, active, setActive, pointed, setPointed, at, move };
}

/**
 * What the bars stand on: times, turns, the line of now. Made anew only when that changes.
 * @param {{axis: Axis, range: Range | null, shown: Range, bands: ReturnType<typeof useBands>, drawn: Range | null,
 *   width: number, tall: number, nowAt: number | null}} given
 */
function useGround({ axis, range, shown, bands, drawn, width, tall, nowAt }) {
  const most = Math.max(2, Math.floor(width / 72));
  const ticks = useMemo(() => ticksOf(axis, Math.max(0, shown.from), shown.to, most), [axis, range, most]);
  const turns = useMemo(() => {
    const found = bands.filter(({ from, to }) => placeOf(axis, to) >= shown.from && placeOf(axis, from) <= shown.to);
    return found.length > MOST_BANDS ? [] : found;
  }, [axis, bands, range]);
  const head = useMemo(
    () => html`<${Head} axis=${axis} shown=${shown} bands=${turns} ticks=${ticks} width=${width} />`,
    [turns, ticks, width],
  );
  const ground = useMemo(
    () => html`<${Ground} axis=${axis} shown=${shown} bands=${turns} ticks=${ticks} drawn=${drawn} height=${tall}
      nowLine=${nowAt} />`,
    [turns, ticks, drawn, tall, nowAt === null],
  );
  return { head, ground };
}

/**
 * What the keys do; those that are not among them do what they always do.
 * @param {ReturnType<typeof useChoice>} choice @param {number} count
 * @param {{zoom: (factor: number, share: number, by?: number) => void, zoomHere: (factor: number) => void,
 *   reset: () => void, pick: () => void}} can
 */
function keysOf({ at, move, size, height }, count, { zoom, zoomHere, reset, pick }) {
  const page = Math.max(1, Math.floor(size.height / height) - 1);
  /** @type {Record<string, () => void>} */
  const keys = {
    ArrowDown: () => move(at + 1), ArrowUp: () => move(at - 1),
    PageDown: () => move(at + page), PageUp: () => move(at - page),
    Home: () => move(0), End: () => move(count - 1),
    ArrowRight: () => zoom(1, 0.5, 0.2), ArrowLeft: () => zoom(1, 0.5, -0.2),
    "+": () => zoomHere(0.5), "=": () => zoomHere(0.5), "-": () => zoomHere(2), 0: reset,
    Enter: pick, " ": pick,
  };
  return (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  };
}

/**
 * One call: its name and its bar.
 * @param {{bar: Bar, index: number, count: number, choice: ReturnType<typeof useChoice>, focused: boolean, axis: Axis,
 *   shown: Range, now: number, onPick: () => void}} props
 */
function Line({ bar, index, count, choice, focused, axis, shown, now, onPick }) {
  const { active, pointed, setPointed, height, narrow } = choice;
  const { id, call } = bar;
  const look = classes("wf-row", `is-${call.status}`, id === active && "wf-active", id === pointed && "wf-pointed");
  return html`<div id=${`wf-${id}`} role="option" class=${look} aria-selected=${String(focused && id === active)}
    style=${{ top: `${index * height}px`, height: `${height}px` }}
    aria-setsize=${count} aria-posinset=${index + 1} aria-label=${wordsOf(bar, now)} title=${tellBar(bar, now, span)}
    onPointerEnter=${() => setPointed(id)} onClick=${onPick}>
    <span class="wf-name"><span class="wf-glyph" aria-hidden="true">${stateOf(call.status).glyph}</span>
      <span class="wf-tool" dir="auto">${nameOf(call)}</span>${" "}
      <span class="wf-title" dir="auto">${titleOf(call)}</span></span>
    <${Track} bar=${bar} axis=${axis} shown=${shown} now=${now} edge=${narrow ? 94 : 97.5} /></div>`;
}

/**
 * @param {{entries: Any[], onPick: (id: number) => void}} props `entries` are those to show.
 */
export function Waterfall({ entries, onPick }) {
  const [element, attach] = useState(/** @type {HTMLElement | null} */ (null));
  const [fold, setFold] = useState(true);
  const [focused, setFocused] = useState(false);
  const bars = useMemo(() => barsOf(entries, known.peek()), [entries]);
  const bands = useBands(entries);
  const open = useMemo(() => bars.some(({ to }) => to === Infinity), [bars]);
  const now = useNow(bars, open);
  const axis = useMemo(() => axisOf(bars, bands, now, fold), [bars, bands, now, fold]);
  const { range, setRange, drawn, zoom, reset, press, moved } = useZoom(axis, element);
  const shown = windowOf(axis, range);
  const rows = useMemo(
    () => (range ? bars.filter(({ from, to }) => from <= range.to && to >= range.from) : bars),
    [bars, range],
  );
  const choice = useChoice(rows, element);
  const { size, narrow, height, sight, active, at, move } = choice;
  const live = open && !past.value;
  const width = size.width - (narrow ? 0 : NAMES);
  const tall = Math.min(size.height, rows.length * height);
  const nowAt = live ? placeOf(axis, now) : null;
  const { head, ground } = useGround({ axis, range, shown, bands, drawn, width, tall, nowAt });

  const fit = () => {
    const seen = choice.whole;
    const last = Math.max(...seen.map(({ from, to }) => (to === Infinity ? now : Math.max(from, to))));
    if (seen.length) setRange({ from: seen[0].from, to: Math.max(last, seen[0].from + 5) });
  };
  /** Zoom so that the call that is chosen stays where it is, if it is in sight. @param {number} factor */
  const zoomHere = (factor) => {
    const middle = rows[at] ? placeOf(axis, (rows[at].from + Math.min(rows[at].to, now)) / 2) : NaN;
    const share = (middle - shown.from) / (shown.to - shown.from);
    zoom(factor, share >= 0 && share <= 1 ? share : 0.5);
  };
  const pick = () => at >= 0 && onPick(active);
  const clicked = (/** @type {number} */ id) => {
    if (moved.current) return;
    choice.setActive(id);
    onPick(id);
  };

  if (!bars.length) return html`<p class="notice wf-none">There is no call to show on a line of time here.</p>`;
  const told = rows.find(({ id }) => id === (choice.pointed || (focused ? active : 0)));
  return html`<section class=${classes("wf", narrow && "wf-narrow")} aria-label="Calls on a line of time">
    <${Tools} gaps=${axis.gaps} fold=${fold} onFold=${() => setFold(!fold)} range=${range} zoom=${zoomHere}
      reset=${reset} live=${live}
      onFit=${rows.length * height > size.height ? fit : null} />
    <${Older} />
    <div class="wf-frame">
      ${head}
      <div ref=${attach} class=${classes("wf-scroll", drawn && "wf-drawing")} role="listbox" tabindex="0"
        aria-label=${`${rows.length} calls, by when they began`}
        aria-activedescendant=${sight.some(({ id }) => id === active) ? `wf-${active}` : undefined}
        onScroll=${(/** @type {any} */ event) => choice.setTop(event.currentTarget.scrollTop)}
        onKeyDown=${keysOf(choice, rows.length, { zoom, zoomHere, reset, pick })} onPointerDown=${press}
        onPointerLeave=${() => choice.setPointed(0)} onBlur=${() => setFocused(false)}
        onFocus=${() => { setFocused(true); if (at < 0) move(Math.round(choice.top / height)); }}>
        <div class="wf-all" role="presentation" style=${{ height: `${rows.length * height}px` }}>
          ${ground}
          ${sight.map((bar, index) => html`<${Line} key=${bar.id} bar=${bar} index=${choice.first + index}
            count=${rows.length} choice=${choice} focused=${focused} axis=${axis} shown=${shown} now=${now}
            onPick=${() => clicked(bar.id)} />`)}
        </div>
      </div>
      <${Told} bar=${told} now=${now} left=${rows.length} all=${bars.length} />
    </div>
  </section>`;
}

export default Waterfall;
