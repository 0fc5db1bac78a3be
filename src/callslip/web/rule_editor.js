// A form for a rule: what it matches, where and for how long. The server proposes the patterns, and says what the rule
// would have matched among recent calls; only a rule whose matches were shown can be saved.

import { inert } from "./ansi.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { post } from "./state.js";

/**
 * @typedef {{action: string, filters: Record<string, any>, reason: string, scope: string, scopeValue: string,
 *   lifetime: string}} Rule
 * @typedef {{calls: any[], matched: number, lookedAt: number}} Preview
 */

const PREVIEW_DELAY_MS = 250;

/** @type {Record<string, string>} */
export const ACTIONS = { allow: "Allow", ask: "Ask", deny: "Deny" };

/** @type {Record<string, {icon: string, look: string}>} */
const ACTION_LOOKS = {
  allow: { icon: "shield", look: "good" },
  ask: { icon: "wait", look: "wait" },
  deny: { icon: "deny", look: "mid" },
};

/** A decision: its icon and its word. @param {{action: string, word?: string}} props */
export function DecisionMark({ action, word = ACTIONS[action] ?? action }) {
  const { icon, look } = ACTION_LOOKS[action] ?? ACTION_LOOKS.ask;
  return html`<span class=${`dec ${look}`}><i class=${`i i-${icon}`} aria-hidden="true"></i>${word}</span>`;
}

const LIFETIMES = { once: "Once", hour: "An hour", "until-revoked": "Until revoked" };

/** Names of filters by their path in a rule. A filter of another path is named by it. @type {Record<string, string>} */
const FILTER_NAMES = { tool: "Tool", kind: "Kind", title: "Title", path: "Files", "input.command": "Command" };

/**
 * A filter: its path in the rule, its name, and its patterns, of which one must match.
 * @typedef {{path: string[], name: string, patterns: string[]}} Filter
 */

/** @param {any} filters @param {string[]} [before] @returns {Filter[]} */
export const listFilters = (filters, before = []) =>
  Object.entries(filters ?? {}).flatMap(([key, value]) => {
    const path = [...before, key];
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return listFilters(value, path);
    const patterns = [value].flat().map((one) => (typeof one === "string" ? one : JSON.stringify(one)));
    return [{ path, name: FILTER_NAMES[path.join(".")] ?? path.join("."), patterns }];
  });

/** Whether the patterns of a filter cannot be edited as lines. @param {Filter} filter */
const isFixed = ({ patterns }) => patterns.some((pattern) => pattern.includes("\n"));

/**
 * Return filters with the edited patterns, one in each line. Filters without a pattern are left out, and those that were
 * not edited stay as they are.
 * @param {Filter[]} fields @param {string[]} texts @param {any} before
 */
function toFilters(fields, texts, before) {
  const filters = /** @type {any} */ ({});
  fields.forEach(({ path, patterns }, at) => {
    const lines = texts[at].split("\n").map((line) => line.trim()).filter((line) => line);
    if (!lines.length) return;
    const group = path.slice(0, -1).reduce((inner, name) => (inner[name] ??= {}), filters);
    const isSame = texts[at] === patterns.join("\n");
    const old = path.reduce((value, name) => value[name], before);
    group[path[path.length - 1]] = isSame ? old : lines.length > 1 ? lines : lines[0];
  });
  return filters;
}

/**
 * What the rule would have matched. `onShown` is called with the rule whose matches are displayed.
 * @param {{rule: Rule, onShown: (rule: string) => void}} props
 */
