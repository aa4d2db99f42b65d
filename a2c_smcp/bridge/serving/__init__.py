"""The MCP side of a bridge: one server of the SDK for all clients, and how it is served."""
