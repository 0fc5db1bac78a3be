// The pure parts of the page's tools: filters, facets, and bars on a line of time, from the files that the page loads.
//
// JSON lines in, JSON lines out, in order; the folder of the page's files is the argument. A job is {"do": ..., ...}
// and the answer what it made: see the functions below.

import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const file = (name) => import(pathToFileURL(join(process.argv[2], name)));
const { filterEntries, parseFilter } = await file("filters.js");
const { unitsOf } = await file("terms.js");
const { facetsOf, toggled } = await file("facets.js");
const { axisOf, bandsOf, barsOf, placeOf, tellBar, ticksOf, timeAt } = await file("axis.js");
const { windowOf, zoomed } = await file("zoom.js");
const { span } = await file("time.js");

const shown = (number) => (number === Infinity ? "open" : number);

const DO = {
  terms: ({ typed }) =>
    parseFilter(typed).terms.map(({ field, values, negated, start, end }) =>
      ({ field, values, negated, word: typed.slice(start, end) })),
  /** Ids that a filter leaves: alone (as a predicate), and with a call's requests kept beside it. */
  filter: ({ entries, typed, now }) => {
    const filter = parseFilter(typed, () => now);
    const ids = (left) => left.map(({ id }) => id);
    const alone = entries.filter((entry) => filter(entry));
    return { alone: ids(alone), together: ids(entries.filter(filter)), left: ids(filterEntries(entries, filter)) };
  },
  facets: ({ entries, typed }) => {
    const facets = facetsOf(unitsOf(entries), parseFilter(typed).terms);
    const told = (choices) => choices.map(({ value, count, on }) => [value, count, on]);
    return Object.fromEntries(facets.map(({ field, choices }) => [field, told(choices)]));
  },
  toggle: ({ typed, field, value }) => toggled(typed, parseFilter(typed).terms, field, value),
  bars: ({ entries, now }) =>
    barsOf(entries).map((bar) => ({
      id: bar.id, from: bar.from, to: shown(bar.to), told: tellBar(bar, now, span),
      segments: bar.segments.map(({ phase, from, to }) => [phase, from, shown(to)]),
    })),
  /** The line of time; each moment of `times` there and back; ticks, and what a zoom by two around the middle shows. */
  axis: ({ entries, now, fold, times = [] }) => {
    const axis = axisOf(barsOf(entries), bandsOf(entries), now, fold);
    const places = times.map((time) => placeOf(axis, time));
    return {
      length: axis.length, gaps: axis.gaps, places,
      folded: axis.pieces.filter((piece) => piece.folded).map(({ from, to }) => [from, to]),
      back: places.map((place) => Math.round(timeAt(axis, place))),
      bands: bandsOf(entries).map((band) => ({ ...band, to: shown(band.to) })),
      ticks: ticksOf(axis, 0, axis.length, 8).map(({ x }) => x),
      whole: windowOf(axis, null), half: zoomed(axis, null, 0.5),
    };
  },
  /** How long, in ms, the slow parts take with so many calls. */
  pace: ({ calls }) => {
    const entries = Array.from({ length: calls }, (_, index) => ({
      type: "tool_call", id: index + 1, turn: `t${index >> 4}`,
      at: 1000 * index, startedAt: 1000 * index + 10, endedAt: 1000 * index + 700,
      callId: `exec_${index}`, toolCallId: `${index}`, status: "completed", toolName: `tool${index % 20}`,
      title: "a title", outputText: "out\n".repeat(50),
    }));
    const begun = performance.now();
    filterEntries(entries, "tool:tool3,tool4 >5ms out -nothing");
    facetsOf(unitsOf(entries), parseFilter("tool:tool3 out").terms);
    axisOf(barsOf(entries), bandsOf(entries), 0, true);
    return { ms: performance.now() - begun };
  },
};

await answerEach((job) => DO[job.do](job));
