"""The tools of all MCP servers as one table: what an agent is shown, and which tool of which server a name means."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

from a2c_smcp.errors import ToolForbidden, ToolNotFound
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, ToolMeta
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.names import MAX_TOOL_NAME, fault_in
from a2c_smcp.registry.schemas.check import Schema
from a2c_smcp.smcp import SMCPTool
from a2c_smcp.types import SERVER_NAME, TOOL_NAME, Attributes, AttributeValue

__all__ = [
    "A2C_TOOL_META",
    "MCP_TOOL_ANNOTATION",
    "ToolChanges",
    "ToolRoute",
    "ToolTable",
    "build_table",
    "diff",
    "fitted",
]

A2C_TOOL_META = "a2c_tool_meta"
MCP_TOOL_ANNOTATION = "MCP_TOOL_ANNOTATION"

_META_FIELDS = set(ToolMeta.model_fields)

_Precedence: TypeAlias = Callable[[SERVER_NAME, TOOL_NAME], int]

Servers: TypeAlias = Mapping[SERVER_NAME, tuple[BaseServerConfig, Sequence[dict[str, Any]]]]
"""Every configured server, in the order of the configuration, with its tools as on MCP's wire."""


@dataclass(frozen=True)
class ToolRoute:
    """Where a call goes: `tool` is the name that its MCP server knows. `meta` is the effective one."""

    server: SERVER_NAME
    tool: TOOL_NAME
    meta: ToolMeta
    schema: Schema


@dataclass(frozen=True)
class ToolTable:
    """What is listed, by server name and then as each server lists; what it leads to; what its owner should know."""

    listed: list[SMCPTool] = field(default_factory=list)
    routes: dict[TOOL_NAME, ToolRoute] = field(default_factory=dict)
    forbidden: frozenset[TOOL_NAME] = frozenset()
    warnings: list[str] = field(default_factory=list)
    absent: dict[TOOL_NAME, SERVER_NAME] = field(default_factory=dict)
    """Names of tools whose servers are down."""

    def resolve(self, name: TOOL_NAME) -> ToolRoute:
        """Raises `ToolForbidden` for either name of a forbidden tool, unless another tool is listed under it."""
        if route := self.routes.get(name):
            return route
        if name in self.forbidden:
            raise ToolForbidden(repr(name), toolId=name)
        raise ToolNotFound(repr(name), toolId=name)


@dataclass(frozen=True)
class ToolChanges:
    """Names whose tool an agent sees for the first time, no longer, or differently. False if there are none."""

    added: tuple[TOOL_NAME, ...] = ()
    removed: tuple[TOOL_NAME, ...] = ()
    changed: tuple[TOOL_NAME, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True)
class _Offer:
    """A tool as its server offers it."""

    server: SERVER_NAME
    raw: dict[str, Any]
    meta: ToolMeta | None
    forbidden: bool

    @property
    def tool(self) -> TOOL_NAME:
        name: TOOL_NAME = self.raw["name"]
        return name

    @property
    def wanted(self) -> TOOL_NAME:
        return (self.meta and self.meta.alias) or self.tool

    @property
    def fallback(self) -> TOOL_NAME:
        return f"{self.server}__{self.tool}"


def build_table(
    servers: Servers,
    before: ToolTable | None = None,
    *,
    precedence: _Precedence | None = None,
    down: Collection[SERVER_NAME] = (),
) -> ToolTable:
    """The table of these servers' tools. What `before` has compiled is taken from there.

    Where two tools want one name, the smaller `precedence` has it; without one, the earlier server. Tools of servers
    that are `down` are not listed, but nobody else gets their names.
    """
    offers = list(_offers(servers))
    allowed = [offer for offer in offers if not offer.forbidden]
    owners = _owners(allowed, servers, precedence)
    names = {id(offer): name for name, offer in owners.items()}
    compiled = {(route.server, route.tool): route.schema for route in (before or ToolTable()).routes.values()}
    table = ToolTable(
        forbidden=frozenset(name for offer in offers if offer.forbidden for name in (offer.tool, offer.wanted))
    )
    warnings = table.warnings
    for offer in sorted(allowed, key=lambda offer: offer.server):
        name = names.get(id(offer))
        if offer.server in down:
            if name is not None:
                table.absent[name] = offer.server
            continue
        if name != offer.wanted:
            warnings.append(_clash(offer, name, owners))
        if name is None:
            continue
        if fault := fault_in(name, MAX_TOOL_NAME):
            warnings.append(f"{_called(offer)} is not listed: its name {fault}; give it an alias")
            continue
        route = _route(offer, compiled.get((offer.server, offer.tool)))
        if unusable := route.schema.unusable_if_known():
            warnings.append(f"{_called(offer)}: arguments are not checked, {unusable}")
        table.routes[name] = route
        table.listed.append(_listed(name, offer))
    return table


def diff(old: ToolTable, new: ToolTable) -> ToolChanges:
    """What an agent that knows the old table sees of the new one."""
    before, after = ({tool["name"]: tool for tool in table.listed} for table in (old, new))
    return ToolChanges(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(name for name in after if name in before and after[name] != before[name]),
    )


