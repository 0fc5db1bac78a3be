// Tokens and costs, as agents reported them: sums, by day, project, agent, model and session. The server adds them up.
// What is not known is never shown as zero.

import { inert } from "./ansi.js";
import { Frame } from "./frame.js";
import { countOf, formatCosts, shortNumber } from "./numbers.js";
import { classes, effect, html, useEffect, useState } from "./ui.js";
import { get, go, link, route, sessions } from "./state.js";
import { formatMoment, isoTime, today } from "./time.js";

/**
 * A group of `GET /v1/usage`.
 * @typedef {{group: string, responses?: number, inputTokens?: number, outputTokens?: number, cachedTokens?: number,
 *   costs?: Record<string, number>, incomplete?: number, tokensWithoutCost?: number}} Group
 * @typedef {{total: Group, day: Group[], project: Group[], agent: Group[], model: Group[], session: Group[],
 *   models: Group[][], isComplete: boolean}} Report `models` are the days of the first models.
 */

/** How many days can be shown. @type {Record<string, string>} */
const RANGES = { 1: "Today", 7: "7 days", 30: "30 days", 90: "90 days" };
const DEFAULT_DAYS = "30";
const BY = /** @type {const} */ (["day", "project", "agent", "model", "session"]);
/** So many models have a colour of their own in the charts. */
const MAX_SERIES = 3;
const MAX_SESSIONS = 50;
/** A change of a session is followed by this pause before the sums are read again. */
const REFRESH_MS = 5000;

/** @param {Group | undefined} group */
const tokensOf = (group) => (group?.inputTokens ?? 0) + (group?.outputTokens ?? 0);

/** Tokens, with ≥ if a response has not reported all of them. @param {Group} group */
const tokenText = (group) => (tokensOf(group) ? `${group.incomplete ? "≥ " : ""}${shortNumber(tokensOf(group))}` : "–");

/** Costs, with ≥ if not all tokens have one. @param {Group} group */
function costText(group) {
  const costs = formatCosts(group.costs);
  if (!costs) return tokensOf(group) ? "unknown" : "not reported";
  return `${group.tokensWithoutCost ? "≥ " : ""}${costs}`;
}

/** The days before a day that the range has, and it, as the server names them. @param {number} days @param {number} day */
function daysUntil(days, day) {
  const pad = (/** @type {number} */ number) => String(number).padStart(2, "0");
  return Array.from({ length: days }, (_, at) => {
    const date = new Date(day);
    date.setDate(date.getDate() - (days - 1 - at));
    return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  });
}

/** @param {string} name A day as 2026-11-19. */
const dayText = (name) =>
  new Date(`${name}T00:00`).toLocaleDateString("en-GB", { day: "numeric", month: "short" });

/** @param {URLSearchParams} filters @returns {Promise<Report>} */
async function readUsage(filters, /** @type {AbortSignal} */ signal) {
  const since = new Date(today.peek());
  since.setDate(since.getDate() - (Number(filters.get("days") ?? DEFAULT_DAYS) - 1));
  const terms = new URLSearchParams({ since: String(since.getTime()), utcOffsetMinutes: String(-since.getTimezoneOffset()) });
  for (const name of ["project", "agent"]) if (filters.get(name)) terms.set(name, filters.get(name) ?? "");
  const read = (/** @type {string} */ by, model = "") =>
    get(`/v1/usage?${terms}&by=${by}${model && `&model=${encodeURIComponent(model)}`}`, signal);
  const [all, ...groups] = await Promise.all([read(""), ...BY.map((by) => read(by))]);
  const named = Object.fromEntries(BY.map((by, at) => [by, groups[at].groups]));
  const first = /** @type {Group[]} */ (named.model).filter(({ group }) => group).slice(0, MAX_SERIES);
  const models = await Promise.all(first.map(async ({ group }) => (await read("day", group)).groups));
  const total = all.groups[0] ?? { group: "" };
  return /** @type {any} */ ({ total, ...named, models, isComplete: groups.every((one) => one.complete !== false) });
}

