// The empty session list: three ways to record a first session, each with a command to copy.

import { Copy } from "./copy.js";
import { html } from "./ui.js";

const STEPS = [
  {
    title: "Try the demo",
    about: "A small agent that runs real commands in a temporary folder. No account or API key required.",
    text: "callslip demo",
  },
  {
    title: "Record your agent",
    about: `Put this in front of the command that starts your ACP agent. All traffic passes through unchanged. If this
      server was started with --db, pass the same --db before the --.`,
    text: "callslip wrap -- your-agent",
  },
  {
    title: "Use the Python API",
    about: "Record calls from your own program. Use the database file of this server; callslip doctor shows its path.",
    text: `import callslip

async with callslip.open("sqlite:////path/to/ledger.db") as ledger:
    session = ledger.session("first")
    async with session.call("add", {"a": 1, "b": 2}) as call:
        call.complete(3)`,
  },
];

/** @param {{text: string}} props */
const CodeBlock = ({ text }) => html`<div class="copied"><pre tabindex="0">${text}</pre>
  <${Copy} text=${text} label="Copy" /></div>`;

export function Empty() {
  return html`<section class="column first-steps" aria-labelledby="empty-title">
    <h1 id="empty-title">No sessions yet</h1>
    <p class="dim">Sessions appear here as soon as something is recorded in this server's ledger.</p>
    <ol class="start-options">${STEPS.map(({ title, about, text }) => html`
      <li class="start-option"><h2>${title}</h2><p class="dim">${about}</p><${CodeBlock} text=${text} /></li>`)}</ol>
  </section>`;
}
