"""Requests of MCP clients to an office: tool calls with progress, logs and questions, and reading.

The answer of a tool is passed on as it is; a JSON-RPC error of its MCP server is one here. Any other failure (the
computer has left, its owner refuses, time is over) is an error result, which a model can read, and says what to do. A
client that cancels its request cancels the call, down to the MCP server.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, cast, get_args

import mcp_types as types
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER

from a2c_smcp import __version__
from a2c_smcp.agent import AsyncSMCPAgentClient, EmitOptions, ReadOptions
from a2c_smcp.agent.calls import StatesAsProgress
from a2c_smcp.agent.reading.answers import Send, answered, going_on, options_for
from a2c_smcp.bridge.apps import EXTENSION
from a2c_smcp.bridge.catalog import SEARCH_TOOLS, search_arguments
from a2c_smcp.bridge.desktops import GET_DESKTOP
from a2c_smcp.bridge.names import Target
from a2c_smcp.bridge.office import OFFICE_STATUS, BridgedOffice, BridgeOptions
from a2c_smcp.bridge.serving.sessions import ClientPresence
from a2c_smcp.errors import CallCancelled, NotFound, SMCPError, ToolNotFound
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.mcp_events import LogLevel
from a2c_smcp.protocol.operations import READ_RESOURCE, MCPOperation
from a2c_smcp.protocol.questions import InputRequest
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.protocol.skills import SKILLS_EXTENSION
from a2c_smcp.registry.calls.context import CannotAsk
from a2c_smcp.registry.remote.mcp_server import MCPServer
from a2c_smcp.registry.remote.rounds import (
    Announcer,
    Request,
    Round,
    client_of,
    input_capabilities,
    is_modern,
    push_to,
    wants_progress,
)

logger = logging.getLogger(__name__)

# Log messages of MCP servers. A computer does not say which call a message belongs to. So a client gets the messages of
# an MCP server while only this client has calls there: no client ever sees a message for another one. Computers are
# asked for the lowest level that any client has wanted of them; that stays until the bridge ends.

_LEVELS = get_args(LogLevel)
_SET_WITHIN = 3.0
_SETTLES_WITHIN = 1.0


@dataclass(eq=False, slots=True)
class _RunningCall:
    client: Hashable
    mcp_server: str | None
    round: Round


class CallLogs:
    """The running calls whose clients want messages."""

    def __init__(self, agent: AsyncSMCPAgentClient, office: str) -> None:
        self._agent, self._office = agent, office
        self._calls: dict[str, list[_RunningCall]] = {}
        self._levels: dict[str, int] = {}
        self._setting: dict[str, asyncio.Lock] = {}
        self._stop_listening: Callable[[], None] = lambda: None

    def open(self) -> None:
        self._stop_listening = self._agent.listen(self)

    def close(self) -> None:
        self._stop_listening()

    @asynccontextmanager
    async def of_call(
        self, client: Hashable, target: Target, mcp_server: str | None, level: LogLevel, round_: Round
    ) -> AsyncGenerator[None, None]:
        """Sends messages of this level and above to the client of a call that is made in this block."""
        await self._set_level(target.computer, _LEVELS.index(level))
        call = _RunningCall(client, mcp_server, round_)
        calls = self._calls.setdefault(target.computer, [])
        calls.append(call)
        try:
            yield
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLES_WITHIN):
                    await self._agent.events_handled()  # what was logged before the answer is sent before it
        finally:
            calls.remove(call)

    def on_log(self, computer: str, log: dict[str, Any], office: str) -> None:
        if office != self._office or log.get("level") not in _LEVELS:
            return
        server, name = log.get("mcp_server"), log.get("logger")
        calls = [call for call in self._calls.get(computer, ()) if call.mcp_server in (None, server)]
        if len({call.client for call in calls}) == 1:
            calls[-1].round.log(log["level"], log.get("data"), name if isinstance(name, str) else None)

    async def _set_level(self, computer: str, level: int) -> None:
        if self._levels.get(computer, len(_LEVELS)) <= level:
            return
        async with self._setting.setdefault(computer, asyncio.Lock()):
            if self._levels.get(computer, len(_LEVELS)) <= level:
                return
            try:
                async with asyncio.timeout(_SET_WITHIN):
                    await self._agent.set_log_level(computer, _LEVELS[level], office=self._office)
            except (SMCPError, TimeoutError) as error:
                logger.info("%s: its logs are not passed on: %s", computer, error)
            self._levels[computer] = level


# Questions of an MCP server in the middle of a request, for the MCP client in the client's own revision.
#
# Computers are asked for MCP's own way (WIRE §9, `questions: "result"`): their answer may be an
# `InputRequiredResult`. A client of 2026-07-28 gets it as it is, and comes back with the responses and the state,
# which is sealed by the SDK and bound to the request (`RequestStateBoundary`). A client of an older revision gets each
# input request as a request of this server, and the computer is asked again with the responses. For a client without
# such a capability, the owner of the computer is asked, if there is one.


async def _answered(
    presence: ClientPresence,
    context: Request,
    send: Send,
    withdraw: Callable[[], object] = lambda: None,
    on_gone: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """As `answered`, by the client. A client of 2026-07-28 gets the questions as the result.

    A question to a client that is gone ends with `CallCancelled`; if there is none, `on_gone` is called.
    """
    options = options_for(client_of(context), input_capabilities(context))
    if is_modern(context):
        params = context.params or {}
        return await send(going_on(options, params.get("inputResponses"), params.get("requestState")))
    push, open_questions = push_to(context), set[asyncio.Timeout]()

    async def respond(asked: InputRequest) -> dict[str, Any]:
        try:
            async with asyncio.timeout(None) as limit:
                open_questions.add(limit)
                response: dict[str, Any] = await push(asked)
                return response
        except TimeoutError:
            raise CallCancelled(outcome="unknown") from None
        finally:
            open_questions.discard(limit)

    def leave() -> None:
        for question in open_questions:
            question.reschedule(asyncio.get_running_loop().time())
        if not open_questions:
            on_gone()

    session = context.request.headers.get(MCP_SESSION_ID_HEADER) if context.request else None
    with presence.watching(session, leave) if session else nullcontext():
        return await answered(send, options, respond, withdraw)


_OF_REQUEST = "progressToken"
_RESERVED = "io.modelcontextprotocol/"


CALL_LOST = "The bridge that this call went through has ended. Whether the tool has run is not known."


class ClientCalls:
    """Makes the calls of all clients."""

    def __init__(
        self, office: BridgedOffice, announcer: Announcer, presence: ClientPresence, logs: CallLogs, timeout: float
    ) -> None:
        self._office, self._announcer, self._presence = office, announcer, presence
        self._agent = office.agent
        self._logs, self._timeout = logs, timeout
        self._tasks = OwnedTasks()

    async def close(self) -> None:
        await self._tasks.close()

    async def call(self, context: Request, target: Target, arguments: dict[str, Any]) -> dict[str, Any]:
        """MCP's result. Raises `MCPError` if that is what the MCP server has answered."""
        round_ = Round(context, self._announcer)
        server, level = self._office.server_of(target), self._announcer.log_level(context)
        client = self._announcer.identity(context)
        logs = self._logs.of_call(client, target, server, level, round_) if level else nullcontext()
        try:
            async with logs:
                return await self._office.membership.guard(self._answered(context, target, arguments, server, round_))
        except CannotAsk:
            if is_modern(context):
                raise
            return failed_result("The MCP client could not answer what the tool has asked.")
        except SMCPError as error:
            return failed_result(self._office.explain(error), error)
        finally:
            if level or wants_progress(context):
                await round_.finish()

    async def _answered(
        self, context: Request, target: Target, arguments: dict[str, Any], server: str | None, round_: Round
    ) -> dict[str, Any]:
        common, req_id = _options(context, round_), ""

        async def send(options: ReadOptions) -> dict[str, Any]:
            nonlocal req_id
            req_id = token_hex(16)
            result = await self._agent.emit_tool_call(
                target.computer,
                target.tool,
                arguments,
                self._timeout,
                office=self._office.name,
                req_id=req_id,
                **cast(EmitOptions, {**common, **options}),
            )
            return self._office.readables.linked(target, server, _as_mcp(result))

        return await _answered(
            self._presence,
            context,
            send,
            lambda: self._tasks.spawn(self._end(self._agent.cancel(req_id))),
            lambda: self._tasks.spawn(
                self._end(self._agent.withdraw(target.computer, req_id, office=self._office.name))
            ),
        )

    async def _end(self, ending: Awaitable[None]) -> None:
        """End a call that waits. It goes on if its computer cannot tell it from one that runs."""
        with suppress(SMCPError):
            await ending


