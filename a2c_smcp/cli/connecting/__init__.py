"""The bridge in the configuration of an MCP client: its entry, the file it is written into, and the file of its key."""
