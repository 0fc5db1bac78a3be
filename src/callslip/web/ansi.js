// Untrusted text. `inert` escapes characters that could hide or reorder text; `parseTerminal` interprets colours and
// rewritten lines like a terminal. Titles, links, cursor movements and other terminal sequences are removed.

// The same characters as in the Python package: control characters, direction marks, zero-width spaces, invisible
// fillers, tags, lone surrogates; and joiners next to ASCII characters, where they have no purpose.
const HIDDEN = new RegExp(
  [
    String.raw`(?![\n\t])[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b`,
    String.raw`\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}\ud800-\udfff]`,
    String.raw`|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])`,
  ].join(""),
  "gu",
);

/** @param {string} character */
function escapeCharacter(character) {
  const code = character.codePointAt(0) ?? 0;
  const digits = code.toString(16);
  if (code < 0x100) return `\\x${digits.padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${digits.padStart(4, "0")}` : `\\u{${digits}}`;
}

/**
 * Escape control characters and direction marks so that they are visible and have no effect. Keep newlines and tabs.
 * @param {string} text
 */
export const inert = (text) => text.replaceAll("\r\n", "\n").replace(HIDDEN, escapeCharacter);

/** @typedef {[number, number, number]} Colour */
/**
 * @typedef {{fg?: Colour, bg?: Colour, bold?: boolean, dim?: boolean, italic?: boolean, under?: boolean,
 *   strike?: boolean, swap?: boolean}} Style
 */
/** @typedef {{text: string, style: Style | null}} Run */

/** The backgrounds of output in the dark and in the light theme: programs choose their colours for a dark one. */
export const BACKGROUND = /** @type {Colour} */ ([15, 18, 22]);
export const LIGHT_BACKGROUND = /** @type {Colour} */ ([241, 243, 246]);
const FOREGROUND = /** @type {Colour} */ ([225, 229, 236]);

/** @type {Colour[]} The sixteen base colours, all readable on the dark one. */
const BASE_COLOURS = [
  [128, 136, 150], [255, 120, 110], [110, 205, 130], [230, 190, 90],
  [115, 170, 255], [220, 145, 235], [90, 205, 215], [215, 220, 228],
  [150, 158, 172], [255, 150, 140], [145, 230, 160], [250, 215, 120],
  [150, 195, 255], [238, 175, 250], [130, 230, 238], [255, 255, 255],
];
const CUBE_LEVELS = [0, 95, 135, 175, 215, 255];

/** @param {number} index @returns {Colour} */
function indexedColour(index) {
  if (index < 16) return BASE_COLOURS[index] ?? FOREGROUND;
  if (index > 231) return [8 + (index - 232) * 10, 8 + (index - 232) * 10, 8 + (index - 232) * 10];
  const cube = index - 16;
  return [CUBE_LEVELS[Math.floor(cube / 36)], CUBE_LEVELS[Math.floor(cube / 6) % 6], CUBE_LEVELS[cube % 6]];
}

/** @param {number} part */
const linear = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
/** @param {Colour} colour */
const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);

/** @param {Colour} one @param {Colour} other */
export function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

/**
 * Return a colour, lightened or darkened until it is readable on its background.
 * @param {Colour} fg @param {Colour} bg @returns {Colour}
 */
function readable(fg, bg) {
  const goal = luminance(bg) < 0.18 ? 255 : 0;
  let colour = fg;
  for (let step = 0; step < 12 && contrast(colour, bg) < 4.5; step++) {
    colour = /** @type {Colour} */ (colour.map((part) => Math.round(part + (goal - part) * 0.2)));
  }
  return contrast(colour, bg) < 4.5 ? [goal, goal, goal] : colour;
}

/** @param {Colour} colour */
const cssColour = (colour) => `rgb(${colour.join(" ")})`;

/** Return the CSS properties of a run, or null for plain text. @param {Style | null} style */
export function styleProperties(style) {
  if (!style) return null;
  let { fg, bg } = style;
  if (style.swap) [fg, bg] = [bg ?? BACKGROUND, fg ?? FOREGROUND];
  const onDark = fg && readable(fg, BACKGROUND);
  const onLight = fg && readable(fg, LIGHT_BACKGROUND);
  const colour = bg ? cssColour(readable(fg ?? FOREGROUND, bg))
    : onDark && onLight && `light-dark(${cssColour(onLight)}, ${cssColour(onDark)})`;
  const lines = [style.under && "underline", style.strike && "line-through"].filter(Boolean).join(" ");
  return {
    ...(colour && { color: colour }),
    ...(bg && { backgroundColor: cssColour(bg) }),
    ...(style.bold && { fontWeight: "700" }),
    ...(style.dim && !fg && !bg && { color: "var(--ink-3)" }),
    ...(style.italic && { fontStyle: "italic" }),
    ...(lines && { textDecorationLine: lines }),
  };
}