def failed_result(text: str, error: SMCPError | None = None) -> dict[str, Any]:
    """An error result. Programs find the code in `_meta`, and whether the tool has run."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    if error is not None:
        reason = {"reason": why} if isinstance(why := error.details.get("reason"), str) else {}
        result["_meta"] = {"a2c_error": {"code": error.code, "outcome": error.outcome, **reason}}
    return result


def _options(context: Request, round_: Round) -> EmitOptions:
    options: EmitOptions = {}
    if meta := _meta(context.params or {}):
        options["meta"] = meta
    if wants_progress(context):
        reporting = StatesAsProgress(round_.report)
        options["on_progress"], options["on_state"] = reporting.on_progress, reporting.on_state
        options["extend"] = True
    return options


def _meta(params: Mapping[str, Any]) -> dict[str, Any]:
    """The client's `_meta` for the MCP server, without what belongs to this request."""
    meta = params.get("_meta")
    if not isinstance(meta, Mapping):
        return {}
    return {key: value for key, value in meta.items() if key != _OF_REQUEST and not key.startswith(_RESERVED)}


def _as_mcp(result: CallToolResult) -> dict[str, Any]:
    """MCP's result. Raises `MCPError` for a JSON-RPC error of the MCP server."""
    error = result.mcp_error
    if error is not None and type(error.get("code")) is int:
        raise MCPError(error["code"], str(error.get("message")), error.get("data"))
    if result.is_input_required:
        return dict(result.extra)
    return result.to_wire()


