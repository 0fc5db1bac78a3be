// The connection status, and notices for when the page is offline or access is denied.

import { inert } from "./ansi.js";
import { html, useEffect, useState } from "./ui.js";
import { connectionError, errorStatus, loaded, loadedTopics, reconnect, status } from "./state.js";
import { signInProblem } from "./sign_in.js";
import { formatTime, stoppedAt } from "./time.js";

const RECONNECTING = { label: "Reconnecting", tone: "soon" };
const OFFLINE = { label: "Offline", tone: "off" };

/** How each status is displayed; as offline if it is not listed. @type {Record<string, typeof OFFLINE>} */
const STATUSES = {
  connecting: { label: "Connecting", tone: "soon" },
  live: { label: "Live", tone: "on" },
  resuming: RECONNECTING,
  waiting: RECONNECTING,
};

/** A connection that is lost for less than this is not reported. */
const SETTLE_MS = 400;

/** Return the status, once it has lasted for a moment. */
function useSettledStatus() {
  const current = status.value;
  const [settled, setSettled] = useState(current);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(current), current === "live" ? 0 : SETTLE_MS);
    return () => clearTimeout(timer);
  }, [current]);
  return settled;
}

export default function ConnectionStatus() {
  const { label, tone } = STATUSES[useSettledStatus()] ?? OFFLINE;
  return html`<p class=${`live ${tone}`} role="status">
    <span class="dot" aria-hidden="true"></span><span class="visually-hidden">Connection: </span><span>${label}</span>
  </p>`;
}

/** A banner above the view while the connection is lost. */
export function OfflineBanner() {
  const settled = useSettledStatus();
  if (settled === "refused") return loadedTopics.value.size || loaded.value ? html`<${AccessDenied} />` : null;
  if (settled !== "waiting") return null;
  return html`<div class="offline-banner" role="alert">
    <p><strong>Connection lost. Reconnecting…</strong>
      ${stoppedAt.value ? ` Shown as of ${formatTime(stoppedAt.value)}; clocks are stopped.` : ""} If you stopped the server,
      start <code>callslip serve</code> or the demo again.</p>
    <button class="btn" onClick=${reconnect}>Retry now</button>
  </div>`;
}

/** The server redirects to this hash after an invalid token. */
const INVALID_TOKEN_HASH = "#unknown-token";

const HELP = {
  401: html`<p>Open the link with <code>?token=…</code> that <code>callslip serve</code> printed at startup, or scan the QR
    code of <code>callslip serve --lan</code>.</p>`,
  403: html`<p>Your token does not allow this. Ask the administrator of this server for another token, or open the link
    that <code>callslip serve</code> printed at startup.</p>`,
};

/** The fragment that names an entry, which a link in a notification has. */
const entryHash = () => (location.hash.startsWith("#entry-") ? location.hash : "");

/** Sign in with a token: the server exchanges it for a cookie and removes it from the address. */
function TokenForm() {
  return html`<form class="token" method="get" action=${location.pathname + entryHash()}>
    <label for="token">Or enter a token. To create one, run <code>callslip admin token create</code>.</label>
    <div class="field"><i class="i i-key dim" aria-hidden="true"></i>
      <input id="token" name="token" type="password" required autocomplete="off" placeholder="Token" /></div>
    <button class="btn main">Sign in</button>
  </form>`;
}

/** A notice that the user is not signed in, or has no access. */
export function AccessDenied() {
  const help = /** @type {Record<number, any>} */ (HELP)[errorStatus.value];
  const problem = location.hash === INVALID_TOKEN_HASH ? "Invalid or expired token." : signInProblem.value;
  return html`<section class="sign-in" role="alert">
    <span class="stamp" aria-hidden="true"><i class="i i-check"></i></span>
    <h1>${errorStatus.value === 401 ? "Sign in" : "Access denied"}</h1>
    ${errorStatus.value === 401 && problem && html`<p class="wrong"><i class="i i-warn" aria-hidden="true"></i>${inert(problem)}</p>`}
    ${help ?? html`<p>Server response: <span class="untrusted" dir="auto">${connectionError.value}</span></p>`}
    ${errorStatus.value === 401 && html`<${TokenForm} />`}
    <button class="btn" onClick=${reconnect}>Try again</button>
  </section>`;
}
