// The header of every view: navigation, search, connection status, theme and keyboard shortcuts.

import { isHelpOpen } from "./help.js";
import { classes, html, signal } from "./ui.js";
import ConnectionStatus from "./connection.js";
import { answerableRequests, go, link, route } from "./state.js";

/** The search text for sessions and calls. */
export const query = signal("");

const NAV_LINKS = [
  { path: "/", label: "Sessions", views: ["sessions", "session", "call"] },
  { path: "/inbox", label: "Inbox", views: ["inbox"] },
  { path: "/commands", label: "Commands", views: ["commands"] },
  { path: "/rules", label: "Rules", views: ["rules"] },
];

function Nav() {
  const pendingCount = answerableRequests.value.length;
  return html`<nav class="places" aria-label="Views">
    ${NAV_LINKS.map(({ path, label, views }) => {
      const isCurrent = views.includes(route.value.view);
      const hasCount = label === "Inbox" && pendingCount > 0;
      return html`<a class=${classes("place", isCurrent && "here")} aria-current=${isCurrent ? "page" : undefined}
        ...${link(path)}>
        ${label}${hasCount && html`<span class="count">${pendingCount}<span class="visually-hidden">
          ${" "}pending</span></span>`}
      </a>`;
    })}
  </nav>`;
}

function Search() {
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const words = query.value.trim();
    go(words ? `/search?q=${encodeURIComponent(words)}` : "/");
  };
  return html`<form class="search" role="search" onSubmit=${submit}>
    <input id="search" class="field" type="search" autocomplete="off" spellcheck=${false} value=${query.value}
      placeholder="Search sessions and calls" aria-label="Search sessions and calls"
      onInput=${(/** @type {any} */ event) => (query.value = event.target.value)} />
    ${route.value.view !== "session" && html`<kbd aria-hidden="true">/</kbd>`}
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

function ThemeButton() {
  const other = theme.value === "dark" ? "light" : "dark";
  const label = `Switch to ${other} theme`;
  return html`<button class="button plain" aria-label=${label} title=${label} onClick=${toggleTheme}>
    <span aria-hidden="true">${other === "light" ? "☀" : "☾"}</span>
  </button>`;
}

export default function Header() {
  return html`<header class="top">
    <a class="skip button primary" href="#main">Skip to content</a>
    <a class="brand" ...${link("/")}><span class="stamp" aria-hidden="true">✓</span>Callslip</a>
    <${Nav} />
    <${Search} />
    <div class="corner">
      <${ConnectionStatus} />
      <${ThemeButton} />
      <button class="button plain" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)"
        onClick=${() => (isHelpOpen.value = true)}>?</button>
    </div>
  </header>`;
}
