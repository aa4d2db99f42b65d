"""MCPRegistry: the toolbox that an agent's planner looks into."""

from __future__ import annotations

from a2c_smcp.registry.functions import FunctionTool
from a2c_smcp.registry.registry import MCPRegistry

__all__ = ["FunctionTool", "MCPRegistry"]
