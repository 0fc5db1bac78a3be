// The rules: those of the policy file, those that were saved, and a test of what they decide about a command. The server
// decides; nothing is run.

import { inert } from "./ansi.js";
import RuleEditor, { DecisionMark, emptyRule, listFilters } from "./rule_editor.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { get, link, post, remove, sessions } from "./state.js";
import { formatAge, formatRemaining, isoTime } from "./time.js";

/**
 * @typedef {import("./rule_editor.js").Rule & {rule: string, state: string, expiresAt: number, usesLeft: number,
 *   uses: number, usedAt: number, createdAt: number, createdBy: string}} SavedRule
 * @typedef {{rule: string, line: number, action: string, filters: any, reason: string}} PolicyRule
 * @typedef {{file: string, rules: PolicyRule[], problem?: string}} Policy
 * @typedef {{rules: SavedRule[], policy?: Policy | null}} Book
 */

/** The patterns of a rule: its command, title or files, or else what it has; the tools are in a column of their own. */
const isTool = (/** @type {{name: string}} */ { name }) => name === "Tool" || name === "Kind";

/** @param {{filters: any}} props */
function Patterns({ filters }) {
  const found = listFilters(filters).filter((filter) => !isTool(filter));
  if (!found.length) return html`<span class="dim">Every call</span>`;
  return found.map(({ name, patterns }, at) => html`
    ${name !== "Command" ? html`<span class="untrusted dim" dir="auto">${at ? " " : ""}${inert(name)} </span>` : ""}
    ${patterns.map((pattern, n) => html`${n ? html`<span class="dim"> or </span>` : ""}
      <code class="untrusted" dir="auto">${inert(pattern)}</code>`)}`);
}

/** @param {any} filters */
const toolsOf = (filters) => listFilters(filters).filter(isTool).flatMap(({ patterns }) => patterns).join(", ");

/** @param {{rule: SavedRule}} props */
function Where({ rule }) {
  if (rule.scope === "everywhere") return html`Everywhere`;
  const row = rule.scope === "session" ? sessions.value.get(rule.scopeValue) : null;
  const name = inert(row?.title || row?.prompt || rule.scopeValue);
  const text = html`<span class="untrusted" dir="auto" title=${inert(rule.scopeValue)}>${name}</span>`;
  return rule.scope === "session"
    ? html`Session <a ...${link(`/s/${encodeURIComponent(rule.scopeValue)}`)}>${text}</a>`
    : html`Project ${text}`;
}

/** @param {{rule: SavedRule}} props */
function Until({ rule }) {
  if (rule.state === "used") return html`<span class="dim">Used</span>`;
  const left = rule.expiresAt ? formatRemaining(rule.expiresAt) : "";
  if (rule.state === "expired" || (rule.expiresAt && !left)) return html`<span class="dim">Expired</span>`;
  if (left) return html`<span class="wait">${left} left</span>`;
  return rule.lifetime === "once" ? "Used once" : "Until revoked";
}

/**
 * A saved rule. Revoking asks first, in its row.
 * @param {{rule: SavedRule, onChange: () => void}} props
 */
