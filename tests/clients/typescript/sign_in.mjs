// The TypeScript SDK signs in, of the line that the second argument names: "sdk" is 1.x, "client" is 2.x.
// It prints the page that a person has to open, reads where that person was led to, and prints what a call gave:
//   node sign_in.mjs PACKAGES sdk|client URL

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [packages, line, url] = process.argv.slice(2);
const from = createRequire(packages);
const load = (name) => import(pathToFileURL(from.resolve(`@modelcontextprotocol/${name}`)).href);
const sdk =
  line === "client"
    ? await load("client")
    : { ...(await load("sdk/client/index.js")), ...(await load("sdk/client/streamableHttp.js")) };

const kept = {};
const provider = {
  redirectUrl: "http://127.0.0.1:33418/callback",
  clientMetadata: { client_name: "TypeScript", redirect_uris: ["http://127.0.0.1:33418/callback"] },
  state: () => "a state of this client",
  clientInformation: () => kept.client,
  saveClientInformation: (client) => void (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => void (kept.tokens = tokens),
  codeVerifier: () => kept.verifier,
  saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
  discoveryState: () => kept.discovery,
  saveDiscoveryState: (discovery) => void (kept.discovery = discovery),
  redirectToAuthorization: (page) => console.log(page.href),
};

const connect = async () => {
  const transport = new sdk.StreamableHTTPClientTransport(new URL(url), { authProvider: provider });
  const client = new sdk.Client({ name: "test", version: "1.0.0" }, { versionNegotiation: { mode: "auto" } });
  try {
    await client.connect(transport);
    return { client };
  } catch (error) {
    return { transport, error };
  }
};

const first = await connect();
if (!first.error) throw new Error("it was let in without a person");
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const answer = new URL((await lines.next()).value).searchParams;
await first.transport.finishAuth(...(line === "client" ? [answer] : [answer.get("code")]));
const { client, error } = await connect();
if (error) throw error;
const result = await client.callTool({ name: "add", arguments: { a: 1, b: 2 } });
console.log(JSON.stringify({ call: result.content[0].text, scope: kept.tokens.scope }));
await client.close();
process.exit(0);
