// Text from elsewhere. `inert` makes it harmless to look at; `paint` reads what a terminal would have shown of it:
// colours and rewritten lines. Titles, links, cursor games and whatever else a program may send to a terminal are left
// out.

// The same characters as everywhere in Callslip: controls, marks of direction, blanks without width, fillers that look
// like nothing, tags, halves of pairs; and joiners beside plain letters, where they only hide something.
const HIDDEN = new RegExp(
  [
    String.raw`(?![\n\t])[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b`,
    String.raw`\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}\ud800-\udfff]`,
    String.raw`|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])`,
  ].join(""),
  "gu",
);

/** @param {string} found */
function escaped(found) {
  const code = found.codePointAt(0) ?? 0;
  const digits = code.toString(16);
  if (code < 0x100) return `\\x${digits.padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${digits.padStart(4, "0")}` : `\\u{${digits}}`;
}

/**
 * Text in which control characters and marks of direction are seen and do nothing. Newlines and tabs stay.
 * @param {string} text
 */
export const inert = (text) => text.replaceAll("\r\n", "\n").replace(HIDDEN, escaped);

/** @typedef {[number, number, number]} Colour */
/**
 * @typedef {{fg?: Colour, bg?: Colour, bold?: boolean, dim?: boolean, italic?: boolean, under?: boolean,
 *   strike?: boolean, swap?: boolean}} Style
 */
/** @typedef {{text: string, style: Style | null}} Run */

/** The paper of a terminal, in both themes: programs choose their colours for a dark one. */
export const PAPER = /** @type {Colour} */ ([21, 24, 30]);
const INK = /** @type {Colour} */ ([225, 229, 236]);

/** @type {Colour[]} The sixteen, all readable on that paper. */
const SIXTEEN = [
  [128, 136, 150], [255, 120, 110], [110, 205, 130], [230, 190, 90],
  [115, 170, 255], [220, 145, 235], [90, 205, 215], [215, 220, 228],
  [150, 158, 172], [255, 150, 140], [145, 230, 160], [250, 215, 120],
  [150, 195, 255], [238, 175, 250], [130, 230, 238], [255, 255, 255],
];
const LEVELS = [0, 95, 135, 175, 215, 255];

/** @param {number} index @returns {Colour} */
function indexed(index) {
  if (index < 16) return SIXTEEN[index] ?? INK;
  if (index > 231) return [8 + (index - 232) * 10, 8 + (index - 232) * 10, 8 + (index - 232) * 10];
  const cube = index - 16;
  return [LEVELS[Math.floor(cube / 36)], LEVELS[Math.floor(cube / 6) % 6], LEVELS[cube % 6]];
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
 * The colour asked for, lighter or darker until it can be read on its ground.
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

/** What a run looks like, as properties of a style; null for plain text. @param {Style | null} style */
export function looks(style) {
  if (!style) return null;
  let { fg, bg } = style;
  if (style.swap) [fg, bg] = [bg ?? PAPER, fg ?? INK];
  const ink = fg || bg ? readable(fg ?? INK, bg ?? PAPER) : undefined;
  const lines = [style.under && "underline", style.strike && "line-through"].filter(Boolean).join(" ");
  return {
    ...(ink && { color: `rgb(${ink.join(" ")})` }),
    ...(bg && { backgroundColor: `rgb(${bg.join(" ")})` }),
    ...(style.bold && { fontWeight: "700" }),
    ...(style.dim && !fg && { color: "rgb(160 167 180)" }),
    ...(style.italic && { fontStyle: "italic" }),
    ...(lines && { textDecorationLine: lines }),
  };
}

/** @type {Record<number, (style: Style) => Style>} */
const SETS = {
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

/** @param {Style | null} before @param {string} said @returns {Style | null} */
function restyled(before, said) {
  const codes = said.split(/[;:]/).map(Number);
  /** @type {Style} */
  let style = { ...before };
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at];
    if (!code) style = {};
    else if (code === 38 || code === 48) {
      const true_ = codes[at + 1] === 2;
      const parts = codes.slice(at + 2, at + (true_ ? 5 : 3)).map((part) => Math.min(255, part || 0));
      const [red = 0, green = 0, blue = 0] = parts;
      const colour = true_ ? /** @type {Colour} */ ([red, green, blue]) : indexed(red);
      style = { ...style, [code === 38 ? "fg" : "bg"]: colour };
      at += true_ ? 4 : 2;
    } else if (SETS[code]) style = SETS[code](style);
    else if (code >= 30 && code <= 37) style = { ...style, fg: SIXTEEN[code - 30] };
    else if (code >= 40 && code <= 47) style = { ...style, bg: SIXTEEN[code - 40] };
    else if (code >= 90 && code <= 97) style = { ...style, fg: SIXTEEN[code - 82] };
    else if (code >= 100 && code <= 107) style = { ...style, bg: SIXTEEN[code - 92] };
  }
  return Object.keys(style).length ? style : null;
}

// A sequence ends where its kind says, or at the end of the line: one that is never ended must not swallow the rest.
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
 * What is left of `old` when `fresh` is written over it from the start of the line.
 * @param {Run[]} old @param {Run[]} fresh
 */
function over(old, fresh) {
  let skip = fresh.reduce((sum, run) => sum + run.text.length, 0);
  const rest = [];
  for (const run of old) {
    if (run.text.length > skip) rest.push({ ...run, text: run.text.slice(skip) });
    skip = Math.max(0, skip - run.text.length);
  }
  return [...fresh, ...rest];
}

/** @param {Run[]} runs @param {string} text @param {Style | null} style */
function add(runs, text, style) {
  if (text) runs.push({ text: inert(text), style });
}

/**
 * The lines of a terminal's output, each as runs of one style.
 * @param {string} text @returns {Run[][]}
 */
export function paint(text) {
  /** @type {Style | null} */
  let style = null;
  return text.replaceAll("\r\n", "\n").split("\n").map((line) => {
    /** @type {Run[]} */
    let old = [];
    /** @type {Run[]} */
    let runs = [];
    let at = 0;
    for (const found of line.matchAll(SEQUENCE)) {
      add(runs, line.slice(at, found.index), style);
      at = (found.index ?? 0) + found[0].length;
      if (found[0][0] === "\r") [old, runs] = [over(old, runs), []];
      else if (found[2] === "m" && !/[?<=>!]/.test(found[1])) style = restyled(style, found[1]);
      else if (found[2] === "K") old = [];
    }
    add(runs, line.slice(at), style);
    return over(old, runs);
  });
}

/** Whether there is anything in it that only a terminal reads. @param {string} text */
export const isTerminal = (text) => /\x1b\[[0-9;:]*[mK]|[^\n]\r[^\n]/.test(text);