function SavedRow({ rule, onChange }) {
  const [isAsking, setIsAsking] = useState(false);
  const [problem, setProblem] = useState("");
  const row = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const ended = rule.state !== "active";
  const isNamed = location.hash === `#${rule.rule}`;
  useEffect(() => {
    if (isNamed) row.current?.scrollIntoView({ block: "center" });
  }, []);
  const ask = (/** @type {boolean} */ asks) => {
    setIsAsking(asks);
    setProblem("");
    requestAnimationFrame(() => /** @type {HTMLElement | null} */ (row.current?.querySelector("button"))?.focus());
  };
  const revoke = () =>
    remove(`/v1/rules/${encodeURIComponent(rule.rule)}`).then(onChange, (error) => setProblem(error.message));
  const effect = rule.action === "allow" ? "Calls like this ask again" : "It decides no call any more";
  return html`<tr ref=${row} id=${rule.rule} class=${classes(ended && "ended", isNamed && "named")}>
    <td class="t m"><div class="ttl"><${DecisionMark} action=${rule.action} />
      <span class="patterns"><${Patterns} filters=${rule.filters} /></span></div>
      ${rule.reason ? html`<p class="why untrusted dim" dir="auto">${inert(rule.reason)}</p>` : ""}</td>
    <td class="c-mid untrusted" dir="auto">${inert(toolsOf(rule.filters)) || "Any"}</td>
    <td class="m"><div class="cut"><${Where} rule=${rule} /></div></td>
    <td class="m"><${Until} rule=${rule} /></td>
    <td class="c-opt"><span class="untrusted" dir="auto">${inert(rule.createdBy)}</span>
      <time class="dim" datetime=${isoTime(rule.createdAt)} title=${isoTime(rule.createdAt)}> ${formatAge(rule.createdAt)}</time></td>
    <td class="n m">${rule.uses ? rule.uses.toLocaleString("en") : html`<span class="dim">none</span>`}
      <span class="only-small"> used</span></td>
    <td class="n m act">${isAsking
      ? html`<div class="confirm" role="group" aria-label="Revoke this rule?">
          <p>${effect}, from the next call on. What already ran stays as it is.</p>
          <button type="button" class="btn no" onClick=${revoke}>Revoke</button>
          <button type="button" class="btn" onClick=${() => ask(false)}>Keep</button></div>`
      : html`<button type="button" class="btn" onClick=${() => ask(true)}>${ended ? "Remove" : "Revoke"}</button>`}
      ${problem ? html`<p class="error-text" role="alert">${inert(problem)}</p>` : ""}</td>
  </tr>`;
}

/** The reason that a rule of the file without one has. */
const OWN_REASON = /^rule \d+ of the policy$/;

/** @param {{rule: PolicyRule}} props */
const PolicyRow = ({ rule }) => html`<tr>
  <td class="t m"><div class="ttl"><${DecisionMark} action=${rule.action} />
    <span class="patterns"><${Patterns} filters=${rule.filters} /></span></div>
    ${OWN_REASON.test(rule.reason) ? "" : html`<p class="why untrusted dim" dir="auto">${inert(rule.reason)}</p>`}</td>
  <td class="c-mid untrusted" dir="auto">${inert(toolsOf(rule.filters)) || "Any"}</td>
  <td class="m">Everywhere</td><td class="m">Always</td><td class="c-opt">In the file</td><td class="n c-opt"></td>
  <td class="n m dim">${rule.line ? `Line ${rule.line}` : ""}</td>
</tr>`;

/** @param {{policy: Policy}} props */
const PolicyHead = ({ policy }) => html`<tr class="day"><th colspan="7" scope="rowgroup"><i class="i i-lock dim" aria-hidden="true"></i>${" "}
  Policy file <code class="untrusted" dir="auto">${inert(policy.file)}</code>${" "}<span>read-only here, decides first</span>
  ${policy.problem ? html`<p class="error-text" role="alert">The file cannot be used, so every request waits for you:
    ${" "}<span class="untrusted" dir="auto">${inert(policy.problem)}</span></p>` : ""}</th></tr>`;

const HEADS = [["Rule", ""], ["Tool", "c-mid"], ["Where", ""], ["Until", ""], ["Created", "c-opt"], ["Used", "n"], ["", "n"]];

