// How the user notices pending requests outside of the page: by the title and the icon of the tab, and by notifications of
// the browser, which it offers only to pages over HTTPS or on this computer.

import { inert } from "./ansi.js";
import { effect, html, signal } from "./ui.js";
import { isActive } from "./notices.js";
import { answerableRequests, go, inbox, loadedTopics, newNotice, sessions } from "./state.js";
import { setNotifies } from "./stream.js";

const STORAGE_KEY = "callslip.notifications";
const MAX_TEXT_LENGTH = 200;

/** @param {string} title */
export const titleWithCount = (title) => {
  const count = answerableRequests.value.length;
  return `${count ? `(${count}) ` : ""}${title} · Callslip`;
};

/** The icon with a badge while requests are pending. */
const icon = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel=icon]"));
const plainIcon = icon?.href ?? "";
const BADGE = "%3Ccircle cx='11.5' cy='4.5' r='4.5' fill='%23fff'/%3E%3Ccircle cx='11.5' cy='4.5' r='3.5' fill='%23d1242f'/%3E";

effect(() => {
  const href = answerableRequests.value.length ? plainIcon.replace("%3C/svg%3E", `${BADGE}%3C/svg%3E`) : plainIcon;
  if (icon && icon.href !== href) icon.href = href;
});

// Notifications of the browser

const isOffered = globalThis.isSecureContext && "Notification" in globalThis;
const permission = signal(isOffered ? Notification.permission : "denied");
const isWanted = signal(readChoice());
const areOn = () => isWanted.value && permission.value === "granted";

function readChoice() {
  try {
    return localStorage.getItem(STORAGE_KEY) === "on";
  } catch {
    return false; // Storage may be forbidden; the choice then lasts until the page is reloaded.
  }
}

/** @param {boolean} wanted */
function setWanted(wanted) {
  isWanted.value = wanted;
  try {
    localStorage.setItem(STORAGE_KEY, wanted ? "on" : "off");
  } catch {
    // As above.
  }
}

addEventListener("storage", ({ key }) => {
  if (key === STORAGE_KEY) isWanted.value = readChoice();
});
effect(() => setNotifies(areOn()));

/** @typedef {import("./notices.js").Notice} Notice */

/** The notifications that this tab shows, by ID. @type {Map<string, {notice: Notice, notification: Notification}>} */
const shown = new Map();

/** @param {Notice} notice */
function show(notice) {
  const { id, kind, session, entry, title, text } = notice;
  // That an agent is idle replaces that it has finished, and makes no sound again.
  const isNews = kind !== "idle";
  const tag = `callslip ${kind === "request" ? id : session}`;
  const options = { body: inert(text).slice(0, MAX_TEXT_LENGTH), tag, renotify: isNews, silent: isNews ? null : true };
  try {
    const notification = new Notification(inert(title), options);
    notification.onclick = () => {
      globalThis.focus();
      go(`/s/${encodeURIComponent(session)}${entry ? `#entry-${entry}` : ""}`);
      notification.close();
    };
    notification.onclose = () => shown.get(id)?.notification === notification && shown.delete(id);
    shown.set(id, { notice, notification });
  } catch {
    permission.value = "denied"; // Some browsers of phones show none for a page.
  }
}

effect(() => {
  if (newNotice.value) show(newNotice.value);
});
effect(() => {
  const pending = inbox.value;
  if (!loadedTopics.value.has("inbox")) return;
  for (const [id, { notice, notification }] of shown) {
    if (notice.kind === "request" && !pending.has(id)) notification.close();
  }
});
effect(() => {
  const rows = sessions.value;
  for (const { notice, notification } of shown.values()) {
    if (notice.kind !== "request" && isActive(rows.get(notice.session)?.state)) notification.close();
  }
});
addEventListener("pagehide", () => shown.forEach(({ notification }) => notification.close()));

async function toggle() {
  if (areOn()) return setWanted(false);
  permission.value = await Notification.requestPermission();
  setWanted(permission.value === "granted");
}

/** A button that turns notifications on and off. It is not there if the browser offers none. */
export function NotifyButton() {
  if (!isOffered) return null;
  if (permission.value === "denied") return html`<p class="dim">Notifications are blocked in this browser.</p>`;
  return html`<button class="button small" aria-pressed=${areOn()} onClick=${toggle}>
    <span aria-hidden="true">${areOn() ? "✓" : "◷"}</span> ${areOn() ? "Notifications on" : "Notify me"}
  </button>`;
}
