// Read a data stream and a message history with the real AI SDK 4 client, and answer with its state.
//
// JSON lines in, JSON lines out, in order. A job: {"id", "chunks"?, "at"?, "url"?, "headers"?, "history"?}. A chunk is
// [code, value]; a `url` is fetched and read to its end instead. `history` is oldest first. An answer has every key:
//   id          as given
//   message     the last message of the client, or null if it has none
//   messages    the message after each number of chunks listed in `at` (0 is before the first); null if there was none
//   error       why the stream failed, or null; a stream that only ends early has no error
//   finish      the finish reason of the client, if the stream was read to its end
//   data        the data parts, which are not in the message
//   again       whether a client with several steps would now send the next request
//   headers     those of the response to a `url`, else null
//   model       the result of convertToCoreMessages for the history: {calls: [callId], missing: [callId], empty: number
//               of messages without content}; null without a history, or when it cannot be sent (modelError)
//
// A message is returned without the fields that the client adds by itself: `createdAt`, `revisionId`, and the
// deprecated copies of the parts, `toolInvocations` and `reasoning`, which must equal the parts. Without annotations
// the client's message has no list of them; here it has an empty one.
//
// Packages come from the node_modules directory in CALLSLIP_NODE_MODULES or the first argument.

import { isDeepStrictEqual } from "node:util";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const nodeModules = process.argv[2] ?? process.env.CALLSLIP_NODE_MODULES;
if (!nodeModules) {
  console.error("usage: reduce_v4.mjs NODE_MODULES < jobs.jsonl (or set CALLSLIP_NODE_MODULES)");
  process.exit(2);
}
const load = (path) => import(pathToFileURL(resolve(nodeModules, path)));
const { callChatApi, isAssistantMessageWithCompletedToolCalls } = await load("@ai-sdk/ui-utils/dist/index.mjs");
const { convertToCoreMessages, coreMessageSchema } = await load("ai-v4/dist/index.mjs");

const encoder = new TextEncoder();

const errorText = (error) => String(error?.message ?? error).slice(0, 600);

/** Return the message without the client's own fields, after checking that the copies equal the parts. */
function checkedMessage({ createdAt, revisionId, toolInvocations = [], reasoning = "", ...message }) {
  const of = (type) => message.parts.filter((part) => part.type === type);
  if (!isDeepStrictEqual(toolInvocations, of("tool-invocation").map((part) => part.toolInvocation)))
    throw new Error(`toolInvocations and parts differ: ${JSON.stringify(toolInvocations)}`);
  if (reasoning !== of("reasoning").map((part) => part.reasoning).join(""))
    throw new Error(`reasoning and parts differ: ${reasoning}`);
  if (!(createdAt instanceof Date) || !revisionId) throw new Error("the client sets no createdAt or revisionId");
  return { ...message, annotations: message.annotations ?? [] };
}

/** Run the client's request with the response that `respond` returns. */
async function read(respond) {
  const state = { message: null, error: null, finish: null, data: [], headers: null };
  try {
    await callChatApi({
      api: "",
      body: { id: "" },
      requestType: "resume",
      fetch: async () => {
        const response = await respond(state);
        state.headers = Object.fromEntries(response.headers);
        return response;
      },
      restoreMessagesOnFailure: () => {},
      onUpdate: ({ message, data }) => Object.assign(state, { message, data }),
      onFinish: (_, { finishReason }) => (state.finish = finishReason),
    });
  } catch (error) {
    state.error = errorText(error);
  }
  return state;
}

/**
 * Return the message after each prefix, in one pass: the stream has a line only on demand, and the client reads the
 * next one when it has processed the last.
 */
async function reduce(chunks, at = []) {
  const wanted = new Set(at);
  const messagesAt = new Map();
  let sentCount = 0;
  const state = await read(
    (state) =>
      new Response(
        new ReadableStream(
          {
            pull(controller) {
              if (wanted.has(sentCount)) messagesAt.set(sentCount, state.message);
              if (sentCount === chunks.length) return controller.close();
              const [code, value] = chunks[sentCount++];
              controller.enqueue(encoder.encode(`${code}:${JSON.stringify(value)}\n`));
            },
          },
          { highWaterMark: 0 },
        ),
      ),
  );
  return { state: { ...state, headers: null }, messages: at.map((count) => messagesAt.get(count) ?? null) };
}

async function readUrl(url, headers) {
  return { state: await read(() => fetch(url, { headers })), messages: [] };
}

function describe({ state, messages }) {
  try {
    const again = state.message !== null && isAssistantMessageWithCompletedToolCalls(state.message);
    const last = state.message && checkedMessage(state.message);
    return { ...state, again, message: last, messages: messages.map((message) => message && checkedMessage(message)) };
  } catch (error) {
    return { ...state, again: null, message: null, messages: [], error: errorText(error) };
  }
}

function continueFrom(history) {
  try {
    const messages = convertToCoreMessages(history);
    for (const message of messages) coreMessageSchema.parse(message);
    return { model: summary(messages), modelError: null };
  } catch (error) {
    return { model: null, modelError: errorText(error) };
  }
}

/** Return every call, and those without a result in the message directly after theirs. */
function summary(messages) {
  const ids = (message, type) =>
    Array.isArray(message?.content) ? message.content.filter((p) => p.type === type).map((p) => p.toolCallId) : [];
  const missing = messages.flatMap((message, index) => {
    const answered = new Set(ids(messages[index + 1], "tool-result"));
    return ids(message, "tool-call").filter((id) => !answered.has(id));
  });
  const empty = messages.filter(({ role, content }) => role !== "user" && content.length === 0).length;
  return { calls: messages.flatMap((message) => ids(message, "tool-call")), missing, empty };
}

const NOTHING_READ = { state: { message: null, error: null, finish: null, data: [], headers: null }, messages: [] };
const NO_HISTORY = { model: null, modelError: null };

async function answer({ id, chunks, at, url, headers, history }) {
  const reading = url ? await readUrl(url, headers) : chunks ? await reduce(chunks, at) : NOTHING_READ;
  return { id, ...describe(reading), ...(history ? continueFrom(history) : NO_HISTORY) };
}

await answerEach(answer);
