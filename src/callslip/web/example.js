// An example page in plain JavaScript: the messages of a session with a card for each command or execution, live and
// after a reload. Copy it into your own app, and import callslip.js from your server.

import { ShellMessages, Timeline, followSession } from "./callslip.js";

const query = new URLSearchParams(location.search);
const session = query.get("session") ?? "";
const isShell = query.get("format") !== "act-observe";
const status = /** @type {HTMLElement} */ (document.getElementById("status"));
const list = /** @type {HTMLElement} */ (document.getElementById("messages"));

/**
 * What one element of the page shows. Commands are identified by their message and their id in it.
 * @typedef {{key: string, kind: string, text: string}} Text
 * @typedef {Text & {state?: string, isError?: boolean, id?: string, output?: string}} Row
 */

/** @param {ShellMessages} view @returns {Row[]} */
function listCommands(view) {
  return [...view.messages.values()].flatMap(({ id: message, role, parts }) => parts.map((part, index) => {
    if (part.type !== "tool") {
      return { key: `${message} ${index}`, kind: role === "user" ? "user" : part.type, text: part.content };
    }
    const { command, commandId, toolStatus, content, isError } = part;
    const key = `${message} ${part.callslip_id ?? commandId}`;
    return { key, kind: "command", text: command, state: toolStatus, isError, id: commandId, output: content };
  }));
}

/** @param {Timeline} view @returns {Row[]} */
function listExecutions(view) {
  return view.list().map((item) => {
    const key = String(item.seq);
    if (item.type !== "execution") {
      return { key, kind: item.type === "user_message" ? "user" : item.type, text: item.content };
    }
    const { toolName, toolInput, status: state, isError, execution_id: id, toolOutput } = item;
    const output = typeof toolOutput === "string" ? toolOutput : JSON.stringify(toolOutput, null, 2);
    return { key, kind: "command", text: `${toolName} ${JSON.stringify(toolInput)}`, state, isError, id, output };
  });
}

/**
 * Make the element of a row. The text of agents and commands is inserted as text, never as markup.
 * @param {Row} row
 */
function makeElement({ kind, text, state = "", isError, id = "", output }) {
  if (kind !== "command") return element("p", kind, text);
  const card = element("section", `command ${state} ${isError ? "error" : ""}`);
  const heading = element("h2");
  heading.append(element("code", "", text), element("span", "", isError && state === "completed" ? "failed" : state));
  card.append(heading, element("small", "", id));
  if (output !== undefined) card.append(element("pre", "", output));
  return card;
}

/** @param {string} name @param {string} [className] @param {string} [text] */
function element(name, className = "", text = "") {
  return Object.assign(document.createElement(name), { className, textContent: text });
}

const shown = /** @type {Map<string, {json: string, element: HTMLElement}>} */ (new Map());

/** Update the elements of the rows that changed. */
function render() {
  const rows = view instanceof ShellMessages ? listCommands(view) : listExecutions(view);
  const elements = rows.map((row) => {
    const json = JSON.stringify(row);
    const before = shown.get(row.key);
    if (before?.json === json) return before.element;
    const made = makeElement(row);
    before?.element.replaceWith(made);
    shown.set(row.key, { json, element: made });
    return made;
  });
  elements.forEach((one, index) => {
    if (list.children[index] !== one) list.insertBefore(one, list.children[index] ?? null);
  });
  while (list.children.length > elements.length) list.lastElementChild?.remove();
}

const view = isShell ? new ShellMessages() : new Timeline();
if (session) {
  const [nameField, formatField] = document.querySelectorAll("input, select");
  Object.assign(nameField, { value: session });
  Object.assign(formatField, { value: view.format });
  document.title = `${session}: commands`;
  let frame = 0;
  followSession(view, {
    url: new URL("..", location.href).href, // The page is in the folder /web/ of the server.
    session,
    onChange: () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(render);
    },
    onStatus: (now) => {
      status.textContent = now === "live" ? "Live." : "Not connected. Trying again.";
    },
  }).catch((error) => {
    status.textContent = `Cannot show the session: ${error.message}`;
    status.className = "error";
  });
}
