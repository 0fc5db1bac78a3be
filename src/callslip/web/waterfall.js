// The waterfall: when each call was queued, waited for approval and ran. Rows out of view are not drawn.

import { inert } from "./ansi.js";
import { buildAxis, buildBands, buildBars, buildTicks, describeBar, PHASES, timeToX } from "./axis.js";
import { AxisHeader, Grid, Track } from "./waterfall_grid.js";
import { classes, html, useEffect, useLayoutEffect, useMemo, useState } from "./ui.js";
import { loadOlderMatches, olderMatchesStatus, result } from "./matches.js";
import { loadOlder, olderStatus, readCall } from "./row_state.js";
import { hasOlder, order, past, visibleEntries as allEntries } from "./state.js";
import { describeState } from "./states.js";
import { clock, formatDuration, formatTime } from "./time.js";
import { useZoom, visibleWindow } from "./zoom.js";

/** @typedef {import("./filter_terms.js").AnyEntry} AnyEntry */
/** @typedef {import("./axis.js").Bar} Bar */
/** @typedef {import("./axis.js").Axis} Axis */
/** @typedef {{from: number, to: number}} Range */

const ROW_PX = 28;
const TALL_ROW_PX = 46;
const NARROW_PX = 560;
const OVERSCAN_ROWS = 8;
const MAX_BANDS = 300;
/** The width of the names unless the view is narrow, as in tools.css. */
const NAMES_PX = 220;

/** @param {AnyEntry} call */
const callName = (call) => inert(call.toolName || call.title || call.kind || "Call");
/** @param {AnyEntry} call */
const callTitle = (call) => inert(call.title && call.title !== call.toolName ? call.title : "");

/** The call whose sub-agent made a call, in words, or "". @param {AnyEntry} call */
function describeParent({ parent }) {
  if (!parent) return "";
  const entry = readCall(parent);
  return `Sub-agent of ${entry ? callTitle(entry) || callName(entry) : parent}`;
}

/** Describe a call for screen readers. @param {Bar} bar @param {number} now */
function describeCall(bar, now) {
  const { call } = bar;
  const title = callTitle(call);
  const parent = describeParent(call);
  const state = describeState(call.status).label;
  return `${callName(call)}${title && `, ${title}`}: ${state}. ${parent && `${parent}. `}Started ${formatTime(bar.from)}. ${barTimes(bar, now)}.`;
}

/** @param {Bar} bar @param {number} now */
const barTimes = (bar, now) => describeBar(bar, now, formatDuration) || "No duration recorded";

/**
 * Return the time until which open calls are drawn: the current time, or the shown past moment.
 * @param {Bar[]} bars @param {boolean} open
 */
function useNow(bars, open) {
  const ends = (/** @type {Bar} */ { from, to }) => (to === Infinity ? from : Math.max(from, to));
  const last = useMemo(() => bars.reduce((latest, bar) => Math.max(latest, ends(bar)), 0), [bars]);
  if (past.value) return Math.max(last, past.value.at);
  return open ? Math.max(last, clock.value) : last;
}

