// Run the client of the TypeScript SDK of the Model Context Protocol, version 1.x.
//
// JSON lines in, JSON lines out, in order. The first job is {"url"}: connect to a server, and list its tools, so that the
// client validates results by their output schemas. Its answer is {"tools": names}. Every other job is {"tool",
// "arguments"}; its answer is {"result"}, or {"thrown": text} if the client throws an exception.
//
// Packages come from the node_modules directory in CALLSLIP_NODE_MODULES or the first argument.

import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { answerEach } from "./lines.mjs";

const nodeModules = process.argv[2] ?? process.env.CALLSLIP_NODE_MODULES;
if (!nodeModules) {
  console.error("usage: mcp_client.mjs NODE_MODULES < jobs.jsonl (or set CALLSLIP_NODE_MODULES)");
  process.exit(2);
}
const load = (path) => import(pathToFileURL(resolve(nodeModules, "@modelcontextprotocol/sdk/dist/esm/client", path)));
const { Client } = await load("index.js");
const { StreamableHTTPClientTransport } = await load("streamableHttp.js");

const client = new Client({ name: "tests", version: "1" });

async function connect({ url }) {
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const { tools } = await client.listTools();
  return { tools: tools.map((tool) => tool.name) };
}

async function call({ tool, arguments: values }) {
  try {
    return { result: await client.callTool({ name: tool, arguments: values }) };
  } catch (error) {
    return { thrown: String(error) };
  }
}

await answerEach((job) => (job.tool ? call(job) : connect(job)));
await client.close();
