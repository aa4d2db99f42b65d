"""An office as the agent of a bridge knows it."""
