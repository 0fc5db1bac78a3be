// Sign in with the code in the address, as a QR code has it: #sign-in=CODE. The code works once.

import { signal } from "./ui.js";
import { post } from "./state.js";

const PATTERN = /^#sign-in=([\w-]+)$/;

/** Why the last code was not accepted, "" if it was. */
export const signInProblem = signal("");

/** Exchange the code in the address for a cookie, and remove it from the address and the history. */
export async function signInByAddress() {
  const code = location.hash.match(PATTERN)?.[1];
  if (!code) return;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    await post("/v1/sign-in", { code });
  } catch (error) {
    signInProblem.value = /** @type {Error} */ (error).message;
  }
}

// An address that is entered into an open tab changes only the fragment.
addEventListener("hashchange", () => PATTERN.test(location.hash) && location.reload());
