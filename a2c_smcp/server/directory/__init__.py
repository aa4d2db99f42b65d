"""Directories of offices: the interface and the one that lives in memory."""

from a2c_smcp.server.directory.interface import Directory
from a2c_smcp.server.directory.memory import MemoryDirectory

__all__ = ["Directory", "MemoryDirectory"]