/** @param {string} search */
function useUsage(search) {
  const [state, setState] = useState({ report: /** @type {Report | null} */ (null), problem: "", search: "" });
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    readUsage(new URLSearchParams(search), controller.signal).then(
      (report) => setState({ report, problem: "", search }),
      (error) => controller.signal.aborted || setState({ report: null, problem: String(error.message), search }),
    );
    return () => controller.abort();
  }, [search, version, today.value]);
  const retry = () => setVersion((number) => number + 1);
  useEffect(() => {
    if (!state.report || state.report.isComplete) return;
    const timer = setTimeout(retry, REFRESH_MS);
    return () => clearTimeout(timer);
  }, [state.report]);
  useEffect(() => {
    const { value: before } = sessions;
    let timer = /** @type {any} */ (0);
    const stop = effect(() => {
      if (sessions.value !== before) timer ||= setTimeout(() => ((timer = 0), retry()), REFRESH_MS);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, []);
  return { ...state, retry };
}

/** @param {string} name @param {string} value */
function setFilter(name, value) {
  const terms = new URLSearchParams(route.peek().search);
  if (value) terms.set(name, value);
  else terms.delete(name);
  go(terms.size ? `/usage?${terms}` : "/usage", { replace: true });
}

/** @param {{filters: URLSearchParams}} props */
function Head({ filters }) {
  const days = filters.get("days") ?? DEFAULT_DAYS;
  const rows = [...sessions.value.values()];
  const choice = (/** @type {"project" | "agent"} */ name) => {
    const current = filters.get(name) ?? "";
    const values = [...new Set([current, ...rows.map((row) => row[name])])].filter(Boolean).sort();
    if (!values.length) return null;
    return html`<select class="field soft" aria-label=${name === "agent" ? "Agent" : "Project"} value=${current}
        onChange=${(/** @type {any} */ event) => setFilter(name, event.target.value)}>
      <option value="">Any ${name}</option>
      ${values.map((value) => html`<option key=${value} value=${value} dir="auto">${inert(nameOf(name, value))}</option>`)}
    </select>`;
  };
  return html`<h1>Usage</h1>
    <div class="switch" role="group" aria-label="Time">${Object.entries(RANGES).map(([value, words]) => html`
      <button type="button" aria-pressed=${String(days === value)}
        onClick=${() => setFilter("days", value === DEFAULT_DAYS ? "" : value)}>${words}</button>`)}</div>
    <span class="gap"></span>
    <div class="choices">${choice("project")}${choice("agent")}</div>`;
}

/** @param {string} by @param {string} group */
function nameOf(by, group) {
  if (!group) return `No ${by}`;
  return by === "project" ? (group.replace(/[/\\]+$/, "").split(/[/\\]/).at(-1) ?? group) : group;
}

/** @param {{label: string, number: string, before?: string, about?: string}} props */
const Stat = ({ label, number, before, about }) => html`<div><dt>${label}</dt>
  <dd>${before && html`<i>${before}</i>`}${number}</dd>${about && html`<dd class="about">${about}</dd>`}</div>`;

/** @param {{report: Report}} props */
function Totals({ report: { total, session } }) {
  const tokens = tokensOf(total);
  const costs = formatCosts(total.costs);
  const without = total.tokensWithoutCost ?? 0;
  const share = (/** @type {number} */ part) => `${part && part < tokens / 100 ? "less than 1" : Math.round((100 * part) / tokens)}%`;
  return html`<dl class="stats">
    <${Stat} label="Cost" number=${costs || "unknown"} before=${costs && without ? "at least" : ""}
      about=${without ? `${share(without)} of tokens have no stated cost` : "As the agents state it"} />
    <${Stat} label="Tokens" number=${shortNumber(tokens)} before=${total.incomplete ? "at least" : ""}
      about=${total.cachedTokens ? `${share(total.cachedTokens)} read from the cache` : ""} />
    <${Stat} label="Sessions" number=${session.length.toLocaleString("en")} about="That reported usage" />
    <${Stat} label="Responses" number=${(total.responses ?? 0).toLocaleString("en")}
      about=${total.incomplete ? `${countOf(total.incomplete, "number")} not final` : ""} />
  </dl>`;
}

/** A round number that is not smaller. @param {number} value */
function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value || 1));
  return ([1, 1.5, 2, 3, 5, 7.5, 10].find((step) => step * unit >= value) ?? 10) * unit;
}

