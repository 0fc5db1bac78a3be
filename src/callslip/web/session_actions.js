// The actions on a session in a list: its labels, and its deletion. Each first asks in a line of its own.

import { inert } from "./ansi.js";
import Menu from "./menu.js";
import { countOf } from "./numbers.js";
import { html, useEffect, useRef, useState } from "./ui.js";
import { post, remove } from "./state.js";

/** @typedef {import("./state.js").Row} Row */
/** @typedef {"" | "label" | "delete"} Asked */

/** @type {(row: Row) => [string, string][]} */
export const labelsOf = ({ labels }) =>
  labels && typeof labels === "object" ? Object.entries(labels).map(([key, value]) => [key, textOf(value)]) : [];

/** @param {[string, string]} label */
export const labelText = ([key, value]) => (value ? `${key}: ${value}` : key);

/** @param {unknown} value */
const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** Read labels as `name=value`, separated by commas. @param {string} text */
const parseLabels = (text) => Object.fromEntries(
  text.split(",").map((label) => label.trim()).filter(Boolean).map((label) => {
    const [name, ...value] = label.split("=");
    return [name.trim(), value.join("=").trim()];
  }));

/** @param {{row: Row, onAsk: (asked: Asked) => void}} props */
export function ActionsMenu({ row, onAsk }) {
  return html`<${Menu} label=${`Actions of ${inert(row.session)}`}>
    <button type="button" onClick=${() => onAsk("label")}><i class="i i-edit" aria-hidden="true"></i>
      Labels…</button>
    <button type="button" onClick=${() => onAsk("delete")}><i class="i i-close" aria-hidden="true"></i>
      Delete…</button>
  <//>`;
}

/** The line below a session that asks. @param {{row: Row, asked: Asked, onDone: () => void}} props */
export function Question({ row, asked, onDone }) {
  const [problem, setProblem] = useState("");
  const form = /** @type {{current: HTMLFormElement | null}} */ (useRef(null));
  useEffect(() => {
    const first = form.current?.querySelector("input, [type=button]");
    if (first instanceof HTMLElement) first.focus();
  }, [asked]);
  const path = `/v1/sessions/${encodeURIComponent(row.session)}`;
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    setProblem("");
    try {
      if (asked === "delete") return void (await remove(path));
      await post(`${path}/events`, [{ type: "session.info", labels: parseLabels(event.target.elements.labels.value) }]);
      onDone();
    } catch (error) {
      setProblem(String(/** @type {Error} */ (error).message));
    }
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    onDone();
  };
  const labels = labelsOf(row).map(([key, value]) => (value ? `${key}=${value}` : key)).join(", ");
  return html`<form class="question" ref=${form} onSubmit=${submit} onKeyDown=${onKeyDown}>
    ${asked === "label"
      ? html`<label class="field"><span class="dim">Labels</span>
          <input name="labels" autocomplete="off" spellcheck=${false} aria-label=${`Labels of ${inert(row.session)}`}
            placeholder="team=shop, urgent=yes" defaultValue=${labels} /></label>
        <button class="btn main">Save</button>`
      : html`<span>Delete <b class="untrusted" dir="auto">${inert(row.title || row.prompt || row.session)}</b> for ever, with
          ${countOf(row.calls, "call")}?</span>`}
    <button type="button" class="btn" onClick=${onDone}>Cancel</button>
    ${asked === "delete" && html`<button class="btn no">Delete session</button>`}
    ${problem && html`<span class="bad" role="alert">${inert(problem)}</span>`}
  </form>`;
}
