// The filter bar of a session: an input, a chip for each term, and facets with counts. See filter_terms.js for terms.

import { inert } from "./ansi.js";
import Facets, { listFacets, toggleValue } from "./facets.js";
import { classes, html, useMemo, useRef, useState } from "./ui.js";
import { describeState } from "./states.js";
import { parseFilter, replaceTerm } from "./filter_terms.js";
import { filterStatus, result, retryFilter } from "./matches.js";

/** @typedef {import("./filter_terms.js").Term} Term */

const EXAMPLES = ["tool:", "status:", "kind:", "type:", "turn:", "id:", ">5s", "<200ms", '"some text"'];

/** @param {string[]} words */
const join = (...words) => words.filter(Boolean).join(" ");

/** @param {Term} term */
function describeTerm(term) {
  const { field, values, negated } = term;
  const isState = (/** @type {string} */ value) => field === "status" && value !== "open";
  const word = (/** @type {string} */ value) => (isState(value) ? describeState(value).label : value);
  const text = values.map((value) => inert(word(value)) || "None").join(" or ");
  const named = field === "text" ? `“${text}”` : field === "time" ? text : `${field}: ${text}`;
  return negated ? `not ${named}` : named;
}

/** @param {{terms: Term[], onRemove: (term: Term) => void}} props */
function Chips({ terms, onRemove }) {
  if (!terms.length) return null;
  return html`<ul class="chips" aria-label="Active filters">
    ${terms.map((term) => html`<li key=${term.start} class=${classes("term", term.negated && "term-not")}>
      <span class="chip-word" dir="auto">${describeTerm(term)}</span>
      <button type="button" class="chip-off" aria-label=${`Remove ${describeTerm(term)}`}
        onClick=${() => onRemove(term)}>
        <i class="i i-close" aria-hidden="true"></i></button></li>`)}
  </ul>`;
}

/**
 * Split the filter text into terms that are chips and the draft that the user still types. If the text no longer ends
 * with the draft, because something else changed it, there is no draft.
 * @param {string} value @param {string} draft
 */
function splitDraft(value, draft) {
  const rest = draft.trim();
  if (!rest || !(value === rest || value.endsWith(` ${rest}`))) return { done: value, rest: "" };
  return { done: value.slice(0, value.length - rest.length).trimEnd(), rest: draft };
}

/** How many entries of the session match, or why that is not known. @param {{value: string}} props */
export function MatchCount({ value }) {
  const problem = filterStatus.value;
  if (!value.trim()) return html`<p class="filter-left" role="status"></p>`;
  if (problem && problem !== "loading") {
    return html`<p class="filter-left"><span class="warn" role="alert">Could not filter: ${problem}</span>${" "}
      <button type="button" class="link" onClick=${retryFilter}>Try again</button></p>`;
  }
  const { matched = 0, total = 0 } = result.value ?? {};
  const count = `${matched.toLocaleString("en")} of ${total.toLocaleString("en")} ${total === 1 ? "entry" : "entries"}`;
  return html`<p class="filter-left" role="status">${problem || !result.value ? "Filtering…" : count}</p>`;
}

/** The facets of the calls, with counts. @param {{value: string, onChange: (value: string) => void}} props */
export function SideFacets({ value, onChange }) {
  const { terms } = useMemo(() => parseFilter(value), [value]);
  const toggle = (/** @type {string} */ field, /** @type {string} */ choice) =>
    onChange(toggleValue(value, terms, field, choice));
  return html`<${Facets} facets=${listFacets(result.value?.facets ?? {}, terms)} onToggle=${toggle} />`;
}

/**
 * The key `/` focuses the input (help.js).
 * @param {{value: string, onChange: (value: string) => void}} props
 */
export function FilterBar({ value, onChange }) {
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [draft, setDraft] = useState("");
  const filter = useMemo(() => parseFilter(value), [value]);
  const { done, rest } = splitDraft(value, draft);
  const chips = filter.terms.filter((term) => term.end <= done.length);

  const update = (/** @type {string} */ base, /** @type {string} */ typed) => {
    setDraft(typed);
    onChange(join(base.trim(), typed.trim()));
  };
  const remove = (/** @type {Term} */ term) => {
    update(replaceTerm(done, term), rest);
    input.current?.focus();
  };
  const clear = () => {
    update("", "");
    input.current?.focus();
  };
  /** @type {Record<string, (event: KeyboardEvent) => void>} */
  const keys = {
    Enter: (event) => {
      event.preventDefault();
      setDraft("");
    },
    Escape: () => (rest ? update(done, "") : input.current?.blur()),
    Backspace: (event) => {
      const last = chips.at(-1);
      if (rest || !last || input.current?.selectionStart) return;
      event.preventDefault();
      update(done.slice(0, last.start).trimEnd(), last.word); // Turn the last chip back into text.
    },
  };
  const focusInput = (/** @type {MouseEvent} */ event) =>
    event.target === event.currentTarget && input.current?.focus();
  const examples = `For example ${EXAMPLES.join("  ")}. A term with - before it excludes. Enter adds a term.`;
  return html`<div class="filter" role="search" aria-label="Filter this session">
    <div class="field soft filter-box" onClick=${focusInput}>
      <i class="i i-filter dim" aria-hidden="true"></i>
      <div class="filter-words"><${Chips} terms=${chips} onRemove=${remove} />
        <input ref=${input} class="filter-input" type="text" value=${rest} aria-label="Filter" dir="auto"
          aria-describedby="filter-hint" aria-keyshortcuts="/" title=${examples}
          autocomplete="off" autocapitalize="off" spellcheck=${false} enterkeyhint="search"
          placeholder=${chips.length ? "" : "Filter calls"}
          onInput=${(/** @type {any} */ event) => update(done, event.currentTarget.value)}
          onKeyDown=${(/** @type {KeyboardEvent} */ event) => !event.isComposing && keys[event.key]?.(event)} /></div>
      ${value
        ? html`<button type="button" class="filter-clear" aria-label="Clear filters" onClick=${clear}>
            <i class="i i-close" aria-hidden="true"></i></button>`
        : html`<kbd aria-hidden="true">/</kbd>`}
    </div>
    <p class="visually-hidden" id="filter-hint">${examples}</p>
  </div>`;
}

export default FilterBar;
