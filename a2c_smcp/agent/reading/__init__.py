"""What MCP servers of computers offer to read: resources, prompts, and who these servers are."""
