// Times and durations for display. The clock ticks only while a component reads it.

import { computed, signal } from "./ui.js";

/** @type {number | undefined} */
let timer;

const ticks = signal(Date.now(), {
  watched() {
    ticks.value = Date.now();
    timer = setInterval(() => (ticks.value = Date.now()), 1000);
  },
  unwatched: () => clearInterval(timer),
});

/** When the clock was stopped, or 0 while it runs. */
export const stoppedAt = signal(0);

/**
 * Stop the clock, or let it run. Without a connection the page does not know what has ended, so no time may advance.
 * @param {boolean} isStopped
 */
export function stopClock(isStopped) {
  if (isStopped !== !!stoppedAt.peek()) stoppedAt.value = isStopped ? Date.now() : 0;
}

/** The current time in ms, updated every second. @type {import("./ui.js").ReadonlySignal<number>} */
export const clock = computed(() => stoppedAt.value || ticks.value);

/** Like `clock`, updated every ten seconds: enough for times that are displayed in minutes. */
const slowClock = computed(() => Math.floor(clock.value / 10_000) * 10_000 + 9_999);

/** When today began. @type {import("./ui.js").ReadonlySignal<number>} */
export const today = computed(() => new Date(slowClock.value).setHours(0, 0, 0, 0));

const pad = (/** @type {number} */ number) => String(number).padStart(2, "0");

/** Format a duration in ms: `640ms`, `3.2s`, `4m 05s`, `2h 07m`, `3d 4h`. @param {number} ms */
export function formatDuration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))}ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)}s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${pad(seconds % 60)}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)}h ${pad(minutes % 60)}m`;
  return `${Math.floor(minutes / 1440)}d ${Math.floor((minutes % 1440) / 60)}h`;
}

/**
 * Format the time between two moments. Without an end, it ticks in whole seconds.
 * @param {number | undefined} from @param {number | undefined} [to]
 */
export function formatElapsed(from, to) {
  if (!from) return "";
  if (to) return formatDuration(to - from);
  const ms = Math.max(0, clock.value - from);
  return ms < 60_000 ? `${Math.floor(ms / 1000)}s` : formatDuration(ms);
}

/** Format the time left until a moment, or "" when it has passed. It ticks. @param {number | undefined} at */
export function formatRemaining(at) {
  const left = at ? at - clock.value : 0;
  if (left <= 0) return "";
  return left < 60_000 ? `${Math.ceil(left / 1000)}s` : formatDuration(left);
}

/**
 * Format the age of a moment: `just now`, `3 min ago`, `2 h ago`, `5 days ago`, or the date.
 * @param {number | undefined} at
 */
export function formatAge(at) {
  if (!at) return "";
  const minutes = Math.floor(Math.max(0, slowClock.value - at) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${minutes} min ago`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ago`;
  const days = Math.floor(hours / 24);
  return days < 14 ? `${days} day${days === 1 ? "" : "s"} ago` : new Date(at).toLocaleDateString();
}

/** Format the time of day, with the date if it is not today. @param {number | undefined} at */
export function formatTime(at) {
  if (!at) return "";
  const then = new Date(at);
  const time = `${pad(then.getHours())}:${pad(then.getMinutes())}:${pad(then.getSeconds())}`;
  return then.toDateString() === new Date().toDateString() ? time : `${then.toLocaleDateString()} ${time}`;
}

const dayAndTime = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** Format a moment of today by its age, else as `19 Nov, 23:40`. @param {number | undefined} at */
export const formatMoment = (at) => (at && at < today.value ? dayAndTime.format(at) : formatAge(at));

/** Format a moment as ISO 8601, for tooltips. @param {number | undefined} at */
export const isoTime = (at) => (at ? new Date(at).toISOString() : "");
