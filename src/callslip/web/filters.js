// The filter of a session: an input, what was asked for as chips, and facets with counts. The terms are in filter_terms.js.

import { inert } from "./ansi.js";
import Facets, { facetsOf, toggled } from "./facets.js";
import { classes, html, useMemo, useRef, useState } from "./ui.js";
import { stateOf } from "./states.js";
import { filterEntries, parseFilter, replaced, unitsOf } from "./filter_terms.js";

export { filterEntries, parseFilter };

/** @typedef {import("./filter_terms.js").Any} Any */
/** @typedef {import("./filter_terms.js").Term} Term */

const EXAMPLES = ["tool:", "status:", "kind:", "type:", "turn:", "id:", ">5s", "<200ms", '"some text"'];

/** @param {string[]} words */
const join = (...words) => words.filter(Boolean).join(" ");

/** @param {Term} term */
function wordsOf(term) {
  const { field, values, negated } = term;
  const word = (/** @type {string} */ value) => (field === "status" && value !== "open" ? stateOf(value).word : value);
  const said = values.map((value) => inert(word(value)) || "none").join(" or ");
  const named = field === "text" ? `“${said}”` : field === "time" ? said : `${field}: ${said}`;
  return negated ? `not ${named}` : named;
}

/** @param {{terms: Term[], onRemove: (term: Term) => void}} props */
function Chips({ terms, onRemove }) {
  if (!terms.length) return null;
  return html`<ul class="chips" aria-label="What is filtered by">
    ${terms.map((term) => html`<li key=${term.start} class=${classes("chip", term.negated && "chip-not")}>
      <span class="chip-word" dir="auto">${wordsOf(term)}</span>
      <button type="button" class="chip-off" aria-label=${`Remove ${wordsOf(term)}`}
        onClick=${() => onRemove(term)}>✕</button></li>`)}
  </ul>`;
}

/**
 * What is typed and not yet a chip. `value` is all of it; if somebody else changes its end, nothing is left here.
 * @param {string} value @param {string} draft
 */
function partsOf(value, draft) {
  const rest = draft.trim();
  if (!rest || !(value === rest || value.endsWith(` ${rest}`))) return { done: value, rest: "" };
  return { done: value.slice(0, value.length - rest.length).trimEnd(), rest: draft };
}

/**
 * @param {{entries: Any[], value: string, onChange: (value: string) => void, now?: () => number}} props
 * `entries` are all of them, not only those that the filter leaves. The key `/` comes here (help.js): it is a search
 * of the view.
 */
export function FilterBar({ entries, value, onChange, now = Date.now }) {
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [draft, setDraft] = useState("");
  const [wide, setWide] = useState(false);
  const filter = useMemo(() => parseFilter(value, now), [value]);
  const facets = useMemo(() => (wide ? facetsOf(unitsOf(entries), filter.terms) : []), [entries, filter, wide]);
  const left = useMemo(() => filterEntries(entries, filter).length, [entries, filter]);
  const { done, rest } = partsOf(value, draft);
  const chips = filter.terms.filter((term) => term.end <= done.length);

  const say = (/** @type {string} */ base, /** @type {string} */ typed) => {
    setDraft(typed);
    onChange(join(base.trim(), typed.trim()));
  };
  const remove = (/** @type {Term} */ term) => {
    say(replaced(done, term), rest);
    input.current?.focus();
  };
  const clear = () => {
    say("", "");
    input.current?.focus();
  };
  /** @type {Record<string, (event: KeyboardEvent) => void>} */
  const keys = {
    Enter: (event) => {
      event.preventDefault();
      setDraft("");
    },
    Escape: () => (rest ? say(done, "") : input.current?.blur()),
    Backspace: (event) => {
      const last = chips.at(-1);
      if (rest || !last || input.current?.selectionStart) return;
      event.preventDefault();
      say(done.slice(0, last.start).trimEnd(), last.word); // The last chip can be written anew.
    },
  };
  const intoBox = (/** @type {MouseEvent} */ event) =>
    event.target === event.currentTarget && input.current?.focus();
  const toggle = (/** @type {string} */ field, /** @type {string} */ choice) => {
    setDraft("");
    onChange(toggled(value, filter.terms, field, choice));
  };

  return html`<div class="filter" role="search" aria-label="Filter this session">
    <div class="filter-row">
      <div class="filter-box" onClick=${intoBox}>
        <span class="filter-sign" aria-hidden="true">⌕</span>
        <div class="filter-words"><${Chips} terms=${chips} onRemove=${remove} />
          <input ref=${input} class="filter-input" type="text" value=${rest} aria-label="Filter" dir="auto"
            aria-describedby="filter-hint" aria-keyshortcuts="/"
            autocomplete="off" autocapitalize="off" spellcheck=${false} enterkeyhint="search"
            placeholder=${chips.length ? "" : "tool:bash status:failed >5s text"}
            onInput=${(/** @type {any} */ event) => say(done, event.currentTarget.value)}
            onKeyDown=${(/** @type {KeyboardEvent} */ event) => !event.isComposing && keys[event.key]?.(event)} /></div>
        ${value
          ? html`<button type="button" class="filter-clear" aria-label="Clear the filter" onClick=${clear}>✕</button>`
          : html`<kbd class="filter-key" aria-hidden="true">/</kbd>`}
      </div>
      <button type="button" class="filter-wide" aria-expanded=${String(wide)} onClick=${() => setWide(!wide)}>
        Facets <span aria-hidden="true">${wide ? "▴" : "▾"}</span></button>
    </div>
    <p class="filter-hint" id="filter-hint" hidden=${!wide}>Terms: ${EXAMPLES.map((one) => html`<code>${one}</code> `)}
      ${"A minus before a term excludes; Enter makes it a chip."}</p>
    <p class="filter-left" role="status">
      ${value && `${left} of ${entries.length} ${entries.length === 1 ? "entry" : "entries"}`}</p>
    ${wide && html`<${Facets} facets=${facets} onToggle=${toggle} />`}
  </div>`;
}

export default FilterBar;
