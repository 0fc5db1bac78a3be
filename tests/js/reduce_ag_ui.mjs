// Answers what the real AG-UI client makes of the events of a run, and of a history.
//
// JSON lines in, JSON lines out, in order. A job is one of
//   {"id", "chunks", "at"?}      events, as if a server had sent them
//   {"id", "url", "headers"?}    a stream to be read over a real socket by the client's own HttpAgent
//   {"id", "history"}            messages that an application starts with
// An answer always has every key:
//   id          as given
//   message     the messages that the client holds in the end, or null for a history
//   messages    those that it held after each number of chunks listed in `at` (0 is before the first)
//   error       why the run died, or what the client complained about; null for neither. A cut stream is no error
//   outcome     how the run finished in the client's words ("success", "interrupt", "cancelled", "error"), or null
//   interrupts  what the client waits for
//   pending     the calls that the client believes it has to answer
//   customs     the application's own events, [name, value] each
//   headers     of the response, for a URL; else null
//   sent        what the client would send of a history with its next run; else null
//
// Packages come from the node_modules directory in CALLSLIP_NODE_MODULES or the first argument.

import { createRequire } from "node:module";
import { resolve } from "node:path";
import { setImmediate as settled } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const nodeModules = process.argv[2] ?? process.env.CALLSLIP_NODE_MODULES;
if (!nodeModules) {
  console.error("usage: reduce_ag_ui.mjs NODE_MODULES < jobs.jsonl (or set CALLSLIP_NODE_MODULES)");
  process.exit(2);
}
const client = resolve(nodeModules, "@ag-ui/client/dist/index.mjs");
const { AbstractAgent, HttpAgent } = await import(pathToFileURL(client));
const { Subject } = createRequire(client)("rxjs");

const brief = (thrown) => String(thrown?.message ?? thrown).slice(0, 600);

// The client mends some mistakes of a server and only warns about them: to us they are mistakes.
let complaints = [];
console.warn = (...words) => complaints.push(words.map(String).join(" "));
console.error = () => {};

/** An agent whose events come from here; everything behind them is the client's. */
class Told extends AbstractAgent {
  events = new Subject();
  run() {
    return this.events;
  }
}

/** What an application hears of a run. */
function listener(heard) {
  return {
    onRunFinishedEvent: ({ outcome, pendingToolCallIds }) => {
      heard.outcome = outcome;
      heard.pending = pendingToolCallIds ?? [];
    },
    onRunErrorEvent: () => {
      heard.outcome = "error";
    },
    onCustomEvent: ({ event }) => {
      heard.customs.push([event.name, event.value]);
    },
  };
}

async function run(agent, feed) {
  const heard = { outcome: null, pending: [], customs: [] };
  complaints = [];
  let error = null;
  const running = agent.runAgent({}, listener(heard)).catch((thrown) => {
    error = brief(thrown);
  });
  await feed();
  await running;
  error ??= complaints.length ? brief(complaints[0]) : null;
  return { message: agent.messages, error, ...heard, interrupts: agent.pendingInterrupts };
}

/**
 * One pass gives every prefix. The client works in microtasks only, so a turn of the event loop is enough for it to be
 * done with all that it was handed.
 */
async function reduce(chunks, at) {
  const agent = new Told({ threadId: "t" });
  const wanted = new Set(at);
  const seen = new Map();
  const feed = async () => {
    await settled();
    for (let taken = 0; ; taken++) {
      if (wanted.has(taken)) {
        await settled();
        seen.set(taken, structuredClone(agent.messages));
      }
      if (taken === chunks.length) break;
      agent.events.next(chunks[taken]);
    }
    agent.events.complete();
  };
  const answer = await run(agent, feed);
  return { ...answer, messages: at.map((count) => seen.get(count) ?? null) };
}

async function read(url, headers) {
  let given = null;
  const get = async () => {
    const response = await fetch(url, { headers: { accept: "text/event-stream", ...headers } });
    given = Object.fromEntries(response.headers);
    return response;
  };
  const answer = await run(new HttpAgent({ url, fetch: get }), async () => {});
  return { ...answer, headers: given };
}

/** The messages that leave with a run that begins with a history; its stream is one that only begins and ends. */
async function send(history) {
  let body = null;
  const post = async (_, { body: text }) => {
    body = JSON.parse(text);
    const ends = ["RUN_STARTED", "RUN_FINISHED"].map((type) => ({ type, threadId: "t", runId: "r" }));
    const frames = ends.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("");
    return new Response(frames, { headers: { "content-type": "text/event-stream" } });
  };
  const agent = new HttpAgent({ url: "http://localhost/", fetch: post, initialMessages: history });
  const { error } = await run(agent, async () => {});
  return { error, sent: body?.messages ?? null };
}

const UNTOLD = {
  message: null,
  messages: [],
  error: null,
  outcome: null,
  interrupts: [],
  pending: [],
  customs: [],
  headers: null,
  sent: null,
};

async function answer({ id, chunks, at, url, headers, history }) {
  const told = url ? await read(url, headers) : history ? await send(history) : await reduce(chunks, at ?? []);
  return { id, ...UNTOLD, ...told };
}

await answerEach(answer);
