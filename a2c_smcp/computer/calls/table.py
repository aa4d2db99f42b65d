"""The tools of all MCP servers as one table: what agents are shown, and which tool of which server a name means."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from a2c_smcp.computer.calls.definitions import Pinned, ToolChange
from a2c_smcp.errors import ToolForbidden, ToolNotFound
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, ToolMeta
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.names import MAX_TOOL_NAME, fault_in
from a2c_smcp.protocol.results import is_own_key
from a2c_smcp.registry.schemas.check import Schema
from a2c_smcp.smcp import SMCPTool
from a2c_smcp.types import SERVER_NAME, TOOL_NAME, Attributes, AttributeValue

# Under which name each tool is listed (WIRE §7).
#
# A tool wants its alias, or else its own name. If two tools want the same name, the first to come has it; the other
# is listed as `<server>__<tool>`, a name that belongs to that server alone, and its owner is warned.
#
# Who came first is kept as a number for each tool (`NameOrder`), the smaller one first. At start the order of the
# configuration decides, not which server happens to be ready first: the tools in a server's first list have the
# number that the server got when it was configured. Tools that come later get a larger number than all that exist:
# tools that a server adds, and all tools of a server whose first start failed. A server that is restarted keeps the
# numbers of its tools; otherwise another server could take over the name of a tool by making its server crash.

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
    tools: Sequence[ServerTool],
    servers: Collection[SERVER_NAME],
    order: Order | None,
    reserved: Mapping[TOOL_NAME, SERVER_NAME],
) -> dict[TOOL_NAME, ServerTool]:
    """The tool of each name. Without an `order`, the earlier server comes first."""
    owners: dict[TOOL_NAME, ServerTool] = {}
    for tool in sorted(tools, key=lambda tool: order(tool.server, tool.tool)) if order else tools:
        names = _candidates(tool, servers)
        free = (name for name in names if name not in owners and reserved.get(name, tool.server) == tool.server)
        if name := next(free, None):
            owners[name] = tool
    return owners


def clash_warning(tool: ServerTool, name: TOOL_NAME | None, owners: Mapping[TOOL_NAME, ServerTool]) -> str:
    """The warning for the owner about a tool that is not listed under the name it wants."""
    owner = owners.get(tool.wanted)
    why = (
        f"server {owner.server!r} has a tool {tool.wanted!r}" if owner else "that is a name for another server's tools"
    )
    if name is None:
        return f"{tool} is not listed, because {why}; give it an alias"
    alias = next(name for name in _numbered(f"{tool.server}_{tool.tool}") if name not in owners)
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
    owner = max((other for other in servers if name.startswith(f"{other}__")), key=len, default=server)
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


A2C_TOOL_META = "a2c_tool_meta"
TAGS_OF_SERVER = "a2c_tags_of_server"
"""Says that nobody but the MCP server vouches for the tags of a tool: they are shown, and decide nothing (WIRE §7)."""
OWN_NAME = "a2c_tool_name"
"""The name that the MCP server gave to a tool which is listed under another one. Apps of that server know it by it."""
CHANGED_DEFINITION = "a2c_changed"
"""Says which fields of a tool are no longer those that were approved or first seen, and whether calls ask for that."""
MCP_TOOL_ANNOTATION = "MCP_TOOL_ANNOTATION"
_ENTRIES = {
    MCP_TOOL_ANNOTATION: "annotations",
    "MCP_TOOL_TITLE": "title",
    "MCP_TOOL_ICONS": "icons",
    "MCP_TOOL_EXECUTION": "execution",
}
"""Our entries of a tool's `meta`, JSON texts, and the fields of MCP's tool that they are made of."""
Look: TypeAlias = Callable[[ServerTool], Pinned | None]


@dataclass(frozen=True)
class ToolRoute:
    """Where a call goes: `tool` is the name that its MCP server knows, `meta` the effective ToolMeta.

    `digest` is that of the tool's definition, if it is pinned; `change` is how it differs from the pinned one.
    `hints` are the annotations of the server: they decide nothing unless its owner trusts it (WIRE §7).
    `description` is for people, and may hold secrets.
    """

    server: SERVER_NAME
    tool: TOOL_NAME
    meta: ToolMeta
    schema: Schema
    hints: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    change: ToolChange | None = None
    description: str = field(default="", repr=False)

    @property
    def asks_again(self) -> bool:
        """True if calls need approval because the definition has changed."""
        return self.change is not None and self.change.asks


@dataclass(frozen=True)
class ToolTable:
    """The tools that are listed, by the names of servers and then as each server lists them, with their routes.

    `warnings` are for the owner. `absent` are the names of tools whose servers are down.
    """

    listed: list[SMCPTool] = field(default_factory=list)
    routes: dict[TOOL_NAME, ToolRoute] = field(default_factory=dict)
    forbidden: frozenset[TOOL_NAME] = frozenset()
    warnings: list[str] = field(default_factory=list)
    absent: dict[TOOL_NAME, SERVER_NAME] = field(default_factory=dict)

    @property
    def schemas(self) -> dict[tuple[SERVER_NAME, TOOL_NAME], Schema]:
        return {(route.server, route.tool): route.schema for route in self.routes.values()}

    def resolve(self, name: TOOL_NAME) -> ToolRoute:
        """The route of a name.

        Raises `ToolNotFound`, or `ToolForbidden` for either name of a forbidden tool that no other tool has.
        """
        if route := self.routes.get(name):
            return route
        if name in self.forbidden:
            raise ToolForbidden(repr(name), toolId=name)
        raise ToolNotFound(repr(name), toolId=name)


@dataclass(frozen=True)
class ToolChanges:
    """The names of tools that are new, gone or different for agents. False if there are none."""

    added: tuple[TOOL_NAME, ...] = ()
    removed: tuple[TOOL_NAME, ...] = ()
    changed: tuple[TOOL_NAME, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def build_table(
    servers: Servers,
    before: ToolTable | None = None,
    *,
    order: Order | None = None,
    down: Collection[SERVER_NAME] = (),
    look: Look = lambda tool: None,
    reserved: Mapping[TOOL_NAME, SERVER_NAME] = MappingProxyType({}),
) -> ToolTable:
    """The table of the tools of these servers. Schemas that `before` has compiled are reused.

    If two tools want one name, the smaller `order` has it; without an order, the earlier server. Tools of servers that
    are `down` are not listed, but keep their names; `reserved` are names that only this server may have. `look`
    compares each tool that is listed with its pin.
    """
    offered = list(tools_of(servers))
    allowed = [tool for tool in offered if not tool.forbidden]
    table = ToolTable(forbidden=_forbidden_names(offered))
    owners = assign_names(allowed, servers, order, reserved)
    names = {id(tool): name for name, tool in owners.items()}
    compiled = before.schemas if before else {}
    for tool in sorted(allowed, key=lambda tool: tool.server):
        name = names.get(id(tool))
        if tool.server in down:
            if name is not None:
                table.absent[name] = tool.server
            continue
        if name != tool.wanted:
            table.warnings.append(clash_warning(tool, name, owners))
        if name is not None:
            _add(table, name, tool, compiled.get((tool.server, tool.tool)), look)
    return table


def _forbidden_names(tools: Iterable[ServerTool]) -> frozenset[TOOL_NAME]:
    return frozenset(name for tool in tools if tool.forbidden for name in (tool.tool, tool.wanted))


def _add(table: ToolTable, name: TOOL_NAME, tool: ServerTool, compiled: Schema | None, look: Look) -> None:
    if fault := fault_in(name, MAX_TOOL_NAME):
        table.warnings.append(f"{tool} is not listed: its name {fault}; give it an alias")
        return
    route = _route(tool, compiled, look(tool))
    if unusable := route.schema.unusable_if_known():
        table.warnings.append(f"{tool}: arguments are not checked, {unusable}")
    table.routes[name] = route
    table.listed.append(_listed(name, tool, route.change))


def diff(old: ToolTable, new: ToolTable) -> ToolChanges:
    """The differences between two tables, as an agent sees them."""
    before, after = ({tool["name"]: tool for tool in table.listed} for table in (old, new))
    return ToolChanges(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(name for name in after if name in before and after[name] != before[name]),
    )


def _route(tool: ServerTool, known: Schema | None, pinned: Pinned | None) -> ToolRoute:
    raw = tool.raw.get("inputSchema") or {}
    schema = known if known is not None and known.raw == raw else Schema(raw)
    given = tool.raw.get("annotations")
    hints = given if isinstance(given, dict) else {}
    description = tool.raw.get("description") or ""
    meta, (digest, change) = tool.meta or ToolMeta(), pinned or ("", None)
    return ToolRoute(tool.server, tool.tool, meta, schema, hints, digest, change, description)


def _listed(name: TOOL_NAME, tool: ServerTool, change: ToolChange | None) -> SMCPTool:
    return SMCPTool(
        name=name,
        description=tool.raw.get("description") or "",
        params_schema=tool.raw.get("inputSchema") or {},
        return_schema=tool.raw.get("outputSchema"),
        meta=_attributes(name, tool, change),
    )


def _attributes(name: TOOL_NAME, tool: ServerTool, change: ToolChange | None) -> Attributes:
    """000, "SMCPTool.meta": the entries of the server, and ours, which the server cannot set (WIRE §7, §9)."""
    of_server = tool.raw.get("_meta") or {}
    attributes = {
        key: _attribute(value) for key, value in of_server.items() if key not in _ENTRIES and not is_own_key(key)
    }
    if tool.meta is not None:
        attributes[A2C_TOOL_META] = json.dumps(tool.meta.model_dump(mode="json", include=META_FIELDS))
    if name != tool.tool:
        attributes[OWN_NAME] = tool.tool
    if tool.tags_of_server:
        attributes[TAGS_OF_SERVER] = True
    if change is not None:
        attributes[CHANGED_DEFINITION] = json.dumps({"fields": change.fields, "asks": change.asks})
    for key, field_name in _ENTRIES.items():
        if value := tool.raw.get(field_name):
            attributes[key] = json.dumps(value)
    return attributes


def _attribute(value: Any) -> AttributeValue:
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    plain = value is None or isinstance(value, str | int | float)
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value if plain or texts else json.dumps(value)


# Tools that fit into one message

_AROUND = 64  # bytes around a tool in the message, without the name and the bundle id of its server


def fitted(table: ToolTable, room: int, bundle_ids: Mapping[SERVER_NAME, str]) -> ToolTable:
    """The table with as many tools as fit into `room` bytes, and a warning for each server that has lost tools.

    Each server has the same share of the message; what one does not use, others may. So a server with few tools never
    loses one because another has many. Of a server that is over its share the first tools stay.
    """
    servers = [route.server for route in table.routes.values()]
    owners = {server: len((server + bundle_ids.get(server, server)).encode()) for server in set(servers)}
    sizes = [
        len(dumps(tool).encode(errors="surrogatepass")) + _AROUND + owners[server]
        for tool, server in zip(table.listed, servers, strict=True)
    ]
    if (total := sum(sizes)) <= room:
        return table
    share = _share(_sums(zip(servers, sizes, strict=True)), room)
    used: dict[SERVER_NAME, int] = defaultdict(int)
    stays = []
    for server, size in zip(servers, sizes, strict=True):
        used[server] += size
        stays.append(used[server] <= share)
    lost: dict[SERVER_NAME, int] = defaultdict(int)
    for server, is_kept in zip(servers, stays, strict=True):
        lost[server] += not is_kept
    return replace(
        table,
        listed=[tool for tool, is_kept in zip(table.listed, stays, strict=True) if is_kept],
        routes={name: route for (name, route), is_kept in zip(table.routes.items(), stays, strict=True) if is_kept},
        warnings=[*table.warnings, *_warnings(lost, total, room)],
    )


def _sums(sizes: Iterable[tuple[SERVER_NAME, int]]) -> Mapping[SERVER_NAME, int]:
    sums: dict[SERVER_NAME, int] = defaultdict(int)
    for server, size in sizes:
        sums[server] += size
    return sums


def _share(sums: Mapping[SERVER_NAME, int], room: int) -> int:
    """The number of bytes that every server may use so that all of them fit."""
    left = len(sums)
    for size in sorted(sums.values()):
        if size * left > room:
            return room // left
        room -= size
        left -= 1
    return room


def _warnings(lost: Mapping[SERVER_NAME, int], total: int, room: int) -> list[str]:
    return [
        f"{count} tools of server {server!r} are left out: the list of all tools would have {total} bytes, at most "
        f"{room} can be sent; forbidden_tools says which are not needed"
        for server, count in lost.items()
        if count
    ]
