"""The Computer: a person's machine that hosts MCP servers and keeps their credentials."""
