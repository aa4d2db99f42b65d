// A client of the TypeScript SDK beside a bridge that is killed during a call, and started again:
// node restart.mjs PACKAGES sdk|client TARGET
// It prints "called" when its call runs, waits for a line on stdin, and prints what became of the call and of another.
// Its session has ended with the bridge if it is of an older revision: it connects again when it gets 404.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [packages, line, target] = process.argv.slice(2);
const { url, headers } = JSON.parse(target);
const from = createRequire(packages);
const load = (name) => import(pathToFileURL(from.resolve(`@modelcontextprotocol/${name}`)).href);

const sdk =
  line === "sdk"
    ? { ...(await load("sdk/client/index.js")), ...(await load("sdk/client/streamableHttp.js")) }
    : await load("client");
const connect = async () => {
  const client = new sdk.Client({ name: "test", version: "1.0.0" }, { versionNegotiation: { mode: "auto" } });
  client.onerror = () => {};
  await client.connect(new sdk.StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
  return client;
};
let client = await connect();

const call = (name, args, options) => {
  const params = { name, arguments: args };
  return line === "sdk" ? client.callTool(params, undefined, options) : client.callTool(params, options);
};
const answers = [];
const waiting = call("wait", {}, { timeout: 5000, onprogress: () => console.log("called") }).then(
  () => answers.push("result"),
  (error) => answers.push(error.message),
);
await new Promise((resolve) => process.stdin.once("data", resolve));
await waiting;
const { content } = await call("add", { a: 2, b: 3 }).catch(async (error) => {
  if (line !== "sdk" || error.code !== 404) throw error;
  client = await connect();
  return call("add", { a: 2, b: 3 });
});
console.log(JSON.stringify({ answers, call: content[0].text }));
process.exit(0);
