"""MCPRegistry at the address that 001 gives it. Not SageMath: no folder on the way is a package of its own."""

from __future__ import annotations

from a2c_smcp.registry import MCPRegistry

__all__ = ["MCPRegistry"]
