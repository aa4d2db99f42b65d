"""Questions that MCP servers ask in the middle of a call: who answers them, and what is checked (WIRE §9)."""
