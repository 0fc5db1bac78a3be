// What a newcomer sees while the ledger is empty: three ways to a first session, each a line to copy.

import { html, useState } from "./parts.js";

const WAYS = [
  {
    title: "See one",
    about: "A small agent that runs real commands in a scratch folder. No account, no model.",
    text: "callslip demo",
  },
  {
    title: "Watch your agent",
    about: `Put this before the command by which your editor or client runs an agent that speaks ACP. Every byte passes
      unchanged.`,
    text: "callslip wrap -- your-agent",
  },
  {
    title: "From your own code",
    about: "Every call has one identity and one log, from the first argument to the last byte of output.",
    text: `import callslip

async with await callslip.open("ledger.db") as ledger:
    session = ledger.session("first")
    async with session.call("add", {"a": 1, "b": 2}) as call:
        call.complete(3)`,
  },
];

/** @param {{text: string}} props */
function Copied({ text }) {
  const [done, setDone] = useState(false);
  const copy = () => navigator.clipboard?.writeText(text).then(() => setDone(true), () => {});
  return html`<div class="copied"><pre tabindex="0">${text}</pre>
    <button class="button small" onClick=${copy}>${done ? "Copied" : "Copy"}</button></div>`;
}

export function Empty() {
  return html`<section class="column first-steps" aria-labelledby="empty-title">
    <h1 id="empty-title">There is no session yet</h1>
    <p class="dim">The first one appears here by itself as soon as something is written into this server's ledger.</p>
    <ol class="begins">${WAYS.map(({ title, about, text }) => html`
      <li class="way"><h2>${title}</h2><p class="dim">${about}</p><${Copied} text=${text} /></li>`)}</ol>
  </section>`;
}
