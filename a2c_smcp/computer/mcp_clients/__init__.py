"""The path that the specification gives the configuration models. The code is in `a2c_smcp.mcp_host`."""
