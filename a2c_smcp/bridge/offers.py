"""What an office offers: tools of its computers, as they call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["OfferedTool", "Owner", "SharedTool", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """A tool of a computer, by the name that it has there."""

    computer: str
    tool: str


@dataclass(frozen=True, slots=True)
class SharedTool:
    """A tool that several computers have under this name.

    With `schema`, a digest, only those of them where the tool has this schema, which differs from that of most.
    """

    tool: str
    schema: str = ""


Owner: TypeAlias = Target | SharedTool
"""What a name is given to."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that an office offers now. `listing` is MCP's `Tool` without its name."""

    target: Target
    listing: Mapping[str, Any]
