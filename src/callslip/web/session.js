// The view of a session: its header, its plan, and its entries as a timeline or a waterfall.

import { inert } from "./ansi.js";
import { Copy } from "./copy.js";
import Detail from "./detail.js";
import { detailPanel, Frame, IconButton, PanelToggle, sidePanel } from "./frame.js";
import Menu from "./menu.js";
import { Steps, planProgress } from "./message.js";
import { filterText, result } from "./matches.js";
import { effect, html, signal, useEffect, useMemo, useState } from "./ui.js";
import { peekEntry, sampledEntries } from "./row_state.js";
import {
  go, hasServer, info, isMissing, link, loaded, pageUrl, past, pendingHere, route, sessionName, sessions,
  sessionTitle,
} from "./state.js";
import { formatDuration } from "./time.js";
import Timeline from "./timeline.js";
import { countOf, formatCosts, shortNumber } from "./numbers.js";

// Optional modules: if one of them fails to load, the session can still be read.

/**
 * @param {() => Promise<any>} load
 * @returns {() => any}
 */
function optionalModule(load) {
  const loadedModule = signal(/** @type {any} */ (undefined));
  let isRequested = false;
  return () => {
    if (!isRequested) {
      isRequested = true;
      load().then((module) => (loadedModule.value = module), () => (loadedModule.value = null));
    }
    return loadedModule.value;
  };
}

const filters = optionalModule(() => import("./filters.js"));
const scrubber = optionalModule(() => import("./scrubber.js"));
const waterfall = optionalModule(() => import("./waterfall.js"));
const prompt = optionalModule(() => import("./prompt.js"));
const faultLab = optionalModule(() => import("./fault_lab.js"));

/** @param {any} module @param {string} exportName */
const componentOf = (module, exportName) => module?.[exportName] ?? module?.default;

// Header

const TURN_RESULTS = /** @type {Record<string, string>} */ ({
  end_turn: "Completed", cancelled: "Cancelled", error: "Failed", eof: "Disconnected",
  max_tokens: "Token limit reached", max_turn_requests: "Request limit reached", refusal: "Refused",
});

/** Whether the agent waits for an approval, now or at the shown moment. */
const isWaiting = () =>
  past.value
    ? past.value.entries.some((/** @type {any} */ entry) => entry.type === "permission_request" && !entry.state)
    : pendingHere.value.length > 0;

/** Whether a turn is running or waits, or how the last one ended. */
function TurnStatus() {
  const { turn, lastTurn, lastReason } = sessionInfo();
  if (turn && isWaiting()) {
    const entry = past.value ? 0 : pendingHere.value[0]?.entry;
    const icon = html`<i class="i i-wait" aria-hidden="true"></i>Waiting for approval`;
    return entry ? html`<a class="chip is-wait" href=${`#entry-${entry}`} title="Go to the request">${icon}</a>`
      : html`<span class="chip is-wait">${icon}</span>`;
  }
  if (turn) return html`<span class="chip is-run"><span class="ring" aria-hidden="true"></span>Running</span>`;
  if (!lastTurn) return null;
  return html`<span class="chip" title="How the last turn ended">
    ${TURN_RESULTS[lastReason ?? ""] ?? inert(lastReason || "Ended")}</span>`;
}

/** @returns {any} */
const sessionInfo = () => (past.value ? past.value.info : info.value);

function CallCounts() {
  if (!result.value) return null; // The server counts the calls of a long session.
  const { calls } = result.value;
  const all = Object.values(calls).reduce((sum, count) => sum + count, 0);
  const failed = ["failed", "lost", "expired"].reduce((sum, state) => sum + (calls[state] ?? 0), 0);
  return html`<span>${countOf(all, "call")}</span>
    ${failed > 0 && html`<span class="bad" title="Failed, lost or expired">${failed.toLocaleString("en")} failed</span>`}`;
}

/** What the session used, and how long it took. */
function Totals() {
  const row = sessions.value.get(sessionName.value);
  if (!row || past.value) return null;
  const tokens = (row.usage?.inputTokens ?? 0) + (row.usage?.outputTokens ?? 0);
  const costs = formatCosts(row.usage?.costs);
  return html`${tokens > 0 && html`<span class="opt">${shortNumber(tokens)} tokens</span>`}
    ${costs && html`<span class="opt">${costs}</span>`}
    ${row.activeAt > row.startedAt && html`<span class="opt" title="From the first to the last event">
      ${formatDuration(row.activeAt - row.startedAt)}</span>`}`;
}

function Labels() {
  const labels = sessionInfo().labels;
  if (!labels || typeof labels !== "object") return null;
  const named = () => Object.entries(labels).map(([key, value]) => `${key}: ${asText(value)}`);
  const texts = Array.isArray(labels) ? labels.map(String) : named();
  if (!texts.length) return null;
  const items = texts.map((label) => html`<li dir="auto">${inert(label)}</li>`);
  return html`<section><h2>Labels</h2><ul class="labels">${items}</ul></section>`;
}

