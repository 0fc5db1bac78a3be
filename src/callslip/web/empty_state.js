// The empty session list: four ways to record a first session, each with a command to copy.

import { Copy } from "./copy.js";
import { html } from "./ui.js";

const STEPS = [
  {
    title: "Record your agent",
    about: `Put this in front of the command that starts your ACP agent. All traffic passes through unchanged. If this
      server was started with --db, pass the same --db before the --.`,
    text: "callslip wrap -- your-agent",
  },
  {
    title: "Follow the agents that you use already",
    about: `This server and a watcher of the histories that Claude Code, Codex, Gemini CLI and OpenCode write, in one command.
      You can watch, but not approve.`,
    text: "callslip up",
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
  {
    title: "Just looking?",
    about: "The demo runs a small agent with real commands in a temporary folder. No account or API key required.",
    text: "callslip demo",
  },
];

/** @param {{text: string}} props */
const CodeBlock = ({ text }) => html`<div class="copied"><pre tabindex="0">${text}</pre>
  <${Copy} text=${text} label="Copy" /></div>`;

export function Empty() {
  return html`<section class="first" aria-labelledby="empty-title">
    <h1 id="empty-title">No sessions yet</h1>
    <p class="lead">Sessions appear here by themselves, as soon as something is recorded in this server's ledger.</p>
    <h2>Ways to record a session</h2>
    <ul class="start-options">${STEPS.map(({ title, about, text }) => html`
      <li><h3>${title}</h3><p>${about}</p><${CodeBlock} text=${text} /></li>`)}</ul>
  </section>`;
}
