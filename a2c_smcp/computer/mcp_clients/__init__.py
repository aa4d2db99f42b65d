"""Connections to MCP servers. The client's side of `mcp` is imported nowhere else."""
