"""A real MCP server with an app: `app_server.py OWNER [LIBRARY]`. Its page has a counter, which belongs to the owner.

With a library, that of the extension for pages, the page works in a browser. `SIZE` makes it so many bytes longer.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.apps import Apps, ResourceCsp, ResourcePermissions, client_supports_apps
from mcp.server.mcpserver import Context

PAGE = "ui://counter/page.html"
OWNER = sys.argv[1]
LIBRARY = Path(sys.argv[2]).read_text("utf-8") if len(sys.argv) > 2 else "export{Nothing as App};"
(APP,) = re.findall(r"([\w$]+) as App[,}]", LIBRARY)
HTML = f"""<!-- the counter --><!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Counter</title>
<style>body {{ font: 16px sans-serif; margin: 12px }} button {{ font: inherit; margin-right: 8px }}</style>
</head><body><p>The counter of <b id="owner">{OWNER}</b>: <output id="count">?</output></p>
<button id="press">Press</button><button id="wipe">Wipe</button><button id="absent">Absent</button>
<p id="said"></p><!-- {os.environ.get("API_TOKEN", "")} {"x" * int(os.environ.get("SIZE", "0"))} -->
<script type="module">{LIBRARY}
const app = new {APP}({{name: "counter", version: "1"}}, {{}});
const show = (id, text) => document.getElementById(id).textContent = text;
for (const name of ["press", "wipe", "absent"]) document.getElementById(name).onclick = async () => {{
  const failed = (error) => ({{isError: true, content: [{{text: String(error)}}]}});
  const result = await app.callServerTool({{name, arguments: {{}}}}).catch(failed);
  show(name === "press" && !result.isError ? "count" : "said", result.content[0].text);
}};
app.ontoolresult = async (result) => {{
  show("count", result.content[0].text);
  const read = await app.readServerResource({{uri: "note://owner"}});
  show("said", read.contents[0].text);
}};
await app.connect();
</script></body></html>
"""

apps, count = Apps(), 0
apps.add_html_resource(
    PAGE,
    HTML,
    csp=ResourceCsp(connect_domains=["https://api.example"]),
    permissions=ResourcePermissions(camera={}),
    prefers_border=True,
)


@apps.tool(resource_uri=PAGE, meta={"ui/resourceUri": PAGE})
def show(context: Context) -> str:
    """Show the counter."""
    return f"{count} of {OWNER}" + ("" if client_supports_apps(context) else ", as text")


@apps.tool(resource_uri=PAGE, visibility=["app"])
def press() -> str:
    """Add one to the counter."""
    global count
    count += 1
    return f"{count} of {OWNER}"


server = MCPServer("counter", extensions=[apps])


@server.tool(meta={"ui": {"visibility": ["app"]}})
def wipe() -> str:
    """Set the counter to nothing."""
    global count
    count = 0
    return f"{OWNER} is wiped"


if OWNER == "laptop":

    @server.tool()
    def absent() -> str:
        """Only one computer has this tool."""
        return "only laptop has this"


@server.resource("note://owner")
def note() -> str:
    return f"a note of {OWNER}"


if __name__ == "__main__":
    server.run()
