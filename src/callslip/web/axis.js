// Calls as bars on a line of time: when each waited for approval, was queued and ran; and the line itself, on which
// time in which nothing was going on may be folded. Pure: only times that the entries give.

/** @typedef {import("./filter_terms.js").Any} Any */
/** @typedef {"queued" | "waiting" | "running"} Phase */
/** @typedef {{phase: Phase, from: number, to: number}} Segment `to` is Infinity while it goes on. */
/** @typedef {{id: number, call: Any, from: number, to: number, segments: Segment[]}} Bar */
/** @typedef {{turn: string, from: number, to: number}} Band */
/** @typedef {{from: number, to: number, x: number, width: number, folded: boolean}} Piece */

export const PHASES = /** @type {Record<Phase, {word: string, did: string, does: string}>} */ ({
  queued: { word: "queued", did: "was queued", does: "has been queued" },
  waiting: { word: "waiting for approval", did: "waited for approval", does: "has waited for approval" },
  running: { word: "running", did: "ran", does: "has run" },
});

/**
 * The bars of the calls among entries, by when they began. A filter may have taken requests for approval from their
 * calls, so these are looked for among all that there are.
 * @param {Any[]} entries @param {Any[]} [all] @returns {Bar[]}
 */
export function barsOf(entries, all = entries) {
  /** @type {Map<string, Any[]>} */
  const asked = new Map();
  for (const entry of all) {
    if (entry.type === "permission_request") asked.set(entry.callId, [...(asked.get(entry.callId) ?? []), entry]);
  }
  const calls = entries.filter((entry) => entry.type === "tool_call");
  const bars = calls.map((call) => barOf(call, asked.get(call.callId) ?? []));
  return bars.sort((one, other) => one.from - other.from || one.id - other.id);
}

/** @param {Any} call @param {Any[]} requests @returns {Bar} */
function barOf(call, requests) {
  const from = call.at ?? 0;
  const to = call.endedAt ? Math.max(from, call.endedAt) : Infinity;
  return { id: call.id, call, from, to, segments: segmentsOf(call, requests, from, to) };
}

/**
 * A call waits from a request until its answer; one that was never answered, until the next request or the call's end.
 * The rest is queued before it was started (the last time, if it was more than once), and running after.
 * @param {Any} call @param {Any[]} requests @param {number} from @param {number} to
 */
function segmentsOf(call, requests, from, to) {
  /** @type {Segment[]} */
  const found = [];
  const within = (/** @type {number} */ time) => Math.min(to, Math.max(from, time));
  const start = within(call.startedAt || (call.status === "running" ? from : Infinity));
  let at = from;
  const free = (/** @type {number} */ end) => {
    put(found, "queued", at, Math.min(end, start));
    put(found, "running", Math.max(at, start), end);
    at = Math.max(at, end);
  };
  requests.forEach((request, index) => {
    free(within(request.at ?? 0));
    const end = within(request.responseTime || requests[index + 1]?.at || to);
    put(found, "waiting", at, end);
    at = Math.max(at, end);
  });
  free(to);
  return found;
}

/** @param {Segment[]} found @param {Phase} phase @param {number} from @param {number} to */
function put(found, phase, from, to) {
  const last = found.at(-1);
  if (from >= to) return;
  if (last?.phase === phase && last.to === from) last.to = to;
  else found.push({ phase, from, to });
}

