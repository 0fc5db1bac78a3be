// The detail panel: all of one call, while the list stays as it is.

import { inert } from "./ansi.js";
import { titleOf } from "./call_text.js";
import { Actions, Approval, Duration, Events, Facts, Input, Notes, StateIcon } from "./card.js";
import { Copy } from "./copy.js";
import { detailPanel, IconButton } from "./frame.js";
import { JsonTree } from "./jsontree.js";
import Menu from "./menu.js";
import { Output } from "./output.js";
import { filterText, result } from "./matches.js";
import { entryIds, peekEntry, pickCall, pickedId, readEntry, rowState } from "./row_state.js";
import { hasServer, past } from "./state.js";
import { describeState } from "./states.js";
import { formatTime, isoTime } from "./time.js";
import { classes, html, signal } from "./ui.js";

const TABS = ["Output", "Input", "Events", "Raw"];
const tab = signal("Output");

/** Choose the next or the previous call. @param {number} by */
export function pickNext(by) {
  const ids = (filterText.value.trim() && result.value?.ids) || entryIds.value;
  let at = ids.indexOf(pickedId.value);
  do at += by; while (ids[at] !== undefined && peekEntry(ids[at])?.type !== "tool_call");
  if (ids[at] === undefined) return;
  pickCall(ids[at]);
  document.getElementById(`entry-${ids[at]}`)?.scrollIntoView({ block: "nearest" });
}

/** @param {{entry: any}} props */
function Head({ entry }) {
  const state = describeState(entry.status);
  const { toolName: tool } = entry;
  return html`<div class=${classes("detail-head", `is-${entry.status}`)}>
    <div class="line"><${StateIcon} status=${entry.status} />
      <h2 dir="auto">${inert(String(titleOf(entry)))}</h2>
      <${IconButton} icon="up" label="Previous call" onClick=${() => pickNext(-1)} />
      <${IconButton} icon="down" label="Next call" onClick=${() => pickNext(1)} />
      ${hasServer.value && html`<${Menu} label="More">${() => html`<${Actions} entry=${entry} live=${!past.value} />`}<//>`}
      <${IconButton} icon="close" label="Close (Esc)" onClick=${detailPanel.close} /></div>
    <div class="meta"><span>${state.label}</span>
      ${tool && html`<code class="untrusted" dir="auto">${inert(tool)}</code>`}
      <${Duration} entry=${entry} live=${!past.value} />
      ${entry.at > 0 && html`<time dateTime=${isoTime(entry.at)} title=${isoTime(entry.at)}>${formatTime(entry.at)}</time>`}
      <${Facts} entry=${entry} /></div>
  </div>`;
}

/** @param {{entry: any}} props */
function Tabs({ entry }) {
  const events = rowState(entry.id, "events").value?.events;
  const tabs = hasServer.value ? TABS : TABS.filter((name) => name !== "Events");
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    tab.value = tabs[(tabs.indexOf(tab.value) + step + tabs.length) % tabs.length];
    event.preventDefault();
    requestAnimationFrame(() => document.getElementById(`tab-${tab.value}`)?.focus());
  };
  return html`<div class="tabs" role="tablist" aria-label="Parts of the call" onKeyDown=${onKey}>${tabs.map((name) =>
    html`<button type="button" role="tab" id=${`tab-${name}`} aria-selected=${String(name === tab.value)} aria-controls="pane"
      tabindex=${name === tab.value ? 0 : -1} onClick=${() => (tab.value = name)}>${name}
      ${name === "Events" && events && html` <span class="count">${events.length}</span>`}</button>`)}</div>`;
}

/** @param {{entry: any}} props */
function Pane({ entry }) {
  if (tab.value === "Input") {
    return html`<div class="pad"><${Input} entry=${entry} /><${Approval} entry=${entry} /><${Notes} entry=${entry} /></div>`;
  }
  if (tab.value === "Events" && hasServer.value) return html`<div class="pad"><${Events} entry=${entry} /></div>`;
  if (tab.value === "Raw") return html`<div class="pad"><${JsonTree} value=${entry} /></div>`;
  return html`<${Output} entry=${entry} />`;
}

export default function Detail() {
  void entryIds.value; // The entry may be loaded later.
  const entry = readEntry(pickedId.value);
  if (entry?.type !== "tool_call") {
    return html`<p class="none">Choose a call to see its output, its input and its events.</p>`;
  }
  return html`<${Head} entry=${entry} /><${Tabs} entry=${entry} />
    <div class="pane" id="pane" role="tabpanel" aria-labelledby=${`tab-${tab.value}`} tabindex="0" key=${`${entry.id} ${tab.value}`}>
      <${Pane} entry=${entry} /></div>
    <footer><code class="cut">${entry.callId}</code>
      <${Copy} plain text=${entry.callId} label="Copy ID of the call"><i class="i i-copy" aria-hidden="true"></i><//>
      </footer>`;
}
