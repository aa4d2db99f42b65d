"""OAuth sign-in to MCP servers, by the SDK's providers."""
