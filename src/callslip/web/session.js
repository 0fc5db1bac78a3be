// One session: what it is called and how it stands, its plan, and its entries as a timeline or on an axis of time.

import { inert } from "./ansi.js";
import { Steps, progressOf } from "./message.js";
import { classes, html, signal, useEffect, useMemo, useState } from "./ui.js";
import { kept, slowly } from "./row_state.js";
import { address, go, info, loaded, name, past, route } from "./state.js";
import Timeline from "./timeline.js";

// Parts of the page that are shown where they are there; without one of them the session is still to be read.

/**
 * @param {() => Promise<any>} load
 * @returns {() => any}
 */
function part(load) {
  const found = signal(/** @type {any} */ (undefined));
  let asked = false;
  return () => {
    if (!asked) {
      asked = true;
      load().then((module) => (found.value = module), () => (found.value = null));
    }
    return found.value;
  };
}

const filters = part(() => import("./filters.js"));
const scrubber = part(() => import("./scrubber.js"));
const waterfall = part(() => import("./waterfall.js"));
const prompt = part(() => import("./prompt.js"));

/** @param {any} module @param {string} called */
const componentOf = (module, called) => module?.[called] ?? module?.default;

// Facts

const REASONS = /** @type {Record<string, string>} */ ({
  end_turn: "finished", cancelled: "was cancelled", error: "ended with an error", eof: "broke off",
  max_tokens: "reached its limit of tokens", max_turn_requests: "reached its limit of requests", refusal: "was refused",
});

/** How it stands with the session's turns. */
function TurnFact() {
  const { turn, lastTurn, lastReason } = facts();
  if (turn) return html`<span class="state is-running"><span aria-hidden="true">●</span> at work</span>`;
  if (!lastTurn) return html`<span>no turn yet</span>`;
  return html`<span>last turn ${REASONS[lastReason ?? ""] ?? inert(lastReason || "ended")}</span>`;
}

/** @returns {any} */
const facts = () => (past.value ? past.value.info : info.value);

/** @param {string} noun @param {number} count */
const counted = (noun, count) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function CallsFact() {
  const calls = slowly.value.filter((entry) => entry.type === "tool_call");
  const failed = calls.filter((entry) => ["failed", "lost", "expired"].includes(entry.status)).length;
  const bad = failed > 0 && html`, <span class="bad">${failed} failed, lost or expired</span>`;
  return html`<span>${counted("call", calls.length)}${bad}</span>`;
}

function Usage() {
  const usage = facts().usage;
  if (!usage || typeof usage.used !== "number") return null;
  const size = usage.size ? ` of ${usage.size.toLocaleString("en")}` : "";
  return html`<span>${usage.used.toLocaleString("en")}${size} tokens</span>`;
}

function Labels() {
  const labels = facts().labels;
  if (!labels || typeof labels !== "object") return null;
  const named = () => Object.entries(labels).map(([key, value]) => `${key}: ${plain(value)}`);
  const told = Array.isArray(labels) ? labels.map(String) : named();
  if (!told.length) return null;
  const each = told.map((label) => html`<li dir="auto">${inert(label)}</li>`);
  return html`<ul class="labels" aria-label="Labels">${each}</ul>`;
}

/** @param {unknown} value */
const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function Title() {
  const title = facts().title;
  const called = inert(title || name.value);
  return html`<h1 class="session-title" dir="auto" title=${called}>${called}</h1>
    ${title && title !== name.value && html`<code class="session-name" dir="auto">${inert(name.value)}</code>`}`;
}

/** @param {{view: string, onView: (view: string) => void}} props */
const Views = ({ view, onView }) => html`<div class="views" role="group" aria-label="View">
  ${["timeline", "waterfall"].map((each) => html`<button type="button" aria-pressed=${each === view}
    class=${classes("button small", each === view && "chosen")}
    onClick=${() => onView(each)}>${each}</button>`)}</div>`;

const Share = () => html`<a class="button small" title="One file that shows this session anywhere"
  href=${address(`/v1/sessions/${encodeURIComponent(name.value)}?format=html`)}
  download=${`${name.value}.html`}>share</a>`;