/**
 * @typedef {{name: string, about: string, values: number[], hasUnknown: boolean}} Day The values of the series.
 */

/**
 * Bars by day. A hatched cap says that the day has something unknown; its height says nothing.
 * @param {{title: string, sum: string, days: Day[], format: (value: number) => string, onPoint: (name: string) => void}} props
 */
function Plot({ title, sum, days, format, onPoint }) {
  const totals = days.map(({ values }) => values.reduce((one, two) => one + two, 0));
  const top = roundUp(Math.max(...totals));
  const every = days.length > 5 ? Math.ceil(days.length / 5) : 1;
  return html`<section class="plot" onPointerLeave=${() => onPoint("")}>
    <h2>${title}<span>${sum}</span></h2>
    <div class="bars-box">
      ${[1, 2 / 3, 1 / 3, 0].map((part) => html`<b aria-hidden="true" style=${{ top: `${100 - 100 * part}%` }}>${format(top * part)}</b>`)}
      <ol class="bars">${days.map((day, at) => html`<li key=${day.name} title=${`${dayText(day.name)}: ${day.about}`}
          onPointerEnter=${() => onPoint(day.name)}>
        <span class="visually-hidden">${dayText(day.name)}: ${day.about}</span>
        ${day.hasUnknown && html`<i class="hatch"></i>`}
        ${day.values.map((value, series) => value > 0 && html`<i class=${`series-${series}`}
          style=${{ height: `${(100 * value) / top}%` }}></i>`).reverse()}
      </li>`)}</ol>
    </div>
    <p class="dates" aria-hidden="true">${days.map(({ name }, at) => html`<span>${at % every === 0 && dayText(name)}</span>`)}</p>
  </section>`;
}

/** The currency with most costs: a chart has one. @param {Group} total */
const mainCurrency = (total) => Object.entries(total.costs ?? {}).sort((one, two) => two[1] - one[1])[0]?.[0];

/** The number of each series on a day: of the first models, and of all others. @param {Report} report */
function seriesOf(report, /** @type {string} */ day, /** @type {(group: Group | undefined) => number} */ value) {
  const parts = report.models.map((days) => value(days.find(({ group }) => group === day)));
  const all = value(report.day.find(({ group }) => group === day));
  return [...parts, Math.max(0, all - parts.reduce((one, two) => one + two, 0))];
}

