"""MCP's conformance suite against a Computer: `client.py` is what it tests, `python -m tests.conformance` runs it."""
