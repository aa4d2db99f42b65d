// The TypeScript SDK, of the line that the second argument names: "sdk" is 1.x, "client" is 2.x, of both eras.
// It does what ../programs/__init__.py says: node client.mjs PACKAGES sdk|client TARGET

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [packages, line, target] = process.argv.slice(2);
const { url, headers, command, args } = JSON.parse(target);
const from = createRequire(packages);
const load = (name) => import(pathToFileURL(from.resolve(`@modelcontextprotocol/${name}`)).href);

const lines = {
  async sdk() {
    const types = await load("sdk/types.js");
    return {
      ...(await load("sdk/client/index.js")),
      ...(await load("sdk/client/stdio.js")),
      ...(await load("sdk/client/streamableHttp.js")),
      elicitation: types.ElicitRequestSchema,
      updated: types.ResourceUpdatedNotificationSchema,
    };
  },
  async client() {
    const found = { ...(await load("client")), ...(await load("client/stdio")) };
    return { ...found, elicitation: "elicitation/create", updated: "notifications/resources/updated" };
  },
};

const sdk = await lines[line]();
const transport = url
  ? new sdk.StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } })
  : new sdk.StdioClientTransport({ command, args });
const client = new sdk.Client(
  { name: "test", version: "1.0.0" },
  { capabilities: { elicitation: {} }, versionNegotiation: { mode: "auto" } },
);
client.setRequestHandler(sdk.elicitation, () => ({
  action: "accept",
  content: { people: 4, place: "terrace" },
}));
const changed = new Promise((resolve) => {
  client.setNotificationHandler(sdk.updated, ({ params }) => resolve(params.uri));
});

const call = async (name, args, options = {}) => {
  const params = { name, arguments: args };
  const result = await (line === "sdk" ? client.callTool(params, undefined, options) : client.callTool(params, options));
  return result.content[0].text;
};

async function cancelled() {
  const stop = new AbortController();
  try {
    await call("wait", {}, { signal: stop.signal, onprogress: () => stop.abort("enough") });
  } catch (error) {
    return stop.signal.aborted;
  }
}

async function updated() {
  const uri = "library://catalogue";
  const isModern = line === "client" && client.getNegotiatedProtocolVersion() >= "2026";
  const subscription = isModern
    ? await client.listen({ resourceSubscriptions: [uri] })
    : await client.subscribeResource({ uri });
  await call("lend", { title: "Emma" });
  const told = await changed;
  await subscription?.close?.();
  return told;
}

await client.connect(transport);
const progress = [];
const found = {
  tools: (await client.listTools()).tools.map(({ name }) => name).sort(),
  call: await call("add", { a: 2, b: 3 }),
  cooked: await call("cook", { dishes: 2, seconds: 0.01 }, { onprogress: (report) => progress.push(report.progress) }),
  progress,
  cancelled: await cancelled(),
  question: await call("book_table", { day: "Friday" }),
  updated: await updated(),
  resource: (await client.readResource({ uri: "library://catalogue" })).contents[0].text,
  prompt: (await client.getPrompt({ name: "review", arguments: { title: "Emma" } })).messages[0].content.text,
};
if (line === "client") found.revision = client.getNegotiatedProtocolVersion();
await client.close();
console.log(JSON.stringify(found));
