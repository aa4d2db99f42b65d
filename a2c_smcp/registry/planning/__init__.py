"""What a planner needs around the registry: tool lists in each provider's format, plans, recorded calls, spans."""
