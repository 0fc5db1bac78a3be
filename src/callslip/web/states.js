// How each state of a call is displayed: a glyph and a label. page.css sets the colour by the class `is-<state>`.

/** @typedef {{glyph: string, label: string, isOpen: boolean, hint?: string}} StateView */

/** @type {Record<string, StateView>} */
export const STATES = {
  queued: { glyph: "○", label: "Queued", isOpen: true },
  awaiting_approval: { glyph: "?", label: "Waiting for approval", isOpen: true },
  running: { glyph: "●", label: "Running", isOpen: true },
  completed: { glyph: "✓", label: "Completed", isOpen: false },
  failed: { glyph: "✗", label: "Failed", isOpen: false },
  denied: { glyph: "⊘", label: "Denied", isOpen: false },
  cancelled: { glyph: "■", label: "Cancelled", isOpen: false },
  expired: { glyph: "!", label: "Expired", isOpen: false, hint: "Timed out" },
  lost: { glyph: "~", label: "Lost", isOpen: false, hint: "Worker stopped responding" },
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
  STATES[status ?? ""] ?? { glyph: "·", label: (status ?? "Unknown").replaceAll("_", " "), isOpen: false };

/** Return the id by which an approval request is answered. @param {any} request */
export const approvalOf = (request) => String(request.approvalId ?? request.requestId);
