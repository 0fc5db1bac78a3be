// The top of every view: where one can go, what one looks for, whether the page is live, light or dark, and the keys.

import { helping } from "./help.js";
import { classes, html, signal } from "./ui.js";
import Pill from "./connection.js";
import { go, inbox, link, route } from "./state.js";

/** What is looked for among sessions and calls. */
export const query = signal("");

const PLACES = [
  { path: "/", word: "Sessions", views: ["sessions", "session", "call"] },
  { path: "/inbox", word: "Inbox", views: ["inbox"] },
  { path: "/commands", word: "Commands", views: ["commands"] },
];

function Nav() {
  const waits = inbox.value.size;
  return html`<nav class="places" aria-label="Views">
    ${PLACES.map(({ path, word, views }) => {
      const here = views.includes(route.value.view);
      const count = word === "Inbox" && waits > 0;
      return html`<a class=${classes("place", here && "here")} aria-current=${here ? "page" : undefined}
        ...${link(path)}>
        ${word}${count && html`<span class="count">${waits}<span class="unseen"> waiting</span></span>`}
      </a>`;
    })}
  </nav>`;
}

function Search() {
  const find = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (route.value.view !== "sessions") go("/");
  };
  return html`<form class="search" role="search" onSubmit=${find}>
    <input id="search" class="field" type="search" autocomplete="off" spellcheck=${false} value=${query.value}
      placeholder="Search sessions and calls" aria-label="Search sessions and calls"
      onInput=${(/** @type {any} */ event) => (query.value = event.target.value)} />
    ${route.value.view !== "session" && html`<kbd aria-hidden="true">/</kbd>`}
  </form>`;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const chosen = signal(document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => {
  if (!document.documentElement.dataset.theme) chosen.value = dark.matches ? "dark" : "light";
});

function choose() {
  const theme = chosen.value === "dark" ? "light" : "dark";
  chosen.value = document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("callslip.theme", theme);
  } catch {
    // Storage may be forbidden; then it holds until the page is loaded again.
  }
}

function Theme() {
  const to = chosen.value === "dark" ? "light" : "dark";
  return html`<button class="button plain" aria-label=${`Switch to ${to}`} title=${`Switch to ${to}`} onClick=${choose}>
    <span aria-hidden="true">${to === "light" ? "☀" : "☾"}</span>
  </button>`;
}

export default function Header() {
  return html`<header class="top">
    <a class="skip button first" href="#main">Skip to the content</a>
    <a class="brand" ...${link("/")}><span class="stamp" aria-hidden="true">✓</span>Callslip</a>
    <${Nav} />
    <${Search} />
    <div class="corner">
      <${Pill} />
      <${Theme} />
      <button class="button plain" aria-label="Keyboard help" title="Keyboard help (?)"
        onClick=${() => (helping.value = true)}>?</button>
    </div>
  </header>`;
}
