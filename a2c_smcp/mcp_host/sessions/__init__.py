"""One session with one MCP server: requests, results, and what the server offers."""
