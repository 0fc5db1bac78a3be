// The view of a session: its header, its plan, and its entries as a timeline or a waterfall.

import { inert } from "./ansi.js";
import { Frame } from "./frame.js";
import Menu from "./menu.js";
import { Steps, planProgress } from "./message.js";
import { filterText, result } from "./matches.js";
import { html, signal, useEffect, useMemo, useState } from "./ui.js";
import { peekEntry, rowState, sampledEntries } from "./row_state.js";
import {
  go, hasServer, info, isMissing, link, loaded, pageUrl, past, pendingHere, route, sessionName, sessionTitle,
} from "./state.js";
import Timeline from "./timeline.js";

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
    return html`<span class="chip is-wait"><i class="i i-wait" aria-hidden="true"></i>Waiting for approval</span>`;
  }
  if (turn) return html`<span class="chip is-run"><span class="ring" aria-hidden="true"></span>Running</span>`;
  if (!lastTurn) return html`<span class="chip">No turns yet</span>`;
  return html`<span class="chip" title="How the last turn ended">
    ${TURN_RESULTS[lastReason ?? ""] ?? inert(lastReason || "Ended")}</span>`;
}

/** @returns {any} */
const sessionInfo = () => (past.value ? past.value.info : info.value);

/** @param {string} noun @param {number} count */
const countOf = (noun, count) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function CallCounts() {
  if (!result.value) return null; // The server counts the calls of a long session.
  const { calls } = result.value;
  const all = Object.values(calls).reduce((sum, count) => sum + count, 0);
  const failed = ["failed", "lost", "expired"].reduce((sum, state) => sum + (calls[state] ?? 0), 0);
  const failedNote = failed > 0 && html`, <span class="bad">${failed.toLocaleString("en")} failed, lost or expired</span>`;
  return html`<span>${countOf("call", all)}${failedNote}</span>`;
}

function Usage() {
  const usage = sessionInfo().usage;
  if (!usage || typeof usage.used !== "number") return null;
  const size = usage.size ? ` of ${usage.size.toLocaleString("en")}` : "";
  return html`<span>${usage.used.toLocaleString("en")}${size} tokens</span>`;
}

function Labels() {
  const labels = sessionInfo().labels;
  if (!labels || typeof labels !== "object") return null;
  const named = () => Object.entries(labels).map(([key, value]) => `${key}: ${asText(value)}`);
  const texts = Array.isArray(labels) ? labels.map(String) : named();
  if (!texts.length) return null;
  const items = texts.map((label) => html`<li dir="auto">${inert(label)}</li>`);
  return html`<ul class="labels" aria-label="Labels">${items}</ul>`;
}

/** @param {unknown} value */
const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function Title() {
  const title = sessionTitle.value;
  const name = sessionName.value;
  const heading = inert(title || name);
  return html`<h1 class="cut" dir="auto" title=${heading}>${heading}</h1>
    ${title && title !== name && html`<code class="dim cut only-wide" dir="auto">${inert(name)}</code>`}`;
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
<//>`;

/** @param {{view: string, onView: (view: string) => void}} props */
const SessionHeader = ({ view, onView }) => html`
  <div class="line title">
    ${hasServer.value && html`<a class="btn ghost icon only-small" data-needs-server aria-label="All sessions" ...${link("/")}>
      <i class="i i-left" aria-hidden="true"></i></a>`}
    <${Title} /><${TurnStatus} />
    ${past.value && html`<span class="chip is-run">At event ${past.value.seq}</span>`}</div>
  <div class="facts only-wide"><${CallCounts} />
    <span class="opt"><${Usage} /></span></div>
  <span class="gap"></span>
  <${Views} view=${view} onView=${onView} />
  ${hasServer.value && html`<span data-needs-server><${More} /></span>`}`;

/** What is said about the session below its header: its labels, its mode and model, and a notice from the agent. */
function About() {
  const { currentModeId: mode, currentModelId: model } = sessionInfo();
  return html`${(mode || model) && html`<p class="session-facts">
      ${mode && html`<span>Mode <b dir="auto">${inert(mode)}</b></span>`}
      ${model && html`<span>Model <b dir="auto">${inert(model)}</b></span>`}</p>`}
    <${Labels} /><${Notice} />`;
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

/** The latest plan, open while steps remain. */
function PlanPanel() {
  const plan = sampledEntries.value.findLast((entry) => entry.type === "plan");
  const steps = Array.isArray(plan?.entries) ? plan.entries : [];
  const openState = rowState(0, "plan");
  if (!steps.length) return null;
  const open = openState.value ?? steps.some((/** @type {any} */ step) => step?.status !== "completed");
  return html`<section class="plan-panel" aria-label="Plan">
    <button type="button" class="fold-head" aria-expanded=${open} onClick=${() => (openState.value = !open)}>
      <span class="arrow" aria-hidden="true">${open ? "▾" : "▸"}</span> <b>Plan</b>${" "}
      <span class="dim">${planProgress(steps)}</span></button>
    ${open && html`<${Steps} steps=${steps} />`}
  </section>`;
}

// View

/** The filter is part of the address, so that a link shows the same entries. */
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
    below=${html`<${PromptArea} session=${session} />`}>
    <div class="session-view column">
      ${isMissing.value && html`<${Deleted} />`}
      ${FaultLab && html`<${FaultLab} />`}
      <${About} />
      <${Toolbars} />
      <${PlanPanel} />
      ${view === "waterfall"
        ? html`<${WaterfallView} onPick=${() => setView("timeline")} />`
        : html`<${Timeline} />`}
    </div>
  <//>`;
}

function Toolbars() {
  const FilterBar = componentOf(filters(), "FilterBar");
  const Scrubber = componentOf(scrubber(), "Scrubber");
  if (!loaded.value) return null;
  return html`${FilterBar && html`<${FilterBar} value=${filterText.value}
      onChange=${(/** @type {string} */ typed) => (filterText.value = typed)} />`}
    ${Scrubber && html`<${Scrubber} />`}`;
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
