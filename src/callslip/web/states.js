// How each state of a call is displayed: a glyph, an icon and a label. page.css sets the colour by the class `is-<state>`.

/** @typedef {{glyph: string, icon: string, label: string, isOpen: boolean, hint?: string}} StateView */

/** @type {Record<string, StateView>} */
export const STATES = {
  queued: { icon: "queue", glyph: "○", label: "Queued", isOpen: true },
  awaiting_approval: { icon: "wait", glyph: "?", label: "Waiting for approval", isOpen: true },
  running: { icon: "ring", glyph: "●", label: "Running", isOpen: true },
  completed: { icon: "check", glyph: "✓", label: "Completed", isOpen: false },
  failed: { icon: "fail", glyph: "✗", label: "Failed", isOpen: false },
  denied: { icon: "deny", glyph: "⊘", label: "Denied", isOpen: false },
  cancelled: { icon: "stop", glyph: "■", label: "Cancelled", isOpen: false },
  expired: { icon: "expire", glyph: "!", label: "Expired", isOpen: false, hint: "Timed out" },
  lost: { icon: "lost", glyph: "~", label: "Lost", isOpen: false, hint: "Worker stopped responding" },
};

/**
 * How each state of an approval request is displayed. `look` is the call state whose colour it uses.
 * @type {Record<string, {glyph: string, label: string, look: string}>}
 */
export const APPROVAL_STATES = {
  pending: { glyph: "?", label: "Pending", look: "awaiting_approval" },
  granted: { glyph: "✓", label: "Approved", look: "completed" },
  refused: { glyph: "⊘", label: "Denied", look: "denied" },
  withdrawn: { glyph: "■", label: "Withdrawn", look: "cancelled" },
  released: { glyph: "↦", label: "Answered in terminal", look: "cancelled" },
  moot: { glyph: "■", label: "No longer needed", look: "cancelled" },
  superseded: { glyph: "↻", label: "Replaced", look: "cancelled" },
};

/**
 * Return how to display a state. An unknown state, sent by a newer server, is displayed by its name.
 * @param {string | undefined} status @returns {StateView}
 */
export const describeState = (status) =>
  STATES[status ?? ""] ?? { glyph: "·", icon: "todo", label: (status ?? "Unknown").replaceAll("_", " "), isOpen: false };

/** Return the id by which an approval request is answered. @param {any} request */
export const approvalOf = (request) => String(request.approvalId ?? request.requestId);
