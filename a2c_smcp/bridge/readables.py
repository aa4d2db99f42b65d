"""Resources, templates, prompts and completions of an office: where each is, and how it is asked for.

The agent's registry lists them under the URIs and names that clients see. A resource that no server lists may still be
read: if a tool's result has linked to it, from the MCP server of that tool; else, if only one MCP server of the office
has resources, from that one. A link whose URI means a resource of another server here, or is a link of another one,
becomes `a2c://COMPUTER/SERVER/URI`, which can always be read. One to a page of an app (`ui://`) always does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from a2c_smcp.agent import AsyncSMCPAgentClient, ReadOptions
from a2c_smcp.agent.desktops import Seat
from a2c_smcp.agent.reading.answers import APP_SCHEME, QualifiedURI, qualified, with_prefix
from a2c_smcp.agent.reading.registry_sync import ReadablePlace
from a2c_smcp.bridge.apps import OwnTools, with_own_calls, with_own_page
from a2c_smcp.bridge.names import Target
from a2c_smcp.errors import ResourceNotFound
from a2c_smcp.protocol.operations import GET_PROMPT, READ_RESOURCE, MCPOperation
from a2c_smcp.registry.sources import ResourceEntry, TemplateEntry

_MOST_LINKS = 10_000


class Readables:
    """The resources and prompts of an office."""

    def __init__(self, agent: AsyncSMCPAgentClient, office: str) -> None:
        self._agent, self._office = agent, office
        self._links: OrderedDict[str, ReadablePlace] = OrderedDict()

    async def ask(
        self, operation: MCPOperation, params: Mapping[str, Any], options: ReadOptions, tools: OwnTools
    ) -> dict[str, Any]:
        """MCP's result of a client's request, or its `InputRequiredResult`. Raises `ResourceNotFound` and others.

        `tools` are those that the pages of apps may call.
        """
        place = self._place(operation, params)
        if place is None:
            return await self._agent.registry.answer(operation, params)
        own = place.key if operation is GET_PROMPT else params["uri"].removeprefix(place.prefix)
        result = await self._agent.ask(
            place.seat.computer,
            place.mcp_server,
            operation,
            {**params, operation.key: own},
            office=place.seat.office,
            **options,
        )
        if isinstance(messages := result.get("messages"), list):
            linked = [self._with_linked_content(place.seat, place.mcp_server, message) for message in messages]
            return {**result, "messages": linked}
        result = with_prefix(place.prefix, result)
        return with_own_calls(result, place.seat.computer, place.mcp_server, tools)

    def _place(self, operation: MCPOperation, params: Mapping[str, Any]) -> ReadablePlace | None:
        """The place to ask for it; `None` if the registry answers."""
        if operation is READ_RESOURCE:
            return self._find(params["uri"])[1]
        source = self._agent.registry.find_prompt(params["name"]).source if operation is GET_PROMPT else None
        return source if isinstance(source, ReadablePlace) else None

    def linked(self, target: Target, mcp_server: str | None, result: dict[str, Any]) -> dict[str, Any]:
        """MCP's result of a tool, whose links can be read."""
        content = result.get("content")
        if mcp_server is None or not isinstance(content, list):
            return result
        result = with_own_page(result, target.computer, mcp_server)
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
        if uri.startswith(APP_SCHEME):
            return {**item, "uri": qualified(uri, seat.computer, mcp_server)}
        place = ReadablePlace(seat, mcp_server, uri)
        known = self._known(uri) or self._links.setdefault(uri, place)
        if uri in self._links:
            self._links.move_to_end(uri)
        while len(self._links) > _MOST_LINKS:
            self._links.popitem(last=False)
        is_ours = (known.seat, known.mcp_server) == (seat, mcp_server)
        return item if is_ours else {**item, "uri": qualified(uri, seat.computer, mcp_server)}

    def _find(self, uri: str) -> tuple[ResourceEntry | TemplateEntry | None, ReadablePlace | None]:
        """The entry of a resource, if it has one, and its place; `None` for one of the bridge itself."""
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
        """The place of a listed resource."""
        try:
            source = self._agent.registry.find_resource(uri)[0].source
        except ResourceNotFound:
            return None
        return source if isinstance(source, ReadablePlace) else None

    def _qualified(self, uri: str) -> ReadablePlace | None:
        """The place of a resource whose URI names a computer of the office."""
        parsed = QualifiedURI.parse(uri)
        if parsed is None or f"{self._office}/{parsed.computer}" not in self._agent.computers:
            return None
        prefix = uri.removesuffix(parsed.uri)
        return ReadablePlace(Seat(self._office, parsed.computer), parsed.mcp_server, parsed.uri, prefix)

    def _only_server(self, uri: str) -> ReadablePlace | None:
        entries = self._agent.registry.entries(ResourceEntry) + self._agent.registry.entries(TemplateEntry)
        places = [entry.source for entry in entries if isinstance(entry.source, ReadablePlace)]
        servers = {(place.seat, place.mcp_server) for place in places}
        if len(servers) != 1:
            return None
        ((seat, mcp_server),) = servers
        return ReadablePlace(seat, mcp_server, uri)
