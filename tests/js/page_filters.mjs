// Run the pure functions of the page: filters, facets, and the bars and axis of the waterfall.
//
// JSON lines in, JSON lines out, in order. The folder of the page is the first argument. A job is {"do": ..., ...}; the
// functions below compute its answer.

import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const load = (name) => import(pathToFileURL(join(process.argv[2], name)));
const { filterEntries, groupEntries, parseFilter } = await load("filter_terms.js");
const { countFacets, listFacets, toggleValue } = await load("facets.js");
const { buildAxis, buildBands, buildBars, timeToX, describeBar, buildTicks, xToTime } = await load("axis.js");
const { visibleWindow, zoomRange } = await load("zoom.js");
const { formatDuration } = await load("time.js");

const orOpen = (number) => (number === Infinity ? "open" : number);

const ACTIONS = {
  terms: ({ typed }) =>
    parseFilter(typed).terms.map(({ field, values, negated, start, end }) =>
      ({ field, values, negated, word: typed.slice(start, end) })),
  /** The IDs that match a filter: each entry alone, and with calls and their requests together. */
  filter: ({ entries, typed, now }) => {
    const filter = parseFilter(typed, () => now);
    const ids = (selected) => selected.map(({ id }) => id);
    const alone = entries.filter((entry) => filter(entry));
    return { alone: ids(alone), together: ids(entries.filter(filter)), left: ids(filterEntries(entries, filter)) };
  },
  facets: ({ entries, typed }) => {
    const { terms } = parseFilter(typed);
    const facets = listFacets(Object.fromEntries(countFacets(groupEntries(entries), terms)), terms);
    const asLists = (choices) => choices.map(({ value, count, on }) => [value, count, on]);
    return Object.fromEntries(facets.map(({ field, choices }) => [field, asLists(choices)]));
  },
  toggle: ({ typed, field, value }) => toggleValue(typed, parseFilter(typed).terms, field, value),
  bars: ({ entries, now }) =>
    buildBars(entries).map((bar) => ({
      id: bar.id, from: bar.from, to: orOpen(bar.to), text: describeBar(bar, now, formatDuration),
      segments: bar.segments.map(({ phase, from, to }) => [phase, from, orOpen(to)]),
    })),
  /** The axis; each of `times` converted to a position and back; ticks, and the range after zooming in by two. */
  axis: ({ entries, now, fold, times = [] }) => {
    const axis = buildAxis(buildBars(entries), buildBands(entries), now, fold);
    const places = times.map((time) => timeToX(axis, time));
    return {
      length: axis.length, gaps: axis.gaps, places,
      folded: axis.pieces.filter((piece) => piece.folded).map(({ from, to }) => [from, to]),
      back: places.map((place) => Math.round(xToTime(axis, place))),
      bands: buildBands(entries).map((band) => ({ ...band, to: orOpen(band.to) })),
      ticks: buildTicks(axis, 0, axis.length, 8).map(({ x }) => x),
      whole: visibleWindow(axis, null), half: zoomRange(axis, null, 0.5),
    };
  },
  /** The duration in ms of the slow functions with this many calls. */
  pace: ({ calls }) => {
    const entries = Array.from({ length: calls }, (_, index) => ({
      type: "tool_call", id: index + 1, turn: `t${index >> 4}`,
      at: 1000 * index, startedAt: 1000 * index + 10, endedAt: 1000 * index + 700,
      callId: `exec_${index}`, toolCallId: `${index}`, status: "completed", toolName: `tool${index % 20}`,
      title: "a title", outputText: "out\n".repeat(50),
    }));
    const start = performance.now();
    filterEntries(entries, "tool:tool3,tool4 >5ms out -nothing");
    countFacets(groupEntries(entries), parseFilter("tool:tool3 out").terms);
    buildAxis(buildBars(entries), buildBands(entries), 0, true);
    return { ms: performance.now() - start };
  },
};

await answerEach((job) => ACTIONS[job.do](job));
