// What a call is named after: its title, or the command in its input.

/** Return the command line in an input, or "" if there is none. @param {any} input */
export function commandIn(input) {
  const value = input?.command ?? input?.cmd;
  if (typeof value === "string") return value;
  if (!Array.isArray(value) || !value.every((part) => typeof part === "string")) return "";
  const [, flag, line] = value;
  return value.length === 3 && /^-l?c$/.test(flag) ? line : value.join(" ");
}

/** Return the title of a call, or its command, or its tool. @param {any} entry */
export const titleOf = (entry) => entry.title || commandIn(entry.rawInput) || entry.toolName || entry.rawToolName || "Call";
