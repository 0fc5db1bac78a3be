// A chat page without a page: the real HttpAgent of AG-UI, talking to a server over a real socket.
//
// JSON lines in, JSON lines out, in order. A job is {"do", "chat", ...}; `chat` names one client's chat, which lives
// until it is made anew. What there is to do:
//   new      {"api", "id", "messages"?, "headers"?}  a page is opened
//   send     {"text"?, "message"?, "run"?, "cut"?, "wait"?}  a person says something; without both the agent is run as
//            it is. `cut` breaks the connection after that many chunks, as a lost network does. Without `wait` it is not
//            read to its end before the next job
//   resume   {"messages"?, "turn"?, "cut"?}  the client connects again, with these messages in place of its own, to that turn
//   answer   {"answers": [{"interruptId", "status", "payload"?}]}  a person answers what the run was interrupted for
//   output   {"call", "output"?, "error"?}  a tool of the page came to this
//   leave    {}  the page closes its connection and goes on
//   settle   {}  wait until nothing is under way
//   look     {}  nothing
// An answer always has: messages, status, error (a text, or null), outcome (of the last run that ended), runs (the names
// of the runs that began), interrupts (what is waited for), requests (method, path and status of each since the last
// answer), chunks (how many the last connection brought).
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

// The client mends some mistakes of a server and only warns about them: to us they are mistakes.
let complaints = [];
console.warn = (...words) => complaints.push(words.map(String).join(" "));
console.error = () => {};

// A body that breaks while the client has let go of it is nobody's to hear of.
process.on("unhandledRejection", (thrown) => {
  if (thrown?.message !== "network error") throw thrown;
});

/** An agent that can come back: the client has the place for it, and leaves the way to the application. */
class Agent extends HttpAgent {
  asked = "";
  connect() {
    const url = `${this.url.replace(/\/$/, "")}/${encodeURIComponent(this.threadId)}/stream`;
    const { headers } = this;
    return transformHttpEventStream(
      runHttpRequest(() => this.fetch(url + this.asked, { method: "GET", headers, signal: this.abortController.signal })),
    );
  }
}

/** A response whose body breaks after so many server-sent events, as it does in a browser that lost its network. */
function broken(response, page) {
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
  const ask = async (url, init) => {
    page.chunks = 0;
    const response = await fetch(url, init);
    page.requests.push([init.method, new URL(url).pathname, response.status]);
    return response.ok && response.body ? broken(response, page) : response;
  };
  page.agent = new Agent({ url: api, threadId: id, initialMessages: messages, headers, fetch: ask });
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

async function under(page, work, wait = true) {
  page.busy++;
  Object.assign(page, { status: "running", error: null, outcome: null });
  complaints = [];
  const done = work()
    .catch((thrown) => {
      page.error ??= String(thrown?.message ?? thrown).slice(0, 600);
    })
    .finally(() => {
      page.busy--;
      page.error ??= complaints[0]?.slice(0, 600) ?? null;
      page.status = page.error === null ? "ready" : "error";
    });
  if (wait) await done;
}

async function settled(page) {
  while (page.busy) await sleep(5);
}

const DO = {
  send: (page, { text, message, run, wait }) => {
    if (message ?? text) page.agent.addMessage({ id: randomUUID(), role: "user", content: text, ...message });
    return under(page, () => page.agent.runAgent(run ? { runId: run } : {}, listener(page)), wait);
  },
  resume: (page, { messages, turn, wait }) => {
    page.agent.asked = turn ? `?turn=${encodeURIComponent(turn)}` : "";
    if (messages) page.agent.setMessages(messages);
    return under(page, () => page.agent.connectAgent({}, listener(page)), wait);
  },
  answer: (page, { answers, wait }) =>
    under(page, () => page.agent.runAgent({ resume: answers }, listener(page)), wait),
  output: (page, { call, output, error, wait }) => {
    page.agent.addMessage({ id: randomUUID(), role: "tool", toolCallId: call, content: output ?? "", error });
    return under(page, () => page.agent.runAgent({}, listener(page)), wait);
  },
  leave: async (page) => {
    page.agent.abortRun();
    await settled(page);
  },
  settle: settled,
  look: () => {},
};

const pages = new Map();

async function answer(job) {
  if (job.do === "new") pages.set(job.chat, open(job));
  const page = pages.get(job.chat);
  page.cut = job.cut ?? null;
  if (job.do !== "new") await DO[job.do](page, job);
  const { status, error, outcome, runs, chunks } = page;
  const { messages, pendingInterrupts: interrupts } = page.agent;
  const requests = page.requests.splice(0);
  return { messages, status, error, outcome, runs, interrupts, requests, chunks };
}

await answerEach(answer);
