"""Who sits in which office on this node, and who is told of changes."""
