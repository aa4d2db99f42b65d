// A host of MCP Apps: shows each app of a bridge with the extension's own `AppBridge`, side by side.
// `?bridge=URL&key=KEY&sandbox=ORIGIN`: the frame for apps is a page of another origin, as the extension wants it.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import {
  AppBridge, getToolUiResourceUri, isToolVisibilityAppOnly, PostMessageTransport, RESOURCE_MIME_TYPE,
} from "@modelcontextprotocol/ext-apps/app-bridge";

const given = new URLSearchParams(location.search);
const about = { name: "host", version: "1" };
const client = new Client(about, {
  capabilities: { extensions: { "io.modelcontextprotocol/ui": { mimeTypes: [RESOURCE_MIME_TYPE] } } },
});

async function frame(section, csp) {
  const made = document.createElement("iframe");
  made.sandbox = "allow-scripts allow-same-origin";
  made.src = `${given.get("sandbox")}/?csp=${encodeURIComponent(JSON.stringify(csp ?? {}))}`;
  const ready = new Promise((resolve) => addEventListener("message", function listener({ source, data }) {
    if (source !== made.contentWindow || data?.method !== "ui/notifications/sandbox-proxy-ready") return;
    removeEventListener("message", listener);
    resolve(made);
  }));
  section.append(made);
  return ready;
}

async function show(tool) {
  const section = document.createElement("section");
  section.id = tool.name;
  section.innerHTML = "<h2></h2>";
  section.firstChild.textContent = tool.name;
  document.body.append(section);
  const { contents: [page] } = await client.readResource({ uri: getToolUiResourceUri(tool) });
  const { csp, permissions } = page._meta.ui;
  section.dataset.permissions = Object.keys(permissions).join(" ");
  const shown = await frame(section, csp);
  const bridge = new AppBridge(client, about, { serverTools: {}, serverResources: {} });
  const initialized = new Promise((resolve) => { bridge.oninitialized = resolve; });
  await bridge.connect(new PostMessageTransport(shown.contentWindow, shown.contentWindow));
  await bridge.sendSandboxResourceReady({ html: page.text, csp, permissions });
  await initialized;
  bridge.sendToolInput({ arguments: {} });
  bridge.sendToolResult(await client.callTool({ name: tool.name, arguments: {} }));
}

const headers = { Authorization: `Bearer ${given.get("key")}` };
await client.connect(new StreamableHTTPClientTransport(new URL(given.get("bridge")), { requestInit: { headers } }));
const { tools } = await client.listTools();
document.body.dataset.tools = tools.map((tool) => tool.name).join(" ");
await Promise.all(tools.filter((tool) => getToolUiResourceUri(tool) && !isToolVisibilityAppOnly(tool)).map(show));
