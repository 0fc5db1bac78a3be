// The heading of a turn: its number, when it began or what was asked, and how much was done. A click folds it.

import { inert } from "./ansi.js";
import { classes, html, signal } from "./ui.js";
import { get, hasServer, past, sessionName } from "./state.js";
import { formatDuration, formatElapsed, formatTime } from "./time.js";
import { countOf, formatCosts, shortNumber } from "./numbers.js";

/** @typedef {import("./rows.js").Turn} Turn */

const STORED = "callslip.turns";

/** Which turns the user folded or opened, or saw live: they stay as they are, also after a reload. */
export const foldedTurns = signal(/** @type {Record<string, boolean>} */ ({}));

/** Read what was folded in a session. @param {string} session */
export function readFolded(session) {
  /** @type {Record<string, boolean>} */
  let saved = {};
  try {
    const stored = JSON.parse(sessionStorage.getItem(STORED) ?? "{}");
    if (stored.session === session) saved = stored.turns;
  } catch {
    // Storage may be forbidden; older turns are then folded after a reload.
  }
  foldedTurns.value = saved;
}

/** @param {string} turn @param {boolean} isFolded */
export function foldTurn(turn, isFolded) {
  foldedTurns.value = { ...foldedTurns.peek(), [turn]: isFolded };
  try {
    sessionStorage.setItem(STORED, JSON.stringify({ session: sessionName.peek(), turns: foldedTurns.peek() }));
  } catch {
    // As above.
  }
}

// What a turn used

/** Tokens and costs by turn. @type {import("./ui.js").Signal<Map<string, any>>} */
const usage = signal(new Map());
let requested = "";

/** Ask for the usage of the turns of a session, once for each number of turns. @param {string} session @param {string} turns */
export async function loadUsage(session, turns) {
  const key = `${session} ${turns}`;
  if (!hasServer.peek() || key === requested) return;
  if (!requested.startsWith(`${session} `)) usage.value = new Map();
  requested = key;
  try {
    const { groups } = await get(`/v1/usage?by=turn&session=${encodeURIComponent(session)}`);
    if (key === requested) usage.value = new Map(groups.map((/** @type {any} */ group) => [group.group, group]));
  } catch {
    requested = ""; // A heading without its usage is still right.
  }
}

/** @param {{turn: Turn}} props */
function TurnUsage({ turn }) {
  const used = past.value ? undefined : usage.value.get(turn.turn);
  if (!used) return null;
  const tokens = used.inputTokens + used.outputTokens;
  const costs = formatCosts(used.costs);
  return html`${tokens > 0 && html`<span class="opt">${shortNumber(tokens)} tokens</span>`}
    ${costs && html`<span class="opt">${costs}</span>`}`;
}

/** @param {{turn: Turn}} props */
function Duration({ turn }) {
  if (turn.isOpen && !past.value) return html`<span>${formatElapsed(turn.begin)} so far</span>`;
  return turn.begin && turn.end > turn.begin ? html`<span>${formatDuration(turn.end - turn.begin)}</span>` : null;
}

/** @param {{turn: Turn}} props */
export default function TurnHeading({ turn }) {
  const { number, isFolded, calls } = turn;
  const about = isFolded ? inert(turn.prompt.trim().split("\n", 1)[0].slice(0, 300)) : formatTime(turn.at);
  return html`<h2 class=${classes("turn", isFolded && "shut")}>
    <button type="button" class="turn-toggle" aria-expanded=${String(!isFolded)} onClick=${() => foldTurn(turn.turn, !isFolded)}>
      <i class=${`i i-${isFolded ? "right" : "down"}`} aria-hidden="true"></i>
      <b>Turn ${number}</b><span class="cut dim" dir="auto">${about}</span>
      <span class="facts">
        ${calls > 0 && !turn.isPart && html`<span>${countOf(calls, "call")}</span>`}
        ${!turn.isPart && html`<${Duration} turn=${turn} />`}<${TurnUsage} turn=${turn} /></span>
    </button></h2>`;
}
