// Follows a server with callslip.js itself, as a page does, and answers what it holds.
//
// JSON lines in, JSON lines out, in order. A job: {"url", "sessions", "topics"?, "token"?, "limit"?, "until": {session: seq},
// "rows"?: {topic: [id]}, "gone"?: [session], "cut"?: n}. With `cut` the line is broken after every n changes. The answer,
// once every session has come that far, these were told to be gone and every topic has these rows and no others:
// {sessions: {name: {seq, info, entries}}, topics, cuts, statuses, gone, error}; after a minute, what it has by then.

import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const { Callslip } = await import(pathToFileURL(process.argv[2]));

function follow(job) {
  return new Promise((resolve) => {
    let left = job.cut ?? Infinity;
    let cuts = 0;
    const statuses = [];
    const gone = [];
    const there = (client) =>
      (job.gone ?? []).every((name) => gone.includes(name)) &&
      Object.entries(job.until ?? {}).every(([name, seq]) => (client.sessions.get(name)?.seq ?? 0) >= seq) &&
      Object.entries(job.rows ?? {}).every(([topic, ids]) => {
        const rows = [...(client.topics.get(topic)?.keys() ?? [null])];
        return rows.length === ids.length && ids.every((id) => rows.includes(id));
      });
    const patience = setTimeout(() => answer(client), 60_000);
    const answer = (client) => {
      clearTimeout(patience);
      client.close();
      const sessions = Object.fromEntries(
        [...client.sessions].map(([name, { seq, info, entries }]) => [name, { seq, info, entries: [...entries.values()] }]),
      );
      const topics = Object.fromEntries([...client.topics].map(([name, rows]) => [name, [...rows.values()]]));
      resolve({ sessions, topics, cuts, statuses, gone, error: client.error && client.status === "refused" ? client.error.message : null });
    };
    const client = new Callslip({
      ...job,
      onStatus(status) {
        statuses.push(status);
        if (status === "refused") answer(client);
        if (status === "waiting" && job.cut) client.wake?.();
      },
      onChange(event, told) {
        if (event === "gone") gone.push(told.session);
        if (there(client)) return answer(client);
        left -= 1;
        if (left > 0) return;
        left = job.cut;
        cuts += 1;
        client.controller.abort();
      },
    });
    if (job.cut) client.pause = async () => {};
    client.open();
  });
}

await answerEach(follow);
