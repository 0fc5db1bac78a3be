// Read a UI message stream and a UI message history with the real AI SDK client of one major version, and answer with
// its state.
//
// JSON lines in, JSON lines out, in order. A job: {"id", "chunks"?, "at"?, "url"?, "headers"?, "history"?}. An answer
// always has every key:
//   id          as given
//   message     the last message of the client, or null if it has none
//   messages    the message after each number of chunks listed in `at` (0 is before the first); null if there was
//               none or the stream failed earlier
//   error       why the stream failed, or null; a stream that only ends early has no error
//   headers     of the response to a GET of `url`, whose body is read instead of `chunks`; null without a URL
//   valid       safeValidateUIMessages accepts the history (null without one); validError has the reason if not
//   model       the result of convertToModelMessages for the history: {results: {callId: has a result},
//               missing: [callId], repeated: [callId]}; null without a history, or when it cannot be sent (modelError)
//
// The first argument is the major: v5, v6 or v7. Packages come from the node_modules directory in the second one or in
// CALLSLIP_NODE_MODULES.

import { resolve } from "node:path";
import { setImmediate as nextIteration } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const ENTRIES = { v5: "ai-v5/dist/index.mjs", v6: "ai-v6/dist/index.mjs", v7: "ai-v7/dist/index.js" };

const [major, nodeModules = process.env.CALLSLIP_NODE_MODULES] = process.argv.slice(2);
if (!nodeModules || !ENTRIES[major]) {
  console.error("usage: reduce_ui.mjs v5|v6|v7 NODE_MODULES < jobs.jsonl (or set CALLSLIP_NODE_MODULES)");
  process.exit(2);
}
const {
  convertToModelMessages,
  modelMessageSchema,
  parseJsonEventStream,
  readUIMessageStream,
  safeValidateUIMessages,
  uiMessageChunkSchema,
} = await import(pathToFileURL(resolve(nodeModules, ENTRIES[major])));

const encoder = new TextEncoder();

const errorText = (thrown) => String(thrown?.message ?? thrown).slice(0, 600);

/** Parse a byte stream with the client: [{success, value | error}]. */
async function parse(stream) {
  const parsed = [];
  for await (const result of parseJsonEventStream({ stream, schema: uiMessageChunkSchema })) parsed.push(result);
  return parsed;
}

/** Return chunks as the server sends them. */
function encodeChunks(chunks) {
  const frames = chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join("");
  return new ReadableStream({
    start(controller) {
      controller.enqueue(encoder.encode(frames));
      controller.close();
    },
  });
}

/**
 * Return the message after each prefix, in one pass. The library yields a snapshot per visible change, not per chunk,
 * and not with its chunk. So the stream has a chunk only on demand: the reducer reads the next one when it has
 * processed the last, and one iteration of the event loop lets the loop below receive the snapshot of the last.
 */
async function reduce(parsed, at = []) {
  const wanted = new Set(at);
  const messagesAt = new Map();
  let sentCount = 0;
  let message = null;
  const stream = new ReadableStream(
    {
      async pull(controller) {
        await nextIteration();
        if (wanted.has(sentCount)) messagesAt.set(sentCount, message);
        if (sentCount === parsed.length) return controller.close();
        const { success, value, error } = parsed[sentCount++];
        if (success) controller.enqueue(value);
        else controller.error(error);
      },
    },
    { highWaterMark: 0 },
  );
  let error = null;
  try {
    for await (const snapshot of readUIMessageStream({ stream, terminateOnError: true })) message = snapshot;
  } catch (thrown) {
    error = errorText(thrown);
  }
  return { message, messages: at.map((count) => messagesAt.get(count) ?? null), error };
}

async function validate(history) {
  const { success, error } = await safeValidateUIMessages({ messages: history });
  return { valid: success, validError: success ? null : ((await firstInvalidPart(history)) ?? errorText(error)) };
}

/** Return the first invalid part, since the library's message only lists the twenty types that a part may have. */
async function firstInvalidPart(history) {
  for (const [m, message] of history.entries()) {
    for (const [p, part] of (message?.parts ?? []).entries()) {
      const { success } = await safeValidateUIMessages({ messages: [{ ...message, parts: [part] }] });
      if (!success) return `messages[${m}].parts[${p}]: ${JSON.stringify(part)}`;
    }
  }
  return null;
}

async function continueFrom(history) {
  try {
    const messages = await convertToModelMessages(history);
    for (const message of messages) modelMessageSchema.parse(message);
    return { model: summary(messages), modelError: null };
  } catch (thrown) {
    return { model: null, modelError: errorText(thrown) };
  }
}

function summary(modelMessages) {
  const parts = modelMessages.flatMap(({ content }) => (Array.isArray(content) ? content : []));
  const ids = (type) => parts.filter((part) => part.type === type).map((part) => part.toolCallId);
  const calls = ids("tool-call");
  const answered = new Set(ids("tool-result"));
  return {
    results: Object.fromEntries(calls.map((id) => [id, answered.has(id)])),
    missing: calls.filter((id) => !answered.has(id)),
    repeated: calls.filter((id, index) => calls.indexOf(id) !== index),
  };
}

/** Read the stream at a URL to its end. */
async function get(url, headers, at) {
  try {
    const response = await fetch(url, { headers });
    const received = Object.fromEntries(response.headers);
    const error = response.ok ? null : `${response.status} ${await response.text()}`;
    if (error) return { ...NOTHING_READ, error, headers: received };
    return { ...(await reduce(await parse(response.body), at)), headers: received };
  } catch (thrown) {
    return { ...NOTHING_READ, error: errorText(thrown) };
  }
}

const NOTHING_READ = { message: null, messages: [], error: null, headers: null };
const NO_HISTORY = { valid: null, validError: null, model: null, modelError: null };

async function read({ chunks, at, url, headers }) {
  if (url) return get(url, headers, at);
  return chunks ? { ...NOTHING_READ, ...(await reduce(await parse(encodeChunks(chunks)), at)) } : NOTHING_READ;
}

async function answer(job) {
  const { id, history } = job;
  const historyResult = history ? { ...(await validate(history)), ...(await continueFrom(history)) } : NO_HISTORY;
  return { id, ...(await read(job)), ...historyResult };
}

await answerEach(answer);
