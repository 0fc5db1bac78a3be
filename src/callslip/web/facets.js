// What there is to filter by, with counts: tools, states and kinds of the calls that the other terms leave.

import { inert } from "./ansi.js";
import { classes, html, useState } from "./ui.js";
import { stateOf } from "./states.js";
import { replaced } from "./filter_terms.js";

/** @typedef {import("./filter_terms.js").Any} Any */
/** @typedef {import("./filter_terms.js").Term} Term */
/** @typedef {{value: string, count: number, on: boolean}} Choice */
/** @typedef {{field: string, label: string, choices: Choice[]}} Facet */

const FACETS = [
  { field: "tool", label: "Tool", of: (/** @type {Any} */ call) => call.toolName ?? "" },
  { field: "status", label: "State", of: (/** @type {Any} */ call) => call.status },
  { field: "kind", label: "Kind", of: (/** @type {Any} */ call) => call.kind ?? "" },
];
const FEW = 8;

/**
 * Facets with counts that follow all terms but the facet's own, so that one sees what another choice would give.
 * @param {Any[][]} units @param {Term[]} terms @returns {Facet[]}
 */
export function facetsOf(units, terms) {
  const counts = FACETS.map(() => /** @type {Map<string, number>} */ (new Map()));
  for (const unit of units) {
    if (unit[0].type !== "tool_call") continue;
    const missed = terms.filter((term) => term.holds(unit) === term.negated);
    FACETS.forEach(({ field, of }, index) => {
      const value = of(unit[0]);
      const counted = missed.every((term) => term.field === field) ? 1 : 0;
      counts[index].set(value, (counts[index].get(value) ?? 0) + counted);
    });
  }
  return FACETS.map(({ field, label }, index) => ({ field, label, choices: choicesOf(counts[index], field, terms) }));
}

/** @param {Map<string, number>} counts @param {string} field @param {Term[]} terms */
function choicesOf(counts, field, terms) {
  const own = terms.filter((term) => term.field === field && !term.negated);
  const chosen = new Set(own.flatMap((term) => term.values.map((value) => value.toLowerCase())));
  return [...counts]
    .map(([value, count]) => ({ value, count, on: chosen.has(value.toLowerCase()) }))
    .filter(({ value, on, count }) => on || (count > 0 && (value || counts.size > 1)))
    .sort((one, other) =>
      Number(other.on) - Number(one.on) || other.count - one.count || (one.value < other.value ? -1 : 1));
}

/** A value as it must be typed. @param {string} value */
export const quoted = (value) => (/[\s,"]/u.test(value) || !value ? `"${value.replaceAll('"', "")}"` : value);

/**
 * What is typed when a choice is taken, or given back: its value joins the term of its field, or leaves it.
 * @param {string} typed @param {Term[]} terms @param {string} field @param {string} value
 */
export function toggled(typed, terms, field, value) {
  const term = terms.find((one) => one.field === field && !one.negated);
  if (!term) return `${typed.trim()} ${field}:${quoted(value)}`.trim();
  const others = term.values.filter((one) => one.toLowerCase() !== value.toLowerCase());
  const values = others.length < term.values.length ? others : [...term.values, value];
  return replaced(typed, term, values.length ? `${field}:${values.map(quoted).join(",")}` : "");
}

/** Arrow keys go from choice to choice. @param {KeyboardEvent} event */
function walk(event) {
  const step = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowLeft: -1 })[event.key];
  if (!step) return;
  const group = /** @type {HTMLElement} */ (event.currentTarget);
  const all = /** @type {HTMLElement[]} */ ([...group.querySelectorAll("button")]);
  const next = all[all.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

/** @param {{facet: Facet, onToggle: (field: string, value: string) => void}} props */
function FacetRow({ facet, onToggle }) {
  const [whole, setWhole] = useState(false);
  const { field, label, choices } = facet;
  if (!choices.length) return null;
  const shown = whole ? choices : choices.slice(0, FEW);
  return html`<div class="facet" role="group" aria-label=${`Filter by ${label.toLowerCase()}`} onKeyDown=${walk}>
    <span class="facet-label" aria-hidden="true">${label}</span>
    <div class="facet-choices">
      ${shown.map((choice) => html`<${ChoiceButton} key=${choice.value} field=${field} choice=${choice}
        onToggle=${onToggle} />`)}
      ${choices.length > FEW && html`<button type="button" class="facet-more" aria-expanded=${String(whole)}
        onClick=${() => setWhole(!whole)}>${whole ? "fewer" : `${choices.length - FEW} more`}</button>`}
    </div>
  </div>`;
}

/** @param {{field: string, choice: Choice, onToggle: (field: string, value: string) => void}} props */
function ChoiceButton({ field, choice, onToggle }) {
  const { value, count, on } = choice;
  const state = field === "status" ? stateOf(value) : null;
  const name = state ? state.word : inert(value) || "none";
  return html`<button type="button" class=${classes("facet-choice", state && `is-${value}`, !count && "none")}
    aria-pressed=${String(on)}
    aria-label=${`${name}, ${count} ${count === 1 ? "call" : "calls"}`} onClick=${() => onToggle(field, value)}>
    ${state && html`<span class="facet-glyph" aria-hidden="true">${state.glyph}</span>`}
    <span class="facet-name" dir="auto">${name}</span> <span class="facet-count">${count}</span></button>`;
}

/** @param {{facets: Facet[], onToggle: (field: string, value: string) => void}} props */
export default function Facets({ facets, onToggle }) {
  return html`<div class="facets">
    ${facets.map((facet) => html`<${FacetRow} key=${facet.field} facet=${facet} onToggle=${onToggle} />`)}</div>`;
}
