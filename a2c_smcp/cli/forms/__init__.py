"""Questions of MCP servers as forms on the terminal: their fields, and how they are shown and answered."""
