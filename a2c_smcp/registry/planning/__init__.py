"""Help for planners: tool lists in each provider's format, and plans."""
