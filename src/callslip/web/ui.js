// What every component is made of: preact, htm and signals, from one place.

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

/** Class names, without those that do not hold. @param {(string | false | null | undefined | 0)[]} names */
export const classes = (...names) => names.filter(Boolean).join(" ");

/**
 * A component that is loaded when it is first shown. `load` imports a module whose default export is the component.
 * @param {() => Promise<{default: any}>} load
 */
export function lazily(load) {
  /** @type {any} */
  let Loaded = null;
  return function Lazy(/** @type {any} */ props) {
    const [failed, setFailed] = useState("");
    const [, again] = useState(0);
    useEffect(() => {
      if (Loaded) return;
      load().then(
        (module) => {
          Loaded = module.default;
          again((count) => count + 1);
        },
        (error) => setFailed(String(error?.message ?? error)),
      );
    }, []);
    if (Loaded) return html`<${Guarded} of=${Loaded} given=${props} />`;
    return failed ? html`<${Broken} why=${failed} />` : null;
  };
}

/** A part that breaks does not take the page with it. @param {{of: any, given: any}} props */
function Guarded({ of: Part, given }) {
  const [error, reset] = useErrorBoundary((thrown) => console.error(thrown));
  if (error) return html`<${Broken} why=${String(error?.message ?? error)} again=${reset} />`;
  return createElement(Part, given);
}

/** @param {{why: string, again?: () => void}} props */
function Broken({ why, again }) {
  return html`<div class="notice" role="alert">
    <p>This part of the page could not be shown. Nothing is lost: the ledger has it all.</p>
    <p class="dim"><code>${why}</code></p>
    <p><button type="button" class="button" onClick=${again ?? (() => location.reload())}>
      ${again ? "Try again" : "Load the page again"}</button></p>
  </div>`;
}
