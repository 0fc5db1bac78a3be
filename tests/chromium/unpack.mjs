// Unpack the Chromium of @sparticuz/chromium, with libraries and fonts, into the folder $TMPDIR. Run it in the folder
// that contains node_modules.

import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";

const main = createRequire(join(process.cwd(), "package.json")).resolve("@sparticuz/chromium");
const { inflate } = await import(pathToFileURL(main).href);
const packed = join(dirname(main), "..", "bin");
for (const name of ["chromium.br", "fonts.tar.br", "al2023.tar.br"]) await inflate(join(packed, name));
