// A request that was answered, as one line below its call.

import { inert } from "./ansi.js";
import { commandIn } from "./call_text.js";
import { oneLine } from "./jsontree.js";
import { html } from "./ui.js";
import { APPROVAL_STATES } from "./states.js";
import { formatDuration, formatTime } from "./time.js";

/** @param {{entry: any}} props */
export default function ApprovalLine({ entry }) {
  const { label } = APPROVAL_STATES[entry.state] ?? { label: entry.state ?? "" };
  const option = (entry.options ?? []).find((/** @type {any} */ one) => one?.optionId && one.optionId === entry.responseOption);
  const isChanged = entry.responseInput !== undefined && entry.responseInput !== null;
  const waited = entry.at && entry.responseTime > entry.at ? formatDuration(entry.responseTime - entry.at) : "";
  const asked = isChanged ? commandIn(entry.rawInput) || oneLine(entry.rawInput) : "";
  return html`<p class="approval-line" title=${entry.responseTime ? formatTime(entry.responseTime) : undefined}>
    <i class="i i-shield" aria-hidden="true"></i><span class="cut">${label}
      ${entry.by && html` by <b class="untrusted" dir="auto">${inert(entry.by)}</b>`}
      ${isChanged && " with changes"}${waited && ` after ${waited}`}
      ${option?.name && html` (<span class="untrusted" dir="auto">${inert(option.name)}</span>)`}
      ${entry.reason && html`: “<span class="untrusted" dir="auto">${inert(entry.reason)}</span>”`}
      ${asked && html`; the agent asked for <code class="untrusted" dir="auto">${inert(asked)}</code>`}</span></p>`;
}
