// The header of every view: navigation, search, connection status, theme and keyboard shortcuts.

import { isHelpOpen } from "./help.js";
import { html, signal } from "./ui.js";
import ConnectionStatus from "./connection.js";
import { IconButton } from "./frame.js";
import Menu from "./menu.js";
import { answerableRequests, go, link, route } from "./state.js";

/** The search text for sessions and calls. */
export const query = signal("");

/** The views in the header. On a phone, those that are `further` are in a menu. */
const PLACES = [
  { path: "/", label: "Sessions", views: ["sessions", "session", "call"], further: false },
  { path: "/inbox", label: "Inbox", views: ["inbox"], further: false },
  { path: "/commands", label: "Commands", views: ["commands"], further: false },
  { path: "/rules", label: "Rules", views: ["rules"], further: true },
];

/** @param {typeof PLACES[number]} place */
const placeAttributes = ({ path, views }) =>
  ({ ...link(path), "aria-current": views.includes(route.value.view) ? "page" : undefined });

function Nav() {
  const pendingCount = answerableRequests.value.length;
  return html`<nav class="nav" aria-label="Views">
    ${PLACES.map((place) => html`<a class=${place.further ? "only-wide" : ""} ...${placeAttributes(place)}>
      ${place.label}${place.label === "Inbox" && pendingCount > 0 && html`<span class="count hot">${pendingCount}
        <span class="visually-hidden">${" "}pending</span></span>`}</a>`)}
  </nav>`;
}

/** What a phone has no room for in the header. */
const PhoneMenu = () => html`<${Menu} label="Menu" class="only-small">
  ${PLACES.filter(({ further }) => further).map((place) => html`<a ...${placeAttributes(place)}>${place.label}</a>`)}
  <button type="button" onClick=${toggleTheme}><i class="i i-moon" aria-hidden="true"></i>${themeLabel()}</button>
<//>`;

function Search() {
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const words = query.value.trim();
    go(words ? `/search?q=${encodeURIComponent(words)}` : "/");
  };
  return html`<form role="search" onSubmit=${submit}>
    <label class="field find"><i class="i i-find dim" aria-hidden="true"></i>
      <input id="search" type="search" autocomplete="off" spellcheck=${false} value=${query.value}
        placeholder="Search sessions and calls" aria-label="Search sessions and calls"
        onInput=${(/** @type {any} */ event) => (query.value = event.target.value)} />
      ${route.value.view !== "session" && html`<kbd aria-hidden="true">/</kbd>`}</label>
  </form>`;
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const theme = signal(document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light"));
prefersDark.addEventListener("change", () => {
  if (!document.documentElement.dataset.theme) theme.value = prefersDark.matches ? "dark" : "light";
});

function toggleTheme() {
  const next = theme.value === "dark" ? "light" : "dark";
  theme.value = document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("callslip.theme", next);
  } catch {
    // Storage may be forbidden; the choice then lasts until the page is reloaded.
  }
}

const themeLabel = () => `Switch to ${theme.value === "dark" ? "light" : "dark"} theme`;

export default function Header() {
  return html`<header class="top">
    <a class="skip btn main" href="#main">Skip to content</a>
    <a class="brand" aria-label="Callslip" ...${link("/")}><span class="stamp" aria-hidden="true"><i class="i i-check"></i></span>
      <b>Callslip</b></a>
    <${Nav} />
    <span class="gap"></span>
    <${Search} />
    <${ConnectionStatus} />
    <${IconButton} icon="moon" label=${themeLabel()} class="only-wide" onClick=${toggleTheme} />
    <${IconButton} icon="help" label="Keyboard shortcuts (?)" class="only-wide keys"
      onClick=${() => (isHelpOpen.value = true)} />
    <${PhoneMenu} />
  </header>`;
}
