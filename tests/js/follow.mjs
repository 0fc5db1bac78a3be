// Follow a server with callslip.js, as a page does, and answer with the state that the client has.
//
// JSON lines in, JSON lines out, in order. A job: {"url", "sessions", "topics"?, "token"?, "limit"?,
// "silenceTimeout"?, "until": {session: seq}, "rows"?: {topic: [id]}, "gone"?: [session], "cut"?: n}. With `cut`, the
// connection is aborted after every n changes. The answer comes when every session has reached its seq, the sessions in
// `gone` were reported as gone, and every topic has exactly these rows; at the latest after a minute:
// {sessions: {name: {seq, info, entries}}, topics, cuts, statuses, gone, error}.

import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const { Callslip } = await import(pathToFileURL(process.argv[2]));

function follow(job) {
  return new Promise((resolve) => {
    let remaining = job.cut ?? Infinity;
    let cuts = 0;
    const statuses = [];
    const gone = [];
    const isDone = (client) =>
      (job.gone ?? []).every((name) => gone.includes(name)) &&
      Object.entries(job.until ?? {}).every(([name, seq]) => (client.sessions.get(name)?.seq ?? 0) >= seq) &&
      Object.entries(job.rows ?? {}).every(([topic, ids]) => {
        const rows = [...(client.topics.get(topic)?.keys() ?? [null])];
        return rows.length === ids.length && ids.every((id) => rows.includes(id));
      });
    const timeout = setTimeout(() => answer(client), 60_000);
    const answer = (client) => {
      clearTimeout(timeout);
      client.close();
      const sessions = Object.fromEntries(
        [...client.sessions].map(([name, { seq, info, entries }]) =>
          [name, { seq, info, entries: [...entries.values()] }]),
      );
      const topics = Object.fromEntries([...client.topics].map(([name, rows]) => [name, [...rows.values()]]));
      const error = client.error && client.status === "refused" ? client.error.message : null;
      resolve({ sessions, topics, cuts, statuses, gone, error });
    };
    const client = new Callslip({
      ...job,
      onStatus(status) {
        statuses.push(status);
        if (status === "refused") answer(client);
        if (status === "waiting" && job.cut) client.wake?.();
      },
      onChange(event, update) {
        if (event === "gone") gone.push(update.session);
        if (isDone(client)) return answer(client);
        remaining -= 1;
        if (remaining > 0) return;
        remaining = job.cut;
        cuts += 1;
        client.controller.abort();
      },
    });
    if (job.cut) client.waitBeforeRetry = async () => {};
    client.open();
  });
}

await answerEach(follow);
