"""Tools of MCP servers in a registry, and a registry as an MCP server. Only this folder needs the `mcp` package."""

from a2c_smcp.installation import needs_extra

with needs_extra("computer", "an MCP server in a registry"):
    from a2c_smcp.registry.remote.adapter import RemoteMCPAdapter

__all__ = ["RemoteMCPAdapter"]