# An office as a server of the SDK, for clients of both eras of MCP.


class _Observed:
    """Tells of the client of each request, by its own name."""

    def __init__(self, on_client: Callable[[str], None]) -> None:
        self._on_client = on_client

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        if client := client_of(ctx):
            self._on_client(client["name"])
        return await call_next(ctx)


class OfficeServer(MCPServer):
    """One run of the server. Its instructions for clients change with the state of the office.

    All servers of an office share its `logs`, so that messages of calls are kept apart. The `options` that matter here
    are those of the catalog, and the timeout.
    """

    def __init__(self, office: BridgedOffice, logs: CallLogs, options: BridgeOptions) -> None:
        self._office, self._options = office, options.catalog
        self._stop_listening: Callable[[], None] = lambda: None
        announcer = Announcer(office)
        self.presence = ClientPresence(options.withdraw_after)
        self._calls = ClientCalls(office, announcer, self.presence, logs, options.timeout)
        super().__init__(
            "a2c-smcp",
            announcer,
            office.agent.registry,
            state_key=options.state_key,
            version=__version__,
            title=f"Office {office.name}",
            instructions=office.instructions,
        )
        self.extensions[SKILLS_EXTENSION] = {}
        answer = self._translated(self._answer_about_skills)
        self.add_request_handler("skills/list", types.PaginatedRequestParams, answer)
        self.add_request_handler("skills/get", types.ReadResourceRequestParams, answer)
        self._stop_listening = office.on_change(lambda: self.instruct(office.instructions))
        self._on_client = office.options.on_client
        if self._on_client:
            self.middleware.append(_Observed(self._on_client))

    async def close(self) -> None:
        self._stop_listening()
        await self._calls.close()

    @property
    def extensions(self) -> dict[str, dict[str, Any]]:
        """The extensions that this server has for a client that asks now: apps if a tool of the office has one."""
        self._extensions.pop(EXTENSION, None)
        self._extensions |= {EXTENSION: {}} if self._office.has_apps else {}
        return self._extensions

    @extensions.setter
    def extensions(self, extensions: dict[str, dict[str, Any]]) -> None:
        """The SDK's constructor sets it."""
        self._extensions = extensions

    def tools(self) -> list[dict[str, Any]]:
        return self._office.listings(self._options)

    def input_schema(self, name: str) -> dict[str, Any] | None:
        return self._office.input_schema(name, self._options)

    # Requests

    async def call_plainly(self, context: Request, params: types.CallToolRequestParams) -> dict[str, Any]:
        """Answer a request of a client of 2026-07-28 without state, as the SDK would. Raises `MCPError`."""
        if self._on_client and (client := client_of(context)):
            self._on_client(client["name"])
        result = self.as_sent(context, await self.translated_call(context, params))
        return result if "requestState" not in result else await self._sealed(context, result)

    async def _sealed(self, context: Request, result: dict[str, Any]) -> dict[str, Any]:
        """Seal the state in a result: the client gives it back, and cannot change it."""

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
            catalog = self._office.catalog(self._options)
            if name == SEARCH_TOOLS and catalog.is_searched:
                tools = catalog.search(*search_arguments(arguments))
                content = [{"type": "text", "text": json.dumps(tools, ensure_ascii=False)}]
                return {"content": content, "structuredContent": {"tools": tools}, "isError": False}
            target, arguments = await self._permitted(context, name, arguments)
        except ToolNotFound as error:
            if trouble := self._office.trouble:
                return failed_result(trouble, error)
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {error.about}") from None
        except SMCPError as error:
            return failed_result(self._office.explain(error), error)
        return await self._calls.call(context, target, arguments)

    async def _permitted(self, context: Request, name: str, arguments: dict[str, Any]) -> tuple[Target, dict[str, Any]]:
        """As `_resolved`, and reports a refusal: a call that is not sent has no other trace."""
        try:
            return await self._resolved(name, arguments)
        except SMCPError as error:
            came_from = context.request.client if context.request else None
            self._office.options.on_refused(name, error, came_from.host if came_from else None)
            raise

    async def _resolved(self, name: str, arguments: dict[str, Any]) -> tuple[Target, dict[str, Any]]:
        """Return the tool of a call and its arguments, after another attempt to join the office. Raises `SMCPError`."""
        try:
            return self._office.resolve(name, arguments, self._options)
        except NotFound:
            if self._office.membership.trouble is None:
                raise
        await self._office.membership.recovered()
        return self._office.resolve(name, arguments, self._options)

    async def _answer_about_skills(self, context: Request, params: Any) -> dict[str, Any]:
        if not is_modern(context):
            raise MCPError(types.METHOD_NOT_FOUND, f"{context.method} needs MCP 2026-07-28")
        skills = self._office.skills
        asked = skills.page(params.cursor) if context.method == "skills/list" else skills.get(params.uri)
        return await self._office.membership.guard(asked)

    async def answer(self, operation: MCPOperation, context: Request, params: dict[str, Any]) -> dict[str, Any]:
        async def send(options: ReadOptions) -> dict[str, Any]:
            if operation is READ_RESOURCE and (found := await self._office.skills.find(params["uri"])):
                return await self._office.skills.read(params["uri"], *found)
            return await self._office.readables.ask(operation, params, options, self._tools_of)

        return await self._office.membership.guard(_answered(self.presence, context, send))

    def _tools_of(self, computer: str, mcp_server: str) -> dict[str, tuple[str, str | None]]:
        return self._office.tools_of(computer, mcp_server, self._options)

    def explain(self, error: SMCPError) -> str:
        return self._office.explain(error)
