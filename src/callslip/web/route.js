// Where the page is, by its address. Every view has one, so that links, reloads and the way back work.

import { batch, signal } from "./ui.js";

/**
 * @typedef {"sessions" | "session" | "call" | "inbox" | "commands" | "nowhere"} View
 * @typedef {{view: View, session?: string, call?: string}} Route
 */

/** The prefix that the server is mounted under. */
export const root = document.documentElement.dataset.root ?? "";

/** @type {[RegExp, (found: string) => Route][]} */
const VIEWS = [
  [/^\/$/, () => ({ view: "sessions" })],
  [/^\/s\/([^/]+)$/, (session) => ({ view: "session", session })],
  [/^\/c\/([^/]+)$/, (call) => ({ view: "call", call })],
  [/^\/inbox$/, () => ({ view: "inbox" })],
  [/^\/commands$/, () => ({ view: "commands" })],
];

/** @returns {Route} */
function readRoute() {
  const path = location.pathname.slice(root.length) || "/";
  for (const [pattern, made] of VIEWS) {
    const found = path.match(pattern);
    if (found) return made(decoded(found[1] ?? ""));
  }
  return { view: "nowhere" };
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // A stray % in an address that somebody typed.
  }
}

const readPicked = () => Number(location.hash.match(/^#entry-(\d+)$/)?.[1] ?? 0);

export const route = signal(readRoute());

/** The entry whose card is to be opened, shown and focused, from `#entry-4` in the address; 0 for none. */
export const picked = signal(readPicked());

function read() {
  batch(() => {
    const now = readRoute();
    if (JSON.stringify(now) !== JSON.stringify(route.peek())) route.value = now;
    picked.value = readPicked();
  });
}

addEventListener("popstate", read);
addEventListener("hashchange", read);

/** An address within the page, under whatever prefix it is mounted. @param {string} path */
export const address = (path) => root + path;

/** Go to another view without loading the page again. @param {string} path @param {{replace?: boolean}} [how] */
export function go(path, { replace = false } = {}) {
  const before = route.peek();
  history[replace ? "replaceState" : "pushState"](null, "", address(path));
  read();
  if (route.peek() !== before && !picked.peek()) scrollTo(0, 0);
}

/**
 * What makes a link go within the page; one that is opened in another tab is the browser's business.
 * @param {string} path
 */
export const link = (path) => ({
  href: address(path),
  onClick: (/** @type {MouseEvent} */ event) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(path);
  },
});
