"""What agents read of MCP servers: resources, prompts, completions, and what has changed."""
