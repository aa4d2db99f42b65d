"""What an MCP server says about itself when a session begins: its capabilities, its title, its instructions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.mcp_host.message_limits import is_within

__all__ = ["AboutServer", "about_server"]

_LARGEST = 64 * 1024
"""Bytes of the capabilities, of the icons, and characters of the instructions."""
_LONGEST_NAME = 1024


@dataclass(frozen=True, slots=True)
class AboutServer:
    """In MCP's own spelling. Empty for a server that has not run yet."""

    capabilities: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    version: str = ""
    instructions: str = ""
    icons: list[dict[str, Any]] = field(default_factory=list)

    def declares(self, capability: str) -> bool:
        """Return whether a capability is declared; `resources.subscribe` is one inside of another."""
        outer, _, inner = capability.partition(".")
        declared = self.capabilities.get(outer)
        if not inner:
            return declared is not None
        return isinstance(declared, dict) and bool(declared.get(inner))


def about_server(capabilities: dict[str, Any], info: dict[str, Any], instructions: str | None) -> AboutServer:
    """Return what was said. `info` is MCP's `Implementation`.

    What is too large is left out as a whole: a mask would not recognise half a secret.
    """
    icons = info.get("icons")
    return AboutServer(
        capabilities if is_within(capabilities, _LARGEST) else {name: {} for name in _names(capabilities)},
        title=_short(info.get("title") or info.get("name"), _LONGEST_NAME),
        version=_short(info.get("version"), _LONGEST_NAME),
        instructions=_short(instructions, _LARGEST),
        icons=icons if isinstance(icons, list) and is_within({"icons": icons}, _LARGEST) else [],
    )


def _short(text: object, most: int) -> str:
    return text if isinstance(text, str) and len(text) <= most else ""


def _names(capabilities: dict[str, Any]) -> list[str]:
    """The capabilities that this package uses."""
    return [name for name in ("tools", "resources", "prompts", "completions", "logging") if name in capabilities]
