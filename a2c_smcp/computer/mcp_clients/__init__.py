"""Connections to MCP servers. Nothing else of the project imports `mcp`."""