/** @type {Record<number, (style: Style) => Style>} */
const STYLE_CODES = {
  1: (style) => ({ ...style, bold: true }),
  2: (style) => ({ ...style, dim: true }),
  3: (style) => ({ ...style, italic: true }),
  4: (style) => ({ ...style, under: true }),
  7: (style) => ({ ...style, swap: true }),
  9: (style) => ({ ...style, strike: true }),
  22: ({ bold, dim, ...style }) => style, 23: ({ italic, ...style }) => style, 24: ({ under, ...style }) => style,
  27: ({ swap, ...style }) => style, 29: ({ strike, ...style }) => style,
  39: ({ fg, ...style }) => style, 49: ({ bg, ...style }) => style,
};

/** @param {Style | null} before @param {string} parameters @returns {Style | null} */
function applyStyleCodes(before, parameters) {
  const codes = parameters.split(/[;:]/).map(Number);
  /** @type {Style} */
  let style = { ...before };
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at];
    if (!code) style = {};
    else if (code === 38 || code === 48) {
      const isTrueColour = codes[at + 1] === 2;
      const parts = codes.slice(at + 2, at + (isTrueColour ? 5 : 3)).map((part) => Math.min(255, part || 0));
      const [red = 0, green = 0, blue = 0] = parts;
      const colour = isTrueColour ? /** @type {Colour} */ ([red, green, blue]) : indexedColour(red);
      style = { ...style, [code === 38 ? "fg" : "bg"]: colour };
      at += isTrueColour ? 4 : 2;
    } else if (STYLE_CODES[code]) style = STYLE_CODES[code](style);
    else if (code >= 30 && code <= 37) style = { ...style, fg: BASE_COLOURS[code - 30] };
    else if (code >= 40 && code <= 47) style = { ...style, bg: BASE_COLOURS[code - 40] };
    else if (code >= 90 && code <= 97) style = { ...style, fg: BASE_COLOURS[code - 82] };
    else if (code >= 100 && code <= 107) style = { ...style, bg: BASE_COLOURS[code - 92] };
  }
  return Object.keys(style).length ? style : null;
}

// A sequence ends at its terminator or at the end of the line: an unterminated one must not swallow the rest.
const SEQUENCE = new RegExp(
  [
    String.raw`(?:\x1b\[|\x9b)([0-9;:?<=>!]*)[ -/]*([@-~]?)`,
    String.raw`(?:\x1b[\]P_^X]|[\x9d\x90\x9f\x9e\x98])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?`,
    String.raw`\x1b[ -/]*[0-~]?`,
    String.raw`\r+(?!\n)`,
  ].join("|"),
  "g",
);

/**
 * Write `fresh` over `line` from the start of the line. The last run of `line` is the first one on the screen, so that
 * a line that is rewritten often costs only what is written.
 * @param {Run[]} line @param {Run[]} fresh
 */
function overwrite(line, fresh) {
  let skip = fresh.reduce((sum, run) => sum + run.text.length, 0);
  while (skip > 0 && line.length) {
    const run = /** @type {Run} */ (line.pop());
    if (run.text.length > skip) line.push({ ...run, text: run.text.slice(skip) });
    skip -= run.text.length;
  }
  for (const run of fresh.reverse()) line.push(run);
}

/** @param {Run[]} runs @param {string} text @param {Style | null} style */
function addRun(runs, text, style) {
  if (text) runs.push({ text: inert(text), style });
}

/**
 * Parse terminal output into lines, each a list of runs with one style.
 * @param {string} text @returns {Run[][]}
 */
export function parseTerminal(text) {
  /** @type {Style | null} */
  let style = null;
  return text.replaceAll("\r\n", "\n").split("\n").map((line) => {
    /** @type {Run[]} */
    let old = [];
    /** @type {Run[]} */
    let runs = [];
    let at = 0;
    for (const match of line.matchAll(SEQUENCE)) {
      addRun(runs, line.slice(at, match.index), style);
      at = (match.index ?? 0) + match[0].length;
      if (match[0][0] === "\r") {
        overwrite(old, runs);
        runs = [];
      } else if (match[2] === "m" && !/[?<=>!]/.test(match[1])) style = applyStyleCodes(style, match[1]);
      else if (match[2] === "K") old = [];
    }
    addRun(runs, line.slice(at), style);
    overwrite(old, runs);
    return old.reverse();
  });
}

/** Whether a text contains terminal sequences. @param {string} text */
export const isTerminal = (text) => /\x1b\[[0-9;:]*[mK]|[^\n]\r[^\n]/.test(text);
