"""Resources, templates, prompts and completions of an office: where each is, and how it is asked for.

The agent's registry lists them under the URIs and names that clients see. A resource that no server lists may still be
read: if a tool's result has linked to it, from the MCP server of that tool; else, if only one MCP server of the office
has resources, from that one. A link whose URI means a resource of another server here, or is a link of another one,
becomes `a2c://COMPUTER/SERVER/URI`, which can always be read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Unpack

from a2c_smcp.agent import AsyncSMCPAgentClient, ReadOptions
from a2c_smcp.agent.reading.qualified_uris import QualifiedURI, uri_prefix, with_prefix
from a2c_smcp.agent.reading.registered import ReadablePlace
from a2c_smcp.agent.types import Seat
from a2c_smcp.bridge.offers import Target
from a2c_smcp.errors import ResourceNotFound
from a2c_smcp.registry.readable.entries import ResourceEntry, TemplateEntry

__all__ = ["Readables"]

_MOST_LINKS = 10_000


class Readables:
    """What there is to read in an office."""

    def __init__(self, agent: AsyncSMCPAgentClient, office: str) -> None:
        self._agent, self._office = agent, office
        self._links: OrderedDict[str, ReadablePlace] = OrderedDict()

    async def resource(self, uri: str, **options: Unpack[ReadOptions]) -> dict[str, Any]:
        """MCP's result, or its `InputRequiredResult`. Raises `ResourceNotFound` and other errors."""
        entry, place = self._find(uri)
        if place is None:
            assert entry
            return await self._agent.registry.aread_resource(uri)
        seat, asked = place.seat, uri.removeprefix(place.prefix)
        found = await self._agent.read_resource(seat.computer, place.mcp_server, asked, office=seat.office, **options)
        return with_prefix(place.prefix, found)

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None, **options: Unpack[ReadOptions]
    ) -> dict[str, Any]:
        """MCP's result, or its `InputRequiredResult`. Raises `PromptNotFound` and other errors."""
        place = self._agent.registry.find_prompt(name).source
        if not isinstance(place, ReadablePlace):
            return await self._agent.registry.aget_prompt(name, arguments)
        seat = place.seat
        found = await self._agent.get_prompt(
            seat.computer, place.mcp_server, place.key, arguments, office=seat.office, **options
        )
        if isinstance(messages := found.get("messages"), list):
            server = place.mcp_server
            found = {**found, "messages": [self._with_linked_content(seat, server, each) for each in messages]}
        return found

    async def completion(
        self, reference: Mapping[str, Any], argument: str, value: str, known: Mapping[str, str] | None
    ) -> dict[str, Any]:
        return await self._agent.registry.acomplete(reference, argument, value, known)

    def linked(self, target: Target, mcp_server: str | None, result: dict[str, Any]) -> dict[str, Any]:
        """MCP's result of a tool, whose links can be read."""
        content = result.get("content")
        if mcp_server is None or not isinstance(content, list):
            return result
        seat = Seat(self._office, target.computer)
        return {**result, "content": [self._linked(seat, mcp_server, block) for block in content]}

    def _with_linked_content(self, seat: Seat, mcp_server: str, message: Any) -> Any:
        content = message.get("content") if isinstance(message, dict) else None
        return message if content is None else {**message, "content": self._linked(seat, mcp_server, content)}

    def _linked(self, seat: Seat, mcp_server: str, block: Any) -> Any:
        """A block of content: its URI, if it has one, leads to this server."""
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "resource_link":
            return self._led(seat, mcp_server, block)
        if kind == "resource" and isinstance(block.get("resource"), dict):
            return {**block, "resource": self._led(seat, mcp_server, block["resource"])}
        return block

    def _led(self, seat: Seat, mcp_server: str, item: dict[str, Any]) -> dict[str, Any]:
        uri = item.get("uri")
        if not isinstance(uri, str):
            return item
        place = ReadablePlace(seat, mcp_server, uri)
        known = self._known(uri) or self._links.setdefault(uri, place)
        if uri in self._links:
            self._links.move_to_end(uri)
        while len(self._links) > _MOST_LINKS:
            self._links.popitem(last=False)
        is_ours = (known.seat, known.mcp_server) == (seat, mcp_server)
        return item if is_ours else {**item, "uri": f"{uri_prefix(seat.computer, mcp_server)}{uri}"}

    def _find(self, uri: str) -> tuple[ResourceEntry | TemplateEntry | None, ReadablePlace | None]:
        """The entry of a resource, if it has one, and where it is; not known for one of the bridge itself."""
        registry = self._agent.registry
        if registry.entry(ResourceEntry, uri) is None and (place := self._qualified(uri)):
            return None, place
        try:
            entry, _ = registry.find_resource(uri)
        except ResourceNotFound:
            if place := self._links.get(uri) or self._only_server(uri):
                return None, place
            raise
        return entry, entry.source if isinstance(entry.source, ReadablePlace) else None

    def _known(self, uri: str) -> ReadablePlace | None:
        """Where a listed resource is."""
        try:
            source = self._agent.registry.find_resource(uri)[0].source
        except ResourceNotFound:
            return None
        return source if isinstance(source, ReadablePlace) else None

    def _qualified(self, uri: str) -> ReadablePlace | None:
        """Where the resource of a URI is that names a computer of the office."""
        found = QualifiedURI.parse(uri)
        if found is None or f"{self._office}/{found.computer}" not in self._agent.computers:
            return None
        prefix = uri.removesuffix(found.uri)
        return ReadablePlace(Seat(self._office, found.computer), found.mcp_server, found.uri, prefix)

    def _only_server(self, uri: str) -> ReadablePlace | None:
        entries = self._agent.registry.entries(ResourceEntry) + self._agent.registry.entries(TemplateEntry)
        places = [entry.source for entry in entries if isinstance(entry.source, ReadablePlace)]
        servers = {(place.seat, place.mcp_server) for place in places}
        if len(servers) != 1:
            return None
        ((seat, mcp_server),) = servers
        return ReadablePlace(seat, mcp_server, uri)
