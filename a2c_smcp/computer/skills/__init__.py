"""Skills: folders with instructions for agents, from this machine and from MCP servers (PROTOCOL-0.4 §§3-5)."""
