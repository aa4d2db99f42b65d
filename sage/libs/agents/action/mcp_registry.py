"""MCPRegistry at the module path of 001. No folder above is a regular package: other `sage` packages still import."""

from __future__ import annotations

from a2c_smcp.registry import MCPRegistry

__all__ = ["MCPRegistry"]
