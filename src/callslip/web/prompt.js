// The prompt box, with the agent's commands as completions. A multi-line field cannot be an ARIA combobox, so it is a
// text box that controls a list and announces the number of matches.

import { inert } from "./ansi.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { promptsSent } from "./row_state.js";
import { get, info, pendingHere, post, status } from "./state.js";

/** @typedef {{name: string, description: string, hint: string}} AgentCommand */

const RUNNING_HINT = "The agent is running. Stop it to send a new message.";
const WAITING_HINT = "The agent is waiting for an approval. Answer it, or stop the agent to send a new message.";
const KEYS_HINT = html`<kbd>Enter</kbd> to send, <kbd>Shift</kbd> <kbd>Enter</kbd> for a new line`;

const capitalize = (/** @type {string} */ text) => text.charAt(0).toUpperCase() + text.slice(1);

/**
 * Return the commands that an agent announced, without malformed ones.
 * @param {any[]} announced @returns {AgentCommand[]}
 */
const agentCommands = (announced) =>
  (announced ?? [])
    .filter((one) => one && typeof one.name === "string" && one.name)
    .map(({ name, description, input }) => ({
      name: name.replace(/^\//, ""),
      description: String(description ?? ""),
      hint: String(input?.hint ?? ""),
    }));

/**
 * Return the commands that match the text before the caret, or null if it is not a command.
 * @param {AgentCommand[]} all @param {string} before
 */
function matchCommands(all, before) {
  const typed = before.match(/^\/(\S*)$/)?.[1].toLowerCase();
  if (typed === undefined) return null;
  const startsWith = all.filter((one) => one.name.toLowerCase().startsWith(typed));
  const contains = all.filter((one) => !startsWith.includes(one) && one.name.toLowerCase().includes(typed));
  return [...startsWith, ...contains];
}

/** Load whether an agent answers prompts in this session. Reloaded after a reconnect. @param {string} session */
function usePromptSupport(session) {
  const [support, setSupport] = useState(/** @type {{answers: boolean, why: string} | null} */ (null));
  const live = status.value === "live";
  useEffect(() => {
    let stale = false;
    get(`/v1/sessions/${encodeURIComponent(session)}/prompt`).then(
      (result) => stale || setSupport(result),
      ({ message }) => stale || setSupport((last) => (last?.answers ? last : { answers: false, why: message })),
    );
    return () => {
      stale = true;
    };
  }, [session, live]);
  return support;
}

/**
 * @param {{id: string, matches: AgentCommand[], selected: number, onPick: (command: AgentCommand) => void}} props
 */
function Completions({ id, matches, selected, onPick }) {
  const list = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  useEffect(() => list.current?.children[selected]?.scrollIntoView({ block: "nearest" }), [selected]);
  const item = (/** @type {AgentCommand} */ command, /** @type {number} */ number) =>
    html`<li key=${command.name} id=${`${id}-${number}`} role="option"
      aria-selected=${number === selected ? "true" : "false"} class=${classes(number === selected && "chosen")}
      onMouseDown=${(/** @type {Event} */ event) => (event.preventDefault(), onPick(command))}>
      <code class="untrusted">/${inert(command.name)}</code>
      <span class="untrusted" dir="auto">${inert(command.description)}</span>
    </li>`;
  return html`<ul id=${id} ref=${list} class="completions" role="listbox" aria-label="Agent commands">
    ${matches.map(item)}
  </ul>`;
}

/** @param {{session: string}} props */
export default function PromptBox({ session }) {
  const [text, setText] = useState("");
  const [beforeCaret, setBeforeCaret] = useState("");
  const [highlighted, setHighlighted] = useState(0);
  const [isListClosed, setIsListClosed] = useState(false);
  const [busy, setBusy] = useState(/** @type {"" | "send" | "stop"} */ (""));
  const [error, setError] = useState("");
  const area = /** @type {{current: HTMLTextAreaElement | null}} */ (useRef(null));
  const support = usePromptSupport(session);
  const commands = agentCommands(info.value.availableCommands);
  const matches = (!isListClosed && matchCommands(commands, beforeCaret)) || [];
  const path = `/v1/sessions/${encodeURIComponent(session)}/prompt`;
  const hint = commands.find((one) => text.trimEnd() === `/${one.name}`)?.hint ?? "";
  const selected = Math.min(highlighted, matches.length - 1);
  const turnHint = pendingHere.value.length ? WAITING_HINT : RUNNING_HINT;

  useEffect(() => setError(""), [info.value.turn, status.value]);

  function onInput(/** @type {HTMLTextAreaElement} */ field) {
    setError("");
    setText(field.value);
    setBeforeCaret(field.value.slice(0, field.selectionStart));
    setIsListClosed(false);
    setHighlighted(0);
  }

  function pick(/** @type {AgentCommand} */ command) {
    const rest = text.slice(beforeCaret.length).replace(/^\S*\s?/, "");
    setText(`/${command.name} ${rest}`);
    setBeforeCaret("");
    area.current?.focus();
  }

  /**
   * The typed text stays until the server has it.
   * @param {"send" | "stop"} action @param {() => Promise<unknown>} perform
   */
  async function run(action, perform) {
    setBusy(action);
    setError("");
    try {
      await perform();
    } catch (cause) {
      setError(/** @type {Error} */ (cause).message);
    } finally {
      // Before Stop is answered, the turn may have ended and the next message may have been sent.
      setBusy((current) => (current === action ? "" : current));
      area.current?.focus();
    }
  }
  async function sendPrompt() {
    await post(path, { text });
    if (area.current?.value === text) {
      setText("");
      setBeforeCaret("");
    }
    promptsSent.value++;
  }
  const send = () => {
    if (text.trim() && busy !== "send") run("send", sendPrompt);
  };
  const stop = () => run("stop", () => post(`${path}/stop`, {}));

  const KEYS = /** @type {Record<string, () => void>} */ ({
    ArrowDown: () => setHighlighted((selected + 1) % matches.length),
    ArrowUp: () => setHighlighted((selected + matches.length - 1) % matches.length),
    Tab: () => pick(matches[selected]),
    Enter: () => (beforeCaret === text && text === `/${matches[selected].name}` ? send() : pick(matches[selected])),
    Escape: () => setIsListClosed(true),
  });

  function onKey(/** @type {KeyboardEvent} */ event) {
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (matches.length && KEYS[event.key]) KEYS[event.key]();
    else if (event.key === "Enter") send();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  if (!support) return null;
  if (!support.answers) return html`<p class="no-prompt dim">${capitalize(support.why)}.</p>`;
  const id = "prompt";
  return html`<form class="prompt" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), send())}>
    ${matches.length
      ? html`<${Completions} id=${`${id}-list`} matches=${matches} selected=${selected} onPick=${pick} />`
      : ""}
    <div class="field composer">
      <label class="visually-hidden" for=${id}>Message the agent</label>
      <textarea id=${id} ref=${area} rows="1" dir="auto" value=${text} autocomplete="off"
        placeholder=${commands.length ? "Message the agent, or type / for commands" : "Message the agent"}
        aria-autocomplete="list" aria-haspopup="listbox" aria-controls=${matches.length ? `${id}-list` : undefined}
        aria-activedescendant=${matches.length ? `${id}-list-${selected}` : undefined} aria-describedby=${`${id}-hint`}
        onInput=${(/** @type {any} */ event) => onInput(event.target)} onKeyDown=${onKey}
        onBlur=${() => setIsListClosed(true)}></textarea>
      ${info.value.turn
        ? html`<button type="button" class="btn icon" aria-label="Stop" title="Stop the turn" disabled=${Boolean(busy)}
            onClick=${stop}><i class="i i-stop" aria-hidden="true"></i></button>`
        : html`<button class="btn main icon" aria-label="Send" title="Send (Enter)" disabled=${busy === "send" || !text.trim()}>
            <i class="i i-send" aria-hidden="true"></i></button>`}
    </div>
    <p id=${`${id}-hint`} class="prompt-hint dim">
      ${hint ? html`<code>${text.trim()}</code> expects: ${inert(hint)}` : info.value.turn ? turnHint : KEYS_HINT}
    </p>
    <p class="error-text" role="alert">${error}</p>
    <p class="visually-hidden" role="status">
      ${matches.length ? `${matches.length} command${matches.length === 1 ? "" : "s"}` : ""}</p>
  </form>`;
}
