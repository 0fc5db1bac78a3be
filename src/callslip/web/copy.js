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

/** @param {{text: string | (() => string), label: string, plain?: boolean, children?: any}} props */
export function Copy({ text, label, plain, children }) {
  const [status, setStatus] = useState("");
  const press = async (/** @type {Event} */ event) => {
    event.stopPropagation();
    const copied = copyText(typeof text === "string" ? text : text());
    await copied.then(() => setStatus("Copied"), () => setStatus("Copy failed"));
    setTimeout(() => setStatus(""), 1500);
  };
  return html`<button type="button" class=${classes("button small", plain && "plain")} title=${label}
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
