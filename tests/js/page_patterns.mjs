// Run the text functions of the page on long hostile texts. The folder of the page is the first argument. A job is
// {"part", "text"} with a text in parts: [["abc", 1000], ["x", 1]] is "abc" a thousand times, and an x.

import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

globalThis.document = { documentElement: { dataset: {} } };
globalThis.location = new URL("http://page/");
globalThis.addEventListener = () => {};
const load = (name) => import(pathToFileURL(`${process.argv[2]}/${name}`));
const { inert, isTerminal, parseTerminal } = await load("ansi.js");
const { isDiff, parseDiff } = await load("diff.js");
const { filterEntries, parseFilter } = await load("filter_terms.js");
const { isMarkdown } = await load("markdown.js");
const { parse } = await load("markdown_parser.js");
const { stripFence } = await load("outcome.js");

const PARTS = {
  markdown: (text) => parse(text).length,
  isMarkdown,
  stripFence: (text) => stripFence(text).length,
  terminal: (text) => parseTerminal(text).map((line) => line.map((run) => run.text).join("").length),
  isTerminal,
  inert: (text) => inert(text).length,
  diff: (text) => isDiff(text) && parseDiff(text).length,
  filter: (text) => parseFilter(text).terms.length,
  filterValue: (text) => {
    const entry = { type: "tool_call", id: 1, toolName: text };
    return filterEntries([entry], parseFilter("tool:*a*a*a*a*a*a*a*a*b")).length;
  },
};

await answerEach((job) => PARTS[job.part](job.text.map(([part, times]) => part.repeat(times)).join("")) ?? null);
