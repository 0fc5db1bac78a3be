// A slider over the events of a session. The server computes the session after the selected event; the page only
// displays it.

import { Fragment, computed, effect, html, signal } from "./ui.js";
import { entrySignal, order, past, seq, sessionName, showLive, showPast } from "./state.js";
import { formatAge, formatTime, isoTime, stoppedAt } from "./time.js";

const DEBOUNCE_MS = 90;
const PAGE_EVENTS = 10;
const MAX_MARKS = 80;

/** The event that the user selected, before the server has answered; null is live. */
const target = signal(/** @type {number | null} */ (null));
const errorMessage = signal("");
/** The first event in the log; retention may have removed earlier ones. */
const firstSeq = signal(1);

/** The first event of each turn, as far as entries are loaded. */
const turnStarts = computed(() => {
  const starts = new Map();
  for (const id of order.value) {
    const turn = entrySignal(id)?.peek().turn;
    if (turn && !starts.has(turn)) starts.set(turn, id);
  }
  return /** @type {number[]} */ ([...starts.values()]);
});

effect(() => {
  sessionName.value;
  clearTarget();
  firstSeq.value = 1;
});

let wasInPast = false;
effect(() => {
  // Another part of the page returned to live.
  if (!past.value && wasInPast) clearTarget();
  wasInPast = past.value !== null;
});

function clearTarget() {
  target.value = null;
  errorMessage.value = "";
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let loadTimer;
let isLoading = false;

/**
 * Go to an event; the last one is live. While the user drags the slider, only positions where it rests are loaded.
 * @param {number} to
 */
export function seek(to) {
  clearTimeout(loadTimer);
  errorMessage.value = "";
  if (to >= seq.value) return returnToLive();
  target.value = Math.max(firstSeq.value, to);
  loadTimer = setTimeout(loadTarget, DEBOUNCE_MS);
}

/** Return to live. */
export function returnToLive() {
  clearTimeout(loadTimer);
  clearTarget();
  showLive();
}

/** Load the selected event, one request at a time; then load the event that was selected in the meantime. */
async function loadTarget() {
  if (isLoading) return;
  isLoading = true;
  try {
    let loadedSeq = -1;
    while (target.value !== null && target.value !== loadedSeq) await showPast((loadedSeq = target.value));
  } catch (error) {
    if (target.value !== null) handleError(/** @type {any} */ (error));
  } finally {
    isLoading = false;
  }
}

/** @param {Error & {body?: {low?: number}}} error */
function handleError(error) {
  const prunedSeq = error.body?.low;
  if (prunedSeq !== undefined && prunedSeq + 1 > firstSeq.value) {
    firstSeq.value = prunedSeq + 1;
    if (target.value !== null) seek(Math.max(target.value, prunedSeq + 1));
    return;
  }
  target.value = past.value?.seq ?? null;
  errorMessage.value = error.message;
}

const position = computed(() => target.value ?? past.value?.seq ?? seq.value);

/** Go to the start of the previous or next turn. @param {number} step */
function seekTurn(step) {
  const before = () => turnStarts.value.filter((one) => one < position.value).at(-1);
  const start = step < 0 ? before() : turnStarts.value.find((one) => one > position.value);
  seek(start ?? (step < 0 ? firstSeq.value : seq.value));
}

/** @type {Record<string, () => void>} */
const KEY_ACTIONS = {
  ArrowLeft: () => seek(position.value - 1), ArrowDown: () => seek(position.value - 1),
  ArrowRight: () => seek(position.value + 1), ArrowUp: () => seek(position.value + 1),
  PageDown: () => seek(position.value - PAGE_EVENTS), PageUp: () => seek(position.value + PAGE_EVENTS),
  Home: () => seek(firstSeq.value), End: returnToLive, Escape: returnToLive,
};

/** @param {KeyboardEvent} event */
function onKeyDown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !KEY_ACTIONS[event.key]) return;
  event.preventDefault();
  KEY_ACTIONS[event.key]();
}

/** @param {{currentTarget: HTMLInputElement}} event */
const onDrag = ({ currentTarget }) => seek(Number(currentTarget.value));

/** The position as text. */
const positionText = computed(() => {
  if (position.value >= seq.value) return `${stoppedAt.value ? "Disconnected" : "Live"}, event ${seq.value}`;
  const current = past.value?.seq === position.value ? past.value : null;
  return `Event ${position.value} of ${seq.value}${current ? `, ${current.type}, ${formatTime(current.at)}` : ""}`;
});

/** Return the turns that are far enough apart to be distinguished. @param {number} width */
function visibleMarks(width) {
  let last = -Infinity;
  const minGap = width / MAX_MARKS;
  return turnStarts.value.filter((one) => one >= firstSeq.value && one - last >= minGap && ((last = one), true));
}

function Marks() {
  const width = Math.max(1, seq.value - firstSeq.value);
  const left = (/** @type {number} */ one) => ({ left: `${(100 * (one - firstSeq.value)) / width}%` });
  return html`<div class="scrub-marks" aria-hidden="true">
    ${visibleMarks(width).map((one) => html`<span key=${one} class="scrub-mark" style=${left(one)}></span>`)}
  </div>`;
}

/** @param {{label: string, sign: string, off: boolean, onClick: () => void}} props */
const StepButton = ({ label, sign, off, onClick }) =>
  html`<button type="button" class="button small plain scrub-step" aria-label=${label} title=${label} disabled=${off}
    onClick=${onClick}>${sign}</button>`;

function Banner() {
  const current = past.value;
  if (!current) return html`<div role="status" class="visually-hidden"></div>`;
  const time = isoTime(current.at);
  const when = time && html`, <time dateTime=${time} title=${time}>${formatTime(current.at)}</time>${" "}
    (${formatAge(current.at)})`;
  return html`<div class="scrub-past" role="status">
    <p><strong>Viewing event ${current.seq} of ${seq.value}</strong>${when}</p>
    <button type="button" class="button small primary" onClick=${returnToLive}>Return to live</button>
  </div>`;
}

export function Scrubber() {
  if (seq.value < 2) return null;
  const oldest = position.value <= firstSeq.value;
  const live = position.value >= seq.value;
  return html`<${Fragment}>
    <div class="scrub" role="group" aria-label="History">
      <div class="scrub-steps">
        <${StepButton} label="Previous turn" sign="«" off=${oldest} onClick=${() => seekTurn(-1)} />
        <${StepButton} label="Previous event" sign="‹" off=${oldest} onClick=${() => seek(position.value - 1)} />
      </div>
      <div class="scrub-line">
        <${Marks} />
        <input class="scrub-range" type="range" min=${firstSeq.value} max=${seq.value} step="1" value=${position.value}
          aria-label="Event" aria-valuetext=${positionText.value} onKeyDown=${onKeyDown} onInput=${onDrag} />
      </div>
      <div class="scrub-steps">
        <${StepButton} label="Next event" sign="›" off=${live} onClick=${() => seek(position.value + 1)} />
        <${StepButton} label="Next turn" sign="»" off=${live} onClick=${() => seekTurn(1)} />
      </div>
      <output class="scrub-position" aria-live="off">${positionText.value}</output>
      ${errorMessage.value && html`<p class="scrub-error" role="alert">${errorMessage.value}</p>`}
    </div>
    <${Banner} />
  <//>`;
}

export default Scrubber;
