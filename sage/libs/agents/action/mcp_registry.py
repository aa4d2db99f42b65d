"""MCPRegistry at the address that 001 gives it."""

from __future__ import annotations

from a2c_smcp.registry import MCPRegistry

__all__ = ["MCPRegistry"]
