"""An office as an MCP server: every MCP client becomes an agent."""

from __future__ import annotations

from a2c_smcp.bridge.bridge import Bridge
from a2c_smcp.bridge.office import BridgeOptions

__all__ = ["Bridge", "BridgeOptions"]
