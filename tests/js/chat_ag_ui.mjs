// Run the real HttpAgent of AG-UI without a browser, against a server on a socket.
//
// JSON lines in, JSON lines out, in order. A job is {"do", "chat", ...}; `chat` names the chat of one client, until
// another `new` replaces it. Actions:
//   new      {"api", "id", "messages"?, "headers"?}  open a page
//   send     {"text"?, "message"?, "run"?, "cut"?, "wait"?}  send a user message; without text and message, only run
//            the agent. `cut` breaks the connection after that many chunks, like a lost network. With `wait: false` the
//            next job starts before the response has ended
//   resume   {"messages"?, "turn"?, "cut"?}  connect again to a turn, with these messages instead of the client's own
//   answer   {"answers": [{"interruptId", "status", "payload"?}]}  answer the interrupts of the run
//   output   {"call", "output"?, "error"?}  add the result of a tool of the page
//   leave    {}  close the connection; the chat continues
//   settle   {}  wait until no request is in progress
//   look     {}  do nothing, to read the state
// An answer always has: messages, status, error (a text, or null), outcome (of the last run that ended), runs (the ids
// of the started runs), interrupts (the pending ones), requests (method, path and status of each since the last
// answer), chunks (their number on the last connection).
//
// Packages come from the node_modules directory in CALLSLIP_NODE_MODULES or the first argument.

import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const nodeModules = process.argv[2] ?? process.env.CALLSLIP_NODE_MODULES;
if (!nodeModules) {
  console.error("usage: chat_ag_ui.mjs NODE_MODULES < jobs.jsonl (or set CALLSLIP_NODE_MODULES)");
  process.exit(2);
}
const { HttpAgent, randomUUID, runHttpRequest, transformHttpEventStream } = await import(
  pathToFileURL(resolve(nodeModules, "@ag-ui/client/dist/index.mjs"))
);

// The client corrects some mistakes of a server and only warns about them; here a warning is an error.
let warnings = [];
console.warn = (...words) => warnings.push(words.map(String).join(" "));
console.error = () => {};

// A body that fails after the client has released it has no handler for its error.
process.on("unhandledRejection", (error) => {
  if (error?.message !== "network error") throw error;
});

/** An agent that can reconnect: the client calls `connect`, which the application must implement. */
class Agent extends HttpAgent {
  query = "";
  connect() {
    const url = `${this.url.replace(/\/$/, "")}/${encodeURIComponent(this.threadId)}/stream`;
    const init = { method: "GET", headers: this.headers, signal: this.abortController.signal };
    return transformHttpEventStream(runHttpRequest(() => this.fetch(url + this.query, init)));
  }
}

/** Return a response whose body fails after `page.cut` server-sent events, as after a lost network connection. */
function limitBody(response, page) {
  let rest = "";
  const decoder = new TextDecoder();
  const encoder = new TextEncoder();
  const body = response.body.pipeThrough(
    new TransformStream({
      transform(bytes, controller) {
        const frames = (rest + decoder.decode(bytes, { stream: true })).split("\n\n");
        rest = frames.pop();
        for (const frame of frames) {
          if (page.cut !== null && page.chunks >= page.cut) return controller.error(new TypeError("network error"));
          page.chunks++;
          controller.enqueue(encoder.encode(`${frame}\n\n`));
        }
        if (page.cut !== null && page.chunks >= page.cut) controller.error(new TypeError("network error"));
      },
    }),
  );
  return new Response(body, { status: response.status, headers: response.headers });
}

function open({ api, id, messages = [], headers = {} }) {
  const page = { cut: null, chunks: 0, requests: [], runs: [], busy: 0, status: "ready", error: null, outcome: null };
  const countedFetch = async (url, init) => {
    page.chunks = 0;
    const response = await fetch(url, init);
    page.requests.push([init.method, new URL(url).pathname, response.status]);
    return response.ok && response.body ? limitBody(response, page) : response;
  };
  page.agent = new Agent({ url: api, threadId: id, initialMessages: messages, headers, fetch: countedFetch });
  return page;
}

function listener(page) {
  return {
    onRunStartedEvent: ({ event }) => {
      page.runs.push(event.runId);
    },
    onRunFinishedEvent: ({ outcome }) => {
      page.outcome = outcome;
    },
    onRunErrorEvent: ({ event }) => {
      page.outcome = "error";
      page.error = event.message;
    },
  };
}

async function track(page, work, wait = true) {
  page.busy++;
  Object.assign(page, { status: "running", error: null, outcome: null });
  warnings = [];
  const done = work()
    .catch((error) => {
      page.error ??= String(error?.message ?? error).slice(0, 600);
    })
    .finally(() => {
      page.busy--;
      page.error ??= warnings[0]?.slice(0, 600) ?? null;
      page.status = page.error === null ? "ready" : "error";
    });
  if (wait) await done;
}

async function waitUntilIdle(page) {
  while (page.busy) await sleep(5);
}

const ACTIONS = {
  send: (page, { text, message, run, wait }) => {
    if (message ?? text) page.agent.addMessage({ id: randomUUID(), role: "user", content: text, ...message });
    return track(page, () => page.agent.runAgent(run ? { runId: run } : {}, listener(page)), wait);
  },
  resume: (page, { messages, turn, wait }) => {
    page.agent.query = turn ? `?turn=${encodeURIComponent(turn)}` : "";
    if (messages) page.agent.setMessages(messages);
    return track(page, () => page.agent.connectAgent({}, listener(page)), wait);
  },
  answer: (page, { answers, wait }) =>
    track(page, () => page.agent.runAgent({ resume: answers }, listener(page)), wait),
  output: (page, { call, output, error, wait }) => {
    page.agent.addMessage({ id: randomUUID(), role: "tool", toolCallId: call, content: output ?? "", error });
    return track(page, () => page.agent.runAgent({}, listener(page)), wait);
  },
  leave: async (page) => {
    page.agent.abortRun();
    await waitUntilIdle(page);
  },
  settle: waitUntilIdle,
  look: () => {},
};

const pages = new Map();

async function answer(job) {
  if (job.do === "new") pages.set(job.chat, open(job));
  const page = pages.get(job.chat);
  page.cut = job.cut ?? null;
  if (job.do !== "new") await ACTIONS[job.do](page, job);
  const { status, error, outcome, runs, chunks } = page;
  const { messages, pendingInterrupts: interrupts } = page.agent;
  const requests = page.requests.splice(0);
  return { messages, status, error, outcome, runs, interrupts, requests, chunks };
}

await answerEach(answer);
