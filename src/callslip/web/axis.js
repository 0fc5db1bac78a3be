// The bars of calls (queued, waiting for approval, running) and the time axis, on which idle gaps can be collapsed.
// Pure functions of the times in the entries.

/** @typedef {import("./filter_terms.js").AnyEntry} AnyEntry */
/** @typedef {"queued" | "waiting" | "running"} Phase */
/** @typedef {{phase: Phase, from: number, to: number}} Segment `to` is Infinity while it is open. */
/** @typedef {{id: number, call: AnyEntry, from: number, to: number, segments: Segment[]}} Bar */
/** @typedef {{turn: string, from: number, to: number}} Band */
/** @typedef {{from: number, to: number, x: number, width: number, folded: boolean}} Piece */

/** @type {Record<Phase, string>} */
export const PHASES = { queued: "Queued", waiting: "Waiting for approval", running: "Running" };

/**
 * Return the bars of the calls, by start time. A filter may hide the approval requests of a call, so they are taken
 * from all entries.
 * @param {AnyEntry[]} entries @param {AnyEntry[]} [all] @returns {Bar[]}
 */
export function buildBars(entries, all = entries) {
  /** @type {Map<string, AnyEntry[]>} */
  const requestsByCall = new Map();
  for (const entry of all) {
    if (entry.type !== "permission_request") continue;
    requestsByCall.set(entry.callId, [...(requestsByCall.get(entry.callId) ?? []), entry]);
  }
  const calls = entries.filter((entry) => entry.type === "tool_call");
  const bars = calls.map((call) => buildBar(call, requestsByCall.get(call.callId) ?? []));
  return bars.sort((one, other) => one.from - other.from || one.id - other.id);
}

/** @param {AnyEntry} call @param {AnyEntry[]} requests @returns {Bar} */
function buildBar(call, requests) {
  const from = call.at ?? 0;
  const to = call.endedAt ? Math.max(from, call.endedAt) : Infinity;
  return { id: call.id, call, from, to, segments: buildSegments(call, requests, from, to) };
}

/**
 * Split a call into phases. It waits from a request until its answer; an unanswered request ends with the next request
 * or the call. The rest is queued until the (last) start, and running after it.
 * @param {AnyEntry} call @param {AnyEntry[]} requests @param {number} from @param {number} to
 */
function buildSegments(call, requests, from, to) {
  /** @type {Segment[]} */
  const segments = [];
  const clamp = (/** @type {number} */ time) => Math.min(to, Math.max(from, time));
  const start = clamp(call.startedAt || (call.status === "running" ? from : Infinity));
  let at = from;
  const addUntil = (/** @type {number} */ end) => {
    addSegment(segments, "queued", at, Math.min(end, start));
    addSegment(segments, "running", Math.max(at, start), end);
    at = Math.max(at, end);
  };
  requests.forEach((request, index) => {
    addUntil(clamp(request.at ?? 0));
    const end = clamp(request.responseTime || requests[index + 1]?.at || to);
    addSegment(segments, "waiting", at, end);
    at = Math.max(at, end);
  });
  addUntil(to);
  return segments;
}

/** @param {Segment[]} segments @param {Phase} phase @param {number} from @param {number} to */
function addSegment(segments, phase, from, to) {
  const last = segments.at(-1);
  if (from >= to) return;
  if (last?.phase === phase && last.to === from) last.to = to;
  else segments.push({ phase, from, to });
}

/**
 * Return the turns, each from its first entry until its last call ends.
 * @param {AnyEntry[]} entries @returns {Band[]}
 */
export function buildBands(entries) {
  /** @type {Map<string, Band>} */
  const bands = new Map();
  for (const { turn, at, endedAt, responseTime, type, scope } of entries) {
    if (!turn || !at) continue;
    const end = type === "tool_call" && scope !== "detached" ? (endedAt ?? Infinity) : 0;
    const last = Math.max(at, responseTime ?? 0, end);
    const band = bands.get(turn);
    if (!band) bands.set(turn, { turn, from: at, to: last });
    else [band.from, band.to] = [Math.min(band.from, at), Math.max(band.to, last)];
  }
  return [...bands.values()];
}

/**
 * Return the busy times in order, merged where they overlap.
 * @param {{from: number, to: number}[]} spans @param {number} now
 */
function mergeSpans(spans, now) {
  const merged = /** @type {{from: number, to: number}[]} */ ([]);
  for (const { from, to } of [...spans].sort((one, other) => one.from - other.from)) {
    const end = Math.max(from, to === Infinity ? now : to);
    const last = merged.at(-1);
    if (last && from <= last.to) last.to = Math.max(last.to, end);
    else merged.push({ from, to: end });
  }
  return merged;
}

