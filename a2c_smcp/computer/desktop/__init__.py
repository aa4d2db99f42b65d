"""The Desktop: windows of many MCP servers as one view."""
