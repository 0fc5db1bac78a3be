// The arguments of a call, shown so that nothing in them acts, and changed by whoever approves. Whether they fit is
// for the server to say: what is checked here is only that they are JSON at all, since nothing else can be sent.

import { inert } from "./ansi.js";
import { html, useEffect, useRef, useState } from "./ui.js";

const LITERAL = /^(|true|false|null|-?\d[\d.eE+-]*)$/;

/**
 * A value as text: texts as they are, unless they could be taken for something else, and all else as JSON.
 * @param {unknown} value
 */
function written(value) {
  const plain = typeof value === "string" && !LITERAL.test(value.trim());
  return inert(plain ? /** @type {string} */ (value) : (JSON.stringify(value, null, 2) ?? ""));
}

/** @param {{value: unknown, label: string}} props */
const Value = ({ value, label }) =>
  html`<pre class="arg-value foreign" dir="auto" tabindex="0" role="group" aria-label=${label}>${written(value)}</pre>`;

/**
 * What a call was, or would be, given.
 * @param {{input: unknown}} props
 */
export function Arguments({ input }) {
  if (input === undefined || input === null) return html`<p class="dim">It takes no arguments.</p>`;
  const named = typeof input === "object" && !Array.isArray(input) ? Object.entries(input) : [];
  if (!named.length) return html`<${Value} value=${input} label="Arguments" />`;
  return html`<dl class="args">
    ${named.map(
      ([name, value]) => html`<div class="arg" key=${name}>
        <dt class="foreign" dir="auto">${inert(name)}</dt>
        <dd><${Value} value=${value} label=${`Argument ${inert(name)}`} /></dd>
      </div>`,
    )}
  </dl>`;
}

// What a schema says, for people

/** @typedef {{type?: string | string[], enum?: unknown[], const?: unknown, description?: string, items?: Schema,
 *   properties?: Record<string, Schema>, required?: string[], minimum?: number, maximum?: number, minLength?: number,
 *   maxLength?: number, pattern?: string, default?: unknown}} Schema */

const LIMITS = /** @type {[keyof Schema, string][]} */ ([
  ["minimum", "at least"],
  ["maximum", "at most"],
  ["minLength", "length at least"],
  ["maxLength", "length at most"],
  ["pattern", "matches"],
  ["default", "default"],
]);

/** @param {Schema} schema */
function kind(schema) {
  if (schema.enum) return `one of ${schema.enum.map((value) => JSON.stringify(value)).join(", ")}`;
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const types = [schema.type ?? "anything"].flat().join(" or ");
  return schema.items?.type ? `${types} of ${[schema.items.type].flat().join(" or ")}` : types;
}

/** @param {{name: string, schema: Schema, required: boolean}} props */
function Hint({ name, schema, required }) {
  const limits = LIMITS.filter(([key]) => schema[key] !== undefined).map(([key, word]) => `${word} ${schema[key]}`);
  return html`<li class="foreign" dir="auto">
    <code>${inert(name)}</code> ${inert([kind(schema), ...limits].join(", "))}${required ? html`, <b>required</b>` : ""}
    ${schema.description ? html`<span class="dim"> — ${inert(String(schema.description))}</span>` : ""}
  </li>`;
}

/** @param {{schema: Schema | null | undefined}} props */
function Hints({ schema }) {
  const known = Object.entries(schema?.properties ?? {}).filter(([, one]) => one && typeof one === "object");
  if (!schema || !known.length) return null;
  const required = Array.isArray(schema.required) ? schema.required : [];
  return html`<details class="hints" open>
    <summary>What the tool takes</summary>
    <ul>
      ${known.map(([name, one]) => html`
        <${Hint} key=${name} name=${name} schema=${one} required=${required.includes(name)} />`)}
    </ul>
  </details>`;
}

// Changing them

/** @param {string} text @returns {{input?: unknown, wrong?: string}} */
function read(text) {
  try {
    return { input: JSON.parse(text) };
  } catch (error) {
    return { wrong: `This is not JSON yet: ${/** @type {Error} */ (error).message}` };
  }
}

/**
 * A form for other arguments. `wrong` is what the server said about those that were sent.
 * @param {{id: string, input: unknown, schema?: Schema | null, busy: boolean, wrong: string,
 *   onSend: (input: unknown) => void, onBack: () => void}} props
 */
export function EditForm({ id, input, schema, busy, wrong, onSend, onBack }) {
  const [text, setText] = useState(() => JSON.stringify(input ?? {}, null, 2));
  const [unread, setUnread] = useState("");
  const area = /** @type {{current: HTMLTextAreaElement | null}} */ (useRef(null));
  useEffect(() => area.current?.focus(), []);
  const said = unread || wrong;

  function send() {
    const { input: given, wrong: why } = read(text);
    setUnread(why ?? "");
    if (why) area.current?.focus();
    else onSend(given);
  }

  return html`<form class="edit" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), send())}
    onKeyDown=${(/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Escape") onBack();
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }}>
    <label for=${`${id}-input`}>Arguments, as JSON</label>
    <textarea id=${`${id}-input`} ref=${area} class="editor" rows=${Math.min(16, text.split("\n").length + 1)}
      value=${text} spellcheck=${false} autocomplete="off" autocapitalize="off" dir="ltr" disabled=${busy}
      aria-invalid=${said ? "true" : "false"} aria-describedby=${`${id}-wrong`}
      onInput=${(/** @type {any} */ event) => (setText(event.target.value), setUnread(""))}></textarea>
    <p id=${`${id}-wrong`} class="wrong" role="alert">${said}</p>
    <${Hints} schema=${schema} />
    <div class="ways">
      <button type="submit" class="button allow first" disabled=${busy}>✓ Approve with these</button>
      <button type="button" class="button" disabled=${busy} onClick=${onBack}>Back</button>
      <span class="dim keys"><kbd>Ctrl</kbd> <kbd>Enter</kbd> approves, <kbd>Esc</kbd> goes back</span>
    </div>
  </form>`;
}
