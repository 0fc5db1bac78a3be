// Asks the page's own modules what they make of a text, without a browser.
//
// JSON lines in, JSON lines out, in order. The folder of the page is the first argument. A job is {"part", ...} as
// below; what is drawn comes as text that looks like HTML, in which every text node stands between ‹ and ›.

import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const load = (name) => import(pathToFileURL(`${process.argv[2]}/${name}`));
const { inert, paint, looks, contrast, PAPER, isTerminal } = await load("ansi.js");
const { compare, parseDiff, isDiff, tally } = await load("diff.js");
const { oneLine, readJson, summary } = await load("jsontree.js");
const { Heights } = await load("heights.js");
const { Markdown, isMarkdown } = await load("markdown.js");
const { parse } = await load("prose.js");

/** What a component draws, without its state. */
function drawn(node) {
  if (Array.isArray(node)) return node.map(drawn).join("");
  if (node === null || node === undefined || typeof node === "boolean") return "";
  if (typeof node !== "object") return `‹${node}›`;
  if (typeof node.type === "function") return drawn(node.type(node.props));
  const { children, ...props } = node.props;
  const given = Object.entries(props).filter(([, value]) => value !== undefined && value !== false);
  const said = given.map(([key, value]) => ` ${key}=${JSON.stringify(value)}`);
  return `<${node.type}${said.join("")}>${drawn(children)}</${node.type}>`;
}

const colourOf = (style) => looks(style)?.color?.match(/\d+/g).map(Number);
const groundOf = (style) => looks(style)?.backgroundColor?.match(/\d+/g).map(Number) ?? PAPER;

function rows({ ids, measured, y }) {
  const heights = new Heights((id) => 10 + (id % 3));
  heights.take(ids);
  for (const [id, height] of measured) heights.measure(id, height);
  const tops = ids.map((_, at) => heights.top(at));
  return { tops, total: heights.total(), at: heights.at(y), between: heights.between(y, y + 50) };
}

const PARTS = {
  markdown: ({ text }) => drawn(Markdown({ text })),
  isMarkdown: ({ text }) => isMarkdown(text),
  took: ({ text, times }) => {
    const start = performance.now();
    parse(text.repeat(times));
    paint(text.repeat(times));
    return performance.now() - start;
  },
  inert: ({ text }) => inert(text),
  ansi: ({ text }) => paint(text).map((line) => line.map((run) => [run.text, looks(run.style)])),
  contrasts: ({ text }) => {
    const coloured = paint(text).flat().filter((run) => colourOf(run.style));
    return coloured.map((run) => contrast(colourOf(run.style), groundOf(run.style)));
  },
  isTerminal: ({ text }) => isTerminal(text),
  compare: ({ before, after }) => compare(before, after),
  diff: ({ text }) => ({ is: isDiff(text), lines: parseDiff(text), tally: tally(parseDiff(text)) }),
  json: ({ value }) => ({ summary: summary(value), line: oneLine(value) }),
  readJson: ({ text }) => readJson(text) ?? null,
  rows,
};

await answerEach((job) => PARTS[job.part](job) ?? null);
