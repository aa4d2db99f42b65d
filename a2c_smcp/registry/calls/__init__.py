"""The layers between a call and its tool (001 §9): hooks, retries, checked arguments, timeouts, limits."""
