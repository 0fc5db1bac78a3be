// Read streams and histories with ShellMessages or Timeline of callslip.js.
//
// JSON lines in, JSON lines out, in order. A job: {"chunks", "at", "loaded"?}: load a history if there is one, read the
// chunks as the events of a stream and answer {"error", "messages"}, what the view shows after each number of chunks in
// `at`; or {"history"}: load it and answer {"shown", "found"}, all items, and whether each command or execution is found
// by its message and id. The arguments are the path of callslip.js and the format.

import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const { ShellMessages, Timeline } = await import(pathToFileURL(process.argv[2]));
const isShell = process.argv[3] === "shell";
const show = (view) => (isShell ? [...view.messages.values()] : view.list().map(showItem));
// Without callslip_id, the items of a history have neither of these fields.
const showItem = ({ call_id, duration_ms, ...item }) => (item.callslip_id ? { ...item, call_id, duration_ms } : item);

function read(job) {
  const view = isShell ? new ShellMessages() : new Timeline();
  if (job.history) {
    view.load(job.history);
    const found = isShell
      ? view.commands().map(({ message, commandId }) => view.command(message, commandId)?.commandId === commandId)
      : view.executions().map((one) => view.execution(one.message, one.execution_id) === one);
    return { shown: show(view), found };
  }
  if (job.loaded) view.load(job.loaded);
  view.begin("live");
  let count = 0;
  const messages = job.at.map((end) => {
    for (; count < end; count++) view.apply(JSON.parse(JSON.stringify(job.chunks[count])));
    return JSON.parse(JSON.stringify(isShell ? view.messages.get("live").parts : show(view)));
  });
  return { error: null, messages };
}

await answerEach((job) => {
  try {
    return read(job);
  } catch (error) {
    return { error: String(error), messages: [], shown: [], found: [] };
  }
});
