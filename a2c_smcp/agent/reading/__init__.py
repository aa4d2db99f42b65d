"""Reading from the MCP servers of computers: resources, prompts, and the list of servers."""
