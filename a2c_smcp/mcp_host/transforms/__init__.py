"""Changes that the owner of a computer makes to tool results."""
