"""Models of server and input configurations (000)."""