function Matches({ rule, onShown }) {
  const [preview, setPreview] = useState(/** @type {Preview | null} */ (null));
  const [problem, setProblem] = useState("");
  const key = JSON.stringify(rule);
  useEffect(() => {
    let isCurrent = true;
    const timer = setTimeout(async () => {
      try {
        const found = await post("/v1/rules/preview", rule);
        if (!isCurrent) return;
        setPreview(found);
        setProblem("");
        onShown(key);
      } catch (error) {
        if (isCurrent) setProblem(/** @type {Error} */ (error).message);
      }
    }, PREVIEW_DELAY_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [key]);
  if (problem) return html`<p class="error-text" role="alert">${inert(problem)}</p>`;
  if (!preview) return html`<p role="status">Looking at recent calls…</p>`;
  const { calls, matched, lookedAt } = preview;
  const count = html`Would have matched <b>${matched}</b> of the last ${lookedAt} call${lookedAt === 1 ? "" : "s"}.`;
  if (!calls.length) return html`<p role="status">${count}</p>`;
  return html`<details class="matched"><summary>${count}</summary>
    <ul>${calls.map((call) => html`<li key=${call.call}>
      <code class="untrusted cut" dir="auto">${inert(call.title || call.toolName)}</code>
      <span class="untrusted cut" dir="auto">${inert(call.session)}</span></li>`)}
      ${matched > calls.length ? html`<li>and ${matched - calls.length} more</li>` : ""}</ul>
  </details>`;
}

/**
 * Options of which one is chosen.
 * @param {{id: string, label: string, options: Record<string, any>, value: string, onChange: (value: string) => void}} props
 */
const Switch = ({ id, label, options, value, onChange }) => html`
  <span class="label" id=${`${id}-label`}>${label}</span>
  <div class="switch" role="radiogroup" aria-labelledby=${`${id}-label`}>
    ${Object.entries(options).map(([name, text]) => html`<label key=${name}>
      <input type="radio" name=${id} value=${name} checked=${name === value} onChange=${() => onChange(name)} />
      ${text}</label>`)}
  </div>`;

/**
 * The values of the scopes that a rule may have. A scope without a value is not offered; one with the value null is
 * typed by the user.
 * @typedef {{session?: string | null, project?: string | null}} Places
 */

/** @param {Places} places @returns {Record<string, string>} */
function scopeOptions({ session, project }) {
  return {
    ...(session !== undefined ? { session: session === null ? "One session" : "This session" } : {}),
    ...(project !== undefined && project !== "" ? { project: project === null ? "One project" : "This project" } : {}),
    everywhere: "Everywhere",
  };
}

/** @type {Record<string, string>} */
const SCOPE_FIELDS = { session: "Name of the session", project: "Folder of the project" };

/**
 * The form. `start` is the rule to begin with; `places` are the values of its scopes. The action is only shown, unless
 * `canChangeAction`. `onSave` may reject, then its message is shown.
 * @param {{id: string, start: Rule, places: Places, label: string, canChangeAction?: boolean,
 *   onSave: (rule: Rule) => Promise<unknown>, onCancel: () => void}} props
 */
export default function RuleEditor({ id, start, places, label, canChangeAction = false, onSave, onCancel }) {
  const [rule, setRule] = useState(start);
  const [fields] = useState(() => listFilters(start.filters));
  const [texts, setTexts] = useState(() => fields.map(({ patterns }) => patterns.join("\n")));
  const [shown, setShown] = useState("");
  const [isBusy, setIsBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const form = /** @type {{current: HTMLFormElement | null}} */ (useRef(null));
  const wanted = { ...rule, filters: toFilters(fields, texts, start.filters) };
  const fixed = /** @type {any} */ (places)[rule.scope];
  const complete = { ...wanted, scopeValue: rule.scope === "everywhere" ? "" : (fixed ?? rule.scopeValue) };
  const isReady = shown === JSON.stringify(complete) && !isBusy;
  useEffect(() => {
    const at = Math.max(0, fields.findIndex(({ name }) => name !== "Tool" && name !== "Kind"));
    form.current?.querySelectorAll("textarea")[at]?.focus();
  }, []);
  const change = (/** @type {Partial<Rule>} */ fields) => setRule((before) => ({ ...before, ...fields }));

  async function save(/** @type {Event} */ event) {
    event.preventDefault();
    if (!isReady) return;
    setIsBusy(true);
    setProblem("");
    try {
      await onSave(complete);
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
      setIsBusy(false);
    }
  }

  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    onCancel();
  };
  return html`<form class="rule" ref=${form} onSubmit=${save} onKeyDown=${onKeyDown} aria-label=${label}>
    <div class="body">
      ${canChangeAction ? html`<${Switch} id=${`${id}-action`} label="Decision" options=${ACTIONS} value=${rule.action}
        onChange=${(/** @type {string} */ action) => change({ action })} />` : ""}
      ${fields.map((field, at) => html`
        <label class="untrusted" dir="auto" key=${`label ${at}`} for=${`${id}-${at}`}>${inert(field.name)}</label>
        <textarea key=${at} id=${`${id}-${at}`} class="field mono" dir="ltr" spellcheck=${false} autocomplete="off"
          autocapitalize="off" readonly=${isFixed(field)} rows=${Math.min(6, texts[at].split("\n").length)}
          value=${texts[at]} onInput=${(/** @type {any} */ event) => setTexts(texts.map((text, n) => (n === at ? event.target.value : text)))}>
        </textarea>`)}
      <${Switch} id=${`${id}-scope`} label="Where" options=${scopeOptions(places)} value=${rule.scope}
        onChange=${(/** @type {string} */ scope) => change({ scope, scopeValue: "" })} />
      ${rule.scope !== "everywhere" ? html`<span class="label"></span>${fixed === null
        ? html`<input class="field" aria-label=${SCOPE_FIELDS[rule.scope]} placeholder=${SCOPE_FIELDS[rule.scope]}
            value=${rule.scopeValue} autocomplete="off" spellcheck=${false}
            onInput=${(/** @type {any} */ event) => change({ scopeValue: event.target.value.trim() })} />`
        : html`<code class="place untrusted" dir="auto">${inert(fixed)}</code>`}` : ""}
      <${Switch} id=${`${id}-lifetime`} label="Until" options=${LIFETIMES} value=${rule.lifetime}
        onChange=${(/** @type {string} */ lifetime) => change({ lifetime })} />
      ${rule.action === "deny" ? html`<label for=${`${id}-reason`}>Reason</label>
        <input id=${`${id}-reason`} class="field" maxlength="2000" dir="auto" autocomplete="off" value=${rule.reason}
          placeholder="Sent to the agent" onInput=${(/** @type {any} */ event) => change({ reason: event.target.value })} />` : ""}
    </div>
    <div class="foot">
      <div class="grow"><${Matches} rule=${complete} onShown=${setShown} />
        <p>One pattern per line; <code>*</code> matches any text. A rule that allows with <code>*</code> matches only one
          simple command, no chain.</p>
        <p class="error-text" role="alert">${inert(problem)}</p></div>
      <div class="acts">
        <button type="button" class="btn" disabled=${isBusy} onClick=${onCancel}>Cancel</button>
        <button type="submit" class=${classes("btn", "main")} disabled=${!isReady}>${label}</button>
      </div>
    </div>
  </form>`;
}

/** Return a rule that matches nothing yet. @returns {Rule} */
export const emptyRule = () => ({
  action: "allow",
  filters: { tool: "", input: { command: "" }, path: "" },
  reason: "",
  scope: "everywhere",
  scopeValue: "",
  lifetime: "until-revoked",
});
