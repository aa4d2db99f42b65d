"""Sign-in to MCP servers by OAuth."""
