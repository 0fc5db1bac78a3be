// A bare page: the sessions, or one of them live. It shows what callslip.js holds and decides nothing.

import { Callslip } from "./callslip.js";

const root = document.documentElement.dataset.root;
const main = document.getElementById("main");
const status = document.getElementById("status");
const SIGNS = {
  queued: "○", awaiting_approval: "?", running: "●", completed: "✓", failed: "✗",
  denied: "⊘", cancelled: "–", expired: "⧗", lost: "!",
};
const WORDS = {
  closed: "not connected", connecting: "connecting", resuming: "coming back", live: "live",
  waiting: "the server does not answer; trying again", refused: "refused",
};

/** An element with text in it; everything that comes from elsewhere is text and nothing but text. */
function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

const textOf = (value) => (typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value, null, 2));
const block = (label, text) => (text ? [element("p", { class: "label" }, label), element("pre", { dir: "auto" }, text)] : []);

function showMessage(entry) {
  const who = entry.type === "thought" ? "thought" : entry.role;
  return element("article", { class: `entry ${who}` }, element("h2", {}, who), element("p", { class: "text", dir: "auto" }, entry.content));
}

function showCall(entry) {
  const said = `${SIGNS[entry.status] ?? ""} ${entry.status.replace("_", " ")}`;
  const head = element("h2", {}, element("span", { class: "state" }, said), ` ${entry.toolName ?? "call"} `, element("code", {}, entry.callId));
  const notes = [entry.reason, entry.late && "something came after its end", entry.truncated && `cut; the whole has ${entry.blob?.size} bytes`];
  return element("article", { class: `entry call ${entry.status}` }, head,
    element("p", { class: "text", dir: "auto" }, entry.title ?? ""),
    ...block("input", textOf(entry.rawInput ?? entry.inputText)),
    ...block("output", textOf(entry.output ?? entry.outputText)),
    ...block("error", textOf(entry.error)),
    ...notes.filter(Boolean).map((note) => element("p", { class: "note", dir: "auto" }, note)));
}

function showRequest(entry) {
  const state = entry.state ?? "pending";
  const answered = state === "pending" ? "waits for an answer" : `${state}${entry.by ? ` by ${entry.by}` : ""}`;
  return element("article", { class: `entry request ${state}` }, element("h2", {}, "approval"),
    element("p", { class: "text", dir: "auto" }, `${entry.description ?? ""} (${answered})`));
}

const SHOW = {
  message: showMessage, thought: showMessage, tool_call: showCall, permission_request: showRequest,
  plan: (entry) => element("article", { class: "entry plan" }, element("h2", {}, "plan"),
    element("ul", {}, ...entry.entries.map((step) => element("li", { dir: "auto" }, `${step?.status ?? ""} ${step?.content ?? textOf(step)}`)))),
  mode_change: (entry) => element("article", { class: "entry mode" }, element("h2", {}, "mode"), element("p", {}, entry.newModeId)),
};

function showSession(session) {
  const shown = new Map();
  const list = element("div", { id: "entries" });
  main.replaceChildren(element("h2", { id: "name", dir: "auto" }, session.info.title || session.name), list);
  return (identities) => {
    for (const id of identities) {
      const entry = session.entries.get(id);
      if (!entry || !SHOW[entry.type]) continue;
      const made = SHOW[entry.type](entry);
      made.id = `entry-${id}`;
      shown.get(id)?.replaceWith(made) ?? list.append(made);
      shown.set(id, made);
    }
  };
}

function followSession(name) {
  let draw = () => {};
  let changed = new Set();
  const later = () => {
    const identities = [...changed].sort((a, b) => a - b);
    changed = new Set();
    draw(identities);
  };
  return new Callslip({
    url: root, sessions: [name], limit: 500,
    onChange(event, told, client) {
      const session = client.sessions.get(name);
      if (event === "snapshot") {
        draw = showSession(session);
        changed = new Set(session.entries.keys());
      } else for (const patch of told.patches) changed.add(patch.op === "put" ? patch.entry.id : patch.id);
      requestAnimationFrame(later);
    },
    onStatus,
  });
}

function followList() {
  const draw = (client) => {
    const rows = [...(client.topics.get("sessions")?.values() ?? [])].sort((a, b) => b.updatedAt - a.updatedAt);
    const items = rows.map((row) => element("li", {}, element("a", { href: `${root}/s/${encodeURIComponent(row.session)}`, dir: "auto" }, row.title || row.session),
      ` ${row.calls} call${row.calls === 1 ? "" : "s"}${row.turn ? ", at work" : ""}`));
    main.replaceChildren(element("h2", {}, "Sessions"), items.length ? element("ul", {}, ...items)
      : element("p", {}, "There is no session yet. Try: callslip wrap -- your-agent"));
  };
  return new Callslip({ url: root, topics: ["sessions"], onChange: (event, told, client) => draw(client), onStatus });
}

function onStatus(word, client) {
  status.textContent = WORDS[word] ?? word;
  status.dataset.status = word;
  if (word === "refused") main.replaceChildren(element("p", { role: "alert" }, client.error.message));
}

const asked = location.pathname.match(/\/s\/([^/]+)$/);
(asked ? followSession(decodeURIComponent(asked[1])) : followList()).open();
