"""Ways to reach an MCP server: stdio, streamable HTTP, SSE."""
