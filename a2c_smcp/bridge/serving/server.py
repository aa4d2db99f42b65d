"""An office as a server of the SDK, for clients of both eras of MCP."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Coroutine
from typing import Any, cast

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError

from a2c_smcp import __version__
from a2c_smcp.agent import ReadOptions
from a2c_smcp.bridge.catalog import SEARCH_TOOLS, search_arguments
from a2c_smcp.bridge.offers import Target
from a2c_smcp.bridge.office.desktops import GET_DESKTOP
from a2c_smcp.bridge.office.office import OFFICE_STATUS, BridgedOffice
from a2c_smcp.bridge.serving.calls import ClientCalls, failed_result
from a2c_smcp.bridge.serving.questions import answered
from a2c_smcp.errors import BadRequest, NotFound, PromptNotFound, ResourceNotFound, SMCPError, ToolNotFound
from a2c_smcp.registry.calls.caller import CannotAsk
from a2c_smcp.registry.remote.announcing import Announcer, Request
from a2c_smcp.registry.remote.mcp_server import MCPServer
from a2c_smcp.registry.remote.rounds import client_of

__all__ = ["OfficeServer"]


class _Observed:
    """Tells of the client of each request, by its own name."""

    def __init__(self, on_client: Callable[[str], None]) -> None:
        self._on_client = on_client

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        if client := client_of(ctx):
            self._on_client(client["name"])
        return await call_next(ctx)


class OfficeServer(MCPServer):
    """One run of the server. What clients are told about it changes with the state of the office."""

    def __init__(self, office: BridgedOffice) -> None:
        self._office = office
        self._stop_listening: Callable[[], None] = lambda: None
        announcer = Announcer(office)
        self._calls = ClientCalls(office, announcer)
        super().__init__(
            "a2c-smcp", announcer, version=__version__, title=f"Office {office.name}", instructions=office.instructions
        )
        self._stop_listening = office.on_change(self._tell_state)
        self._calls.open()
        self._on_client = office.options.on_client
        if self._on_client:
            self.middleware.append(_Observed(self._on_client))

    async def close(self) -> None:
        self._stop_listening()
        await self._calls.close()

    def _tell_state(self) -> None:
        self.instructions = self._office.instructions

    def tell_all(self, subscriptions: Collection[str]) -> None:
        """Tell clients that everything may have changed: all lists, and these resources."""
        for event in (ToolsListChanged(), ResourcesListChanged(), PromptsListChanged()):
            self.announcer.announce(event)
        for uri in subscriptions:
            self.announcer.announce(ResourceUpdated(uri))

    # Lists

    async def tools(self) -> list[dict[str, Any]]:
        return self._office.listings()

    async def resources(self) -> list[dict[str, Any]]:
        return self._office.agent.registry.resources()

    async def templates(self) -> list[dict[str, Any]]:
        return self._office.agent.registry.resource_templates()

    async def prompts(self) -> list[dict[str, Any]]:
        return self._office.agent.registry.prompts()

    def input_schema(self, name: str) -> dict[str, Any] | None:
        return self._office.input_schema(name)

    # Requests

    async def call_plainly(self, context: Request, params: types.CallToolRequestParams) -> dict[str, Any]:
        """As the SDK calls `call_tool` for a client of 2026-07-28: the result is sent as it is. Raises `MCPError`.

        The request brings no state of an earlier one.
        """
        if self._on_client and (client := client_of(context)):
            self._on_client(client["name"])
        result = self.as_sent(context, await self.translated_call(context, params))
        return result if "requestState" not in result else await self._sealed(context, result)

    async def _sealed(self, context: Request, result: dict[str, Any]) -> dict[str, Any]:
        """A result whose state the client gives back, and cannot change."""

        async def answer(_: Request) -> HandlerResult:
            return result

        return cast(dict[str, Any], await self.state_boundary(context, answer))

    async def call_tool(self, context: Request, params: types.CallToolRequestParams) -> dict[str, Any]:
        name, arguments = params.name, params.arguments or {}
        try:
            if name == OFFICE_STATUS:
                self._office.membership.poke()
                return self._office.status()
            if name == GET_DESKTOP and self._office.desktops.tool:
                return await self._office.membership.guard(self._office.desktops.call(arguments))
            if name == SEARCH_TOOLS and self._office.catalog.is_searched:
                return self._found(*search_arguments(arguments))
            target, arguments = await self._permitted(context, name, arguments)
        except ToolNotFound as error:
            if trouble := self._office.trouble:
                return failed_result(trouble, error)
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {error.about}") from None
        except SMCPError as error:
            return failed_result(self._office.explain(error), error)
        return await self._calls.call(context, target, arguments)

    async def _permitted(self, context: Request, name: str, arguments: dict[str, Any]) -> tuple[Target, dict[str, Any]]:
        """As `_resolved`, and tells of a refusal: nobody else learns of a call that is not sent."""
        try:
            return await self._resolved(name, arguments)
        except SMCPError as error:
            came_from = context.request.client if context.request else None
            self._office.options.on_refused(name, error, came_from.host if came_from else None)
            raise

    async def _resolved(self, name: str, arguments: dict[str, Any]) -> tuple[Target, dict[str, Any]]:
        """The tool that a call is for. An office that cannot be used is tried again before. Raises `SMCPError`."""
        try:
            return self._office.resolve(name, arguments)
        except NotFound:
            if self._office.membership.trouble is None:
                raise
        await self._office.membership.recovered()
        return self._office.resolve(name, arguments)

    def _found(self, query: str, limit: int) -> dict[str, Any]:
        """The result of `search_tools`."""
        found = self._office.catalog.search(query, limit)
        text = json.dumps(found, ensure_ascii=False)
        return {"content": [{"type": "text", "text": text}], "structuredContent": {"tools": found}, "isError": False}

    async def read_resource(self, context: Request, params: types.ReadResourceRequestParams) -> dict[str, Any]:
        async def send(options: ReadOptions) -> dict[str, Any]:
            return await self._office.readables.resource(params.uri, **options)

        return await self._read(answered(context, send))

    async def get_prompt(self, context: Request, params: types.GetPromptRequestParams) -> dict[str, Any]:
        async def send(options: ReadOptions) -> dict[str, Any]:
            return await self._office.readables.prompt(params.name, params.arguments, **options)

        return await self._read(answered(context, send))

    async def complete(self, context: Request, params: types.CompleteRequestParams) -> dict[str, Any]:
        reference = params.ref.model_dump(by_alias=True, mode="json", exclude_none=True)
        known = params.context.arguments if params.context else None
        argument = params.argument
        asking = self._office.readables.completion(reference, argument.name, argument.value, known)
        return await self._read(asking)

    async def _read(self, reading: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """MCP's result. An error of the MCP server stays as it is; other errors say what to do about them."""
        try:
            return await self._office.membership.guard(reading)
        except (CannotAsk, ResourceNotFound, PromptNotFound):
            raise
        except SMCPError as error:
            code, said = error.details.get("mcp_code"), error.details.get("mcp_message")
            if type(code) is int and isinstance(said, str):
                raise MCPError(code, said, error.details.get("mcp_data")) from None
            about = types.INVALID_PARAMS if isinstance(error, BadRequest) else types.INTERNAL_ERROR
            raise MCPError(about, self._office.explain(error)) from None