const MIN_GAP_MS = 5000;
const GAP_SHARE = 0.15;
const FOLDED_SHARE = 0.04;
const ALL_FOLDS_SHARE = 0.2;

/**
 * Build the time axis. Its unit `x` is ms, but with `fold` a long idle gap is reduced to a fraction of the busy time.
 * No bar crosses a collapsed gap, because nothing was open in it.
 * @param {Bar[]} bars @param {Band[]} bands @param {number} now @param {boolean} fold
 */
export function buildAxis(bars, bands, now, fold) {
  const spans = mergeSpans([...bars, ...bands], now);
  const total = spans.reduce((sum, { from, to }) => sum + to - from, 0);
  const minGap = Math.max(MIN_GAP_MS, total * GAP_SHARE);
  const gaps = spans.filter(({ from }, index) => index && from - spans[index - 1].to > minGap).length;
  const foldedWidth = Math.max(1, total * Math.min(FOLDED_SHARE, ALL_FOLDS_SHARE / Math.max(1, gaps)));
  /** @type {Piece[]} */
  const pieces = [];
  for (const { from, to } of spans) {
    const last = pieces.at(-1);
    if (last && !(fold && from - last.to > minGap)) {
      last.to = to;
      last.width = to - last.from;
      continue;
    }
    const x = last ? last.x + last.width : 0;
    if (last) pieces.push({ from: last.to, to: from, x, width: foldedWidth, folded: true });
    pieces.push({ from, to, x: last ? x + foldedWidth : 0, width: to - from, folded: false });
  }
  const end = pieces.at(-1);
  return { pieces, gaps, length: Math.max(1, end ? end.x + end.width : 1) };
}

/** @typedef {ReturnType<typeof buildAxis>} Axis */

/**
 * Return the first piece that ends at or after a position.
 * @param {Piece[]} pieces @param {(piece: Piece) => number} end @param {number} position
 */
function pieceAt(pieces, end, position) {
  let low = 0;
  let high = pieces.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (end(pieces[middle]) < position) low = middle + 1;
    else high = middle;
  }
  return pieces[low];
}

/** Convert a time to a position on the axis. @param {Axis} axis @param {number} time */
export function timeToX(axis, time) {
  const piece = pieceAt(axis.pieces, (one) => one.to, time);
  if (!piece) return 0;
  const share = piece.to > piece.from ? (time - piece.from) / (piece.to - piece.from) : 0;
  return piece.x + Math.min(1, Math.max(0, share)) * piece.width;
}

/** Convert a position on the axis to a time. @param {Axis} axis @param {number} x */
export function xToTime(axis, x) {
  const piece = pieceAt(axis.pieces, (one) => one.x + one.width, x);
  if (!piece) return 0;
  const share = piece.width ? (x - piece.x) / piece.width : 0;
  return piece.from + Math.min(1, Math.max(0, share)) * (piece.to - piece.from);
}

const DAY_MS = 86_400_000;
const TICK_STEPS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000,
  300_000, 600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 28_800_000, DAY_MS];

/**
 * Return at most `maxTicks` ticks between two positions, counted from the start of the axis, outside collapsed gaps.
 * @param {Axis} axis @param {number} from @param {number} to @param {number} maxTicks
 */
export function buildTicks(axis, from, to, maxTicks) {
  const origin = axis.pieces[0]?.from ?? 0;
  const days = Math.ceil((to - from) / maxTicks / DAY_MS);
  const step = TICK_STEPS_MS.find((one) => (to - from) / one <= maxTicks) ?? days * DAY_MS;
  const ticks = [];
  let last = -Infinity;
  for (const piece of axis.pieces) {
    if (piece.folded || piece.x + piece.width < from || piece.x > to) continue;
    const first = Math.max(piece.from, xToTime(axis, Math.max(from, piece.x)));
    const end = Math.min(piece.to, piece.from + (to - piece.x));
    for (let time = origin + Math.ceil((first - origin) / step) * step; time <= end; time += step) {
      const x = timeToX(axis, time);
      if (x - last < step * 0.9) continue; // It would overlap the previous tick across a collapsed gap.
      ticks.push({ x, after: time - origin, step });
      last = x;
    }
  }
  return ticks;
}

/** Describe the phases of a bar. @param {Bar} bar @param {number} now @param {(ms: number) => string} format */
export function describeBar(bar, now, format) {
  const parts = bar.segments.map(({ phase, from, to }) => {
    const isOpen = to === Infinity;
    const duration = format(Math.max(0, (isOpen ? now : to) - from));
    return `${PHASES[phase]} ${duration}${isOpen ? " so far" : ""}`;
  });
  return parts.join(" · ");
}
