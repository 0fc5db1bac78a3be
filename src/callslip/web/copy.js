// Things to take away: ids, links, and lines for a shell.

import { classes, html, useState } from "./ui.js";
import { address } from "./state.js";

/** @param {string} text */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // A page that is not served over https has no clipboard, but an old way to it.
  const box = document.createElement("textarea");
  box.value = text;
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
}

/** @param {{text: string | (() => string), label: string, plain?: boolean, children?: any}} props */
export function Copy({ text, label, plain, children }) {
  const [said, say] = useState("");
  const press = async (/** @type {Event} */ event) => {
    event.stopPropagation();
    await copy(typeof text === "string" ? text : text()).then(() => say("copied"), () => say("not copied"));
    setTimeout(() => say(""), 1500);
  };
  return html`<button type="button" class=${classes("button small", plain && "plain")} title=${label}
    aria-label=${children ? undefined : label} onClick=${press}>
    ${children ?? label}${said && html`<span class="did-copy" aria-hidden="true"> ${said}</span>`}</button>
    <span class="unseen" role="status">${said}</span>`;
}

/** The beginning of an id, enough to tell it from its neighbours. @param {string} id */
export const short = (id) => (id.length <= 14 ? id : `${id.slice(0, 13)}…`);

/** A word that any shell takes as it is. @param {string} text */
export const quoted = (text) => (/^[\w./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** @param {string} call */
export const linkTo = (call) => location.origin + address(`/c/${encodeURIComponent(call)}`);
/** @param {string} call */
export const curlLine = (call) => {
  const url = `${location.origin}${address(`/v1/calls/${encodeURIComponent(call)}`)}`;
  return `curl -s -H "Authorization: Bearer $CALLSLIP_TOKEN" ${quoted(url)}`;
};
/** @param {string} call */
export const cliLine = (call) => `callslip show ${quoted(call)}`;
