"""Under which name each tool is listed (WIRE §7).

A tool wants its alias, or else its own name. If two tools want the same name, the first to come has it; the other is
listed as `<server>__<tool>`, a name that belongs to that server alone, and its owner is warned.

Who came first is kept as a number for each tool (`NameOrder`), the smaller one first. At start the order of the
configuration decides, not which server happens to be ready first: the tools in a server's first list have the number
that the server got when it was configured. Tools that come later get a larger number than all that exist: tools that a
server adds, and all tools of a server whose first start failed. A server that is restarted keeps the numbers of its
tools; otherwise another server could take over the name of a tool by making its server crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeAlias

from a2c_smcp.mcp_host.config.servers import BaseServerConfig, ToolMeta
from a2c_smcp.types import SERVER_NAME, TOOL_NAME

__all__ = ["META_FIELDS", "NameOrder", "Order", "ServerTool", "Servers", "assign_names", "clash_warning", "tools_of"]

META_FIELDS = set(ToolMeta.model_fields)

Order: TypeAlias = Callable[[SERVER_NAME, TOOL_NAME], int]

Servers: TypeAlias = Mapping[SERVER_NAME, tuple[BaseServerConfig, Sequence[dict[str, Any]]]]
"""Every configured server, in the order of the configuration, with its tools as on MCP's wire."""


@dataclass(frozen=True)
class ServerTool:
    """A tool as its server offers it. `meta` is the effective ToolMeta; its tags may be those of the server itself."""

    server: SERVER_NAME
    raw: dict[str, Any]
    meta: ToolMeta | None
    forbidden: bool
    tags_of_server: bool

    def __str__(self) -> str:
        return f"tool {self.tool!r} of server {self.server!r}"

    @property
    def tool(self) -> TOOL_NAME:
        """The name that its server knows."""
        name: TOOL_NAME = self.raw["name"]
        return name

    @property
    def wanted(self) -> TOOL_NAME:
        return (self.meta and self.meta.alias) or self.tool

    @property
    def fallback(self) -> TOOL_NAME:
        return f"{self.server}__{self.tool}"


def tools_of(servers: Servers) -> Iterator[ServerTool]:
    """All tools that the servers offer, forbidden ones included."""
    for server, (config, tools) in servers.items():
        for raw in tools:
            of_owner = _effective(config.default_tool_meta, config.tool_meta.get(raw["name"]))
            meta = _effective(_declared(raw), of_owner)
            names = {raw["name"], meta.alias if meta else None}
            forbidden = not names.isdisjoint(config.forbidden_tools)
            has_tags = of_owner is not None and of_owner.tags is not None
            yield ServerTool(server, raw, meta, forbidden, tags_of_server=bool(meta and meta.tags) and not has_tags)


def assign_names(
    tools: Sequence[ServerTool], servers: Collection[SERVER_NAME], order: Order | None
) -> dict[TOOL_NAME, ServerTool]:
    """The tool of each name. Without an `order`, the earlier server comes first."""
    owners: dict[TOOL_NAME, ServerTool] = {}
    for tool in sorted(tools, key=lambda tool: order(tool.server, tool.tool)) if order else tools:
        free = (name for name in _candidates(tool, servers) if name not in owners)
        if name := next(free, None):
            owners[name] = tool
    return owners


def clash_warning(tool: ServerTool, name: TOOL_NAME | None, owners: Mapping[TOOL_NAME, ServerTool]) -> str:
    """What the owner is told of a tool that is not listed under the name it wants."""
    owner = owners.get(tool.wanted)
    why = (
        f"server {owner.server!r} has a tool {tool.wanted!r}" if owner else "that is a name for another server's tools"
    )
    if name is None:
        return f"{tool} is not listed, because {why}; give it an alias"
    alias = next(each for each in _numbered(f"{tool.server}_{tool.tool}") if each not in owners)
    return f"{tool} is listed as {name!r}, because {why}; an alias would tell them apart, such as {alias!r}"


def _effective(default: ToolMeta | None, own: ToolMeta | None) -> ToolMeta | None:
    """WIRE §7: field by field, the own value wins unless it is null."""
    if default is None or own is None:
        return own or default
    fields = {name: getattr(own, name) for name in META_FIELDS}
    return default.model_copy(update={name: value for name, value in fields.items() if value is not None})


def _declared(raw: Mapping[str, Any]) -> ToolMeta | None:
    """The tags that the server itself gives to a tool, as servers for the published 0.4 do. Nothing else counts."""
    meta = raw.get("_meta")
    declared = meta.get("a2c_tool_meta") if isinstance(meta, dict) else None
    tags = declared.get("tags") if isinstance(declared, dict) else None
    is_valid = isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
    return ToolMeta(tags=tags) if tags and is_valid else None


def _candidates(tool: ServerTool, servers: Collection[SERVER_NAME]) -> Iterator[TOOL_NAME]:
    if _may_have(tool.server, tool.wanted, servers):
        yield tool.wanted
    if _may_have(tool.server, tool.fallback, servers):
        yield from _numbered(tool.fallback)


def _may_have(server: SERVER_NAME, name: TOOL_NAME, servers: Collection[SERVER_NAME]) -> bool:
    """WIRE §7: `<server>__<tool>` belongs to that server. If two servers fit, to the one with the longer name."""
    owner = max((each for each in servers if name.startswith(f"{each}__")), key=len, default=server)
    return owner == server


def _numbered(name: TOOL_NAME) -> Iterator[TOOL_NAME]:
    yield name
    yield from (f"{name}_{number}" for number in count(2))


_Phase: TypeAlias = Literal["first start", "late", "listed"]


class NameOrder:
    """Numbers the tools of all servers by who came first. `of` has the number of a tool."""

    def __init__(self) -> None:
        self._numbers = count()
        self._servers: dict[SERVER_NAME, int] = {}
        self._phases: dict[SERVER_NAME, _Phase] = {}
        self._tools: dict[SERVER_NAME, dict[TOOL_NAME, int]] = {}

    def configured(self, servers: Iterable[SERVER_NAME]) -> None:
        """These are all servers now, in the order of the configuration."""
        now = list(servers)
        for gone in self._servers.keys() - set(now):
            del self._servers[gone]
            self._phases.pop(gone)
            self._tools.pop(gone)
        for server in now:
            if server not in self._servers:
                self._servers[server] = next(self._numbers)
                self._phases[server], self._tools[server] = "first start", {}

    def failed(self, server: SERVER_NAME) -> None:
        """The server could not be started, or has gone down."""
        if self._phases[server] == "first start":
            self._phases[server] = "late"

    def listed(self, server: SERVER_NAME, tools: Iterable[TOOL_NAME]) -> None:
        """These are all tools of a server now."""
        known, names = self._tools[server], list(tools)
        if known.keys() != set(names):
            place = self._servers[server] if self._phases[server] == "first start" else next(self._numbers)
            self._tools[server] = {tool: known.get(tool, place) for tool in names}
        self._phases[server] = "listed"

    def of(self, server: SERVER_NAME, tool: TOOL_NAME) -> int:
        return self._tools[server][tool]
