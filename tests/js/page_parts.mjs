// Run the text functions of the page's modules without a browser.
//
// JSON lines in, JSON lines out, in order. The folder of the page is the first argument. A job is {"part", ...} as
// below. Drawn components are returned as text that looks like HTML, with every text node between ‹ and ›.

import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

globalThis.document = { documentElement: { dataset: {} } };
globalThis.location = new URL("http://page/");
globalThis.addEventListener = () => {};
const load = (name) => import(pathToFileURL(`${process.argv[2]}/${name}`));
const { BACKGROUND, LIGHT_BACKGROUND, contrast, inert, isTerminal, parseTerminal, styleProperties } = await load("ansi.js");
const { compare, countChanges, isDiff, parseDiff } = await load("diff.js");
const { oneLine, parseJson, summary } = await load("jsontree.js");
const { decodeTail, formatBytes, isBinary, knownOutput } = await load("full_output.js");
const { outputParts } = await load("outcome.js");
const { Heights } = await load("heights.js");
const { Markdown, isMarkdown } = await load("markdown.js");
const { parse } = await load("markdown_parser.js");

/** Draw a component without its state. */
function draw(node) {
  if (Array.isArray(node)) return node.map(draw).join("");
  if (node === null || node === undefined || typeof node === "boolean") return "";
  if (typeof node !== "object") return `‹${node}›`;
  if (typeof node.type === "function") return draw(node.type(node.props));
  const { children, ...props } = node.props;
  const present = Object.entries(props).filter(([, value]) => value !== undefined && value !== false);
  const attributes = present.map(([key, value]) => ` ${key}=${JSON.stringify(value)}`);
  return `<${node.type}${attributes.join("")}>${draw(children)}</${node.type}>`;
}

const numbers = (colour) => colour.match(/\d+/g).map(Number);
const colourOf = (style) => styleProperties(style)?.color;

/** Return the contrasts of a style in the light and in the dark theme. */
function contrasts(style) {
  const { color, backgroundColor } = styleProperties(style);
  const [light, dark] = color.match(/rgb\([^)]*\)/g);
  const on = (theme) => (backgroundColor ? numbers(backgroundColor) : theme);
  return [contrast(numbers(light), on(LIGHT_BACKGROUND)), contrast(numbers(dark ?? light), on(BACKGROUND))];
}

function rows({ ids, measured, y }) {
  const heights = new Heights((id) => 10 + (id % 3));
  heights.setIds(ids);
  for (const [id, height] of measured) heights.measure(id, height);
  const tops = ids.map((_, at) => heights.top(at));
  return { tops, total: heights.total(), at: heights.indexAt(y), between: heights.visibleRange(y, y + 50) };
}

const PARTS = {
  markdown: ({ text }) => draw(Markdown({ text })),
  isMarkdown: ({ text }) => isMarkdown(text),
  duration: ({ text, times }) => {
    const start = performance.now();
    parse(text.repeat(times));
    parseTerminal(text.repeat(times));
    return performance.now() - start;
  },
  inert: ({ text }) => inert(text),
  ansi: ({ text }) => parseTerminal(text).map((line) => line.map((run) => [run.text, styleProperties(run.style)])),
  contrasts: ({ text }) => {
    const coloured = parseTerminal(text).flat().filter((run) => colourOf(run.style));
    return coloured.flatMap((run) => contrasts(run.style));
  },
  isTerminal: ({ text }) => isTerminal(text),
  compare: ({ before, after }) => compare(before, after),
  diff: ({ text }) => ({ is: isDiff(text), lines: parseDiff(text), tally: countChanges(parseDiff(text)) }),
  json: ({ value }) => ({ summary: summary(value), line: oneLine(value) }),
  parseJson: ({ text }) => parseJson(text) ?? null,
  knownOutput: ({ entry, loaded }) => knownOutput(entry, loaded ?? undefined),
  outputParts: ({ entry, loaded }) => outputParts(entry, loaded ?? undefined),
  decodeTail: ({ bytes }) => decodeTail(Uint8Array.from(bytes)),
  isBinary: ({ text }) => isBinary(text),
  formatBytes: ({ count }) => formatBytes(count),
  rows,
};

await answerEach((job) => PARTS[job.part](job) ?? null);