/** @param {{report: Report, days: string[]}} props */
function Plots({ report, days }) {
  const [pointed, setPointed] = useState("");
  const currency = mainCurrency(report.total);
  const costOf = (/** @type {Group | undefined} */ group) => (currency === undefined ? 0 : group?.costs?.[currency] ?? 0);
  const groupOf = (/** @type {string} */ day) => report.day.find(({ group }) => group === day);
  const toDay = (/** @type {string} */ name, /** @type {any} */ value, /** @type {any} */ about, /** @type {any} */ hasUnknown) => ({
    name, values: seriesOf(report, name, value), about: groupOf(name) ? about(groupOf(name)) : "no usage reported",
    hasUnknown: Boolean(groupOf(name)) && hasUnknown(groupOf(name)),
  });
  const tokens = days.map((name) => toDay(name, tokensOf, (/** @type {Group} */ one) => `${tokenText(one)} tokens`, () => false));
  const costs = days.map((name) => toDay(name, costOf, costText, (/** @type {Group} */ one) => (one.tokensWithoutCost ?? 0) > 0));
  const names = [...report.model.filter(({ group }) => group).slice(0, MAX_SERIES).map(({ group }) => group), "Other models"];
  const ofLegend = names.map((name, at) => {
    const shown = pointed ? [pointed] : days;
    const sum = shown.reduce((all, day) => all + seriesOf(report, day, tokensOf)[at], 0);
    const cost = shown.reduce((all, day) => all + seriesOf(report, day, costOf)[at], 0);
    return { name, at, sum, cost: cost > 0 && currency !== undefined ? formatCosts({ [currency]: cost }) : "" };
  }).filter(({ at, sum, cost }) => at < names.length - 1 || sum > 0 || cost);
  const hasUnknown = costs.some((day) => day.hasUnknown);
  return html`<p class="legend">
      <span class="strong">${pointed ? dayText(pointed) : "All days"}</span>
      ${ofLegend.map(({ name, at, sum, cost }) => html`<span><i class=${`series-${at}`} aria-hidden="true"></i>
        <span class="untrusted" dir="auto">${inert(name)}</span> ${shortNumber(sum)} ${cost}</span>`)}
      ${hasUnknown && html`<span><i class="hatch" aria-hidden="true"></i>Tokens without a stated cost</span>`}
    </p>
    <div class="plots">
      <${Plot} title="Tokens per day" sum=${tokenText(report.total)} days=${tokens} format=${shortNumber} onPoint=${setPointed} />
      ${currency !== undefined && html`<${Plot} title=${`Cost per day${currency ? `, ${currency}` : ""}`} sum=${costText(report.total)} days=${costs}
        format=${(/** @type {number} */ value) => formatCosts({ [currency]: value })} onPoint=${setPointed} />`}
    </div>
    ${hasUnknown && currency !== undefined && html`<p class="fine">A hatched cap on a cost bar means that the day also has tokens for
      which no agent stated a cost. Its height says nothing about how much.</p>`}`;
}

/** Rows with bars. `others` are names for which nothing was reported. @param {{by: "project" | "agent" | "model", groups: Group[], others: string[]}} props */
function Share({ by, groups, others }) {
  const most = Math.max(1, ...groups.map(tokensOf));
  const hasCosts = groups.some((group) => formatCosts(group.costs));
  const bar = (/** @type {string} */ css, /** @type {number} */ tokens) =>
    tokens > 0 && html`<i class=${css} style=${{ width: `${(100 * tokens) / most}%` }}></i>`;
  return html`<section><h2 class="sect">By ${by}<span>tokens, cost</span></h2>
    <ul class="share">
      ${groups.map((group) => {
        const without = hasCosts ? group.tokensWithoutCost ?? 0 : 0;
        return html`<li key=${group.group}>
          <span class="cut untrusted" dir="auto" title=${inert(group.group)}>${inert(nameOf(by, group.group))}</span>
          <span class="track" aria-hidden="true">${bar("", tokensOf(group) - without)}${bar("hatch", without)}</span>
          <span>${tokenText(group)}</span><span>${costText(group)}</span></li>`;
      })}
      ${others.map((name) => html`<li key=${name}><span class="cut untrusted" dir="auto" title=${inert(name)}>${inert(nameOf(by, name))}</span>
        <span class="track"></span><span>–</span><span>not reported</span></li>`)}
    </ul></section>`;
}

