"""The tools of a registry at one moment. A change makes another set; whoever holds this one is not disturbed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeAlias

from a2c_smcp.errors import ToolForbidden, ToolNotFound
from a2c_smcp.registry.calls.methods import AsyncCall, SyncCall
from a2c_smcp.registry.planning.provider_formats import in_format, portable_name
from a2c_smcp.registry.tool_info import Traits

__all__ = ["Entry", "ToolSet", "UnknownTool", "unknown_tool"]

MAX_QUOTED = 256
MAX_DESCRIPTIONS = 64

_Wanted: TypeAlias = tuple[str | None, frozenset[str] | None]


class UnknownTool(ToolNotFound, KeyError):
    """No tool has this name. `details["near"]` has those that were perhaps meant."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tool, what it says of itself, and the ways into it with everything on the way. `allowed` is the policy's."""

    tool: Any
    traits: Traits
    call: SyncCall
    acall: AsyncCall
    allowed: bool = True


@dataclass(frozen=True)
class ToolSet:
    """Tools by name in the order of registration; those that the policy forbids are apart."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    forbidden: Mapping[str, Entry] = field(default_factory=dict)
    _described: dict[_Wanted, Any] = field(default_factory=dict, compare=False, repr=False)
    _portable: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def changed(self, add: Iterable[Entry], remove: Iterable[str]) -> ToolSet:
        """This very set if it comes to nothing."""
        gone, new = {*remove}, [*add]
        if not new and gone.isdisjoint(self.entries) and gone.isdisjoint(self.forbidden):
            return self
        entries, forbidden = {**self.entries}, {**self.forbidden}
        for name in gone:
            entries.pop(name, None)
            forbidden.pop(name, None)
        for entry in new:
            here, there = (entries, forbidden) if entry.allowed else (forbidden, entries)
            there.pop(entry.traits.name, None)
            here[entry.traits.name] = entry
        return ToolSet(entries, forbidden)

    def find(self, name: str) -> Entry:
        """By its name, or by the name that a provider was shown for it. Raises `UnknownTool` or `ToolForbidden`."""
        entry = self.entries.get(name) or self.entries.get(self._by_portable_name().get(name, ""))
        if entry is not None:
            return entry
        if name in self.forbidden:
            raise ToolForbidden(repr(name), toolId=name)
        raise unknown_tool(name, [*self.entries])

    def __contains__(self, name: object) -> bool:
        return name in self.entries or name in self.forbidden

    def describe(self, format: str | None, tags: frozenset[str] | None) -> Any:  # noqa: A002
        described = self._described.get((format, tags))
        if described is None:
            chosen = [entry.traits for entry in self.entries.values() if _has(entry.traits, tags)]
            described = in_format(format, chosen)
            if len(self._described) < MAX_DESCRIPTIONS:
                self._described[format, tags] = described
        return described

    def _by_portable_name(self) -> dict[str, str]:
        if not self._portable:
            self._portable.update({portable_name(name): name for name in self.entries})
        return self._portable


def _has(traits: Traits, tags: frozenset[str] | None) -> bool:
    return tags is None or not tags.isdisjoint(traits.tags)


def unknown_tool(name: object, names: list[str], opening: str = "") -> UnknownTool:
    shown = str(name)[:MAX_QUOTED]
    near = get_close_matches(shown, names)
    meant = f", did you mean {' or '.join(map(repr, near))}?" if near else ""
    return UnknownTool(f"{opening}{shown!r}{meant}", toolId=shown, near=near)
