// Answers what the real AI SDK 4 client makes of a data stream and of a message history.
//
// JSON lines in, JSON lines out, in order. A job: {"id", "chunks"?, "at"?, "url"?, "headers"?, "history"?}. A chunk is
// [code, value]; a `url` is fetched and read to its end instead. `history` is oldest first. An answer has every key:
//   id          as given
//   message     the message as the client last saw it, or null if it saw none
//   messages    the message after each number of chunks listed in `at` (0 is before the first); null where there was none
//   error       why the stream died, or null; a stream that is merely cut is no error
//   finish      the reason that the client was given for the end, if the stream was read to it
//   data        what the client was sent beside the message
//   again       whether the client, if it may take several steps, would now ask the server to go on
//   headers     those of the response to a `url`, else null
//   model       what convertToCoreMessages makes of the history: {calls: [callId], missing: [callId], empty: how many
//               messages say nothing}; null without a history, or when it cannot be sent (modelError)
//
// Of a message there is everything but what the client adds by itself: its clock (`createdAt`), `revisionId`, and the
// deprecated doubles of the parts, `toolInvocations` and `reasoning`, which must agree with the parts. Without
// annotations the client's message has no list of them; here it has an empty one.
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

const brief = (thrown) => String(thrown?.message ?? thrown).slice(0, 600);

/** The message as an application sees it, once its doubles are found to agree. */
function seen({ createdAt, revisionId, toolInvocations = [], reasoning = "", ...message }) {
  const of = (type) => message.parts.filter((part) => part.type === type);
  if (!isDeepStrictEqual(toolInvocations, of("tool-invocation").map((part) => part.toolInvocation)))
    throw new Error(`toolInvocations and parts differ: ${JSON.stringify(toolInvocations)}`);
  if (reasoning !== of("reasoning").map((part) => part.reasoning).join(""))
    throw new Error(`reasoning and parts differ: ${reasoning}`);
  if (!(createdAt instanceof Date) || !revisionId) throw new Error("the client has no clock of its own any more");
  return { ...message, annotations: message.annotations ?? [] };
}

/** The client's own request, with a response of ours or one from a server. */
async function read(respond) {
  const told = { message: null, error: null, finish: null, data: [], headers: null };
  try {
    await callChatApi({
      api: "",
      body: { id: "" },
      requestType: "resume",
      fetch: async () => {
        const response = await respond(told);
        told.headers = Object.fromEntries(response.headers);
        return response;
      },
      restoreMessagesOnFailure: () => {},
      onUpdate: ({ message, data }) => Object.assign(told, { message, data }),
      onFinish: (_, { finishReason }) => (told.finish = finishReason),
    });
  } catch (thrown) {
    told.error = brief(thrown);
  }
  return told;
}

/**
 * One pass gives every prefix: the source hands out a line only when asked, and the client asks for the next when it is
 * done with the last.
 */
async function reduce(chunks, at = []) {
  const wanted = new Set(at);
  const reached = new Map();
  let taken = 0;
  const told = await read(
    (told) =>
      new Response(
        new ReadableStream(
          {
            pull(controller) {
              if (wanted.has(taken)) reached.set(taken, told.message);
              if (taken === chunks.length) return controller.close();
              const [code, value] = chunks[taken++];
              controller.enqueue(encoder.encode(`${code}:${JSON.stringify(value)}\n`));
            },
          },
          { highWaterMark: 0 },
        ),
      ),
  );
  return { told: { ...told, headers: null }, messages: at.map((count) => reached.get(count) ?? null) };
}

async function overSocket(url, headers) {
  return { told: await read(() => fetch(url, { headers })), messages: [] };
}

function shown({ told, messages }) {
  try {
    const again = told.message !== null && isAssistantMessageWithCompletedToolCalls(told.message);
    const last = told.message && seen(told.message);
    return { ...told, again, message: last, messages: messages.map((message) => message && seen(message)) };
  } catch (thrown) {
    return { ...told, again: null, message: null, messages: [], error: brief(thrown) };
  }
}

function continueFrom(history) {
  try {
    const messages = convertToCoreMessages(history);
    for (const message of messages) coreMessageSchema.parse(message);
    return { model: summary(messages), modelError: null };
  } catch (thrown) {
    return { model: null, modelError: brief(thrown) };
  }
}

/** Every call, and those without a result in the message right after theirs. */
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

const UNREAD = { told: { message: null, error: null, finish: null, data: [], headers: null }, messages: [] };
const UNTOLD = { model: null, modelError: null };

async function answer({ id, chunks, at, url, headers, history }) {
  const reading = url ? await overSocket(url, headers) : chunks ? await reduce(chunks, at) : UNREAD;
  return { id, ...shown(reading), ...(history ? continueFrom(history) : UNTOLD) };
}

await answerEach(answer);
