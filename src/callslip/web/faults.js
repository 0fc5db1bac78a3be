// What can be done to a stream of events, and what that shows. Each fault is real: events are posted by the ordinary
// API twice, too late or in the wrong order, a process is killed, a line is cut.

/**
 * What a fault is given: ways to post, to cut the line of both clients, to have a process killed, and to wait: for a
 * call to end, or so long that a person can follow.
 * @typedef {object} Stage
 * @property {(...events: object[]) => Promise<unknown>} tell
 * @property {(down: boolean) => void} cut
 * @property {(call: string) => Promise<unknown>} cancel
 * @property {() => Promise<{call: string}>} start
 * @property {(call: string) => Promise<{pid: number}>} kill
 * @property {(call: string) => Promise<unknown>} ended
 * @property {(ms: number) => Promise<unknown>} pause
 *
 * `run` gives what happened, in a sentence or two.
 * @typedef {{id: string, name: string, hint: string, run: (stage: Stage) => Promise<string>}} Fault
 */

const hex = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(6)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const newCall = () => `exec_${hex()}`;

/**
 * An event of a call that says the command each time, as many producers do.
 * @param {string} type @param {object} who @param {string} title @param {object} [more]
 */
const event = (type, who, title, more = {}) => ({ type: `call.${type}`, ...who, title, toolName: "shell", ...more });

/** @param {object} who @param {string} command */
const proposed = (who, command) => event("proposed", who, command, { input: { command } });

/** @type {Fault[]} */
export const FAULTS = [
  {
    id: "equal",
    name: "Two equal calls",
    hint: "the same command twice at once",
    async run({ tell, pause }) {
      const [one, two] = [{ call: newCall() }, { call: newCall() }];
      await tell(proposed(one, "ls"), proposed(two, "ls"));
      await pause(500);
      await tell(event("started", one, "ls"), event("started", two, "ls"));
      await pause(500);
      const output = "monday.txt";
      await tell(event("completed", one, "ls", { output }), event("completed", two, "ls", { output }));
      return `Two calls of ls ran side by side. The naive client looked for “ls” and found the first card both times,
        so the second never moves. Callslip tells calls apart by id.`;
    },
  },
  {
    id: "duplicate",
    name: "Duplicate",
    hint: "everything is sent a second time",
    async run({ tell, pause }) {
      const who = { aliases: [["demo", `call-${hex()}`]] };
      const opening = proposed(who, "git status");
      const ending = event("completed", who, "git status", { output: "nothing to commit" });
      await tell(opening, event("started", who, "git status"));
      await pause(500);
      await tell(ending);
      await pause(500);
      await tell(opening, ending);
      return `The producer retried and sent its events twice. The naive client shows a second call that never was.
        Callslip saw that it knows them already.`;
    },
  },
  {
    id: "reorder",
    name: "Reorder",
    hint: "the result overtakes the start",
    async run({ tell, pause }) {
      const who = { call: newCall() };
      await tell(event("completed", who, "make test", { output: "12 passed", input: { command: "make test" } }));
      await pause(600);
      await tell(event("started", who, "make test"));
      await pause(600);
      await tell(proposed(who, "make test"));
      return `The result came first, then the start, then the proposal. The naive client met a result of “unknown”,
        then a call that starts over. In Callslip an end is an end; what comes after is kept and marked late.`;
    },
  },
  {
    id: "late",
    name: "Late result",
    hint: "a result for a call that was cancelled",
    async run({ tell, cancel, pause }) {
      const who = { call: newCall() };
      await tell(proposed(who, "npm install"), event("started", who, "npm install"));
      await pause(600);
      await cancel(who.call);
      await tell(event("cancelled", who, "npm install"));
      await pause(700);
      await tell(event("completed", who, "npm install", { output: "added 1312 packages" }));
      return `The call was cancelled, and its result came all the same. The naive client now says completed: the last
        word wins. Callslip keeps it cancelled, with the late result noted beside it.`;
    },
  },
  {
    id: "kill",
    name: "Kill worker",
    hint: "a real process, ended by SIGKILL",
    async run({ start, kill, ended, pause }) {
      const { call } = await start();
      await pause(1200);
      const { pid } = await kill(call);
      await ended(call);
      return `Process ${pid} was killed in the middle of its call. It can tell nobody, so the naive client says
        running for ever. Callslip saw that the process is gone, and ended the call as lost.`;
    },
  },
  {
    id: "cut",
    name: "Cut the line",
    hint: "both clients are offline for two seconds",
    async run({ tell, cut, pause }) {
      const who = { call: newCall() };
      await tell(proposed(who, "curl archive.zip"), event("started", who, "curl archive.zip"));
      await pause(600);
      cut(true);
      await pause(900);
      await tell(event("completed", who, "curl archive.zip", { output: "4.1 MB" }));
      await pause(900);
      cut(false);
      return `The call ended while both lines were down. The naive client came back and waits for what comes next.
        Callslip came back with its cursor, and was told what it had missed.`;
    },
  },
];

/** @param {number} gone */
export const refreshed = (gone) =>
  `The page was loaded again. The naive client had everything in memory:
    ${gone === 1 ? "1 card is" : `${gone} cards are`} gone. Callslip’s side was read from the log, and is what it was.`;
