// Read the events of a run, or a history, with the real AG-UI client, and answer with its state.
//
// JSON lines in, JSON lines out, in order. A job is one of
//   {"id", "chunks", "at"?}      events, as a server sends them
//   {"id", "url", "headers"?}    a stream that the client's own HttpAgent reads
//   {"id", "history"}            messages with which an application starts
// An answer always has every key:
//   id          as given
//   message     the messages of the client at the end, or null for a history
//   messages    its messages after each number of chunks listed in `at` (0 is before the first)
//   error       why the run failed, or the first warning of the client, or null. A stream that ends early has no error
//   outcome     the client's outcome of the run ("success", "interrupt", "cancelled", "error"), or null
//   interrupts  the pending interrupts of the client
//   pending     the calls that the client has to answer
//   customs     the custom events, [name, value] each
//   headers     of the response, for a URL; else null
//   sent        the messages of a history that the client sends with its next run; else null
//
// Packages come from the node_modules directory in CALLSLIP_NODE_MODULES or the first argument.

import { createRequire } from "node:module";
import { resolve } from "node:path";
import { setImmediate as nextIteration } from "node:timers/promises";
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

const errorText = (thrown) => String(thrown?.message ?? thrown).slice(0, 600);

// The client corrects some mistakes of a server and only warns about them; here a warning is an error.
let warnings = [];
console.warn = (...words) => warnings.push(words.map(String).join(" "));
console.error = () => {};

/** An agent that emits the events of the test. */
class ScriptedAgent extends AbstractAgent {
  events = new Subject();
  run() {
    return this.events;
  }
}

/** Return callbacks that store the events of a run in `result`. */
function listener(result) {
  return {
    onRunFinishedEvent: ({ outcome, pendingToolCallIds }) => {
      result.outcome = outcome;
      result.pending = pendingToolCallIds ?? [];
    },
    onRunErrorEvent: () => {
      result.outcome = "error";
    },
    onCustomEvent: ({ event }) => {
      result.customs.push([event.name, event.value]);
    },
  };
}

async function run(agent, sendEvents) {
  const result = { outcome: null, pending: [], customs: [] };
  warnings = [];
  let error = null;
  const running = agent.runAgent({}, listener(result)).catch((thrown) => {
    error = errorText(thrown);
  });
  await sendEvents();
  await running;
  error ??= warnings.length ? errorText(warnings[0]) : null;
  return { message: agent.messages, error, ...result, interrupts: agent.pendingInterrupts };
}

/**
 * Return the messages after each prefix, in one pass. The client works in microtasks only, so it has processed all
 * events after one iteration of the event loop.
 */
async function reduce(chunks, at) {
  const agent = new ScriptedAgent({ threadId: "t" });
  const wanted = new Set(at);
  const messagesAt = new Map();
  const sendEvents = async () => {
    await nextIteration();
    for (let sentCount = 0; ; sentCount++) {
      if (wanted.has(sentCount)) {
        await nextIteration();
        messagesAt.set(sentCount, structuredClone(agent.messages));
      }
      if (sentCount === chunks.length) break;
      agent.events.next(chunks[sentCount]);
    }
    agent.events.complete();
  };
  const answer = await run(agent, sendEvents);
  return { ...answer, messages: at.map((count) => messagesAt.get(count) ?? null) };
}

async function read(url, headers) {
  let responseHeaders = null;
  const get = async () => {
    const response = await fetch(url, { headers: { accept: "text/event-stream", ...headers } });
    responseHeaders = Object.fromEntries(response.headers);
    return response;
  };
  const answer = await run(new HttpAgent({ url, fetch: get }), async () => {});
  return { ...answer, headers: responseHeaders };
}

/** Return the messages that a run with this history sends. The stream of the run only starts and ends. */
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

const EMPTY_RESULT = {
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
  const result = url ? await read(url, headers) : history ? await send(history) : await reduce(chunks, at ?? []);
  return { id, ...EMPTY_RESULT, ...result };
}

await answerEach(answer);
