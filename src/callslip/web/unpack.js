// The first script of a session that was shared as one file (formats/html). The modules of the page stand in that file
// as texts, packed: each becomes a blob whose imports name other blobs, and then shared_page.js draws. Wherever it cannot,
// what the file shows without scripts is there.
{
  const page = document.documentElement;

  /** The text of an element that holds no markup. @param {string} id */
  const textOf = (id) => document.getElementById(id)?.textContent ?? "";

  /** @param {boolean} drawn Whether the styles of the page hold, or those of the file without scripts. */
  const dress = (drawn) => {
    for (const style of document.querySelectorAll("style")) {
      style.media = drawn === (style.id === "page") ? "" : "not all";
    }
  };

  /** @param {string} packed @returns {Promise<[string, string[]][]>} */
  const unpack = (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  };

  /** The address of the last module, which imports all others. A module stands behind those that it imports. */
  const link = async () => {
    /** @type {Record<string, string>} */
    const addresses = {};
    let last = "";
    for (const [name, pieces] of await unpack(textOf("modules"))) {
      const text = pieces.map((piece, at) => (at % 2 ? addresses[piece] : piece));
      addresses[name] = last = URL.createObjectURL(new Blob(text, { type: "text/javascript" }));
    }
    return last;
  };

  const draw = async () => {
    try {
      const { show } = await import(await link());
      dress(true);
      show(JSON.parse(textOf("session")));
    } catch (error) {
      console.error(error);
      dress(false);
      document.getElementById("app")?.remove();
    }
    delete page.dataset.waits;
  };

  page.dataset.waits = "";
  addEventListener("DOMContentLoaded", draw);
}
