// Times as people read them. The clock ticks only while somebody reads it: a page on which nothing is open is at rest.

import { computed, signal } from "./ui.js";

/** @type {number | undefined} */
let ticking;

/** Now, in ms, each second anew for whoever reads it. */
export const clock = signal(Date.now(), {
  watched() {
    clock.value = Date.now();
    ticking = setInterval(() => (clock.value = Date.now()), 1000);
  },
  unwatched: () => clearInterval(ticking),
});

/** As `clock`, for what is told in minutes: who reads this is drawn again every ten seconds at most. */
const slowly = computed(() => Math.floor(clock.value / 10_000) * 10_000 + 9_999);

const two = (/** @type {number} */ number) => String(number).padStart(2, "0");

/** A span of ms in short: `640ms`, `3.2s`, `4m 05s`, `2h 07m`, `3d 4h`. @param {number} ms */
export function span(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))}ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)}s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)}h ${two(minutes % 60)}m`;
  return `${Math.floor(minutes / 1440)}d ${Math.floor((minutes % 1440) / 60)}h`;
}

/**
 * How long something took, or takes until now if it has no end: then it ticks, in whole seconds.
 * @param {number | undefined} from @param {number | undefined} [to]
 */
export function elapsed(from, to) {
  if (!from) return "";
  if (to) return span(to - from);
  const so_far = Math.max(0, clock.value - from);
  return so_far < 60_000 ? `${Math.floor(so_far / 1000)}s` : span(so_far);
}

/** How long until something; "" when that is past. It ticks. @param {number | undefined} at */
export function until(at) {
  const left = at ? at - clock.value : 0;
  if (left <= 0) return "";
  return left < 60_000 ? `${Math.ceil(left / 1000)}s` : span(left);
}

/** How long ago: `just now`, `3 min ago`, `2 h ago`, `5 days ago`, else the date. @param {number | undefined} at */
export function ago(at) {
  if (!at) return "";
  const minutes = Math.floor(Math.max(0, slowly.value - at) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${minutes} min ago`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ago`;
  const days = Math.floor(hours / 24);
  return days < 14 ? `${days} day${days === 1 ? "" : "s"} ago` : new Date(at).toLocaleDateString();
}

/** The time of day, with the date if that is not today. @param {number | undefined} at */
export function timeOf(at) {
  if (!at) return "";
  const then = new Date(at);
  const time = `${two(then.getHours())}:${two(then.getMinutes())}:${two(then.getSeconds())}`;
  return then.toDateString() === new Date().toDateString() ? time : `${then.toLocaleDateString()} ${time}`;
}

/** Exactly when, for a title. @param {number | undefined} at */
export const exactly = (at) => (at ? new Date(at).toISOString() : "");
