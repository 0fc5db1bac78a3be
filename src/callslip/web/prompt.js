// The prompt box: what a person says to the session's agent, with the commands that the agent announced as completions.
// A text of several lines can be no combobox, so it is a text box that controls a list and says how many fit.

import { inert } from "./ansi.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { spoken } from "./row_state.js";
import { get, info, post, status } from "./state.js";

/** @typedef {{name: string, description: string, hint: string}} Offer */

const AT_WORK = "The agent is at work: wait for its end, or stop it.";
const KEYS_TOLD = html`<kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> begins a new line`;

const sentence = (/** @type {string} */ text) => text.charAt(0).toUpperCase() + text.slice(1);

/** What an agent announced, as far as it can be offered. @param {any[]} announced @returns {Offer[]} */
const offers = (announced) =>
  (announced ?? [])
    .filter((one) => one && typeof one.name === "string" && one.name)
    .map(({ name, description, input }) => ({
      name: name.replace(/^\//, ""),
      description: String(description ?? ""),
      hint: String(input?.hint ?? ""),
    }));

/**
 * The offers that fit what stands before the caret; null if it is no command.
 * @param {Offer[]} all @param {string} before
 */
function fitting(all, before) {
  const typed = before.match(/^\/(\S*)$/)?.[1].toLowerCase();
  if (typed === undefined) return null;
  const begins = all.filter((one) => one.name.toLowerCase().startsWith(typed));
  const holds = all.filter((one) => !begins.includes(one) && one.name.toLowerCase().includes(typed));
  return [...begins, ...holds];
}

/** Whether somebody answers here; asked again when the server is back. @param {string} session */
function useAnswers(session) {
  const [told, setTold] = useState(/** @type {{answers: boolean, why: string} | null} */ (null));
  const live = status.value === "live";
  useEffect(() => {
    let stale = false;
    get(`/v1/sessions/${encodeURIComponent(session)}/prompt`).then(
      (answer) => stale || setTold(answer),
      (error) => stale || setTold((known) => (known?.answers ? known : { answers: false, why: error.message })),
    );
    return () => {
      stale = true;
    };
  }, [session, live]);
  return told;
}

/**
 * @param {{id: string, found: Offer[], at: number, onPick: (offer: Offer) => void}} props
 */
function Completions({ id, found, at, onPick }) {
  const list = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  useEffect(() => list.current?.children[at]?.scrollIntoView({ block: "nearest" }), [at]);
  const item = (/** @type {Offer} */ offer, /** @type {number} */ number) =>
    html`<li key=${offer.name} id=${`${id}-${number}`} role="option" aria-selected=${number === at ? "true" : "false"}
      class=${classes(number === at && "chosen")}
      onMouseDown=${(/** @type {Event} */ event) => (event.preventDefault(), onPick(offer))}>
      <code class="foreign">/${inert(offer.name)}</code>
      <span class="foreign" dir="auto">${inert(offer.description)}</span>
    </li>`;
  return html`<ul id=${id} ref=${list} class="completions" role="listbox" aria-label="Commands of the agent">
    ${found.map(item)}
  </ul>`;
}

/** @param {{session: string}} props */
export default function PromptBox({ session }) {
  const [text, setText] = useState("");
  const [before, setBefore] = useState("");
  const [at, setAt] = useState(0);
  const [shut, setShut] = useState(false);
  const [busy, setBusy] = useState(/** @type {"" | "send" | "stop"} */ (""));
  const [wrong, setWrong] = useState("");
  const area = /** @type {{current: HTMLTextAreaElement | null}} */ (useRef(null));
  const told = useAnswers(session);
  const all = offers(info.value.availableCommands);
  const found = (!shut && fitting(all, before)) || [];
  const place = `/v1/sessions/${encodeURIComponent(session)}/prompt`;
  const hint = all.find((one) => text.trimEnd() === `/${one.name}`)?.hint ?? "";
  const chosen = Math.min(at, found.length - 1);

  useEffect(() => setWrong(""), [info.value.turn]);

  function typed(/** @type {HTMLTextAreaElement} */ field) {
    setWrong("");
    setText(field.value);
    setBefore(field.value.slice(0, field.selectionStart));
    setShut(false);
    setAt(0);
  }

  function pick(/** @type {Offer} */ offer) {
    const rest = text.slice(before.length).replace(/^\S*\s?/, "");
    setText(`/${offer.name} ${rest}`);
    setBefore("");
    area.current?.focus();
  }

  /** What was typed stays until the server has it. @param {"send" | "stop"} what @param {() => Promise<unknown>} act */
  async function attempt(what, act) {
    setBusy(what);
    setWrong("");
    try {
      await act();
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    } finally {
      setBusy((now) => (now === what ? "" : now)); // A turn may be over, and the next be sent, before Stop is answered.
      area.current?.focus();
    }
  }
  async function say() {
    await post(place, { text });
    if (area.current?.value === text) {
      setText("");
      setBefore("");
    }
    spoken.value++;
  }
  const send = () => {
    if (text.trim() && busy !== "send") attempt("send", say);
  };
  const stop = () => attempt("stop", () => post(`${place}/stop`, {}));

  const KEYS = /** @type {Record<string, () => void>} */ ({
    ArrowDown: () => setAt((chosen + 1) % found.length),
    ArrowUp: () => setAt((chosen + found.length - 1) % found.length),
    Tab: () => pick(found[chosen]),
    Enter: () => (before === text && text === `/${found[chosen].name}` ? send() : pick(found[chosen])),
    Escape: () => setShut(true),
  });

  function onKey(/** @type {KeyboardEvent} */ event) {
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (found.length && KEYS[event.key]) KEYS[event.key]();
    else if (event.key === "Enter") send();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  if (!told) return null;
  if (!told.answers) return html`<p class="alone dim">${sentence(told.why)}.</p>`;
  const id = "prompt";
  return html`<form class="prompt" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), send())}>
    ${found.length ? html`<${Completions} id=${`${id}-list`} found=${found} at=${chosen} onPick=${pick} />` : ""}
    <div class="box">
      <label class="unseen" for=${id}>Say something to the agent</label>
      <textarea id=${id} ref=${area} class="field" rows="1" dir="auto" value=${text} autocomplete="off"
        placeholder=${all.length ? "Say something, or /" : "Say something"}
        aria-autocomplete="list" aria-haspopup="listbox" aria-controls=${found.length ? `${id}-list` : undefined}
        aria-activedescendant=${found.length ? `${id}-list-${chosen}` : undefined} aria-describedby=${`${id}-told`}
        onInput=${(/** @type {any} */ event) => typed(event.target)} onKeyDown=${onKey}
        onBlur=${() => setShut(true)}></textarea>
      ${info.value.turn
        ? html`<button type="button" class="button" disabled=${Boolean(busy)} onClick=${stop}>
            <span aria-hidden="true">■</span> Stop</button>`
        : html`<button class="button first" disabled=${busy === "send" || !text.trim()}>Send</button>`}
    </div>
    <p id=${`${id}-told`} class="told dim">
      ${hint ? html`<code>${text.trim()}</code> takes: ${inert(hint)}` : info.value.turn ? AT_WORK : KEYS_TOLD}
    </p>
    <p class="wrong" role="alert">${wrong}</p>
    <p class="unseen" role="status">${found.length ? `${found.length} command${found.length === 1 ? "" : "s"}` : ""}</p>
  </form>`;
}