/** @param {{book: Book, onChange: () => void}} props */
const Table = ({ book: { rules, policy }, onChange }) => html`<table class="list rules-list">
  <colgroup><col /><col class="c-mid" /><col /><col /><col class="c-opt" /><col /><col /></colgroup>
  <thead><tr>${HEADS.map(([name, css]) => html`<th scope="col" class=${css}>
    ${name || html`<span class="visually-hidden">Actions</span>`}</th>`)}</tr></thead>
  ${policy ? html`<tbody><${PolicyHead} policy=${policy} />
    ${policy.rules.map((rule) => html`<${PolicyRow} key=${rule.rule} rule=${rule} />`)}</tbody>` : ""}
  <tbody>
    <tr class="day"><th colspan="7" scope="rowgroup">Saved rules${" "}
      <span>${rules.length}${policy ? ", after the policy file" : ""}</span></th></tr>
    ${rules.map((rule) => html`<${SavedRow} key=${rule.rule} rule=${rule} onChange=${onChange} />`)}
  </tbody>
</table>`;

const Empty = () => html`<div class="void"><i class="i i-shield" aria-hidden="true"></i>
  <h2>No rules yet</h2>
  <p>Every request for approval waits for you. Choose “Always allow…” on a request to save a rule, or keep rules in a file
    that you can review and share.</p>
  <pre class="term" tabindex="0">callslip serve --policy rules.toml</pre>
  <a class="btn" ...${link("/inbox")}>Open the inbox</a>
</div>`;

// Test a command

/** @type {Record<string, {word: string, css: string}>} */
const VERDICTS = {
  allow: { word: "Allowed", css: "g" },
  ask: { word: "Asks you", css: "w" },
  deny: { word: "Denied", css: "" },
};

/** Describe the result of comparing a rule. @param {any} step @param {boolean} decides @param {string} place */
const stepText = (step, decides, place) => {
  if (decides) return `${place}. Decides.`;
  if (step.matches === null) return `${place}. A person must decide whether it matches.`;
  return `${place}. ${step.matches ? "Matches." : "Does not match."}`;
};

/** @param {{result: any, book: Book}} props */
function Verdict({ result, book }) {
  const { word, css } = VERDICTS[result.action] ?? VERDICTS.ask;
  const known = new Map([...(book.policy?.rules ?? []), ...book.rules].map((rule) => [rule.rule, rule]));
  const steps = /** @type {any[]} */ (result.steps);
  return html`<section class=${`verdict ${css}`} aria-label="Result">
    <header><b><${DecisionMark} action=${result.action} word=${word} /></b>
      <p class="untrusted" dir="auto">${inert(result.reason)}</p></header>
    ${steps.length ? html`<ol class="trace" aria-label="Rules looked at">${steps.map((step) => {
      const rule = /** @type {any} */ (known.get(step.rule));
      const decides = result.rules.includes(step.rule);
      const place = rule?.line ? `Policy file, line ${rule.line}` : step.rule.startsWith("policy:") ? "Policy file" : "Saved";
      return html`<li key=${step.rule} class=${decides ? "won" : undefined}>
        ${decides || step.matches ? html`<${DecisionMark} action=${step.action} />`
          : html`<span class="dec dim"><i class="i i-minus" aria-hidden="true"></i></span>`}
        <span class="patterns">${rule ? html`<${Patterns} filters=${rule.filters} />` : html`<code>${inert(step.rule)}</code>`}</span>
        <small>${stepText(step, decides, place)}</small></li>`;
    })}</ol>` : html`<p class="fine">No rule was looked at.</p>`}
  </section>`;
}

const TEST_DELAY_MS = 250;

/**
 * A command and what the rules decide about it. It is tested again when the rules change.
 * @param {{book: Book, version: number}} props
 */
