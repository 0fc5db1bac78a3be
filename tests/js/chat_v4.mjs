// A chat page without a page: what `useChat` of the AI SDK 4 does with the library's own functions, over a real socket.
//
// JSON lines in, JSON lines out, in order. A job is {"do", "chat", ...}; `chat` names one client's chat, which lives
// until it is made anew. What there is to do:
//   new      {"api", "id", "messages"?, "headers"?, "auto"?, "ids"?, "tools"?}  a page is opened. `auto` is several
//            steps, `ids` sends the ids of messages, `tools` are run here: {name: output}
//   send     {"text"?, "message"?, "cut"?, "wait"?}  a person says something. `cut` breaks the connection after that many
//            chunks, as a lost network does. Without `wait` it is not read to its end before the next job
//   again    {}  another answer is asked for
//   resume   {"cut"?}  the client comes back
//   output   {"call", "output"}  a tool of the page came to this
//   leave    {}  the page closes its connection and goes on
//   settle   {}  wait until nothing is under way
//   look     {}  nothing
// An answer always has: messages, status, error (a text, or null), restarts (how often the server said so), requests
// (method, path and status of each since the last answer), chunks (how many the last connection brought). Messages are
// told as in reduce_v4.mjs: without what the client adds by itself.
//
// Packages come from the node_modules directory in CALLSLIP_NODE_MODULES or the first argument.

import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const nodeModules = process.argv[2] ?? process.env.CALLSLIP_NODE_MODULES;
if (!nodeModules) {
  console.error("usage: chat_v4.mjs NODE_MODULES < jobs.jsonl (or set CALLSLIP_NODE_MODULES)");
  process.exit(2);
}
const {
  callChatApi,
  extractMaxToolInvocationStep,
  fillMessageParts,
  generateId,
  isAssistantMessageWithCompletedToolCalls,
  shouldResubmitMessages,
  updateToolCallResult,
} = await import(pathToFileURL(resolve(nodeModules, "@ai-sdk/ui-utils/dist/index.mjs")));

/** A response whose body breaks after so many lines, as it does in a browser that lost its network. */
function broken(response, page) {
  let rest = "";
  const decoder = new TextDecoder();
  const encoder = new TextEncoder();
  const body = response.body.pipeThrough(
    new TransformStream({
      transform(bytes, controller) {
        const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          if (page.cut !== null && page.chunks >= page.cut) return controller.error(new TypeError("network error"));
          page.chunks++;
          controller.enqueue(encoder.encode(`${line}\n`));
        }
        if (page.cut !== null && page.chunks >= page.cut) controller.error(new TypeError("network error"));
      },
    }),
  );
  return new Response(body, { status: response.status, headers: response.headers });
}

function open({ api, id, messages = [], headers = {}, auto = false, ids = false, tools = {} }) {
  const page = { api, id, headers, auto, ids, tools, cut: null, chunks: 0, requests: [], restarts: 0, busy: 0 };
  return Object.assign(page, { messages: fillMessageParts(messages), status: "ready", error: null, abort: null });
}

async function request(page, messages, requestType = "generate") {
  page.status = "submitted";
  page.error = null;
  const told = fillMessageParts(messages);
  const steps = extractMaxToolInvocationStep(told.at(-1)?.toolInvocations);
  page.abort = new AbortController();
  page.messages = told;
  const sent = page.ids ? told : told.map(({ id, createdAt, revisionId, reasoning, ...kept }) => kept);
  try {
    await callChatApi({
      api: page.api,
      body: { id: page.id, messages: sent },
      headers: page.headers,
      abortController: () => page.abort,
      restoreMessagesOnFailure: () => {},
      fetch: async (url, init) => {
        page.chunks = 0;
        const response = await fetch(url, init);
        page.requests.push([init.method, new URL(url).pathname, response.status]);
        return response.ok && response.body ? broken(response, page) : response;
      },
      onUpdate: ({ message, data, replaceLastMessage }) => {
        page.status = "streaming";
        page.messages = [...(replaceLastMessage ? told.slice(0, -1) : told), message];
        page.restarts = (data ?? []).filter((one) => one?.type === "restart").length;
      },
      onToolCall: ({ toolCall }) => page.tools[toolCall.toolName],
      onFinish: () => {},
      generateId,
      lastMessage: told.at(-1),
      requestType,
    });
    page.status = "ready";
  } catch (thrown) {
    page.status = thrown.name === "AbortError" ? "ready" : "error";
    page.error = thrown.name === "AbortError" ? null : String(thrown.message).slice(0, 600);
  }
  const before = { originalMaxToolInvocationStep: steps, originalMessageCount: told.length };
  if (shouldResubmitMessages({ ...before, maxSteps: page.auto ? 20 : 1, messages: page.messages }))
    await request(page, page.messages);
}

async function settled(page) {
  for (let quiet = 0; quiet < 3; quiet++) {
    if (page.busy || ["submitted", "streaming"].includes(page.status)) quiet = -1;
    await sleep(5);
  }
}

async function under(page, work, wait = true) {
  page.busy++;
  const done = work().finally(() => page.busy--);
  if (wait) await done;
}

const said = ({ text, message }) => ({ role: "user", content: text, id: generateId(), createdAt: new Date(), ...message });

const DO = {
  send: (page, job) => under(page, () => request(page, [...page.messages, said(job)]), job.wait),
  again: (page, { wait }) => {
    const { messages } = page;
    return under(page, () => request(page, messages.at(-1).role === "user" ? messages : messages.slice(0, -1)), wait);
  },
  resume: (page, { wait }) => under(page, () => request(page, page.messages, "resume"), wait),
  output: (page, { call, output }) => {
    updateToolCallResult({ messages: page.messages, toolCallId: call, toolResult: output });
    const whole = isAssistantMessageWithCompletedToolCalls(page.messages.at(-1));
    if (whole) return under(page, () => request(page, page.messages));
  },
  leave: async (page) => {
    page.abort.abort();
    await settled(page);
  },
  settle: settled,
  look: () => {},
};

const seen = ({ createdAt, revisionId, toolInvocations, reasoning, ...message }) => ({
  ...message,
  annotations: message.annotations ?? [],
});

const pages = new Map();

async function answer(job) {
  if (job.do === "new") pages.set(job.chat, open(job));
  const page = pages.get(job.chat);
  page.cut = job.cut ?? null;
  if (job.do !== "new") await DO[job.do](page, job);
  const { status, error, restarts, chunks } = page;
  const requests = page.requests.splice(0);
  return { messages: page.messages.map(seen), status, error, restarts, requests, chunks };
}

await answerEach(answer);
