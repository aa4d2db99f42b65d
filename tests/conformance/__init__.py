"""MCP's conformance suite: it tests `client.py` and `server.py`, and `python -m tests.conformance` runs it."""
