"""An MCP server that offers a skill: instructions for an agent, beside the tool that they are about.

    python examples/skill_server.py

speaks MCP on stdin and stdout. A computer runs it with this in its mcp.json:

    {"mcpServers": {"kitchen": {"command": "python", "args": ["examples/skill_server.py"]}}}

A skill is a resource with `{"source": "resources"}` in its `_meta`, and its files are the resources below its URI. The
Computer reads them, and shows them to agents as `mcp:kitchen:cooking`. When they change, `notify_resource_updated` or
`notify_resources_changed` tells it.
"""

from __future__ import annotations

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resources import TextResource

ROOT = "skill://kitchen/cooking"
FILES = {
    "SKILL.md": """\
---
name: cooking
description: How to cook with the tools of this kitchen.
---
Look up the recipe in recipes/, then call `heat` once for each step. Never heat above 220 degrees.
""",
    "recipes/soup.md": "1. 90 degrees, 10 minutes.\n2. 70 degrees until it is eaten.\n",
}

server = MCPServer("kitchen")
server.add_resource(TextResource(uri=ROOT, name="cooking", text="", meta={"source": "resources", "version": "1.2"}))


def show(path: str, text: str) -> None:
    server.add_resource(TextResource(uri=f"{ROOT}/{path}", name=path, mime_type="text/markdown", text=text))


for path, text in FILES.items():
    show(path, text)


@server.tool()
def heat(degrees: int, minutes: int) -> str:
    """Heat the stove."""
    return f"{degrees} degrees for {minutes} minutes"


@server.tool()
async def write_recipe(name: str, text: str, ctx: Context) -> str:
    """Add a recipe to the skill."""
    show(f"recipes/{name}.md", text)
    await ctx.notify_resources_changed()
    return f"recipes/{name}.md"


def main() -> None:
    server.run("stdio")


if __name__ == "__main__":
    main()
