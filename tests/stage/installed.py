"""MCP servers and interpreters that `make` installs below `.cache`, and how a manager hosts such a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from a2c_smcp.mcp_host.config.servers import MCPServerConfig, parse_server
from a2c_smcp.mcp_host.manager import Manager

CACHE = Path(__file__).parents[2] / ".cache"


def installed(name: str, target: str) -> Path:
    """A folder of the cache, which this target of `make` fills."""
    assert (CACHE / name / ".ready").exists(), f".cache/{name} is missing, run `make {target}`"
    return CACHE / name


def npm(name: str) -> tuple[str, Path]:
    """The command of a server that npm has installed, without npx."""
    home = installed("javascript", "node-client")
    return "node", home / f"node_modules/@modelcontextprotocol/server-{name}/dist/index.js"


def environment(name: str) -> Path:
    """The interpreter that has what a client or a framework stands on."""
    return installed(name, "test-clients") / "bin" / "python"


def stdio(name: str, *command: str | Path, **more: Any) -> MCPServerConfig:
    program, *args = map(str, command)
    return parse_server({"name": name, "command": program, "args": args, **more})


def pid_of(manager: Manager, name: str) -> int:
    return int(str(manager.status()[name].diagnostics["pid"]))


def names_of(tools: list[dict[str, Any]]) -> set[str]:
    return {tool["name"] for tool in tools}
