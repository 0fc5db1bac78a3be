// Run the real chat client of one AI SDK major version without a browser, against a server on a socket.
//
// JSON lines in, JSON lines out, in order. A job is {"do", "chat", ...}; `chat` names the chat of one client, until
// another `new` replaces it. Actions:
//   new      {"api", "id", "messages"?, "headers"?, "auto"?, "comes"?, "tools"?}  open a page. With `auto` the client
//            posts by itself once all requests of the last step are answered; with `comes` it resumes when the server
//            sends data-restart; `tools` are run by the page: {name: output}
//   send     {"text"?, "message"?, "cut"?, "wait"?}  send a user message; without text and message, post the answers.
//            `cut` breaks the connection after that many chunks, like a lost network. With `wait: false` the next job
//            starts before the response has ended
//   again    {}  request another answer
//   resume   {"cut"?}  resume the stream
//   approve  {"id", "approved", "reason"?}  answer an approval request
//   output   {"call", "tool", "output"?, "error"?}  add the result of a tool of the page
//   leave    {}  close the connection; the chat continues
//   settle   {}  wait until no request is in progress
//   look     {}  do nothing, to read the state
// An answer always has: messages, status, error (a text, or null), restarts (number of data-restart parts), requests
// (method, path and status of each since the last answer), chunks (their number on the last connection).
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

/** The state that React keeps for `useChat`. */
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
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor({ messages = [], ...options }) {
    super({ ...options, state: new State(messages) });
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

function open({ api, id, messages, headers = {}, auto = false, comes = false, tools = {} }) {
  const page = { cut: null, chunks: 0, requests: [], restarts: 0, busy: 0, leaving: null };
  const countedFetch = async (url, init) => {
    page.chunks = 0;
    const response = await fetch(url, init);
    page.requests.push([init.method, new URL(url).pathname, response.status]);
    return response.ok && response.body ? limitBody(response, page) : response;
  };
  page.chat = new Chat({
    id,
    messages,
    transport: new DefaultChatTransport({ api, headers, fetch: countedFetch }),
    onError: () => {},
    onData: ({ type }) => {
      if (type !== "data-restart") return;
      page.restarts++;
      if (comes) void track(page, () => page.chat.resumeStream(), false);
    },
    onToolCall: ({ toolCall }) => {
      const output = tools[toolCall.toolName];
      const addOutput = page.chat.addToolOutput ?? page.chat.addToolResult;
      if (output !== undefined) void addOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output });
    },
    sendAutomaticallyWhen: auto
      ? (options) =>
          client.lastAssistantMessageIsCompleteWithToolCalls(options) ||
          (client.lastAssistantMessageIsCompleteWithApprovalResponses?.(options) ?? false)
      : undefined,
  });
  return page;
}

async function waitUntilIdle(page) {
  for (let quiet = 0; quiet < 3; quiet++) {
    if (page.busy || ["submitted", "streaming"].includes(page.chat.status)) quiet = -1;
    await sleep(5);
  }
}

async function track(page, work, wait) {
  page.busy++;
  const done = work().finally(() => page.busy--);
  if (wait) await done;
  else done.catch(() => {});
}

const ACTIONS = {
  send: (page, { text, message, wait = true }) =>
    track(page, () => page.chat.sendMessage(message ?? (text === undefined ? undefined : { text })), wait),
  again: (page, { wait = true }) => track(page, () => page.chat.regenerate(), wait),
  resume: (page, { wait = true }) => track(page, () => page.chat.resumeStream(), wait),
  approve: async (page, { id, approved, reason, wait = true }) => {
    await page.chat.addToolApprovalResponse({ id, approved, reason });
    if (wait) await waitUntilIdle(page);
  },
  output: async (page, { call, tool, output, error }) => {
    const addOutput = page.chat.addToolOutput ?? page.chat.addToolResult;
    const result = error === undefined ? { output } : { state: "output-error", errorText: error };
    await addOutput({ tool, toolCallId: call, ...result });
    await waitUntilIdle(page);
  },
  leave: (page) => page.chat.stop(),
  settle: waitUntilIdle,
  look: () => {},
};

const pages = new Map();

async function answer(job) {
  if (job.do === "new") pages.set(job.chat, open(job));
  const page = pages.get(job.chat);
  page.cut = job.cut ?? null;
  if (job.do !== "new") await ACTIONS[job.do](page, job);
  const { chat, chunks, restarts } = page;
  const requests = page.requests.splice(0);
  const { messages, status } = chat;
  const error = chat.error ? String(chat.error.message ?? chat.error).slice(0, 600) : null;
  return { messages, status, error, restarts, requests, chunks };
}

await answerEach(answer);
