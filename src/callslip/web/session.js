// The view of a session: its header, its plan, and its entries as a timeline or a waterfall.

import { inert } from "./ansi.js";
import { Steps, planProgress } from "./message.js";
import { filterText, result } from "./matches.js";
import { classes, html, signal, useEffect, useMemo, useState } from "./ui.js";
import { peekEntry, rowState, sampledEntries } from "./row_state.js";
import { go, info, loaded, pageUrl, past, pendingHere, route, sessionName, sessionTitle } from "./state.js";
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
    return html`<span class="state is-awaiting_approval"><span aria-hidden="true">?</span> Waiting for approval</span>`;
  }
  if (turn) return html`<span class="state is-running"><span aria-hidden="true">●</span> Running</span>`;
  if (!lastTurn) return html`<span>No turns yet</span>`;
  return html`<span>Last turn: ${TURN_RESULTS[lastReason ?? ""] ?? inert(lastReason || "Ended")}</span>`;
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
  return html`<h1 class="session-title" dir="auto" title=${heading}>${heading}</h1>
    ${title && title !== name && html`<code class="session-name" dir="auto">${inert(name)}</code>`}`;
}

/** @param {{view: string, onView: (view: string) => void}} props */
const Views = ({ view, onView }) => html`<div class="views" role="group" aria-label="View">
  ${["timeline", "waterfall"].map((each) => html`<button type="button" aria-pressed=${each === view}
    class=${classes("button small", each === view && "chosen")}
    onClick=${() => onView(each)}>${each === "timeline" ? "Timeline" : "Waterfall"}</button>`)}</div>`;

const ExportLink = () => html`<a class="button small" title="Download this session as one HTML file"
  href=${pageUrl(`/v1/sessions/${encodeURIComponent(sessionName.value)}?format=html`)}
  download=${`${sessionName.value}.html`}>Export as HTML</a>`;

/** @param {{view: string, onView: (view: string) => void}} props */
const SessionHeader = ({ view, onView }) => html`<header class="session-head">
  <div class="session-names"><${Title} /></div>
  <div class="session-tools"><${Views} view=${view} onView=${onView} /><${ExportLink} /></div>
  <p class="session-facts"><${TurnStatus} /><${CallCounts} />
    ${sessionInfo().currentModeId && html`<span>Mode <b dir="auto">${inert(sessionInfo().currentModeId)}</b></span>`}
    ${sessionInfo().currentModelId && html`<span>Model <b dir="auto">${inert(sessionInfo().currentModelId)}</b></span>`}
    <${Usage} />${past.value && html`<span class="warn">At event ${past.value.seq}</span>`}</p>
  <${Labels} /><${Notice} />
</header>`;

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
  return html`<div class="session-view column">
    <${SessionHeader} view=${view} onView=${setView} />
    <${Toolbars} />
    <${PlanPanel} />
    ${view === "waterfall"
      ? html`<${WaterfallView} onPick=${() => setView("timeline")} />`
      : html`<${Timeline} />`}
    <${PromptArea} session=${session} />
  </div>`;
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
