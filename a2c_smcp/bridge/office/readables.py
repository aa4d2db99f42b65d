"""Resources, templates, prompts and completions of an office: where each is, and how it is asked for.

The agent's registry lists them under the URIs and names that clients see. A resource that no server lists may still be
read: if a tool's result has linked to it, from the MCP server of that tool; else, if only one MCP server of the office
has resources, from that one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Unpack

from a2c_smcp.agent import AsyncSMCPAgentClient, ReadOptions
from a2c_smcp.agent.reading.registered import ReadablePlace
from a2c_smcp.agent.types import Seat
from a2c_smcp.bridge.offers import Target
from a2c_smcp.errors import ResourceNotFound
from a2c_smcp.protocol.results import CallToolResult
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
        seat = place.seat
        asked = uri if isinstance(entry, TemplateEntry) else place.key
        return await self._agent.read_resource(seat.computer, place.mcp_server, asked, office=seat.office, **options)

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None, **options: Unpack[ReadOptions]
    ) -> dict[str, Any]:
        """MCP's result, or its `InputRequiredResult`. Raises `PromptNotFound` and other errors."""
        place = self._agent.registry.find_prompt(name).source
        if not isinstance(place, ReadablePlace):
            return await self._agent.registry.aget_prompt(name, arguments)
        seat = place.seat
        return await self._agent.get_prompt(
            seat.computer, place.mcp_server, place.key, arguments, office=seat.office, **options
        )

    async def completion(
        self, reference: Mapping[str, Any], argument: str, value: str, known: Mapping[str, str] | None
    ) -> dict[str, Any]:
        return await self._agent.registry.acomplete(reference, argument, value, known)

    def note_links(self, target: Target, mcp_server: str | None, result: CallToolResult) -> None:
        """Remember where the links of a result lead to."""
        if mcp_server is None:
            return
        for uri in [link["uri"] for link in result.links if isinstance(link.get("uri"), str)]:
            self._links[uri] = ReadablePlace(Seat(self._office, target.computer), mcp_server, uri)
            self._links.move_to_end(uri)
        while len(self._links) > _MOST_LINKS:
            self._links.popitem(last=False)

    def _find(self, uri: str) -> tuple[ResourceEntry | TemplateEntry | None, ReadablePlace | None]:
        """The entry of a resource, if it has one, and where it is; not known for one of the bridge itself."""
        try:
            entry, _ = self._agent.registry.find_resource(uri)
        except ResourceNotFound:
            if place := self._links.get(uri) or self._only_server(uri):
                return None, place
            raise
        return entry, entry.source if isinstance(entry.source, ReadablePlace) else None

    def _only_server(self, uri: str) -> ReadablePlace | None:
        entries = self._agent.registry.entries(ResourceEntry) + self._agent.registry.entries(TemplateEntry)
        places = [entry.source for entry in entries if isinstance(entry.source, ReadablePlace)]
        servers = {(place.seat, place.mcp_server) for place in places}
        if len(servers) != 1:
            return None
        ((seat, mcp_server),) = servers
        return ReadablePlace(seat, mcp_server, uri)
