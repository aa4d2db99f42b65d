"""The methods by which both clients read what MCP servers offer. They differ only in how they wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar, Unpack

from a2c_smcp.agent.reading.answers import PROMPTS, RESOURCES, TEMPLATES, MCPResult
from a2c_smcp.agent.reading.requests import Reading
from a2c_smcp.agent.reading.rounds import ReadOptions
from a2c_smcp.agent.reading.subscriptions import OnUpdate
from a2c_smcp.mcp_events import ServerInfo
from a2c_smcp.protocol.results import CallToolResult

__all__ = ["AsyncReadingMethods", "ReadingMethods"]

Result = TypeVar("Result")


class AsyncReadingMethods:
    """Methods of `AsyncSMCPAgentClient`."""

    _reading: Reading

    async def get_servers(self, computer: str, *, office: str | None = None) -> list[ServerInfo]:
        """The MCP servers of a computer: name, bundle id, state, capabilities, and what they say of themselves.

        Each of the following methods takes a server's name or its bundle id. All raise `ServerNotFound` or
        `ServerNotRegistered` for a server that is not there, `CapabilityNotSupported` for one that does not offer this,
        and `NotCarried` behind a Server that does not know these requests.
        """
        return await self._reading.servers(computer, office)

    async def get_resources(self, computer: str, server: str, *, office: str | None = None) -> MCPResult:
        """The resources of an MCP server, all of them, as MCP has it: `{"resources": [{"uri", "name", …}]}`.

        If the MCP server says how long its answer is valid (`ttlMs`), it is kept that long and not asked for again,
        unless the computer announces a change. The same holds for the other lists, and for `read_resource`.
        """
        return await self._reading.whole_list(RESOURCES, computer, server, office)

    async def get_resource_templates(self, computer: str, server: str, *, office: str | None = None) -> MCPResult:
        """Patterns of URIs that an MCP server can read: `{"resourceTemplates": [{"uriTemplate", "name", …}]}`."""
        return await self._reading.whole_list(TEMPLATES, computer, server, office)

    async def read_resource(
        self, computer: str, server: str, uri: str, *, office: str | None = None, **options: Unpack[ReadOptions]
    ) -> MCPResult:
        """Read a resource: `{"contents": [{"uri", "mimeType", "text" or "blob"}]}`, where `blob` is base64.

        Contents are whole, however large. `options` are those of `ReadOptions`.
        """
        return await self._reading.resource(computer, server, uri, office, options)

    async def read_link(
        self,
        result: CallToolResult,
        link: Mapping[str, Any] | str | None = None,
        *,
        server: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> MCPResult:
        """Read the resource that a tool's result links to: `await agent.read_link(result, result.links[0])`.

        `link` may be left out if the result has only one. The link is to a resource of the tool's own MCP server,
        unless another `server` is given. Returns what `read_resource` returns.
        """
        return await self._reading.link(result, link, server, options)

    async def subscribe_resource(
        self, computer: str, server: str, uri: str, *, on_update: OnUpdate | None = None, office: str | None = None
    ) -> None:
        """Have changes of a resource told to `on_resource_updated`, and to `on_update(uri)` if it is given.

        The subscription stays in force, also after a reconnect of either side, until it is ended or the agent leaves
        the office or disconnects. Changes while the connection is lost are not told: read the resource again then.
        """
        await self._reading.subscribe(computer, server, uri, on_update, office)

    async def unsubscribe_resource(self, computer: str, server: str, uri: str, *, office: str | None = None) -> None:
        """End a subscription."""
        await self._reading.unsubscribe(computer, server, uri, office)

    async def get_prompts(self, computer: str, server: str | None = None, *, office: str | None = None) -> MCPResult:
        """The prompts of an MCP server, or of all: `{"prompts": [{"mcp_server", "name", "arguments", …}]}`."""
        return await self._reading.whole_list(PROMPTS, computer, server, office)

    async def get_prompt(
        self,
        computer: str,
        server: str,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        office: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> MCPResult:
        """A prompt with these arguments: `{"messages": [{"role", "content"}], "description"}`.

        `options` are those of `ReadOptions`.
        """
        return await self._reading.prompt(computer, server, name, arguments, office, options)

    async def complete(
        self,
        computer: str,
        server: str,
        ref: Mapping[str, Any],
        argument: Mapping[str, str],
        context: Mapping[str, Any] | None = None,
        *,
        office: str | None = None,
    ) -> MCPResult:
        """Suggest values for an argument of a prompt or a template: `{"completion": {"values", "total", "hasMore"}}`.

        As MCP has it, `ref` is `{"type": "ref/prompt", "name"}` or `{"type": "ref/resource", "uri"}`, `argument` is
        `{"name", "value"}` with what was typed so far, and `context` is `{"arguments": {…}}` with those known.
        """
        about = {"mcp_server": server, "ref": dict(ref), "argument": dict(argument)}
        return await self._reading.completion(computer, about, context, office)


class ReadingMethods(ABC):
    """Methods of `SMCPAgentClient`: those of `AsyncReadingMethods`, blocking."""

    _reading: Reading

    @abstractmethod
    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result: ...

    def get_servers(self, computer: str, *, office: str | None = None) -> list[ServerInfo]:
        return self._wait(self._reading.servers(computer, office))

    def get_resources(self, computer: str, server: str, *, office: str | None = None) -> MCPResult:
        return self._wait(self._reading.whole_list(RESOURCES, computer, server, office))

    def get_resource_templates(self, computer: str, server: str, *, office: str | None = None) -> MCPResult:
        return self._wait(self._reading.whole_list(TEMPLATES, computer, server, office))

    def read_resource(
        self, computer: str, server: str, uri: str, *, office: str | None = None, **options: Unpack[ReadOptions]
    ) -> MCPResult:
        return self._wait(self._reading.resource(computer, server, uri, office, options))

    def read_link(
        self,
        result: CallToolResult,
        link: Mapping[str, Any] | str | None = None,
        *,
        server: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> MCPResult:
        return self._wait(self._reading.link(result, link, server, options))

    def subscribe_resource(
        self, computer: str, server: str, uri: str, *, on_update: OnUpdate | None = None, office: str | None = None
    ) -> None:
        self._wait(self._reading.subscribe(computer, server, uri, on_update, office))

    def unsubscribe_resource(self, computer: str, server: str, uri: str, *, office: str | None = None) -> None:
        self._wait(self._reading.unsubscribe(computer, server, uri, office))

    def get_prompts(self, computer: str, server: str | None = None, *, office: str | None = None) -> MCPResult:
        return self._wait(self._reading.whole_list(PROMPTS, computer, server, office))

    def get_prompt(
        self,
        computer: str,
        server: str,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        office: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> MCPResult:
        return self._wait(self._reading.prompt(computer, server, name, arguments, office, options))

    def complete(
        self,
        computer: str,
        server: str,
        ref: Mapping[str, Any],
        argument: Mapping[str, str],
        context: Mapping[str, Any] | None = None,
        *,
        office: str | None = None,
    ) -> MCPResult:
        about = {"mcp_server": server, "ref": dict(ref), "argument": dict(argument)}
        return self._wait(self._reading.completion(computer, about, context, office))
