// Passes what happens in a session to Callslip's hook script, one process for each message, as JSON on its standard
// input. It is the same script that other agents start as a hook; opencode has only plugins.

import * as callslipFiles from "node:fs";
import * as callslipProcesses from "node:child_process";

// Only these three names are in the module itself, which may have other plugins, too.
export const CallslipHook = async ({ client, directory }) => {
  const COMMAND = [];

  const RECORD_TIMEOUT_MS = 10_000;
  const MAX_REPLY_BYTES = 1_000_000;
  const RECORDED_EVENTS = ["session.created", "session.idle", "session.error"];

  const [PROGRAM, ...ARGUMENTS] = COMMAND;
  const HAS_APPROVALS = ARGUMENTS.includes("--approvals");
  const RECORD_ARGUMENTS = HAS_APPROVALS ? ARGUMENTS.slice(0, ARGUMENTS.indexOf("--approvals")) : ARGUMENTS;

  function isInstalled() {
    try {
      callslipFiles.accessSync(PROGRAM, callslipFiles.constants.X_OK);
      callslipFiles.accessSync(ARGUMENTS[2], callslipFiles.constants.R_OK);
      return true;
    } catch {
      return false;
    }
  }

  // A run that `callslip wrap` started is recorded by that.
  if (process.env.CALLSLIP_AGENT || !isInstalled()) return {};

  const waiting = new Map();

  function encode(name, sessionID, properties) {
    const fields = { hook_event_name: name, session_id: sessionID, cwd: directory, time: Date.now(), properties };
    return JSON.stringify(fields);
  }

  // Synchronous, so that messages keep their order and the last one is not lost when opencode exits.
  function record(name, sessionID, properties) {
    try {
      const input = encode(name, sessionID, properties);
      const stdio = ["pipe", "ignore", "ignore"];
      callslipProcesses.spawnSync(PROGRAM, RECORD_ARGUMENTS, { input, stdio, timeout: RECORD_TIMEOUT_MS });
    } catch {
      // The agent continues in any case.
    }
  }

  function ask(request) {
    try {
      const child = callslipProcesses.spawn(PROGRAM, ARGUMENTS, { stdio: ["pipe", "pipe", "ignore"] });
      let output = "";
      waiting.set(request.id, child);
      child.stdout.on("data", (data) => {
        if (output.length < MAX_REPLY_BYTES) output += data;
      });
      child.stdin.on("error", () => {});
      child.on("error", () => waiting.delete(request.id));
      child.on("close", async () => {
        if (!waiting.delete(request.id) || !output.trim()) return;
        try {
          await answer(request, JSON.parse(output));
        } catch {
          // opencode's own prompt still waits for an answer.
        }
      });
      child.stdin.end(encode("permission.asked", request.sessionID, request));
    } catch {
      // opencode's own prompt still waits for an answer.
    }
  }

  async function answer(request, { reply, message }) {
    if (reply !== "once" && reply !== "reject") return;
    const body = message ? { reply, message } : { reply };
    const url = `/permission/${encodeURIComponent(request.id)}/reply`;
    await client._client.post({ url, body, headers: { "Content-Type": "application/json" } });
  }

  return {
    "chat.message": async (input, output) => {
      const { sessionID, ...message } = input;
      record("chat.message", sessionID, { ...message, messageID: output.message?.id, parts: output.parts });
    },
    "tool.execute.before": async ({ tool, sessionID, callID }, { args }) => {
      record("tool.execute.before", sessionID, { tool, callID, args });
    },
    "tool.execute.after": async ({ tool, sessionID, callID, args }, { title, output, metadata }) => {
      record("tool.execute.after", sessionID, { tool, callID, args, title, output, metadata });
    },
    event: async ({ event }) => {
      const { type, properties } = event;
      const { part } = properties;
      if (RECORDED_EVENTS.includes(type)) {
        record(type, properties.sessionID ?? properties.info?.id, properties);
      } else if (type === "message.part.updated" && part?.type === "tool" && part.state?.status === "error") {
        record(type, part.sessionID, { part });
      } else if (type === "permission.asked" && HAS_APPROVALS) {
        ask(properties);
      } else if (type === "permission.replied") {
        const child = waiting.get(properties.requestID ?? properties.permissionID);
        waiting.delete(properties.requestID ?? properties.permissionID);
        child?.kill();
      }
    },
  };
};
