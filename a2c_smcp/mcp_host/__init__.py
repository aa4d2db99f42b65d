"""MCP servers of this machine: configured, started, supervised, called. Only here is the client side of `mcp` used."""
