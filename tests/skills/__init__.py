"""Skills: names, frontmatter, files, the owner's folder, what MCP servers offer, and how agents read them."""
