// Facets: the tools, states and kinds of calls that the filter can select, with counts.

import { inert } from "./ansi.js";
import { classes, html, useState } from "./ui.js";
import { describeState } from "./states.js";
import { replaceTerm } from "./filter_terms.js";

/** @typedef {import("./filter_terms.js").AnyEntry} AnyEntry */
/** @typedef {import("./filter_terms.js").Term} Term */
/** @typedef {{value: string, count: number, on: boolean}} Choice */
/** @typedef {{field: string, label: string, choices: Choice[]}} Facet */

const FACETS = [
  { field: "status", label: "State", of: (/** @type {AnyEntry} */ call) => call.status },
  { field: "tool", label: "Tool", of: (/** @type {AnyEntry} */ call) => call.toolName ?? "" },
  { field: "kind", label: "Kind", of: (/** @type {AnyEntry} */ call) => call.kind ?? "" },
];
const INITIAL_CHOICES = 8;

/** @typedef {[field: string, values: {value: string, count: number}[]]} FacetCounts */

/**
 * Count the values of each facet. A facet's own terms are ignored, so that its counts show what another choice selects.
 * @param {AnyEntry[][]} units @param {Term[]} terms @returns {FacetCounts[]}
 */
export function countFacets(units, terms) {
  const counts = FACETS.map(() => /** @type {Map<string, number>} */ (new Map()));
  for (const unit of units) {
    if (unit[0].type !== "tool_call") continue;
    // `-type:approval` hides the requests of a call and not the call.
    const holds = (/** @type {Term} */ term) =>
      term.holds(term.negated && term.field === "type" ? unit.slice(0, 1) : unit);
    const failing = terms.filter((term) => holds(term) === term.negated);
    FACETS.forEach(({ field, of }, index) => {
      if (!failing.every((term) => term.field === field)) return;
      const value = of(unit[0]);
      counts[index].set(value, (counts[index].get(value) ?? 0) + 1);
    });
  }
  return FACETS.map(({ field }, index) => [field, [...counts[index]].map(([value, count]) => ({ value, count }))]);
}

/**
 * List the choices of each facet: those that the filter selects first, then the most common.
 * @param {Record<string, {value: string, count: number}[]>} counts @param {Term[]} terms @returns {Facet[]}
 */
export const listFacets = (counts, terms) =>
  FACETS.map(({ field, label }) => ({ field, label, choices: listChoices(counts[field] ?? [], field, terms) }));

/** @param {{value: string, count: number}[]} counts @param {string} field @param {Term[]} terms */
function listChoices(counts, field, terms) {
  const ownTerms = terms.filter((term) => term.field === field && !term.negated);
  const selected = ownTerms.flatMap((term) => term.values);
  const isSelected = (/** @type {string} */ value) =>
    selected.some((one) => one.toLowerCase() === value.toLowerCase());
  const hasCount = (/** @type {string} */ value) => counts.some((one) => one.value.toLowerCase() === value.toLowerCase());
  const absent = selected.filter((value) => !hasCount(value)).map((value) => ({ value, count: 0 }));
  return [...counts, ...absent]
    .map(({ value, count }) => ({ value, count, on: isSelected(value) }))
    .filter(({ value, on }) => on || value || counts.length > 1)
    .sort((one, other) =>
      Number(other.on) - Number(one.on) || other.count - one.count || (one.value < other.value ? -1 : 1));
}

/** Quote a value for the filter. @param {string} value */
export const quoteValue = (value) => (/[\s,"]/u.test(value) || !value ? `"${value.replaceAll('"', "")}"` : value);

/**
 * Return the filter text with a value added to the term of its field, or removed from it.
 * @param {string} typed @param {Term[]} terms @param {string} field @param {string} value
 */
export function toggleValue(typed, terms, field, value) {
  const term = terms.find((one) => one.field === field && !one.negated);
  if (!term) return `${typed.trim()} ${field}:${quoteValue(value)}`.trim();
  const others = term.values.filter((one) => one.toLowerCase() !== value.toLowerCase());
  const values = others.length < term.values.length ? others : [...term.values, value];
  return replaceTerm(typed, term, values.length ? `${field}:${values.map(quoteValue).join(",")}` : "");
}

/** Move the focus between choices with the arrow keys. @param {KeyboardEvent} event */
function onArrowKey(event) {
  const step = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1 })[event.key];
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
  const [isExpanded, setIsExpanded] = useState(false);
  const { field, label, choices } = facet;
  if (!choices.length) return null;
  const visible = isExpanded ? choices : choices.slice(0, INITIAL_CHOICES);
  const hidden = choices.length - INITIAL_CHOICES;
  return html`<section role="group" aria-label=${`Filter by ${label.toLowerCase()}`} onKeyDown=${onArrowKey}>
    <h2 aria-hidden="true">${label}</h2>
    ${visible.map((choice) => html`<${ChoiceButton} key=${choice.value} field=${field} choice=${choice}
      onToggle=${onToggle} />`)}
    ${hidden > 0 && html`<button type="button" class="facet" aria-expanded=${String(isExpanded)}
      onClick=${() => setIsExpanded(!isExpanded)}>${isExpanded ? "Show fewer" : `Show ${hidden} more`}</button>`}
  </section>`;
}

/** @param {{field: string, choice: Choice, onToggle: (field: string, value: string) => void}} props */
function ChoiceButton({ field, choice, onToggle }) {
  const { value, count, on } = choice;
  const state = field === "status" ? describeState(value) : null;
  const name = state ? state.label : inert(value) || "None";
  return html`<button type="button" class=${classes("facet", state && `is-${value}`)} aria-pressed=${String(on)}
    aria-label=${`${name}, ${count.toLocaleString("en")} ${count === 1 ? "call" : "calls"}`} onClick=${() => onToggle(field, value)}>
    ${state && html`<span class="sign" aria-hidden="true">${state.icon === "ring"
      ? html`<span class="ring"></span>` : html`<i class=${`i i-${state.icon}`}></i>`}</span>`}
    <span class=${classes("cut untrusted", !state && "mono")} dir="auto">${name}</span>${" "}
    <span class="num">${count.toLocaleString("en")}</span></button>`;
}

/** @param {{facets: Facet[], onToggle: (field: string, value: string) => void}} props */
export default function Facets({ facets, onToggle }) {
  return facets.map((facet) => html`<${FacetRow} key=${facet.field} facet=${facet} onToggle=${onToggle} />`);
}