/** @param {{view: string, onView: (view: string) => void}} props */
const Head = ({ view, onView }) => html`<header class="session-head">
  <div class="session-names"><${Title} /></div>
  <div class="session-tools"><${Views} view=${view} onView=${onView} /><${Share} /></div>
  <p class="session-facts"><${TurnFact} /><${CallsFact} />
    ${facts().currentModeId && html`<span>mode <b dir="auto">${inert(facts().currentModeId)}</b></span>`}
    ${facts().currentModelId && html`<span>model <b dir="auto">${inert(facts().currentModelId)}</b></span>`}
    <${Usage} />${past.value && html`<span class="warn">as it was after event ${past.value.seq}</span>`}</p>
  <${Labels} /><${Notice} />
</header>`;

/** What the agent wants to be seen. */
function Notice() {
  const notice = facts().notice;
  const text = typeof notice === "string" ? notice : (notice?.message ?? notice?.text);
  return text ? html`<p class="note warn" dir="auto">${inert(String(text))}</p>` : null;
}

/** The newest plan, for as long as something of it is left to do. */
function PlanPanel() {
  const plan = slowly.value.findLast((entry) => entry.type === "plan");
  const steps = Array.isArray(plan?.entries) ? plan.entries : [];
  const choice = kept(0, "plan");
  if (!steps.length) return null;
  const open = choice.value ?? steps.some((/** @type {any} */ step) => step?.status !== "completed");
  return html`<section class="plan-panel" aria-label="Plan">
    <button type="button" class="fold-head" aria-expanded=${open} onClick=${() => (choice.value = !open)}>
      <span class="turn" aria-hidden="true">${open ? "▾" : "▸"}</span> <b>Plan</b>${" "}
      <span class="dim">${progressOf(steps)}</span></button>
    ${open && html`<${Steps} steps=${steps} />`}
  </section>`;
}

// The view

/** The filter is in the address, so that a link shows the same. */
const typedIn = () => new URLSearchParams(location.search).get("q") ?? "";
const viewIn = () => (new URLSearchParams(location.search).get("view") === "waterfall" ? "waterfall" : "timeline");

/** @param {Record<string, string>} wanted */
function keepInAddress(wanted) {
  const query = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(wanted)) value ? query.set(key, value) : query.delete(key);
  const search = query.toString();
  history.replaceState(history.state, "", location.pathname + (search ? `?${search}` : "") + location.hash);
}

export default function SessionView() {
  const [view, setView] = useState(viewIn);
  const [typed, setTyped] = useState(typedIn);
  const session = route.value.session ?? name.value;
  useEffect(() => keepInAddress({ q: typed, view: view === "timeline" ? "" : view }), [typed, view]);
  const accept = useMemo(() => (typed.trim() && filters() ? filters().parseFilter(typed) : null), [typed, filters()]);
  return html`<div class="session-view column">
    <${Head} view=${view} onView=${setView} />
    <${Bars} typed=${typed} onTyped=${setTyped} />
    <${PlanPanel} />
    ${view === "waterfall"
      ? html`<${Falls} accept=${accept} onPick=${() => setView("timeline")} />`
      : html`<${Timeline} accept=${accept} />`}
    <${Below} session=${session} />
  </div>`;
}

/** @param {{typed: string, onTyped: (typed: string) => void}} props */
function Bars({ typed, onTyped }) {
  const FilterBar = componentOf(filters(), "FilterBar");
  const Scrubber = componentOf(scrubber(), "Scrubber");
  if (!loaded.value) return null;
  return html`${FilterBar && html`<${FilterBar} entries=${slowly.value} value=${typed} onChange=${onTyped} />`}
    ${Scrubber && html`<${Scrubber} />`}`;
}

/** @param {{accept: ((entry: any) => boolean) | null, onPick: () => void}} props */
function Falls({ accept, onPick }) {
  const Waterfall = componentOf(waterfall(), "Waterfall");
  if (waterfall() === null) return html`<p class="nothing">The waterfall could not be loaded.</p>`;
  if (!Waterfall) return null;
  const entries = accept ? slowly.value.filter(accept) : slowly.value;
  const pick = (/** @type {number} */ id) => {
    onPick();
    go(`${location.pathname.slice(address("").length)}#entry-${id}`, { replace: true });
  };
  return html`<${Waterfall} entries=${entries} onPick=${pick} />`;
}

/** @param {{session: string}} props */
function Below({ session }) {
  const PromptBox = componentOf(prompt(), "PromptBox");
  if (!PromptBox) return null;
  // It is only hidden in the past, so that what was typed is still there afterwards.
  return html`<div class="session-prompt" hidden=${!!past.value}><${PromptBox} key=${session} session=${session} />
  </div>`;
}