/** The turns, each from its first entry until nothing of it is open. @param {Any[]} entries @returns {Band[]} */
export function bandsOf(entries) {
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
 * Times in which something was going on, joined where they overlap, in order.
 * @param {{from: number, to: number}[]} spans @param {number} now
 */
function busy(spans, now) {
  const out = /** @type {{from: number, to: number}[]} */ ([]);
  for (const { from, to } of [...spans].sort((one, other) => one.from - other.from)) {
    const end = Math.max(from, to === Infinity ? now : to);
    const last = out.at(-1);
    if (last && from <= last.to) last.to = Math.max(last.to, end);
    else out.push({ from, to: end });
  }
  return out;
}

const LEAST_GAP = 5000;
const GAP_SHARE = 0.15;
const FOLDED_SHARE = 0.04;
const ALL_FOLDS_SHARE = 0.2;

/**
 * The line of time. `x` counts ms as well, but a gap that is long beside what was going on is as wide as a fraction of
 * that, if it is to be folded. No bar crosses a folded gap: in a gap nothing was open.
 * @param {Bar[]} bars @param {Band[]} bands @param {number} now @param {boolean} fold
 */
export function axisOf(bars, bands, now, fold) {
  const spans = busy([...bars, ...bands], now);
  const total = spans.reduce((sum, { from, to }) => sum + to - from, 0);
  const least = Math.max(LEAST_GAP, total * GAP_SHARE);
  const gaps = spans.filter(({ from }, index) => index && from - spans[index - 1].to > least).length;
  const folded = Math.max(1, total * Math.min(FOLDED_SHARE, ALL_FOLDS_SHARE / Math.max(1, gaps)));
  /** @type {Piece[]} */
  const pieces = [];
  for (const { from, to } of spans) {
    const last = pieces.at(-1);
    if (last && !(fold && from - last.to > least)) {
      last.to = to;
      last.width = to - last.from;
      continue;
    }
    const x = last ? last.x + last.width : 0;
    if (last) pieces.push({ from: last.to, to: from, x, width: folded, folded: true });
    pieces.push({ from, to, x: last ? x + folded : 0, width: to - from, folded: false });
  }
  const end = pieces.at(-1);
  return { pieces, gaps, length: Math.max(1, end ? end.x + end.width : 1) };
}

/** @typedef {ReturnType<typeof axisOf>} Axis */

/**
 * The first piece that ends at a place or after it.
 * @param {Piece[]} pieces @param {(piece: Piece) => number} end @param {number} place
 */
function pieceAt(pieces, end, place) {
  let low = 0;
  let high = pieces.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (end(pieces[middle]) < place) low = middle + 1;
    else high = middle;
  }
  return pieces[low];
}

/** Where on the line a moment is. @param {Axis} axis @param {number} time */
export function placeOf(axis, time) {
  const piece = pieceAt(axis.pieces, (one) => one.to, time);
  if (!piece) return 0;
  const share = piece.to > piece.from ? (time - piece.from) / (piece.to - piece.from) : 0;
  return piece.x + Math.min(1, Math.max(0, share)) * piece.width;
}

/** Which moment is at a place of the line. @param {Axis} axis @param {number} x */
export function timeAt(axis, x) {
  const piece = pieceAt(axis.pieces, (one) => one.x + one.width, x);
  if (!piece) return 0;
  const share = piece.width ? (x - piece.x) / piece.width : 0;
  return piece.from + Math.min(1, Math.max(0, share)) * (piece.to - piece.from);
}

const DAY = 86_400_000;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000,
  600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 28_800_000, DAY];

/**
 * Where to write times: at most `most` of them between two places, none within a fold, counted from the line's
 * beginning.
 * @param {Axis} axis @param {number} from @param {number} to @param {number} most
 */
export function ticksOf(axis, from, to, most) {
  const origin = axis.pieces[0]?.from ?? 0;
  const step = STEPS.find((one) => (to - from) / one <= most) ?? Math.ceil((to - from) / most / DAY) * DAY;
  const ticks = [];
  let last = -Infinity;
  for (const piece of axis.pieces) {
    if (piece.folded || piece.x + piece.width < from || piece.x > to) continue;
    const first = Math.max(piece.from, timeAt(axis, Math.max(from, piece.x)));
    const end = Math.min(piece.to, piece.from + (to - piece.x));
    for (let time = origin + Math.ceil((first - origin) / step) * step; time <= end; time += step) {
      const x = placeOf(axis, time);
      if (x - last < step * 0.9) continue; // Beside a fold the next one would stand on it.
      ticks.push({ x, after: time - origin, step });
      last = x;
    }
  }
  return ticks;
}

/** A bar in words. @param {Bar} bar @param {number} now @param {(ms: number) => string} span */
export function tellBar(bar, now, span) {
  const told = bar.segments.map(({ phase, from, to }) => {
    const goesOn = to === Infinity;
    const took = span(Math.max(0, (goesOn ? now : to) - from));
    return goesOn ? `${PHASES[phase].does} for ${took}` : `${PHASES[phase].did} ${took}`;
  });
  return told.join(", ");
}
