// Compare pairs of modules: say for each whether both are the same code, apart from comments and empty lines.

import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const ts = createRequire(`${process.env.CALLSLIP_NODE_MODULES}/`)("typescript");
const options = { removeComments: true, target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext };

/** @param {string} source */
const codeOf = (source) => ts.transpileModule(source, { compilerOptions: options }).outputText;

const jobs = JSON.parse(readFileSync(0, "utf8"));
const answers = jobs.map(({ name, source, served }) => [name, codeOf(source) === codeOf(served)]);
console.log(JSON.stringify(Object.fromEntries(answers)));
