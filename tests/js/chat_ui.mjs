// A chat page without a page: the real client of one AI SDK major, talking to a server over a real socket.
//
// JSON lines in, JSON lines out, in order. A job is {"do", "chat", ...}; `chat` names one client's chat, which lives
// until it is made anew. What there is to do:
//   new      {"api", "id", "messages"?, "headers"?, "auto"?, "comes"?, "tools"?}  a page is opened. `auto` posts by
//            itself when all requests of the last step were answered; `comes` comes back when the server says that it
//            has to begin again; `tools` are run here: {name: output}
//   send     {"text"?, "message"?, "cut"?, "wait"?}  a person says something; without both, what was answered is posted.
//            `cut` breaks the connection after that many chunks, as a lost network does. Without `wait` it is not read
//            to its end before the next job
//   again    {}  another answer is asked for
//   resume   {"cut"?}  the client comes back
//   approve  {"id", "approved", "reason"?}  a person answers a request
//   output   {"call", "tool", "output"?, "error"?}  a tool of the page came to this
//   leave    {}  the page closes its connection and goes on
//   settle   {}  wait until nothing is under way
//   look     {}  nothing
// An answer always has: messages, status, error (a text, or null), restarts (how often the server said so), requests
// (method, path and status of each since the last answer), chunks (how many the last connection brought).
//
// The first argument is the major: v5, v6 or v7. Packages come from the node_modules directory in the second one or in
// CALLSLIP_NODE_MODULES.

import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const ENTRIES = { v5: "ai-v5/dist/index.mjs", v6: "ai-v6/dist/index.mjs", v7: "ai-v7/dist/index.js" };

const [major, nodeModules = process.env.CALLSLIP_NODE_MODULES] = process.argv.slice(2);
if (!nodeModules || !ENTRIES[major]) {
  console.error("usage: chat_ui.mjs v5|v6|v7 NODE_MODULES < jobs.jsonl (or set CALLSLIP_NODE_MODULES)");
  process.exit(2);
}
const client = await import(pathToFileURL(resolve(nodeModules, ENTRIES[major])));
const { AbstractChat, DefaultChatTransport } = client;

/** What React keeps for `useChat`. */
class State {
  status = "ready";
  error = undefined;
  constructor(messages) {
    this.messages = messages;
  }
  pushMessage = (message) => {
    this.messages = [...this.messages, message];
  };
  popMessage = () => {
    this.messages = this.messages.slice(0, -1);
  };
  replaceMessage = (index, message) => {
    this.messages = [...this.messages.slice(0, index), structuredClone(message), ...this.messages.slice(index + 1)];
  };
  snapshot = (thing) => structuredClone(thing);
}

class Chat extends AbstractChat {
  constructor({ messages = [], ...options }) {
    super({ ...options, state: new State(messages) });
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

function open({ api, id, messages, headers = {}, auto = false, comes = false, tools = {} }) {
  const page = { cut: null, chunks: 0, requests: [], restarts: 0, busy: 0, leaving: null };
  const ask = async (url, init) => {
    page.chunks = 0;
    const response = await fetch(url, init);
    page.requests.push([init.method, new URL(url).pathname, response.status]);
    return response.ok && response.body ? broken(response, page) : response;
  };
  page.chat = new Chat({
    id,
    messages,
    transport: new DefaultChatTransport({ api, headers, fetch: ask }),
    onError: () => {},
    onData: ({ type }) => {
      if (type !== "data-restart") return;
      page.restarts++;
      if (comes) void under(page, () => page.chat.resumeStream(), false);
    },
    onToolCall: ({ toolCall }) => {
      const known = tools[toolCall.toolName];
      const give = page.chat.addToolOutput ?? page.chat.addToolResult;
      if (known !== undefined) void give({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: known });
    },
    sendAutomaticallyWhen: auto
      ? (given) =>
          client.lastAssistantMessageIsCompleteWithToolCalls(given) ||
          (client.lastAssistantMessageIsCompleteWithApprovalResponses?.(given) ?? false)
      : undefined,
  });
  return page;
}

async function settled(page) {
  for (let quiet = 0; quiet < 3; quiet++) {
    if (page.busy || ["submitted", "streaming"].includes(page.chat.status)) quiet = -1;
    await sleep(5);
  }
}

async function under(page, work, wait) {
  page.busy++;
  const done = work().finally(() => page.busy--);
  if (wait) await done;
  else done.catch(() => {});
}

const DO = {
  send: (page, { text, message, wait = true }) =>
    under(page, () => page.chat.sendMessage(message ?? (text === undefined ? undefined : { text })), wait),
  again: (page, { wait = true }) => under(page, () => page.chat.regenerate(), wait),
  resume: (page, { wait = true }) => under(page, () => page.chat.resumeStream(), wait),
  approve: async (page, { id, approved, reason, wait = true }) => {
    await page.chat.addToolApprovalResponse({ id, approved, reason });
    if (wait) await settled(page);
  },
  output: async (page, { call, tool, output, error }) => {
    const give = page.chat.addToolOutput ?? page.chat.addToolResult;
    const told = error === undefined ? { output } : { state: "output-error", errorText: error };
    await give({ tool, toolCallId: call, ...told });
    await settled(page);
  },
  leave: (page) => page.chat.stop(),
  settle: settled,
  look: () => {},
};

const pages = new Map();

async function answer(job) {
  if (job.do === "new") pages.set(job.chat, open(job));
  const page = pages.get(job.chat);
  page.cut = job.cut ?? null;
  if (job.do !== "new") await DO[job.do](page, job);
  const { chat, chunks, restarts } = page;
  const requests = page.requests.splice(0);
  const { messages, status } = chat;
  const error = chat.error ? String(chat.error.message ?? chat.error).slice(0, 600) : null;
  return { messages, status, error, restarts, requests, chunks };
}

await answerEach(answer);
