// The parameters of a call, displayed as inert text, and a form to change them before approval. The form only checks
// that they are JSON; the server checks them against the tool's schema.

import { inert } from "./ansi.js";
import { html, useEffect, useRef, useState } from "./ui.js";

const LITERAL = /^(|true|false|null|-?\d[\d.eE+-]*)$/;

/**
 * Format a value: strings as they are, unless they look like another JSON value, and everything else as JSON.
 * @param {unknown} value
 */
function formatValue(value) {
  const isPlain = typeof value === "string" && !LITERAL.test(value.trim());
  return inert(isPlain ? /** @type {string} */ (value) : (JSON.stringify(value, null, 2) ?? ""));
}

/** @param {{value: unknown, label: string}} props */
const Value = ({ value, label }) =>
  html`<pre class="arg-value untrusted" dir="auto" tabindex="0" role="group"
    aria-label=${label}>${formatValue(value)}</pre>`;

/**
 * The parameters of a call.
 * @param {{input: unknown}} props
 */
export function Arguments({ input }) {
  if (input === undefined || input === null) return html`<p class="dim">No parameters.</p>`;
  const fields = typeof input === "object" && !Array.isArray(input) ? Object.entries(input) : [];
  if (!fields.length) return html`<${Value} value=${input} label="Parameters" />`;
  return html`<dl class="args">
    ${fields.map(
      ([name, value]) => html`<div class="arg" key=${name}>
        <dt class="untrusted" dir="auto">${inert(name)}</dt>
        <dd><${Value} value=${value} label=${`Parameter ${inert(name)}`} /></dd>
      </div>`,
    )}
  </dl>`;
}

// Schema hints

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
function describeType(schema) {
  if (schema.enum) return `one of ${schema.enum.map((value) => JSON.stringify(value)).join(", ")}`;
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const types = [schema.type ?? "any"].flat().join(" or ");
  return schema.items?.type ? `${types} of ${[schema.items.type].flat().join(" or ")}` : types;
}

/** @param {{name: string, schema: Schema, required: boolean}} props */
function ParameterHint({ name, schema, required }) {
  const limits = LIMITS.filter(([key]) => schema[key] !== undefined).map(([key, label]) => `${label} ${schema[key]}`);
  return html`<li class="untrusted" dir="auto">
    <code>${inert(name)}</code> ${inert([describeType(schema), ...limits].join(", "))}${required
      ? html`, <b>required</b>` : ""}
    ${schema.description ? html`<span class="dim"> — ${inert(String(schema.description))}</span>` : ""}
  </li>`;
}

/** @param {{schema: Schema | null | undefined}} props */
function ParameterHints({ schema }) {
  const parameters = Object.entries(schema?.properties ?? {}).filter(([, one]) => one && typeof one === "object");
  if (!schema || !parameters.length) return null;
  const required = Array.isArray(schema.required) ? schema.required : [];
  return html`<details class="hints" open>
    <summary>Tool parameters</summary>
    <ul>
      ${parameters.map(([name, one]) => html`
        <${ParameterHint} key=${name} name=${name} schema=${one} required=${required.includes(name)} />`)}
    </ul>
  </details>`;
}

// Edit form

/** @param {string} text @returns {{input?: unknown, error?: string}} */
function parseInput(text) {
  try {
    return { input: JSON.parse(text) };
  } catch (error) {
    return { error: `Invalid JSON: ${/** @type {Error} */ (error).message}` };
  }
}

/**
 * A form to change parameters. `serverError` is the server's message about the parameters that were sent.
 * @param {{id: string, input: unknown, schema?: Schema | null, busy: boolean, error: string,
 *   onSend: (input: unknown) => void, onCancel: () => void}} props
 */
export function EditForm({ id, input, schema, busy, error: serverError, onSend, onCancel }) {
  const [text, setText] = useState(() => JSON.stringify(input ?? {}, null, 2));
  const [parseError, setParseError] = useState("");
  const area = /** @type {{current: HTMLTextAreaElement | null}} */ (useRef(null));
  useEffect(() => area.current?.focus(), []);
  const error = parseError || serverError;

  function send() {
    const { input: newInput, error: problem } = parseInput(text);
    setParseError(problem ?? "");
    if (problem) area.current?.focus();
    else onSend(newInput);
  }

  return html`<form class="edit" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), send())}
    onKeyDown=${(/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Escape") onCancel();
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }}>
    <label for=${`${id}-input`}>Parameters (JSON)</label>
    <textarea id=${`${id}-input`} ref=${area} class="editor" rows=${Math.min(16, text.split("\n").length + 1)}
      value=${text} spellcheck=${false} autocomplete="off" autocapitalize="off" dir="ltr" disabled=${busy}
      aria-invalid=${error ? "true" : "false"} aria-describedby=${`${id}-wrong`}
      onInput=${(/** @type {any} */ event) => (setText(event.target.value), setParseError(""))}></textarea>
    <p id=${`${id}-wrong`} class="error-text" role="alert">${error}</p>
    <${ParameterHints} schema=${schema} />
    <div class="button-row">
      <button type="submit" class="btn yes" disabled=${busy}>Approve with changes</button>
      <button type="button" class="btn" disabled=${busy} onClick=${onCancel}>Cancel</button>
      <span class="dim keys"><kbd>Ctrl</kbd> <kbd>Enter</kbd> to approve, <kbd>Esc</kbd> to cancel</span>
    </div>
  </form>`;
}
