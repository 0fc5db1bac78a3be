// Routing. Every view has an address, so that links, reloads and the back button work.

import { batch, signal } from "./ui.js";

/**
 * @typedef {"sessions" | "session" | "call" | "inbox" | "commands" | "rules" | "search" | "notFound"} View
 * @typedef {{view: View, session?: string, call?: string, search?: string}} Route
 */

/** The path prefix under which the server is mounted. */
export const root = document.documentElement.dataset.root ?? "";

/** @type {[RegExp, (parameter: string) => Route][]} */
const VIEWS = [
  [/^\/$/, () => ({ view: "sessions" })],
  [/^\/s\/([^/]+)$/, (session) => ({ view: "session", session })],
  [/^\/c\/([^/]+)$/, (call) => ({ view: "call", call })],
  [/^\/inbox$/, () => ({ view: "inbox" })],
  [/^\/commands$/, () => ({ view: "commands" })],
  [/^\/rules$/, () => ({ view: "rules" })],
  [/^\/search$/, () => ({ view: "search", search: location.search })],
];

/** @returns {Route} */
function readRoute() {
  const path = location.pathname.slice(root.length) || "/";
  for (const [pattern, toRoute] of VIEWS) {
    const match = path.match(pattern);
    if (match) return toRoute(safeDecode(match[1] ?? ""));
  }
  return { view: "notFound" };
}

/** @param {string} part */
function safeDecode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // A stray % in a typed address.
  }
}

const readSelectedId = () => Number(location.hash.match(/^#entry-(\d+)$/)?.[1] ?? 0);

export const route = signal(readRoute());

/** The entry to open, show and focus, from `#entry-4` in the address; 0 for none. */
export const selectedId = signal(readSelectedId());

function readAddress() {
  batch(() => {
    const current = readRoute();
    if (JSON.stringify(current) !== JSON.stringify(route.peek())) route.value = current;
    selectedId.value = readSelectedId();
  });
}

addEventListener("popstate", readAddress);
addEventListener("hashchange", readAddress);

/** Return the URL of a path, with the prefix under which the server is mounted. @param {string} path */
export const pageUrl = (path) => root + path;

/** Go to another view without reloading the page. @param {string} path @param {{replace?: boolean}} [options] */
export function go(path, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", pageUrl(path));
  readAddress();
}

/**
 * Return the attributes of a link to another view. Clicks that open a new tab or window are left to the browser.
 * @param {string} path
 */
export const link = (path) => ({
  href: pageUrl(path),
  onClick: (/** @type {MouseEvent} */ event) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(path);
  },
});
