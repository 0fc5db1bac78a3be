// What a card knows of the output of a call: all of it, its beginning or its end. A large output is stored outside of its
// entry, which has the beginning as a preview. Pure functions.

/**
 * @typedef {object} Loaded What the page has loaded of a large output.
 * @property {unknown} [output] All of it.
 * @property {string} [tail] Its last lines.
 * @property {Record<string, unknown>} [values] The fields of the entry that are stored outside of it, if one is `content`.
 */
/**
 * @typedef {object} KnownOutput
 * @property {unknown} output
 * @property {unknown} error
 * @property {string} printed What the tool printed while it ran, "" if that is the output.
 * @property {"all" | "beginning" | "end"} extent
 */

/** The note of `callslip run` where it stops to send output live: the rest is in the result. */
const MORE_NOTE = /\n?\[\.\.\. there is more; [^\n]*\.\.\.\]\n?/gu;

/** The size of the JSON of two empty streams, without the quotes of one text. */
const STREAMS_JSON_BYTES = '{"stdout":"","stderr":""}'.length - 2;

/** Return the size of a text in bytes of UTF-8. @param {string} text */
export const countBytes = (text) => new TextEncoder().encode(text).length;

/** Return the field whose value is stored outside of the entry. @param {any} entry @returns {"output" | "error"} */
export const blobField = (entry) => (typeof entry.output !== "string" && typeof entry.error === "string" ? "error" : "output");

/** Return whether the content of a call is stored outside of its entry. @param {any} entry */
export const hasStoredContent = (entry) => !!entry.contentBlob;

/** Return the blobs of an entry: that of the content, and that of the output if it is another. @param {any} entry */
export const storedBlobs = ({ blob, contentBlob }) =>
  [contentBlob, blob?.hash === contentBlob?.hash ? undefined : blob].filter((one) => !!one);

/** Return what a program wrote to both streams, if that is the output. @param {any} output */
export function streamsText(output) {
  if (typeof output !== "object" || output === null || Array.isArray(output)) return undefined;
  const { stdout = "", stderr = "", ...rest } = output;
  if (typeof stdout !== "string" || typeof stderr !== "string" || Object.keys(rest).length) return undefined;
  if (!("stdout" in output || "stderr" in output)) return undefined;
  return stdout && stderr && !stdout.endsWith("\n") ? `${stdout}\n${stderr}` : stdout + stderr;
}

/** Return the output of a call, as far as it is known. @param {any} entry @param {Loaded} [loaded] @returns {KnownOutput} */
export function knownOutput(entry, loaded = {}) {
  const printed = (entry.outputText ?? "").replace(MORE_NOTE, "");
  const known = (/** @type {unknown} */ value, /** @type {KnownOutput["extent"]} */ extent) =>
    ({ output: entry.output, error: entry.error, [blobField(entry)]: value, extent });
  if (!entry.blob || hasStoredContent(entry)) {
    const isPart = !!entry.blob && !loaded.values;
    return withPrinted({ output: entry.output, error: entry.error, extent: isPart ? "beginning" : "all" }, entry, printed);
  }
  if (loaded.output !== undefined) return withPrinted(known(loaded.output, "all"), entry, printed);
  const preview = String(entry[blobField(entry)] ?? "");
  const isText = entry.blob.media !== "application/json";
  const isSame = isText
    ? printed.startsWith(preview) || preview.startsWith(printed.trimEnd())
    : /^\{"std(out|err)":"/u.test(preview);
  const different = isSame ? "" : (entry.outputText ?? "");
  if (!isText && isSame && printed) {
    // The preview is JSON of both streams, and what was printed is their text: all of it if its JSON is as long.
    const isAll = countBytes(JSON.stringify(printed)) + STREAMS_JSON_BYTES >= entry.blob.size;
    return { ...known(printed, isAll ? "all" : "beginning"), printed: "" };
  }
  const isLonger = isText && printed.startsWith(preview);
  if (isLonger && countBytes(printed) === entry.blob.size) return { ...known(printed, "all"), printed: "" };
  if (loaded.tail !== undefined) return { ...known(loaded.tail, "end"), printed: different };
  return { ...known(isLonger ? printed : preview, "beginning"), printed: different };
}

/**
 * Decide whether what the tool printed is its output, or something else.
 * @param {Omit<KnownOutput, "printed">} known @param {any} entry @param {string} printed @returns {KnownOutput}
 */
function withPrinted(known, entry, printed) {
  const { output } = known;
  const streams = streamsText(output);
  if (streams !== undefined) {
    // What was printed has both streams in their order; the result has the end that was not sent live.
    const isComplete = printed.trim().length >= streams.trim().length - 1;
    return { ...known, output: isComplete ? printed : streams, printed: "" };
  }
  const isSame = typeof output === "string" && !!printed && output.startsWith(printed.trimEnd());
  return { ...known, printed: isSame ? "" : (entry.outputText ?? "") };
}

/** Return the text of the last bytes of an output, from its first complete line. @param {Uint8Array} bytes */
export function decodeTail(bytes) {
  const text = new TextDecoder().decode(bytes);
  const lineEnd = text.indexOf("\n");
  return lineEnd >= 0 && lineEnd < text.length - 1 ? text.slice(lineEnd + 1) : text.replace(/^\ufffd+/u, "");
}

const SAMPLE_CHARS = 8192;
const MAX_BINARY_SHARE = 0.1;

/** Return whether a text is binary data: much of it is no text, or was replaced. @param {string} text */
export function isBinary(text) {
  const sample = text.slice(0, SAMPLE_CHARS);
  const odd = sample.match(/[\u0000-\u0006\u000e-\u001a\u001c-\u001f\u007f\ufffd]/gu)?.length ?? 0;
  return odd > 0 && (sample.includes("\u0000") || odd / sample.length > MAX_BINARY_SHARE);
}

/** Format a number of bytes. @param {number} count */
export function formatBytes(count) {
  if (count < 1000) return `${count} ${count === 1 ? "byte" : "bytes"}`;
  return count < 999_950 ? `${(count / 1000).toFixed(1)} kB` : `${(count / 1_000_000).toFixed(1)} MB`;
}
