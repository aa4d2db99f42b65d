"""An immutable snapshot of a registry's tools: found by name, described in a format, changed into another snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from a2c_smcp.errors import ToolForbidden, ToolNotFound
from a2c_smcp.protocol.names import did_you_mean, similar_names
from a2c_smcp.registry.calls.arguments import AsyncCall, SyncCall
from a2c_smcp.registry.planning.provider_formats import in_format, portable_name
from a2c_smcp.registry.tool_info import ToolInfo, is_for_models

MAX_QUOTED = 256
MAX_DESCRIPTIONS = 64

_Wanted: TypeAlias = tuple[str | None, frozenset[str] | None]


class UnknownTool(ToolNotFound, KeyError):
    """No tool has this name. `details["near"]` lists similar names."""


@dataclass(frozen=True, slots=True)
class RegisteredTool:
    """A tool object, what it says about itself, and its two call functions with the registry's rules around them.

    `allowed` is the policy's decision.
    """

    tool: Any
    info: ToolInfo
    call: SyncCall
    acall: AsyncCall
    allowed: bool = True


@dataclass(frozen=True)
class ToolSet:
    """Tools by name, in the order of registration. Tools that the policy forbids are kept apart."""

    allowed: Mapping[str, RegisteredTool] = field(default_factory=dict)
    forbidden: Mapping[str, RegisteredTool] = field(default_factory=dict)
    _descriptions: dict[_Wanted, Any] = field(default_factory=dict, compare=False, repr=False)
    _portable_names: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def changed(self, add: Iterable[RegisteredTool], remove: Iterable[str]) -> ToolSet:
        """Another set, or this one if nothing changes."""
        gone, new = {*remove}, [*add]
        if not new and gone.isdisjoint(self.allowed) and gone.isdisjoint(self.forbidden):
            return self
        allowed, forbidden = {**self.allowed}, {**self.forbidden}
        for name in gone:
            allowed.pop(name, None)
            forbidden.pop(name, None)
        for tool in new:
            here, there = (allowed, forbidden) if tool.allowed else (forbidden, allowed)
            there.pop(tool.info.name, None)
            here[tool.info.name] = tool
        return ToolSet(allowed, forbidden)

    def find(self, name: str) -> RegisteredTool:
        """By its own name, or by the portable name that a provider was shown.

        Raises `UnknownTool` or `ToolForbidden`.
        """
        tool = self.allowed.get(name) or self.allowed.get(self._by_portable_name().get(name, ""))
        if tool is not None:
            return tool
        if name in self.forbidden:
            raise ToolForbidden(repr(name), toolId=name)
        raise unknown_tool(name, [*self.allowed])

    def describe(self, format: str | None, tags: frozenset[str] | None) -> Any:  # noqa: A002
        """The allowed tools with any of the tags, in a format of `FORMATS`. Cached: do not edit it.

        Tools that only apps may call are in MCP's list alone, whose clients know apps.
        """
        description = self._descriptions.get((format, tags))
        if description is None:
            chosen = [
                tool.info for tool in self.allowed.values() if tags is None or not tags.isdisjoint(tool.info.tags)
            ]
            shown = chosen if format == "mcp" else [info for info in chosen if is_for_models(info.mcp_fields)]
            description = in_format(format, shown)
            if len(self._descriptions) < MAX_DESCRIPTIONS:
                self._descriptions[format, tags] = description
        return description

    def _by_portable_name(self) -> dict[str, str]:
        if not self._portable_names:
            self._portable_names.update({portable_name(name): name for name in self.allowed})
        return self._portable_names


def unknown_tool(name: object, names: list[str], prefix: str = "") -> UnknownTool:
    """The error for a name that is not among these names; it suggests similar ones."""
    shown = str(name)[:MAX_QUOTED]
    near = similar_names(shown, names)
    return UnknownTool(f"{prefix}{shown!r}{did_you_mean(near)}", toolId=shown, near=near)
