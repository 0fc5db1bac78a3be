// The faults of the fault lab. Each is real: events are posted to the regular API twice, late or out of order, a
// process is killed, a connection is dropped.

/**
 * The actions that a fault can use. `pause` waits so that the user can follow.
 * @typedef {object} FaultContext
 * @property {(...events: object[]) => Promise<unknown>} send
 * @property {(offline: boolean) => void} setOffline
 * @property {(call: string) => Promise<unknown>} cancel
 * @property {() => Promise<{call: string}>} start
 * @property {(call: string) => Promise<{pid: number}>} kill
 * @property {(call: string) => Promise<unknown>} waitForEnd
 * @property {(ms: number) => Promise<unknown>} pause
 *
 * `run` returns a message about the result.
 * @typedef {{id: string, name: string, hint: string, run: (stage: FaultContext) => Promise<string>}} Fault
 */

const randomHex = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(6)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const newCall = () => `exec_${randomHex()}`;

/**
 * Create an event of a call. Each event repeats the command, as many producers do.
 * @param {string} type @param {object} target @param {string} title @param {object} [more]
 */
const event = (type, target, title, more = {}) =>
  ({ type: `call.${type}`, ...target, title, toolName: "shell", ...more });

/** @param {object} target @param {string} command */
const proposed = (target, command) => event("proposed", target, command, { input: { command } });

/** @type {Fault[]} */
export const FAULTS = [
  {
    id: "equal",
    name: "Identical calls",
    hint: "Run the same command twice at once",
    async run({ send, pause }) {
      const [one, two] = [{ call: newCall() }, { call: newCall() }];
      await send(proposed(one, "ls"), proposed(two, "ls"));
      await pause(500);
      await send(event("started", one, "ls"), event("started", two, "ls"));
      await pause(500);
      const output = "monday.txt";
      await send(event("completed", one, "ls", { output }), event("completed", two, "ls", { output }));
      return `Two identical calls of ls ran in parallel. The naive client matched both results to the first card, so the
        second stays queued. Callslip matches calls by ID.`;
    },
  },
  {
    id: "duplicate",
    name: "Duplicate",
    hint: "Send every event twice",
    async run({ send, pause }) {
      const target = { aliases: [["demo", `call-${randomHex()}`]] };
      const opening = proposed(target, "git status");
      const ending = event("completed", target, "git status", { output: "nothing to commit" });
      await send(opening, event("started", target, "git status"));
      await pause(500);
      await send(ending);
      await pause(500);
      await send(opening, ending);
      return `The producer retried and sent its events twice. The naive client shows a call that does not exist.
        Callslip ignored the duplicates.`;
    },
  },
  {
    id: "reorder",
    name: "Reorder",
    hint: "Send the result before the start",
    async run({ send, pause }) {
      const target = { call: newCall() };
      await send(event("completed", target, "make test", { output: "12 passed", input: { command: "make test" } }));
      await pause(600);
      await send(event("started", target, "make test"));
      await pause(600);
      await send(proposed(target, "make test"));
      return `The result arrived first, then the start, then the proposal. The naive client shows an unknown call and a
        restarted one. In Callslip the call stays completed; later events are logged as late.`;
    },
  },
  {
    id: "late",
    name: "Late result",
    hint: "Send a result for a cancelled call",
    async run({ send, cancel, pause }) {
      const target = { call: newCall() };
      await send(proposed(target, "npm install"), event("started", target, "npm install"));
      await pause(600);
      await cancel(target.call);
      await send(event("cancelled", target, "npm install"));
      await pause(700);
      await send(event("completed", target, "npm install", { output: "added 1312 packages" }));
      return `The call was cancelled, and its result arrived afterwards. The naive client shows it as completed. In
        Callslip it stays cancelled, and the late result is logged.`;
    },
  },
  {
    id: "kill",
    name: "Kill worker",
    hint: "End a real process with SIGKILL",
    async run({ start, kill, waitForEnd, pause }) {
      const { call } = await start();
      await pause(1200);
      const { pid } = await kill(call);
      await waitForEnd(call);
      return `Process ${pid} was killed during its call and could not report it. In the naive client the call runs
        forever. Callslip noticed that the process was gone and ended the call as lost.`;
    },
  },
  {
    id: "cut",
    name: "Drop connection",
    hint: "Take both clients offline for two seconds",
    async run({ send, setOffline, pause }) {
      const target = { call: newCall() };
      await send(proposed(target, "curl archive.zip"), event("started", target, "curl archive.zip"));
      await pause(600);
      setOffline(true);
      await pause(900);
      await send(event("completed", target, "curl archive.zip", { output: "4.1 MB" }));
      await pause(900);
      setOffline(false);
      return `The call ended while both clients were offline. The naive client missed the result. Callslip resumed from
        its cursor and received the missed events.`;
    },
  },
];

/** @param {number} lostCards */
export const reloadMessage = (lostCards) =>
  `The page was reloaded. The naive client kept its cards in memory and lost
    ${lostCards === 1 ? "1 card" : `${lostCards} cards`}. Callslip loaded its calls from the log.`;
