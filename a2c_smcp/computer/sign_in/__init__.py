"""Sign-in to MCP servers, as far as it is the Computer's: where tokens are kept, and who is asked."""
