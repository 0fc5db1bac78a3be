// Run the chat client of the AI SDK 4 without a browser: do what its `useChat` does, with the library's functions.
//
// JSON lines in, JSON lines out, in order. A job is {"do", "chat", ...}; `chat` names the chat of one client, until
// another `new` replaces it. Actions:
//   new      {"api", "id", "messages"?, "headers"?, "auto"?, "ids"?, "tools"?}  open a page. `auto` allows several
//            steps, `ids` sends the ids of messages, `tools` are run by the page: {name: output}
//   send     {"text"?, "message"?, "cut"?, "wait"?}  send a user message. `cut` breaks the connection after that many
//            chunks, like a lost network. With `wait: false` the next job starts before the response has ended
//   again    {}  request another answer
//   resume   {"cut"?}  resume the stream
//   output   {"call", "output"}  add the result of a tool of the page
//   leave    {}  close the connection; the chat continues
//   settle   {}  wait until no request is in progress
//   look     {}  do nothing, to read the state
// An answer always has: messages, status, error (a text, or null), restarts (number of restart parts), requests
// (method, path and status of each since the last answer), chunks (their number on the last connection). Messages
// are without the fields that the client adds by itself, as in reduce_v4.mjs.
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

/** Return a response whose body fails after `page.cut` lines, as after a lost network connection. */
function limitBody(response, page) {
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
  const filled = fillMessageParts(messages);
  const steps = extractMaxToolInvocationStep(filled.at(-1)?.toolInvocations);
  page.abort = new AbortController();
  page.messages = filled;
  const sent = page.ids ? filled : filled.map(({ id, createdAt, revisionId, reasoning, ...fields }) => fields);
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
        return response.ok && response.body ? limitBody(response, page) : response;
      },
      onUpdate: ({ message, data, replaceLastMessage }) => {
        page.status = "streaming";
        page.messages = [...(replaceLastMessage ? filled.slice(0, -1) : filled), message];
        page.restarts = (data ?? []).filter((part) => part?.type === "restart").length;
      },
      onToolCall: ({ toolCall }) => page.tools[toolCall.toolName],
      onFinish: () => {},
      generateId,
      lastMessage: filled.at(-1),
      requestType,
    });
    page.status = "ready";
  } catch (error) {
    page.status = error.name === "AbortError" ? "ready" : "error";
    page.error = error.name === "AbortError" ? null : String(error.message).slice(0, 600);
  }
  const before = { originalMaxToolInvocationStep: steps, originalMessageCount: filled.length };
  if (shouldResubmitMessages({ ...before, maxSteps: page.auto ? 20 : 1, messages: page.messages }))
    await request(page, page.messages);
}

async function waitUntilIdle(page) {
  for (let quiet = 0; quiet < 3; quiet++) {
    if (page.busy || ["submitted", "streaming"].includes(page.status)) quiet = -1;
    await sleep(5);
  }
}

async function track(page, work, wait = true) {
  page.busy++;
  const done = work().finally(() => page.busy--);
  if (wait) await done;
}

const userMessage = ({ text, message }) =>
  ({ role: "user", content: text, id: generateId(), createdAt: new Date(), ...message });

const ACTIONS = {
  send: (page, job) => track(page, () => request(page, [...page.messages, userMessage(job)]), job.wait),
  again: (page, { wait }) => {
    const { messages } = page;
    return track(page, () => request(page, messages.at(-1).role === "user" ? messages : messages.slice(0, -1)), wait);
  },
  resume: (page, { wait }) => track(page, () => request(page, page.messages, "resume"), wait),
  output: (page, { call, output }) => {
    updateToolCallResult({ messages: page.messages, toolCallId: call, toolResult: output });
    const isComplete = isAssistantMessageWithCompletedToolCalls(page.messages.at(-1));
    if (isComplete) return track(page, () => request(page, page.messages));
  },
  leave: async (page) => {
    page.abort.abort();
    await waitUntilIdle(page);
  },
  settle: waitUntilIdle,
  look: () => {},
};

const visibleFields = ({ createdAt, revisionId, toolInvocations, reasoning, ...message }) => ({
  ...message,
  annotations: message.annotations ?? [],
});

const pages = new Map();

async function answer(job) {
  if (job.do === "new") pages.set(job.chat, open(job));
  const page = pages.get(job.chat);
  page.cut = job.cut ?? null;
  if (job.do !== "new") await ACTIONS[job.do](page, job);
  const { status, error, restarts, chunks } = page;
  const requests = page.requests.splice(0);
  return { messages: page.messages.map(visibleFields), status, error, restarts, requests, chunks };
}

await answerEach(answer);