def _offers(servers: Servers) -> Iterator[_Offer]:
    for server, (config, tools) in servers.items():
        for raw in tools:
            meta = _effective(config.default_tool_meta, config.tool_meta.get(raw["name"]))
            names = {raw["name"], meta.alias if meta else None}
            yield _Offer(server, raw, meta, forbidden=not names.isdisjoint(config.forbidden_tools))


def _effective(default: ToolMeta | None, own: ToolMeta | None) -> ToolMeta | None:
    """WIRE §7: field by field, what is not null wins."""
    if default is None or own is None:
        return own or default
    fields = {name: getattr(own, name) for name in _META_FIELDS}
    return default.model_copy(update={name: value for name, value in fields.items() if value is not None})


def _owners(
    offers: Sequence[_Offer], servers: Collection[SERVER_NAME], precedence: _Precedence | None
) -> dict[TOOL_NAME, _Offer]:
    """Who has which name: the first to come has the one it wants."""
    owners: dict[TOOL_NAME, _Offer] = {}
    for offer in sorted(offers, key=lambda offer: precedence(offer.server, offer.tool)) if precedence else offers:
        free = (name for name in _candidates(offer, servers) if name not in owners)
        if name := next(free, None):
            owners[name] = offer
    return owners


def _candidates(offer: _Offer, servers: Collection[SERVER_NAME]) -> Iterator[TOOL_NAME]:
    if _may_have(offer.server, offer.wanted, servers):
        yield offer.wanted
    if _may_have(offer.server, offer.fallback, servers):
        yield from _numbered(offer.fallback)


def _may_have(server: SERVER_NAME, name: TOOL_NAME, servers: Collection[SERVER_NAME]) -> bool:
    """WIRE §7: `<server>__<tool>` belongs to that server. Where two servers fit, to the one with the longer name."""
    owner = max((each for each in servers if name.startswith(f"{each}__")), key=len, default=server)
    return owner == server


def _clash(offer: _Offer, name: TOOL_NAME | None, owners: Mapping[TOOL_NAME, _Offer]) -> str:
    owner = owners.get(offer.wanted)
    why = (
        f"server {owner.server!r} has a tool {offer.wanted!r}" if owner else "that is a name for another server's tools"
    )
    if name is None:
        return f"{_called(offer)} is not listed, because {why}; give it an alias"
    alias = next(each for each in _numbered(f"{offer.server}_{offer.tool}") if each not in owners)
    return f"{_called(offer)} is listed as {name!r}, because {why}; an alias would tell them apart, such as {alias!r}"


def _numbered(name: TOOL_NAME) -> Iterator[TOOL_NAME]:
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def _called(offer: _Offer) -> str:
    return f"tool {offer.tool!r} of server {offer.server!r}"


def _route(offer: _Offer, known: Schema | None) -> ToolRoute:
    raw = offer.raw.get("inputSchema") or {}
    schema = known if known is not None and known.raw == raw else Schema(raw)
    return ToolRoute(offer.server, offer.tool, offer.meta or ToolMeta(), schema)


def _listed(name: TOOL_NAME, offer: _Offer) -> SMCPTool:
    return SMCPTool(
        name=name,
        description=offer.raw.get("description") or "",
        params_schema=offer.raw.get("inputSchema") or {},
        return_schema=offer.raw.get("outputSchema"),
        meta=_attributes(offer),
    )


def _attributes(offer: _Offer) -> Attributes:
    """000, "SMCPTool.meta": the server's own entries, and ours, which nobody else can write."""
    own = offer.raw.get("_meta") or {}
    attributes = {
        key: _attribute(value) for key, value in own.items() if key not in (A2C_TOOL_META, MCP_TOOL_ANNOTATION)
    }
    if offer.meta is not None:
        attributes[A2C_TOOL_META] = json.dumps(offer.meta.model_dump(mode="json", include=_META_FIELDS))
    if annotations := offer.raw.get("annotations"):
        attributes[MCP_TOOL_ANNOTATION] = json.dumps(annotations)
    return attributes


def _attribute(value: Any) -> AttributeValue:
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    plain = value is None or isinstance(value, str | int | float)
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value if plain or texts else json.dumps(value)


_AROUND = 64  # what a tool has around it in the message, its server's name aside


def fitted(table: ToolTable, room: int) -> ToolTable:
    """The table with as many tools as fit into `room` bytes, and a warning for each server that lost some."""
    servers = [route.server for route in table.routes.values()]
    sizes = [_size(tool) + len(server.encode()) for tool, server in zip(table.listed, servers, strict=True)]
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


def _size(tool: SMCPTool) -> int:
    return len(dumps(tool).encode(errors="surrogatepass")) + _AROUND


def _sums(sizes: Iterable[tuple[SERVER_NAME, int]]) -> Mapping[SERVER_NAME, int]:
    sums: dict[SERVER_NAME, int] = defaultdict(int)
    for server, size in sizes:
        sums[server] += size
    return sums


def _share(sums: Mapping[SERVER_NAME, int], room: int) -> int:
    """The most that every server may use, so that all of them together have enough."""
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
