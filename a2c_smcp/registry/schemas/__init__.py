"""JSON schemas of tools: how heavy they are, and checks against them that cannot block or exhaust the process."""
