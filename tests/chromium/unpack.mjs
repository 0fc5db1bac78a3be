// Unpacks the Chromium of @sparticuz/chromium, and the libraries and fonts that a bare machine may lack, into the
// folder named by TMPDIR. To be run where node_modules is.

import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";

const found = createRequire(join(process.cwd(), "package.json")).resolve("@sparticuz/chromium");
const { inflate } = await import(pathToFileURL(found).href);
const packed = join(dirname(found), "..", "bin");
for (const name of ["chromium.br", "fonts.tar.br", "al2023.tar.br"]) await inflate(join(packed, name));
