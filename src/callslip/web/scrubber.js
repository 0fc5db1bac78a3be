// The session as it was after any past event: a slider over its events. What was then is asked of the server, which
// folds the log to that event; the page works out nothing.

import { Fragment, computed, effect, html, signal } from "./ui.js";
import { entryOf, name, now, order, past, seq, showPast } from "./state.js";
import { ago, exactly, timeOf } from "./time.js";

const PAUSE = 90;
const LEAP = 10;
const MOST_MARKS = 80;

/** Where the person wants to be, ahead of the server's answer; null is live. */
const wish = signal(/** @type {number | null} */ (null));
const trouble = signal("");
/** The first event of which there is a log: retention may have removed older ones. */
const first = signal(1);

/** Events at which turns begin, as far as their entries are loaded. */
const turns = computed(() => {
  const found = new Map();
  for (const id of order.value) {
    const turn = entryOf(id)?.peek().turn;
    if (turn && !found.has(turn)) found.set(turn, id);
  }
  return /** @type {number[]} */ ([...found.values()]);
});

effect(() => {
  name.value;
  leave();
  first.value = 1;
});

let shown = false;
effect(() => {
  // Whoever else goes back to live takes the thumb along.
  if (!past.value && shown) leave();
  shown = past.value !== null;
});

function leave() {
  wish.value = null;
  trouble.value = "";
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let soon;
let asking = false;

/**
 * Go to an event: the last is live. While somebody drags, only where the thumb rests is asked for.
 * @param {number} to
 */
export function seek(to) {
  clearTimeout(soon);
  trouble.value = "";
  if (to >= seq.value) return back();
  wish.value = Math.max(first.value, to);
  soon = setTimeout(ask, PAUSE);
}

/** Back to live. */
export function back() {
  clearTimeout(soon);
  leave();
  now();
}

/** One question at a time: what was wished for meanwhile is asked for next. */
async function ask() {
  if (asking) return;
  asking = true;
  try {
    for (let told = -1; wish.value !== null && wish.value !== told; ) await showPast((told = wish.value));
  } catch (error) {
    if (wish.value !== null) refused(/** @type {any} */ (error));
  } finally {
    asking = false;
  }
}

/** @param {Error & {told?: {low?: number}}} error */
function refused(error) {
  const low = error.told?.low;
  if (low !== undefined && low + 1 > first.value) {
    first.value = low + 1;
    if (wish.value !== null) seek(Math.max(wish.value, low + 1));
    return;
  }
  wish.value = past.value?.seq ?? null;
  trouble.value = error.message;
}

const at = computed(() => wish.value ?? past.value?.seq ?? seq.value);

/** The start of a turn before or after where one is. @param {number} step */
function turnFrom(step) {
  const before = () => turns.value.filter((one) => one < at.value).at(-1);
  const found = step < 0 ? before() : turns.value.find((one) => one > at.value);
  seek(found ?? (step < 0 ? first.value : seq.value));
}

/** @type {Record<string, () => void>} */
const KEYS = {
  ArrowLeft: () => seek(at.value - 1), ArrowDown: () => seek(at.value - 1),
  ArrowRight: () => seek(at.value + 1), ArrowUp: () => seek(at.value + 1),
  PageDown: () => seek(at.value - LEAP), PageUp: () => seek(at.value + LEAP),
  Home: () => seek(first.value), End: back, Escape: back,
};

/** @param {KeyboardEvent} event */
function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
}

/** @param {{currentTarget: HTMLInputElement}} event */
const dragged = ({ currentTarget }) => seek(Number(currentTarget.value));

/** The moment in words. */
const said = computed(() => {
  if (at.value >= seq.value) return `live, event ${seq.value}`;
  const there = past.value?.seq === at.value ? past.value : null;
  return `event ${at.value} of ${seq.value}${there ? `, ${there.type}, ${timeOf(there.at)}` : ""}`;
});

/** The turns that are far enough apart to be told from each other. @param {number} width */
function marksOf(width) {
  let last = -Infinity;
  return turns.value.filter((one) => one >= first.value && one - last >= width / MOST_MARKS && ((last = one), true));
}

function Marks() {
  const width = Math.max(1, seq.value - first.value);
  const left = (/** @type {number} */ one) => ({ left: `${(100 * (one - first.value)) / width}%` });
  return html`<div class="scrub-marks" aria-hidden="true">
    ${marksOf(width).map((one) => html`<span key=${one} class="scrub-mark" style=${left(one)}></span>`)}
  </div>`;
}

/** @param {{label: string, sign: string, off: boolean, onClick: () => void}} props */
const Step = ({ label, sign, off, onClick }) =>
  html`<button type="button" class="button small plain scrub-step" aria-label=${label} title=${label} disabled=${off}
    onClick=${onClick}>${sign}</button>`;

function Banner() {
  const then = past.value;
  if (!then) return html`<div role="status" class="unseen"></div>`;
  const time = exactly(then.at);
  const when = time && html`${", at "}<time dateTime=${time} title=${time}>${timeOf(then.at)}</time> (${ago(then.at)})`;
  return html`<div class="scrub-past" role="status">
    <p><strong>You see the past.</strong> This is the session after event ${then.seq} of ${seq.value}${when}.</p>
    <button type="button" class="button small first" onClick=${back}>Back to live</button>
  </div>`;
}

export function Scrubber() {
  if (seq.value < 2) return null;
  const oldest = at.value <= first.value;
  const live = at.value >= seq.value;
  return html`<${Fragment}>
    <div class="scrub" role="group" aria-label="Go through the session's events">
      <div class="scrub-steps">
        <${Step} label="The turn before" sign="«" off=${oldest} onClick=${() => turnFrom(-1)} />
        <${Step} label="One event back" sign="‹" off=${oldest} onClick=${() => seek(at.value - 1)} />
      </div>
      <div class="scrub-line">
        <${Marks} />
        <input class="scrub-range" type="range" min=${first.value} max=${seq.value} step="1" value=${at.value}
          aria-label="Event" aria-valuetext=${said.value} onKeyDown=${key} onInput=${dragged} />
      </div>
      <div class="scrub-steps">
        <${Step} label="One event on" sign="›" off=${live} onClick=${() => seek(at.value + 1)} />
        <${Step} label="The next turn" sign="»" off=${live} onClick=${() => turnFrom(1)} />
      </div>
      <output class="scrub-said" aria-live="off">${said.value}</output>
      ${trouble.value && html`<p class="scrub-trouble" role="alert">${trouble.value}</p>`}
    </div>
    <${Banner} />
  <//>`;
}

export default Scrubber;
