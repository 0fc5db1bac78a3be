// How each state of a call is shown: a glyph and a word, beside the colour that page.css gives to `is-<state>`.

/** @type {Record<string, {glyph: string, word: string, open: boolean}>} */
export const STATES = {
  queued: { glyph: "○", word: "queued", open: true },
  awaiting_approval: { glyph: "?", word: "awaiting approval", open: true },
  running: { glyph: "●", word: "running", open: true },
  completed: { glyph: "✓", word: "completed", open: false },
  failed: { glyph: "✗", word: "failed", open: false },
  denied: { glyph: "⊘", word: "denied", open: false },
  cancelled: { glyph: "■", word: "cancelled", open: false },
  expired: { glyph: "!", word: "expired", open: false },
  lost: { glyph: "~", word: "lost", open: false },
};

/**
 * How to show a state. One that this page does not know (the server is newer) is shown by its own name.
 * @param {string | undefined} status
 */
export const stateOf = (status) =>
  STATES[status ?? ""] ?? { glyph: "·", word: (status ?? "unknown").replaceAll("_", " "), open: false };
