"""The Computer: a person's machine that hosts MCP servers and keeps their credentials."""

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.computer import Computer

__all__ = ["Caller", "Computer"]