/** Return the size of an element. @param {HTMLElement | null} element */
function useSize(element) {
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
    <ul class="wf-legend" aria-label="Legend">
      ${LEGEND.map((phase) => html`<li key=${phase}><span class=${`wf-sample wf-${phase}`} aria-hidden="true"></span>
        ${PHASES[phase]}</li>`)}
      ${live && html`<li><span class="wf-sample-now" aria-hidden="true"></span> Now</li>`}
    </ul>
    <div class="wf-buttons" role="group" aria-label="Time range">
      ${gaps > 0 && html`<button type="button" class="button small" aria-pressed=${String(fold)}
        onClick=${onFold}>Collapse idle time</button>`}
      <button type="button" class="button small" aria-label="Zoom out" disabled=${!range}
        onClick=${() => zoom(2)}>−</button>
      <button type="button" class="button small" aria-label="Zoom in" onClick=${() => zoom(0.5)}>+</button>
      <button type="button" class="button small" disabled=${!onFit} onClick=${onFit}
        title="Zoom to the visible calls">Fit</button>
      <button type="button" class="button small" disabled=${!range} onClick=${reset}>Reset zoom</button>
    </div>
  </div>`;
}

/** A page loads the newest entries of a session first; this loads the others. @param {{count: number}} props */
function OlderNote({ count }) {
  const isFiltered = !!result.value?.ids;
  const hasMore = isFiltered ? !!result.value?.cursor : hasOlder.value && !past.value;
  if (!hasMore) return null;
  const status = isFiltered ? olderMatchesStatus.value : olderStatus.value;
  const isLoading = status === "loading";
  const oldest = () => (isFiltered ? result.peek()?.ids : order.peek())?.[0];
  const isMissing = () => (isFiltered ? !!result.peek()?.cursor : hasOlder.value);
  const load = async () => {
    for (let before; isMissing() && before !== oldest(); ) {
      before = oldest();
      await (isFiltered ? loadOlderMatches() : loadOlder());
    }
  };
  const all = Object.values(result.value?.calls ?? {}).reduce((sum, one) => sum + one, 0);
  const loadedNote = isFiltered || !all
    ? "Older calls are not loaded."
    : `${count.toLocaleString("en")} of ${all.toLocaleString("en")} calls are loaded.`;
  return html`<p class="wf-older">${loadedNote}${" "}
    <button type="button" class="button small" disabled=${isLoading}
      onClick=${load}>${isLoading ? "Loading…" : "Load all"}</button>
    ${!isLoading && status && html` <span role="alert">Could not load: ${status}</span>`}</p>`;
}

/** @param {{bar: Bar | undefined, now: number, visible: number, total: number}} props */
function BarDetails({ bar, now, visible, total }) {
  if (!bar) {
    const calls = `${total} ${total === 1 ? "call" : "calls"}`;
    const count = visible === total ? calls : `${visible} of ${calls}`;
    return html`<p class="wf-details"><span role="status">${count}.</span>${" "}
      <span class="wf-keys"><kbd>↑</kbd> <kbd>↓</kbd> to select, <kbd>Enter</kbd> to open. Drag,
        ${" "}<kbd>+</kbd> <kbd>−</kbd> or Ctrl and scroll to zoom, <kbd>0</kbd> to reset.</span></p>`;
  }
  const state = describeState(bar.call.status);
  return html`<div class=${`wf-details is-${bar.call.status}`}>
    <p><span class="state">${state.glyph} ${state.label}</span>${" "}
      <b class="untrusted" dir="auto">${callName(bar.call)}</b>${" "}
      <span class="wf-details-title untrusted" dir="auto">${callTitle(bar.call)}</span></p>
    <p class="wf-details-times">Started ${formatTime(bar.from)} · ${barTimes(bar, now)}
      ${bar.call.parent && html` · <span class="untrusted" dir="auto">${describeParent(bar.call)}</span>`}</p>
  </div>`;
}

/** Return the turns of all entries, also of filtered ones; every second one is shaded. @param {AnyEntry[]} entries */
function useBands(entries) {
  return useMemo(() => {
    const all = allEntries.peek().length ? allEntries.peek() : entries;
    return buildBands(all).map((band, index) => ({ ...band, odd: index % 2 === 1 }));
  }, [entries]);
}

/** Track the visible rows, and which one is selected. @param {Bar[]} rows @param {HTMLElement | null} element */
function useSelection(rows, element) {
  const size = useSize(element);
  const [top, setTop] = useState(0);
  const [active, setActive] = useState(0); // An entry ID.
  const [pointed, setPointed] = useState(0);
  const narrow = size.width < NARROW_PX;
  const height = narrow ? TALL_ROW_PX : ROW_PX;
  const first = Math.max(0, Math.floor(top / height) - OVERSCAN_ROWS);
  const drawn = rows.slice(first, Math.ceil((top + size.height) / height) + OVERSCAN_ROWS);
  const fullyVisible = rows.slice(Math.ceil(top / height), Math.max(1, Math.floor((top + size.height) / height)));
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
  return {
    size, narrow, height, top, setTop, first, drawn, fullyVisible, active, setActive, pointed, setPointed, at, move,
  };
}

/**
 * Return the axis and the grid behind the bars, redrawn only when they change.
 * @param {{axis: Axis, range: Range | null, view: Range, bands: ReturnType<typeof useBands>, drawn: Range | null,
 *   width: number, height: number, nowX: number | null}} view
 */
function useGrid({ axis, range, view, bands, drawn, width, height, nowX }) {
  const maxTicks = Math.max(2, Math.floor(width / 72));
  const ticks = useMemo(() => buildTicks(axis, Math.max(0, view.from), view.to, maxTicks), [axis, range, maxTicks]);
  const turns = useMemo(() => {
    const visible = bands.filter(({ from, to }) => timeToX(axis, to) >= view.from && timeToX(axis, from) <= view.to);
    return visible.length > MAX_BANDS ? [] : visible;
  }, [axis, bands, range]);
  const head = useMemo(
    () => html`<${AxisHeader} axis=${axis} view=${view} bands=${turns} ticks=${ticks} width=${width} />`,
    [turns, ticks, width],
  );
  const grid = useMemo(
    () => html`<${Grid} axis=${axis} view=${view} bands=${turns} ticks=${ticks} drawn=${drawn} height=${height}
      nowX=${nowX} />`,
    [turns, ticks, drawn, height, nowX === null],
  );
  return { head, grid };
}

/**
 * Return a handler for the keys of the waterfall. Other keys keep their default action.
 * @param {ReturnType<typeof useSelection>} selection @param {number} count
 * @param {{zoom: (factor: number, share: number, by?: number) => void, zoomHere: (factor: number) => void,
 *   reset: () => void, pick: () => void}} actions
 */
function keyHandler({ at, move, size, height }, count, { zoom, zoomHere, reset, pick }) {
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
 * A call: its name and its bar.
 * @param {{bar: Bar, index: number, count: number, selection: ReturnType<typeof useSelection>, focused: boolean,
 *   axis: Axis, view: Range, now: number, onPick: () => void}} props
 */
function CallLane({ bar, index, count, selection, focused, axis, view, now, onPick }) {
  const { active, pointed, setPointed, height, narrow } = selection;
  const { id, call } = bar;
  const rowClass = classes("wf-row", `is-${call.status}`, id === active && "wf-active", id === pointed && "wf-pointed");
  return html`<div id=${`wf-${id}`} role="option" class=${rowClass} aria-selected=${String(focused && id === active)}
    style=${{ top: `${index * height}px`, height: `${height}px` }}
    aria-setsize=${count} aria-posinset=${index + 1} aria-label=${describeCall(bar, now)} title=${barTimes(bar, now)}
    onPointerEnter=${() => setPointed(id)} onClick=${onPick}>
    <span class="wf-name">${call.parent && html`<span class="wf-parent" aria-hidden="true">↳</span>`}
      <span class="wf-glyph" aria-hidden="true">${describeState(call.status).glyph}</span>
      <span class="wf-tool" dir="auto">${callName(call)}</span>${" "}
      <span class="wf-title" dir="auto">${callTitle(call)}</span></span>
    <${Track} bar=${bar} axis=${axis} view=${view} now=${now} edge=${narrow ? 94 : 97.5} /></div>`;
}

/**
 * @param {{entries: AnyEntry[], onPick: (id: number) => void}} props `entries` are the entries to display.
 */
export function Waterfall({ entries, onPick }) {
  const [element, attach] = useState(/** @type {HTMLElement | null} */ (null));
  const [fold, setFold] = useState(true);
  const [focused, setFocused] = useState(false);
  const bars = useMemo(() => buildBars(entries, [...new Set([...allEntries.peek(), ...entries])]), [entries]);
  const bands = useBands(entries);
  const open = useMemo(() => bars.some(({ to }) => to === Infinity), [bars]);
  const now = useNow(bars, open);
  const axis = useMemo(() => buildAxis(bars, bands, now, fold), [bars, bands, now, fold]);
  const { range, setRange, drawn, zoom, reset, press, moved } = useZoom(axis, element);
  const view = visibleWindow(axis, range);
  const rows = useMemo(
    () => (range ? bars.filter(({ from, to }) => from <= range.to && to >= range.from) : bars),
    [bars, range],
  );
  const selection = useSelection(rows, element);
  const { size, narrow, height, drawn: drawnRows, active, at, move } = selection;
  const live = open && !past.value;
  const width = size.width - (narrow ? 0 : NAMES_PX);
  const gridHeight = Math.min(size.height, rows.length * height);
  const nowX = live ? timeToX(axis, now) : null;
  const { head, grid } = useGrid({ axis, range, view, bands, drawn, width, height: gridHeight, nowX });

  const fit = () => {
    const visibleBars = selection.fullyVisible;
    const last = Math.max(...visibleBars.map(({ from, to }) => (to === Infinity ? now : Math.max(from, to))));
    if (visibleBars.length) setRange({ from: visibleBars[0].from, to: Math.max(last, visibleBars[0].from + 5) });
  };
  /** Zoom around the selected call if it is visible. @param {number} factor */
  const zoomHere = (factor) => {
    const middle = rows[at] ? timeToX(axis, (rows[at].from + Math.min(rows[at].to, now)) / 2) : NaN;
    const share = (middle - view.from) / (view.to - view.from);
    zoom(factor, share >= 0 && share <= 1 ? share : 0.5);
  };
  const pick = () => at >= 0 && onPick(active);
  const onRowClick = (/** @type {number} */ id) => {
    if (moved.current) return;
    selection.setActive(id);
    onPick(id);
  };

  if (!bars.length) return html`<p class="notice wf-none">No calls to show.</p>`;
  const described = rows.find(({ id }) => id === (selection.pointed || (focused ? active : 0)));
  return html`<section class=${classes("wf", narrow && "wf-narrow")} aria-label="Waterfall">
    <${Tools} gaps=${axis.gaps} fold=${fold} onFold=${() => setFold(!fold)} range=${range} zoom=${zoomHere}
      reset=${reset} live=${live}
      onFit=${rows.length * height > size.height ? fit : null} />
    <${OlderNote} count=${bars.length} />
    <div class="wf-frame">
      ${head}
      <div ref=${attach} class=${classes("wf-scroll", drawn && "wf-drawing")} role="listbox" tabindex="0"
        aria-label=${`${rows.length} calls by start time`}
        aria-activedescendant=${drawnRows.some(({ id }) => id === active) ? `wf-${active}` : undefined}
        onScroll=${(/** @type {any} */ event) => selection.setTop(event.currentTarget.scrollTop)}
        onKeyDown=${keyHandler(selection, rows.length, { zoom, zoomHere, reset, pick })} onPointerDown=${press}
        onPointerLeave=${() => selection.setPointed(0)} onBlur=${() => setFocused(false)}
        onFocus=${() => { setFocused(true); if (at < 0) move(Math.round(selection.top / height)); }}>
        <div class="wf-all" role="presentation" style=${{ height: `${rows.length * height}px` }}>
          ${grid}
          ${drawnRows.map((bar, index) => html`<${CallLane} key=${bar.id} bar=${bar} index=${selection.first + index}
            count=${rows.length} selection=${selection} focused=${focused} axis=${axis} view=${view} now=${now}
            onPick=${() => onRowClick(bar.id)} />`)}
        </div>
      </div>
      <${BarDetails} bar=${described} now=${now} visible=${rows.length} total=${bars.length} />
    </div>
  </section>`;
}

export default Waterfall;
