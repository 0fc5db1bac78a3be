// Answers what the real AI SDK client of one major makes of a UI message stream and of a UI message history.
//
// JSON lines in, JSON lines out, in order. A job: {"id", "chunks"?, "at"?, "url"?, "headers"?, "history"?}. An answer
// always has every key:
//   id          as given
//   message     the message as the client last saw it while it read the chunks, or null if it saw none
//   messages    the message after each number of chunks listed in `at` (0 is before the first); null where none was
//               seen or the stream died earlier
//   error       why the stream died, or null; a stream that is merely cut is no error
//   headers     those of the response to a GET of `url`, whose body is then read in place of `chunks`; null without one
//   valid       safeValidateUIMessages accepts the history (null without one); validError says why not
//   model       what convertToModelMessages makes of the history: {results: {callId: has a result},
//               missing: [callId], repeated: [callId]}; null without a history, or when it cannot be sent (modelError)
//
// The first argument is the major: v5, v6 or v7. Packages come from the node_modules directory in the second one or in
// CALLSLIP_NODE_MODULES.

import { resolve } from "node:path";
import { setImmediate as settled } from "node:timers/promises";
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

const brief = (thrown) => String(thrown?.message ?? thrown).slice(0, 600);

/** A byte stream as the client parses it: [{success, value | error}]. */
async function parse(stream) {
  const parsed = [];
  for await (const result of parseJsonEventStream({ stream, schema: uiMessageChunkSchema })) parsed.push(result);
  return parsed;
}

/** Chunks, framed as the server would. */
function framed(chunks) {
  const frames = chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join("");
  return new ReadableStream({
    start(controller) {
      controller.enqueue(encoder.encode(frames));
      controller.close();
    },
  });
}

/**
 * One pass gives every prefix. The library yields a snapshot per visible change, not per chunk, and does not say which
 * chunk made it. So the source hands out a chunk only when asked: the reducer asks again when it is done with the last
 * one, and a turn of the event loop lets our reader take that one's snapshot.
 */
async function reduce(parsed, at = []) {
  const wanted = new Set(at);
  const seen = new Map();
  let taken = 0;
  let message = null;
  const stream = new ReadableStream(
    {
      async pull(controller) {
        await settled();
        if (wanted.has(taken)) seen.set(taken, message);
        if (taken === parsed.length) return controller.close();
        const { success, value, error } = parsed[taken++];
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
    error = brief(thrown);
  }
  return { message, messages: at.map((count) => seen.get(count) ?? null), error };
}

async function validate(history) {
  const { success, error } = await safeValidateUIMessages({ messages: history });
  return { valid: success, validError: success ? null : ((await firstInvalidPart(history)) ?? brief(error)) };
}

/** The library's own message lists every branch of a union of twenty; the part it refused is what one needs. */
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
    return { model: null, modelError: brief(thrown) };
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

/** A stream over a real socket, read to its end. */
async function get(url, headers, at) {
  try {
    const response = await fetch(url, { headers });
    const told = Object.fromEntries(response.headers);
    if (!response.ok) return { ...UNREAD, error: `${response.status} ${await response.text()}`, headers: told };
    return { ...(await reduce(await parse(response.body), at)), headers: told };
  } catch (thrown) {
    return { ...UNREAD, error: brief(thrown) };
  }
}

const UNREAD = { message: null, messages: [], error: null, headers: null };
const UNTOLD = { valid: null, validError: null, model: null, modelError: null };

async function read({ chunks, at, url, headers }) {
  if (url) return get(url, headers, at);
  return chunks ? { ...UNREAD, ...(await reduce(await parse(framed(chunks)), at)) } : UNREAD;
}

async function answer(job) {
  const { id, history } = job;
  const told = history ? { ...(await validate(history)), ...(await continueFrom(history)) } : UNTOLD;
  return { id, ...(await read(job)), ...told };
}

await answerEach(answer);
