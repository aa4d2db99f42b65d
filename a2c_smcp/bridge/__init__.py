"""An office as an MCP server: every MCP client becomes an agent."""
