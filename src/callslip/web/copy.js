// Copy buttons, and the links and shell commands that they copy.

import { classes, html, useState } from "./ui.js";
import { pageUrl } from "./state.js";

/** @param {string} text */
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // A page that is not served over HTTPS has no clipboard API, only the older command.
  const box = document.createElement("textarea");
  box.value = text;
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
}

/**
 * `text` may be a function that loads it; `done` is what to say when it was copied.
 * @param {{text: string | (() => string | Promise<string>), label: string, plain?: boolean, done?: string,
 *   children?: any}} props
 */
export function Copy({ text, label, plain, done = "", children }) {
  const [status, setStatus] = useState("");
  const press = async (/** @type {Event} */ event) => {
    event.stopPropagation();
    try {
      await copyText(typeof text === "string" ? text : await text());
      setStatus(done || "Copied");
    } catch {
      setStatus("Copy failed");
    }
    setTimeout(() => setStatus(""), done ? 4000 : 1500);
  };
  return html`<button type="button" data-stays class=${classes("button small", plain && "plain")} title=${label}
    aria-label=${children ? undefined : label} onClick=${press}>
    ${children ?? label}${status && html`<span class="copy-status" aria-hidden="true"> ${status}</span>`}</button>
    <span class="visually-hidden" role="status">${status}</span>`;
}

/** Shorten an ID for display. @param {string} id */
export const shorten = (id) => (id.length <= 14 ? id : `${id.slice(0, 13)}…`);

/** Quote a word for a POSIX shell. @param {string} text */
export const shellQuote = (text) => (/^[\w./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** @param {string} call */
export const callLink = (call) => location.origin + pageUrl(`/c/${encodeURIComponent(call)}`);
/** @param {string} call */
export const curlCommand = (call) => {
  const url = `${location.origin}${pageUrl(`/v1/calls/${encodeURIComponent(call)}`)}`;
  return `curl -s -H "Authorization: Bearer $CALLSLIP_TOKEN" ${shellQuote(url)}`;
};
/** @param {string} call */
export const cliCommand = (call) => `callslip show ${shellQuote(call)}`;
