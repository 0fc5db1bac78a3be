// The UI libraries of the page (preact, htm and signals), imported from one place.

import { Fragment, createElement, render } from "./vendor/preact.mjs";
import { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";

export { batch, computed, effect, signal, untracked, useSignalEffect } from "./vendor/signals.mjs";
export { Fragment, render, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState };

/** @typedef {import("./vendor/preact.mjs").Drawn} Drawn */
/**
 * @template T
 * @typedef {import("./vendor/signals.mjs").Signal<T>} Signal
 */
/**
 * @template T
 * @typedef {import("./vendor/signals.mjs").ReadonlySignal<T>} ReadonlySignal
 */

export const html = htm.bind(createElement);

/** Join class names, without empty and false ones. @param {(string | false | null | undefined | 0)[]} names */
export const classes = (...names) => names.filter(Boolean).join(" ");

/**
 * Return a component that is loaded when it is first shown. `load` imports a module that exports it as default.
 * @param {() => Promise<{default: any}>} load
 */
export function lazy(load) {
  /** @type {any} */
  let Loaded = null;
  return function Lazy(/** @type {any} */ props) {
    const [failed, setFailed] = useState("");
    const [, redraw] = useState(0);
    useEffect(() => {
      if (Loaded) return;
      load().then(
        (module) => {
          Loaded = module.default;
          redraw((count) => count + 1);
        },
        (error) => setFailed(String(error?.message ?? error)),
      );
    }, []);
    if (Loaded) return html`<${ErrorBoundary} component=${Loaded} props=${props} />`;
    return failed ? html`<${ErrorNotice} message=${failed} />` : null;
  };
}

/**
 * Contain an error of one component, so that the rest of the page keeps working.
 * @param {{component: any, props: any}} props
 */
function ErrorBoundary({ component, props }) {
  const [error, reset] = useErrorBoundary((cause) => console.error(cause));
  if (error) return html`<${ErrorNotice} message=${String(error?.message ?? error)} onRetry=${reset} />`;
  return createElement(component, props);
}

/** @param {{message: string, onRetry?: () => void}} props */
function ErrorNotice({ message, onRetry }) {
  return html`<div class="notice" role="alert">
    <p>This part of the page could not be displayed. Recorded data is not affected.</p>
    <p class="dim"><code>${message}</code></p>
    <p><button type="button" class="button" onClick=${onRetry ?? (() => location.reload())}>
      ${onRetry ? "Try again" : "Reload page"}</button></p>
  </div>`;
}