/** @param {unknown} value */
const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function Title() {
  const title = sessionTitle.value;
  const name = sessionName.value;
  const heading = inert(title || name);
  return html`<h1 class="cut" dir="auto" title=${inert(title ? `${title} (${name})` : name)}>${heading}</h1>`;
}

const VIEWS = [["timeline", "list", "Timeline"], ["waterfall", "bars", "Waterfall"]];

/** @param {{view: string, onView: (view: string) => void}} props */
const Views = ({ view, onView }) => html`<div class="switch" role="group" aria-label="View">
  ${VIEWS.map(([name, icon, label]) => html`<button type="button" aria-pressed=${String(name === view)}
    onClick=${() => onView(name)}><i class=${`i i-${icon}`} aria-hidden="true"></i>${label}</button>`)}</div>`;

const More = () => html`<${Menu} label="Share and export">
  <a href=${pageUrl(`/v1/sessions/${encodeURIComponent(sessionName.value)}?format=html`)}
    title="Download this session as one HTML file" download=${`${sessionName.value}.html`}>
    <i class="i i-save" aria-hidden="true"></i>Export as HTML</a>
  <${Copy} text=${() => location.origin + pageUrl(`/s/${encodeURIComponent(sessionName.value)}`)} label="Copy link" />
  <${Copy} text=${() => sessionName.value} label="Copy name of the session" />
<//>`;

/** Whether there is room for the filter in the header; otherwise a button shows it below. */
const wideQuery = matchMedia("(min-width: 900px)");
const isWide = signal(wideQuery.matches);
wideQuery.addEventListener("change", () => (isWide.value = wideQuery.matches));
const isFilterShown = signal(false);
const isHistoryShown = signal(false);

// A filter that was shown stays when its last term is removed.
effect(() => void (filterText.value && (isFilterShown.value = true)));

function Filter() {
  const FilterBar = componentOf(filters(), "FilterBar");
  return loaded.value && FilterBar ? html`<${FilterBar} value=${filterText.value}
    onChange=${(/** @type {string} */ typed) => (filterText.value = typed)} />` : null;
}

/** @param {{view: string, onView: (view: string) => void}} props */
const SessionHeader = ({ view, onView }) => html`
  <div class="line title">
    ${hasServer.value && html`<a class="btn ghost icon only-small" data-needs-server aria-label="All sessions" ...${link("/")}>
      <i class="i i-left" aria-hidden="true"></i></a>`}
    <${Title} /><${TurnStatus} />
    ${past.value && html`<span class="chip is-run"><i class="i i-past" aria-hidden="true"></i>At event ${past.value.seq}</span>`}
  </div>
  <div class="facts only-wide"><${CallCounts} /><${Totals} /></div>
  <span class="gap"></span>
  <${Views} view=${view} onView=${onView} />
  ${isWide.value ? html`<${Filter} />` : html`<${IconButton} icon="filter" label="Show filter" aria-pressed=${String(isFilterShown.value)}
    onClick=${() => (isFilterShown.value = !isFilterShown.value)} />`}
  ${hasServer.value && html`<span data-needs-server><${IconButton} icon="past" label="History" aria-pressed=${String(isHistoryShown.value)}
    onClick=${() => (isHistoryShown.value = !isHistoryShown.value)} /></span>`}
  <${PanelToggle} of=${sidePanel} icon="side" label="Plan and facets" />
  <${PanelToggle} of=${detailPanel} icon="panel" label="Details" class="only-wide" />
  ${hasServer.value && html`<span data-needs-server><${More} /></span>`}`;

/** What stays above the entries: the filter of a narrow window, the history, and what the agent says of itself. */
function Above() {
  const Scrubber = componentOf(scrubber(), "Scrubber");
  const MatchCount = filters()?.MatchCount;
  return html`${isMissing.value && html`<${Deleted} />`}
    <${Notice} />
    ${!isWide.value && isFilterShown.value && html`<${Filter} />`}
    ${MatchCount && html`<${MatchCount} value=${filterText.value} />`}
    ${loaded.value && Scrubber && (isHistoryShown.value || past.value) && html`<div class="history"><${Scrubber} /></div>`}`;
}

function Deleted() {
  return html`<p class="note warn" role="status">The session was deleted. The entries that were already loaded are
    shown. <a ...${link("/")}>All sessions</a></p>`;
}

/** A notice from the agent. */
function Notice() {
  const notice = sessionInfo().notice;
  const text = typeof notice === "string" ? notice : (notice?.message ?? notice?.text);
  return text ? html`<p class="note warn" dir="auto">${inert(String(text))}</p>` : null;
}

// Side panel

