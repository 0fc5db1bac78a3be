// Whether the page is live, in a word; and what to do where it is not.

import { classes, html, useEffect, useState } from "./ui.js";
import { code, loaded, problem, status, told, tryNow } from "./state.js";

/** @type {Record<string, {word: string, look: string, glyph: string}>} */
const LOOKS = {
  connecting: { word: "connecting", look: "soon", glyph: "◌" },
  live: { word: "live", look: "live", glyph: "●" },
  resuming: { word: "coming back", look: "soon", glyph: "◌" },
  waiting: { word: "coming back", look: "soon", glyph: "◌" },
  refused: { word: "not connected", look: "off", glyph: "✗" },
  closed: { word: "not connected", look: "off", glyph: "✗" },
};

/** A line that is back at once was never worth a word. */
const BLINK = 400;

/** The status, once it has lasted. */
function useLasting() {
  const now = status.value;
  const [lasting, setLasting] = useState(now);
  useEffect(() => {
    const timer = setTimeout(() => setLasting(now), now === "live" ? 0 : BLINK);
    return () => clearTimeout(timer);
  }, [now]);
  return lasting;
}

export default function Pill() {
  const { word, look, glyph } = LOOKS[useLasting()] ?? LOOKS.closed;
  return html`<p class=${classes("pill", look)} role="status">
    <span class="glyph" aria-hidden="true">${glyph}</span><span class="unseen">Connection: </span>${word}
  </p>`;
}

/** Above everything while there is no line: what that means, and what to do. */
export function Trouble() {
  const lasting = useLasting();
  if (lasting === "refused") return told.value.size || loaded.value ? html`<${Refused} />` : null;
  if (lasting !== "waiting") return null;
  return html`<div class="trouble" role="alert">
    <p><strong>The server does not answer.</strong> What is shown is as it was; the page goes on by itself as soon as
      the server is back. If it was stopped, start <code>callslip serve</code>, or the demo, again.</p>
    <button class="button small" onClick=${tryNow}>Try now</button>
  </div>`;
}

/** What the server's way in leaves in the address of whoever brought a token that is none. */
const WRONG = "#unknown-token";

const BUT = {
  401: html`<p>Open the link that <code>callslip serve</code> printed when it started: it ends
    in <code>?token=…</code> and lets this browser in. Then come back here.</p>`,
  403: html`<p>The token that this browser has does not open this. Ask whoever runs the server for one that does, or
    open the link that <code>callslip serve</code> printed.</p>`,
};

/** Whoever has a token and no link: the server takes it out of the address at once, and gives a cookie for it. */
function Token() {
  return html`<form class="token" method="get" action=${location.pathname}>
    <label for="token">Or give a token here; <code>callslip admin token create</code> makes one.</label>
    <div><input id="token" class="field" name="token" type="password" required autocomplete="off" />
      <button class="button first">Enter</button></div>
  </form>`;
}

/** The server knows us not, or not for this. */
export function Refused() {
  const known = /** @type {Record<number, any>} */ (BUT)[code.value];
  return html`<section class=${classes("notice", code.value !== 401 && "bad")} role="alert">
    <h1>${code.value === 401 ? "Say who you are" : "The server refused"}</h1>
    ${code.value === 401 && location.hash === WRONG && html`<p>That token is not known, or not any more.</p>`}
    ${known ?? html`<p>It said: <span class="foreign" dir="auto">${problem.value}</span></p>`}
    ${code.value === 401 && html`<${Token} />`}
    <p><button class="button" onClick=${tryNow}>Try again</button></p>
  </section>`;
}
