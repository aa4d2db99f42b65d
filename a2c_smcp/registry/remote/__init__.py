"""MCP servers in a registry, and a registry as an MCP server. Of the registry, only this folder needs `mcp`."""

from a2c_smcp.installation import needs_extra

with needs_extra("computer", "an MCP server in a registry"):
    from a2c_smcp.registry.remote.servers import RemoteMCPAdapter

__all__ = ["RemoteMCPAdapter"]