/** The latest plan. */
function PlanPanel() {
  const plan = sampledEntries.value.findLast((entry) => entry.type === "plan");
  const steps = Array.isArray(plan?.entries) ? plan.entries : [];
  if (!steps.length) return null;
  return html`<section class="plan-panel"><h2>Plan<span>${planProgress(steps)}</span></h2><${Steps} steps=${steps} /></section>`;
}

/** The tokens that the agent reported. */
function UsagePanel() {
  const context = sessionInfo().usage;
  const used = past.value ? undefined : sessions.value.get(sessionName.value)?.usage;
  const number = (/** @type {number} */ count) => count.toLocaleString("en");
  const rows = [
    ["Context", typeof context?.used === "number" && `${number(context.used)}${context.size ? ` of ${number(context.size)}` : ""}`],
    ["Input", used?.inputTokens && number(used.inputTokens)],
    ["Cached", used?.cachedTokens && number(used.cachedTokens)],
    ["Output", used?.outputTokens && number(used.outputTokens)],
  ].filter(([, text]) => text);
  const costs = formatCosts(used?.costs);
  if (!rows.length && !costs) return null;
  return html`<section><h2>Usage<span>${costs}</span></h2>
    ${context?.size > 0 && html`<div class="meter"><i style=${{ width: `${Math.min(100, (100 * context.used) / context.size)}%` }}></i></div>`}
    <dl class="kv">${rows.map(([name, text]) => html`<dt>${name}</dt><dd>${text}</dd>`)}</dl></section>`;
}

/** The agent's mode and model, and the labels of the session. */
function About() {
  const { currentModeId: mode, currentModelId: model } = sessionInfo();
  return html`${(mode || model) && html`<section><h2>Agent</h2><dl class="kv">
      ${mode && html`<dt>Mode</dt><dd dir="auto">${inert(mode)}</dd>`}
      ${model && html`<dt>Model</dt><dd dir="auto">${inert(model)}</dd>`}</dl></section>`}
    <${Labels} />`;
}

function Side() {
  const SideFacets = filters()?.SideFacets;
  return html`<${PlanPanel} />${loaded.value && SideFacets && html`<${SideFacets} value=${filterText.value}
      onChange=${(/** @type {string} */ typed) => (filterText.value = typed)} />`}
    <${UsagePanel} /><${About} />`;
}

const filterInAddress = () => new URLSearchParams(location.search).get("q") ?? "";
const viewInAddress = () =>
  new URLSearchParams(location.search).get("view") === "waterfall" ? "waterfall" : "timeline";

/** @param {Record<string, string>} values */
function saveInAddress(values) {
  const query = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(values)) value ? query.set(key, value) : query.delete(key);
  const search = query.toString();
  history.replaceState(history.state, "", location.pathname + (search ? `?${search}` : "") + location.hash);
}

export default function SessionView() {
  const [view, setView] = useState(viewInAddress);
  const session = route.value.session ?? sessionName.value;
  useMemo(() => (filterText.value = filterInAddress()), []);
  useEffect(() => saveInAddress({ q: filterText.value, view: view === "timeline" ? "" : view }),
    [filterText.value, view]);
  const FaultLab = info.value.options?.breakIt && componentOf(faultLab(), "FaultLab");
  return html`<${Frame} head=${html`<${SessionHeader} view=${view} onView=${setView} />`}
    side=${html`<${Side} />`} sideLabel="Plan and facets" detail=${html`<${Detail} />`} detailLabel="Details of the call"
    above=${html`<${Above} />`} below=${html`<${PromptArea} session=${session} />`}>
    <div class="session-view">
      ${FaultLab && html`<${FaultLab} />`}
      ${view === "waterfall" ? html`<${WaterfallView} onPick=${() => setView("timeline")} />` : html`<${Timeline} />`}
    </div>
  <//>`;
}

/** @param {{onPick: () => void}} props */
function WaterfallView({ onPick }) {
  const Waterfall = componentOf(waterfall(), "Waterfall");
  const [ids, sampled] = [result.value?.ids, sampledEntries.value];
  const entries = useMemo(() => (ids ? ids.map(peekEntry).filter(Boolean) : sampled), [ids, sampled]);
  if (waterfall() === null) return html`<p class="nothing">Could not load the waterfall.</p>`;
  if (!Waterfall) return null;
  const pick = (/** @type {number} */ id) => {
    onPick();
    go(`${location.pathname.slice(pageUrl("").length)}#entry-${id}`, { replace: true });
  };
  return html`<${Waterfall} entries=${entries} onPick=${pick} />`;
}

/** @param {{session: string}} props */
function PromptArea({ session }) {
  const PromptBox = componentOf(prompt(), "PromptBox");
  if (!PromptBox) return null;
  // In the past it is only hidden, so that typed text is not lost.
  return html`<div class="session-prompt" hidden=${!!past.value}><${PromptBox} key=${session} session=${session} />
  </div>`;
}
