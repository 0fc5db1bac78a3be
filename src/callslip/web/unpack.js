// The first script of an exported HTML file (formats/html). The file contains the modules of the page as compressed
// text. Each becomes a blob URL whose imports are other blob URLs; then shared_page.js draws the page. If that fails,
// the file shows its plain version, which needs no scripts.
{
  const page = document.documentElement;

  /** Return the text of an element without markup. @param {string} id */
  const textOf = (id) => document.getElementById(id)?.textContent ?? "";

  /** @param {boolean} drawn Whether to use the styles of the page, or those of the plain version. */
  const applyStyles = (drawn) => {
    for (const style of document.querySelectorAll("style")) {
      style.media = drawn === (style.id === "page") ? "" : "not all";
    }
  };

  /** @param {string} packed @returns {Promise<[string, string[]][]>} */
  const unpack = (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  };

  /** Return the URL of the last module, which imports all others. Each module comes after those that it imports. */
  const linkModules = async () => {
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
      const { show } = await import(await linkModules());
      applyStyles(true);
      show(JSON.parse(textOf("session")));
    } catch (error) {
      console.error(error);
      applyStyles(false);
      document.getElementById("app")?.remove();
    }
    delete page.dataset.waits;
  };

  page.dataset.waits = "";
  addEventListener("DOMContentLoaded", draw);
}
