// What a newcomer sees while the ledger is empty: three ways to a first session, each a line to copy.

import { Copy } from "./copy.js";
import { html } from "./ui.js";

const WAYS = [
  {
    title: "See one",
    about: "A small agent that runs real commands in a scratch folder, on a page of its own. No account, no model.",
    text: "callslip demo",
  },
  {
    title: "Watch your agent",
    about: `Put this before the command by which your editor or client runs an agent that speaks ACP. Every byte passes
      unchanged. With --db before the --, name the file of this server, if it was given one.`,
    text: "callslip wrap -- your-agent",
  },
  {
    title: "From your own code",
    about: "Every call has one identity and one log. Name the file of this server: callslip doctor says which it is.",
    text: `import callslip

async with await callslip.open("sqlite:////path/to/ledger.db") as ledger:
    session = ledger.session("first")
    async with session.call("add", {"a": 1, "b": 2}) as call:
        call.complete(3)`,
  },
];

/** @param {{text: string}} props */
const Copied = ({ text }) => html`<div class="copied"><pre tabindex="0">${text}</pre>
  <${Copy} text=${text} label="Copy" /></div>`;

export function Empty() {
  return html`<section class="column first-steps" aria-labelledby="empty-title">
    <h1 id="empty-title">There is no session yet</h1>
    <p class="dim">The first one appears here by itself as soon as something is written into this server's ledger.</p>
    <ol class="begins">${WAYS.map(({ title, about, text }) => html`
      <li class="way"><h2>${title}</h2><p class="dim">${about}</p><${Copied} text=${text} /></li>`)}</ol>
  </section>`;
}
