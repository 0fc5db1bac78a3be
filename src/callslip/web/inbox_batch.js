// Answers to several requests. Before anything is sent, each chosen request is shown in full; what is sent names its
// parameters by their hash. A request that changed, was answered or could not be shown meanwhile is left out.

import { inert } from "./ansi.js";
import { Requested } from "./request.js";
import { readRequest } from "./inbox_detail.js";
import { html, useEffect, useRef, useState } from "./ui.js";
import { inbox, post, sessions } from "./state.js";

/** The most answers that the server accepts at once. */
const MAX_ANSWERS = 100;

/** @type {Record<string, string>} */
const RESULTS = {
  answered: "Answered",
  "not-pending": "Left out: it was answered meanwhile",
  changed: "Left out: it has changed since it was shown",
  "not-found": "Left out: it does not exist any more",
  refused: "Not accepted",
};

/** @param {any} result @param {boolean} approves */
const resultText = ({ result, by, detail }, approves) => {
  if (result === "answered") return approves ? "Approved" : "Denied";
  const author = result === "not-pending" && by ? ` by ${inert(by)}` : "";
  return `${RESULTS[result] ?? result}${author}${detail ? `: ${inert(detail)}` : ""}`;
};

/**
 * A dialog that shows the chosen requests, sends the answers, and shows their results. `rows` are as they were chosen.
 * @param {{rows: any[], action: "approve" | "deny", onClose: () => void}} props
 */
export default function BatchReview({ rows, action, onClose }) {
  const [chosen] = useState(rows);
  const [inputs, setInputs] = useState(/** @type {Record<string, any>} */ ({}));
  const [results, setResults] = useState(/** @type {Map<string, any> | null} */ (null));
  const [reason, setReason] = useState("");
  const [isBusy, setIsBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const dialog = /** @type {{current: HTMLDialogElement | null}} */ (useRef(null));
  const approves = action === "approve";
  useEffect(() => {
    dialog.current?.showModal();
    // The hash is older than what is read now, so parameters that change in between are refused by the server.
    for (const row of chosen) {
      const set = (/** @type {any} */ value) => setInputs((before) => ({ ...before, [row.approval]: value }));
      readRequest(row).then((request) => set({ request }), (error) => set({ problem: error.message }));
    }
  }, []);

  /** Why a request is left out, or "". @param {any} row */
  function obstacle(row) {
    const now = inbox.value.get(row.approval);
    if (!now) return RESULTS["not-pending"];
    if (now.inputHash !== row.inputHash) return RESULTS.changed;
    if (inputs[row.approval]?.problem) return `Left out: it cannot be shown (${inert(inputs[row.approval].problem)})`;
    return "";
  }
  const isLoading = chosen.some((row) => !inputs[row.approval]);
  const ready = chosen.filter((row) => !obstacle(row));

  async function send() {
    setIsBusy(true);
    setProblem("");
    const answers = ready.map(({ approval, inputHash }) =>
      ({ id: approval, inputHash, action, ...(approves ? {} : { reason }) }));
    const found = new Map();
    try {
      for (let at = 0; at < answers.length; at += MAX_ANSWERS) {
        const part = await post("/v1/approvals/answers", answers.slice(at, at + MAX_ANSWERS));
        for (const result of part.results) found.set(result.id, result);
      }
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
    }
    if (found.size) setResults(found);
    setIsBusy(false);
  }

  const verb = approves ? "Approve" : "Deny";
  const count = `${ready.length} request${ready.length === 1 ? "" : "s"}`;
  return html`<dialog ref=${dialog} class="review" aria-labelledby="review-title" onClose=${onClose}>
    <header class="line"><h2 id="review-title">${results ? "Results" : `${verb} ${count}?`}</h2></header>
    <ol>${chosen.map((row) => {
      const input = inputs[row.approval];
      const session = sessions.value.get(row.session);
      const result = results?.get(row.approval);
      const note = result ? resultText(result, approves) : obstacle(row);
      const look = result?.result === "answered" ? (approves ? "good" : "mid") : "wait";
      return html`<li key=${row.approval} data-request=${row.approval}>
        <p class="dim untrusted" dir="auto">${input?.request?.toolName ? `${inert(input.request.toolName)} · ` : ""}
          ${inert(session?.title || session?.prompt || row.session)}</p>
        ${input?.request ? html`<${Requested} input=${input.request.rawInput} />`
          : html`<p class="untrusted" dir="auto">${inert(row.description)}</p>`}
        ${note ? html`<p class=${`outcome ${look}`} role="status">${note}</p>` : ""}</li>`;
    })}</ol>
    <footer>
      <p class="error-text" role="alert">${inert(problem)}</p>
      ${!approves && !results ? html`<input class="field" maxlength="2000" autocomplete="off" dir="auto"
        aria-label="Reason (sent to the agents)" placeholder="Reason (sent to the agents)" value=${reason}
        onInput=${(/** @type {any} */ event) => setReason(event.target.value)} />` : ""}
      <div class="line"><span class="gap"></span>
        <button type="button" class="btn" onClick=${() => dialog.current?.close()}>${results ? "Close" : "Cancel"}</button>
        ${results ? "" : html`<button type="button" class=${`btn ${approves ? "yes" : "no"}`} onClick=${send}
          disabled=${isBusy || isLoading || !ready.length}>${verb} ${ready.length}</button>`}</div>
    </footer>
  </dialog>`;
}