/** @param {{groups: Group[]}} props */
function SessionTable({ groups }) {
  const dash = html`<span class="dim">–</span>`;
  const row = (/** @type {Group} */ group) => {
    const about = sessions.value.get(group.group);
    return html`<tr key=${group.group}>
      <td class="t m"><span class="ttl"><a class="cut untrusted" dir="auto" data-card title=${inert(group.group)}
        ...${link(`/s/${encodeURIComponent(group.group)}`)}>${inert(about?.title || about?.prompt || group.group)}</a></span></td>
      <td class="c-agent c-opt untrusted" dir="auto">${inert(about?.agent ?? "")}</td>
      <td class="c-project c-opt untrusted" dir="auto" title=${inert(about?.project ?? "")}>
        ${about?.project ? inert(nameOf("project", about.project)) : ""}</td>
      <td class="n c-number c-mid">${group.inputTokens ? shortNumber(group.inputTokens) : dash}</td>
      <td class="n c-number c-mid">${group.cachedTokens ? shortNumber(group.cachedTokens) : dash}</td>
      <td class="n c-number c-mid">${group.outputTokens ? shortNumber(group.outputTokens) : dash}</td>
      <td class="m n c-tokens">${tokenText(group)}</td>
      <td class="m n c-cost">${costText(group)}</td>
      <td class="n c-age c-opt">${about && html`<time title=${isoTime(about.activeAt)}>${formatMoment(about.activeAt)}</time>`}</td>
    </tr>`;
  };
  return html`<section><h2 class="sect">By session<span>${groups.length > MAX_SESSIONS ? `the ${MAX_SESSIONS} with most tokens of ` : ""}${
      groups.length.toLocaleString("en")}, most tokens first</span></h2>
    <table class="list"><thead><tr><th scope="col">Session</th><th scope="col" class="c-agent c-opt">Agent</th>
      <th scope="col" class="c-project c-opt">Project</th><th scope="col" class="n c-number c-mid">Input</th>
      <th scope="col" class="n c-number c-mid">Cached</th><th scope="col" class="n c-number c-mid">Output</th>
      <th scope="col" class="n c-tokens">Tokens</th><th scope="col" class="n c-cost">Cost</th>
      <th scope="col" class="n c-age c-opt">Last activity</th></tr></thead>
      <tbody>${groups.slice(0, MAX_SESSIONS).map(row)}</tbody></table></section>`;
}

/** The agents or projects of sessions that were active, but reported nothing. @param {"agent" | "project"} by @param {Report} report */
function silentOnes(by, report, /** @type {URLSearchParams} */ filters) {
  const known = new Set(report[by].map(({ group }) => group));
  const [first] = daysUntil(Number(filters.get("days") ?? DEFAULT_DAYS), today.value);
  const since = new Date(`${first}T00:00`).getTime();
  const isShown = (/** @type {any} */ row) => row[by] && row.activeAt >= since && !known.has(row[by]) &&
    ["agent", "project"].every((name) => !filters.get(name) || row[name] === filters.get(name));
  return [...new Set([...sessions.value.values()].filter(isShown).map((row) => row[by]))].sort();
}

/** @param {{report: Report, filters: URLSearchParams}} props */
function Content({ report, filters }) {
  if (!tokensOf(report.total) && !formatCosts(report.total.costs)) {
    return html`<div class="void"><i class="i i-bars" aria-hidden="true"></i><h2>No usage reported</h2>
      <p>No agent has reported tokens or costs in this time. That does not mean that there were none.</p></div>`;
  }
  const days = daysUntil(Number(filters.get("days") ?? DEFAULT_DAYS), today.value);
  return html`<${Totals} report=${report} />
    <${Plots} report=${report} days=${days} />
    <div class="plots shares">
      <${Share} by="project" groups=${report.project} others=${silentOnes("project", report, filters)} />
      <${Share} by="agent" groups=${report.agent} others=${silentOnes("agent", report, filters)} />
      <${Share} by="model" groups=${report.model} others=${[]} />
    </div>
    <${SessionTable} groups=${report.session} />`;
}

export default function Usage() {
  const { search = "" } = route.value;
  const filters = new URLSearchParams(search);
  const { report, problem, retry, search: shown } = useUsage(search);
  return html`<${Frame} head=${html`<${Head} filters=${filters} />`}>
    <div class=${classes("wrap usage", shown !== search && "is-old")}>
      ${problem && html`<div class="void" role="alert"><i class="i i-warn" aria-hidden="true"></i><h2>Usage could not be loaded</h2>
        <p>${inert(problem)}</p><button type="button" class="btn" onClick=${retry}>Try again</button></div>`}
      ${!report && !problem && html`<p class="loading" role="status">Adding up…</p>`}
      ${report && !report.isComplete && html`<p class="fine" role="status">Some sessions are not added up yet. The sums grow by themselves.</p>`}
      ${report && html`<${Content} report=${report} filters=${new URLSearchParams(shown)} />`}
    </div>
  <//>`;
}