function TestPanel({ book, version }) {
  const [command, setCommand] = useState("");
  const [tool, setTool] = useState("");
  const [place, setPlace] = useState("");
  const [result, setResult] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const recent = [...sessions.value.values()];
  const projects = [...new Set(recent.map((row) => row.project).filter((project) => project))];
  const [kind, ...rest] = place.split(":");
  const body = { command, toolName: tool, ...(place ? { [kind]: rest.join(":") } : {}) };
  useEffect(() => {
    setProblem("");
    if (!command.trim()) return setResult(null);
    let isCurrent = true;
    const timer = setTimeout(() => post("/v1/rules/test", body).then(
      (found) => isCurrent && setResult(found),
      (error) => isCurrent && (setResult(null), setProblem(error.message)),
    ), TEST_DELAY_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [command, tool, place, version]);
  return html`<aside class="test" aria-labelledby="test-title">
    <div class="sect"><h2 id="test-title">Test a command</h2><span class="dim">Nothing is run</span></div>
    <textarea class="field mono" rows="3" aria-label="Command" placeholder="Type a command" dir="ltr" spellcheck=${false}
      autocomplete="off" autocapitalize="off" value=${command}
      onInput=${(/** @type {any} */ event) => setCommand(event.target.value)}></textarea>
    <div class="ctx">
      <input class="field" aria-label="Tool" placeholder="Any tool" autocomplete="off" value=${tool} spellcheck=${false}
        onInput=${(/** @type {any} */ event) => setTool(event.target.value.trim())} />
      <select class="field" aria-label="Where" value=${place}
        onChange=${(/** @type {any} */ event) => setPlace(event.target.value)}>
        <option value="">Anywhere</option>
        ${projects.map((folder) => html`<option value=${`project:${folder}`}>Project ${inert(folder)}</option>`)}
        ${recent.map((row) => html`<option value=${`session:${row.session}`}>Session ${inert(row.title || row.session)}</option>`)}
      </select></div>
    <div aria-live="polite">
      ${problem ? html`<p class="error-text" role="alert">${inert(problem)}</p>` : ""}
      ${result ? html`<${Verdict} result=${result} book=${book} />` : ""}
    </div>
  </aside>`;
}

export default function Rules() {
  const [book, setBook] = useState(/** @type {Book | null} */ (null));
  const [version, setVersion] = useState(0);
  const [problem, setProblem] = useState("");
  const [isNew, setIsNew] = useState(false);
  const opener = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const load = () =>
    get("/v1/rules").then(
      (found) => (setBook(found), setProblem(""), setVersion((count) => count + 1)),
      (error) => setProblem(error.message),
    );
  useEffect(() => {
    const show = () => document.visibilityState === "visible" && load();
    load();
    addEventListener("visibilitychange", show);
    return () => removeEventListener("visibilitychange", show);
  }, []);
  const close = () => {
    setIsNew(false);
    requestAnimationFrame(() => opener.current?.focus());
  };
  const save = async (/** @type {import("./rule_editor.js").Rule} */ rule) => {
    await post("/v1/rules", rule);
    close();
    await load();
  };
  const isEmpty = book && !book.policy && !book.rules.length;
  return html`<div class="rl">
    <section class="rules-page" data-scroller tabindex="0" aria-labelledby="rules-title"><div class="wrap">
      <div class="phead"><h1 id="rules-title">Rules</h1>
        <p class="dim only-wide">Deny wins over ask, ask over allow. If no rule matches, you are asked.</p>
        <span class="gap"></span>
        <button type="button" class="btn main" ref=${opener} disabled=${isNew} onClick=${() => setIsNew(true)}>
          <i class="i i-plus" aria-hidden="true"></i>New rule</button></div>
      ${problem ? html`<p class="error-text" role="alert">${inert(problem)}</p>` : ""}
      ${isNew ? html`<${RuleEditor} id="new-rule" start=${emptyRule()} places=${{ session: null, project: null }}
        label="Save rule" canChangeAction onSave=${save} onCancel=${close} />` : ""}
      ${!book && !problem ? html`<p class="empty" role="status">Loading rules…</p>` : ""}
      ${isEmpty && !isNew ? html`<${Empty} />` : ""}
      ${book && !isEmpty ? html`<${Table} book=${book} onChange=${load} />` : ""}
      ${book && !isEmpty ? html`<p class="fine">Used: how many requests a rule has answered.</p>` : ""}
    </div></section>
    ${book ? html`<${TestPanel} book=${book} version=${version} />` : ""}
  </div>`;
}
