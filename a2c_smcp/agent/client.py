"""The two clients of an agent, `AsyncSMCPAgentClient` and the blocking `SMCPAgentClient`, on the same flows."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

from a2c_smcp.agent.blobs.transfers import AnyPath
from a2c_smcp.agent.calls import EmitOptions
from a2c_smcp.agent.connection import not_connected
from a2c_smcp.agent.desktops import DEFAULT_TIMEOUT, AgentAuthProvider, ClientOptions, OutgoingCall, new_req_id
from a2c_smcp.agent.events import AgentEvents
from a2c_smcp.agent.flows import Flows
from a2c_smcp.agent.reading.answers import MCPResult, ReadOptions
from a2c_smcp.agent.reading.requests import OnUpdate
from a2c_smcp.agent.standing_requests import LogSource
from a2c_smcp.devices.proving import Prover
from a2c_smcp.endpoint import Credentials, Endpoint
from a2c_smcp.errors import SMCPError, Unavailable, renamed, under_own_name
from a2c_smcp.loops import BackgroundLoop, invoke, invoke_in_thread
from a2c_smcp.mcp_events import LogLevel, ServerInfo
from a2c_smcp.protocol import operations
from a2c_smcp.protocol.operations import MCPOperation
from a2c_smcp.protocol.questions import Answer, GivenAnswer, OnQuestion, Question
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.calls.context import OnProgress
from a2c_smcp.smcp import GetComputerConfigRet, SessionInfo, SMCPTool
from a2c_smcp.types import Desktop
from a2c_smcp.v04_events import A2CSkillRef, GetSkillRet

# What the async and the blocking client of an agent share: how they are made, and what needs no waiting.


class AgentBase(AgentEvents):
    """The common part of both clients: construction, and methods that do not wait."""

    def __init__(
        self,
        name: str,
        *,
        url: str = "http://127.0.0.1:7000",
        office: str | Iterable[str] | None = None,
        api_key: str | None = None,
        auth: AgentAuthProvider | None = None,
        event_handler: object | None = None,
        registry: MCPRegistry | None = None,
        on_question: OnQuestion | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Does not connect yet. Raises `ConfigError` for an invalid URL.

        `office` is one office or several; the default is an office with the agent's own name (003), `[]` is no office.
        `auth` supplies credentials where an `api_key` is not enough. `event_handler` is any object with some of the
        methods of `AgentEvents`. The tools of all computers appear in `registry`, beside those already in it.
        `on_question` answers what MCP servers ask during calls, also those of the registry; a call may have its own
        (see `emit_tool_call`). `options` are those of `ClientOptions`: `ssl`, `proxy`, `reconnect`,
        `trusted_computers`, `max_result`, `list_resources`, `instance`, `e2e`, `verify`, `identity`, `state_folder`
        and `origin`.
        """
        if unknown := options.keys() - ClientOptions.__annotations__.keys():
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {min(unknown)!r}")
        self.name = name
        self.registry = MCPRegistry() if registry is None else registry
        self._offices = [name if office is None else office] if office is None or isinstance(office, str) else [*office]
        prover = Prover.of("agent", url, options.get("identity"), options.get("state_folder"))
        endpoint = Endpoint(
            url=url,
            credentials=auth.credentials if auth else partial(Credentials.of_key, api_key),
            ssl=options.get("ssl"),
            proxy=options.get("proxy"),
            prover=prover,
        )
        listeners = [self] if event_handler is None else [self, event_handler]
        self._flows = Flows(name, endpoint, self.registry, listeners, on_question, options)
        self._reading, self._skills = self._flows.reading, self._flows.skills

    @property
    def offices(self) -> list[str]:
        """The offices that the agent has joined, also while it reconnects."""
        return list(self._flows.connection.seats)

    @property
    def computers(self) -> list[str]:
        """The computers in these offices, as `office/computer`."""
        return [str(seat) for seat in self._flows.toolbox.seats()]

    @property
    def frozen_computers(self) -> list[str]:
        """The computers that let nothing through, by the word of their owner or of an operator."""
        return [str(seat) for seat in self._flows.toolbox.seats() if seat in self._flows.frozen]

    @property
    def is_connected(self) -> bool:
        """True if there is a connection at this moment."""
        return self._flows.connection.current is not None

    def listen(self, event_handler: object) -> Callable[[], None]:
        """Have the methods of `AgentEvents` that this object has called, too. Returns how to stop that."""
        return self._flows.listeners.add(event_handler)

    def desktop(self, computer: str, *, office: str | None = None) -> list[Desktop] | None:
        """The latest desktop of a computer, without asking for it; `None` before the first `get_desktop`.

        After that it is kept current. Raises `ComputerNotFound`, or `AmbiguousComputer` without an `office`.
        """
        return self._flows.latest_desktop(computer, office)


Result = TypeVar("Result")

_CLOSE_TIMEOUT = 10.0


@under_own_name(AgentBase)
class AsyncSMCPAgentClient(AgentBase):
    """An agent: calls tools on the computers of its offices, and shows all their tools in one registry.

    It reconnects by itself when the connection is lost, and calls in flight continue. Its methods raise `SMCPError`:
    the error of the Server or the computer, `CallTimeout`, or `Unavailable` before `connect` and after `disconnect`.
    """

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Connect and join the offices. Raises the refusal, or `Unavailable` if the Server cannot be reached."""
        await self._flows.connect(invoke, self._offices)

    async def disconnect(self) -> None:
        """Leave all offices and disconnect. Calls in flight fail."""
        await self._flows.disconnect()

    async def join_office(self, office: str) -> None:
        """Join an office, and wait a moment for its computers' tools. Raises `OfficeHasAgent` and other refusals."""
        await self._flows.join_office(office)

    async def leave_office(self, office: str) -> None:
        """Leave an office. Its computers' tools disappear from the registry."""
        await self._flows.leave_office(office)

    async def emit_tool_call(
        self,
        computer: str,
        tool_name: str,
        params: dict[str, Any] | None = None,
        timeout: float | None = None,
        *,
        expires: float | None = None,
        office: str | None = None,
        req_id: str | None = None,
        **options: Unpack[EmitOptions],
    ) -> CallToolResult:
        """Call a tool and return its result; a tool that failed returns one with `is_error`.

        `timeout` is in seconds; `expires` is its older name (003). A caller that stops waiting cancels the call on the
        computer. `options` are those of `EmitOptions`: `on_progress`, `on_state`, `on_waiting`, `on_question`,
        `questions`, `extend`, `meta`, `input_responses`, `request_state`, `client_capabilities`, `client`, `save_to`
        and `on_transfer`. Raises an `SMCPError` for all other failures; its `outcome` says whether the tool has run.
        """
        seconds = expires if timeout is None else timeout
        limit = DEFAULT_TIMEOUT if seconds is None else seconds
        call = OutgoingCall(computer, tool_name, params or {}, limit, office, req_id or new_req_id())
        return await self._flows.call_tool(call, options)

    async def cancel(self, req_id: str) -> None:
        """Cancel a call, which then raises `CallCancelled`."""
        await self._flows.ask.cancel(req_id)

    async def withdraw(self, computer: str, req_id: str, *, office: str | None = None) -> None:
        """Cancel a call only if it waits: for the owner, for an answer, or to begin. A call that runs goes on.

        Raises `NotCarried` or `UnsupportedEvent` if the Server or the computer cannot tell the two apart.
        """
        await self._flows.ask.withdraw(computer, req_id, office)

    async def answer_question(
        self, computer: str, question_id: str, answer: GivenAnswer, *, office: str | None = None
    ) -> None:
        """Answer an open question of a computer: with an `Answer`, the content of the form, or `None` to cancel.

        Raises `BadRequest` if the content does not fit, which leaves the question open, and an error with the code 404
        or 410 if the question is not there or over. Raises `NotCarried` behind a Server that does not know questions.
        """
        await self._flows.ask.answer_question(computer, question_id, Answer.of(answer), office)

    async def get_questions(self, computer: str, *, office: str | None = None) -> list[Question]:
        """The open questions of a computer to this agent. Raises `NotCarried`."""
        return await self._flows.get_questions(computer, office)

    async def set_log_level(
        self, computer: str, level: LogLevel | None, mcp_server: str | None = None, *, office: str | None = None
    ) -> None:
        """Have the logs of a computer's MCP servers, or of one, from this level on, sent to `on_log`; `None` ends it.

        The level stays in force, also after a reconnect, until it is ended or the agent disconnects. Raises
        `NotCarried`.
        """
        source = LogSource(office, computer, mcp_server)
        if level is None:
            self._flows.logs.stop(source)
        else:
            await self._flows.logs.set(source, level)

    async def get_tools(self, computer: str, *, office: str | None = None) -> list[SMCPTool]:
        """Ask a computer for its tools."""
        return await self._flows.ask.tools(computer, office)

    async def get_config(self, computer: str, *, office: str | None = None) -> GetComputerConfigRet:
        """Ask a computer for its MCP servers; secrets are masked."""
        answer = await self._flows.ask.ask(operations.GET_CONFIG, computer, {}, office)
        if not isinstance(answer, dict):
            raise SMCPError("the answer is not a configuration")
        return cast(GetComputerConfigRet, answer)  # as it came

    async def get_desktop(
        self,
        computer: str,
        size: int | None = None,
        window: str | None = None,
        *,
        office: str | None = None,
        keep: bool = True,
    ) -> list[Desktop]:
        """Ask for the windows of a computer, most important first: at most `size`, or only the `window` of this URI.

        The desktop is kept current afterwards (see `desktop`), unless `keep` is false.
        """
        return await self._flows.get_desktop(computer, size, window, office, keep=keep)

    def watch_desktop(
        self, computer: str, size: int | None = None, window: str | None = None, *, office: str | None = None
    ) -> AsyncGenerator[list[Desktop], None]:
        """Yield the desktop now, and again after every change, until the office is left."""
        return self._flows.watch_desktop(computer, size, window, office)

    async def list_room(self, office: str | None = None) -> list[SessionInfo]:
        """The members of an office. `office` may be omitted if the agent is in one only."""
        return await self._flows.ask.members(office)

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
        return await self._reading.whole_list(operations.RESOURCES, computer, server, office)

    async def get_resource_templates(self, computer: str, server: str, *, office: str | None = None) -> MCPResult:
        """Patterns of URIs that an MCP server can read: `{"resourceTemplates": [{"uriTemplate", "name", …}]}`."""
        return await self._reading.whole_list(operations.TEMPLATES, computer, server, office)

    async def read_resource(
        self, computer: str, server: str, uri: str, *, office: str | None = None, **options: Unpack[ReadOptions]
    ) -> MCPResult:
        """Read a resource: `{"contents": [{"uri", "mimeType", "text" or "blob"}]}`, where `blob` is base64.

        Contents are whole, however large. `options` are those of `ReadOptions`.
        """
        return await self._reading.ask(
            operations.READ_RESOURCE, computer, {"mcp_server": server, "uri": uri}, office, options
        )

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
        office, computer, mcp_server, uri = await self._reading.linked(result, link, server)
        params = {"mcp_server": mcp_server, "uri": uri}
        return await self._reading.ask(operations.READ_RESOURCE, computer, params, office, options)

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
        return await self._reading.whole_list(operations.PROMPTS, computer, server, office)

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
        given = None if arguments is None else dict(arguments)
        wanted = {"mcp_server": server, "name": name, "arguments": given}
        return await self._reading.ask(operations.GET_PROMPT, computer, wanted, office, options)

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
        known = None if context is None else dict(context)
        wanted = {"mcp_server": server, "ref": dict(ref), "argument": dict(argument), "context": known}
        return await self._reading.ask(operations.COMPLETE, computer, wanted, office, {})

    async def ask(
        self,
        computer: str,
        server: str,
        operation: MCPOperation,
        params: Mapping[str, Any],
        *,
        office: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> MCPResult:
        """One of `MCP_OPERATIONS`, with MCP's parameters. Returns MCP's result."""
        return await self._reading.ask(operation, computer, {"mcp_server": server, **params}, office, options)

    async def get_skills(self, computer: str, *, office: str | None = None) -> list[A2CSkillRef]:
        """The skills of a computer, without their texts: `name`, `source`, `path` on the computer, `description`, …"""
        return await self._skills.all(computer, office)

    async def get_skill(
        self,
        computer: str,
        name: str,
        rel_path: str | None = None,
        *,
        office: str | None = None,
        as_mcp: bool = False,
    ) -> GetSkillRet:
        """One file of a skill; without `rel_path`, the text of its `SKILL.md`, in `body`.

        With `as_mcp` and a path, the file as MCP clients read it: a `SKILL.md` begins with its frontmatter.

        Texts are whole, however large. A file that is no text has a `blob_handle` instead, for `read_blob` and
        `save_blob`. Raises `SkillNotFound`, `InvalidSkillName`, and `SkillFileNotAccessible`, whose
        `details["reason"]` says why.
        """
        return await self._skills.file(computer, name, rel_path, office, as_mcp=as_mcp)

    async def put_file(
        self,
        computer: str,
        path: AnyPath,
        name: str | None = None,
        on_progress: OnProgress | None = None,
        *,
        office: str | None = None,
    ) -> str:
        """Send a file to a computer, and return its path there. `name` is a hint for its name there.

        `on_progress(bytes, total, None)` is called while bytes are transferred; it may be async.

        After a lost connection it goes on where it was. The computer checks its hash. Raises `BlobWriteFailed` if the
        computer takes no files (`details["reason"]` is `forbidden`: its owner has to start it with `--landing`, and
        without `--read-only`), not so many, or not so large ones; `OSError` if the file cannot be read; other
        `SMCPError`s.
        """
        return await self._flows.ask.transfers.put_file(computer, path, name, office, on_progress)

    async def put_bytes(
        self,
        computer: str,
        content: bytes,
        name: str | None = None,
        on_progress: OnProgress | None = None,
        *,
        office: str | None = None,
    ) -> str:
        """As `put_file`, for bytes in memory."""
        return await self._flows.ask.transfers.put_bytes(computer, content, name, office, on_progress)

    async def read_blob(
        self, computer: str, handle: str, on_progress: OnProgress | None = None, *, office: str | None = None
    ) -> bytes:
        """Fetch the content of a blob handle, and check its hash. After a lost connection it goes on where it was.

        Results of tools are complete already. Raises `BlobNotAccessible` if the handle has ended, `AnswerTooLarge` for
        more than `max_result` bytes, and other `SMCPError`s.
        """
        return await self._flows.ask.transfers.read(computer, handle, office, on_progress)

    async def save_blob(
        self,
        computer: str,
        handle: str,
        path: AnyPath,
        on_progress: OnProgress | None = None,
        *,
        office: str | None = None,
    ) -> Path:
        """As `read_blob`, into a file, which is replaced when the content is complete. Raises `OSError`, too."""
        return await self._flows.ask.transfers.save(computer, handle, path, office, on_progress)

    async def events_handled(self) -> None:
        """Wait until the event handlers have handled everything that has happened so far."""
        await self._flows.listeners.settle()

    async def request(
        self,
        event: str,
        computer: str,
        data: dict[str, Any] | None = None,
        *,
        timeout: float = 30,
        office: str | None = None,
    ) -> Any:
        """Send any `client:*` event, also one newer than this client, and return the answer as it came."""
        return await self._flows.ask.send(event, computer, data or {}, timeout, office)


P = ParamSpec("P")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, P], Result]:
    """The same method for the blocking client, which waits with `_wait`. It must call no other public method."""

    own = renamed(method, "SMCPAgentClient")

    @wraps(own)
    def waiting(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        found: Result = client._wait(own(client, *args, **kwargs))
        return found

    return waiting


@under_own_name(AgentBase)
class SMCPAgentClient(AgentBase):
    """`AsyncSMCPAgentClient` with blocking methods that may be called from any thread; they do the same.

    Event handlers are called in threads, one at a time, and may use the client. The callbacks of a call are called in
    threads too. A thread cannot be stopped: the answer of one whose question is over is dropped.
    """

    _background: BackgroundLoop | None = None
    _process = 0

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def connect(self) -> None:
        if self._background is None:
            self._background, self._process = BackgroundLoop(f"agent-{self.name}"), os.getpid()
        try:
            self._wait(self._flows.connect(invoke_in_thread, self._offices))
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        background, self._background = self._background, None
        if background and self._process == os.getpid():
            background.close(self._flows.disconnect(), _CLOSE_TIMEOUT)

    join_office = blocking(AsyncSMCPAgentClient.join_office)
    leave_office = blocking(AsyncSMCPAgentClient.leave_office)
    emit_tool_call = blocking(AsyncSMCPAgentClient.emit_tool_call)
    cancel = blocking(AsyncSMCPAgentClient.cancel)
    withdraw = blocking(AsyncSMCPAgentClient.withdraw)
    answer_question = blocking(AsyncSMCPAgentClient.answer_question)
    get_questions = blocking(AsyncSMCPAgentClient.get_questions)
    set_log_level = blocking(AsyncSMCPAgentClient.set_log_level)
    get_tools = blocking(AsyncSMCPAgentClient.get_tools)
    get_config = blocking(AsyncSMCPAgentClient.get_config)
    get_desktop = blocking(AsyncSMCPAgentClient.get_desktop)
    list_room = blocking(AsyncSMCPAgentClient.list_room)
    get_servers = blocking(AsyncSMCPAgentClient.get_servers)
    get_resources = blocking(AsyncSMCPAgentClient.get_resources)
    get_resource_templates = blocking(AsyncSMCPAgentClient.get_resource_templates)
    read_resource = blocking(AsyncSMCPAgentClient.read_resource)
    read_link = blocking(AsyncSMCPAgentClient.read_link)
    subscribe_resource = blocking(AsyncSMCPAgentClient.subscribe_resource)
    unsubscribe_resource = blocking(AsyncSMCPAgentClient.unsubscribe_resource)
    get_prompts = blocking(AsyncSMCPAgentClient.get_prompts)
    get_prompt = blocking(AsyncSMCPAgentClient.get_prompt)
    complete = blocking(AsyncSMCPAgentClient.complete)
    ask = blocking(AsyncSMCPAgentClient.ask)
    get_skills = blocking(AsyncSMCPAgentClient.get_skills)
    get_skill = blocking(AsyncSMCPAgentClient.get_skill)
    put_file = blocking(AsyncSMCPAgentClient.put_file)
    put_bytes = blocking(AsyncSMCPAgentClient.put_bytes)
    read_blob = blocking(AsyncSMCPAgentClient.read_blob)
    save_blob = blocking(AsyncSMCPAgentClient.save_blob)
    events_handled = blocking(AsyncSMCPAgentClient.events_handled)
    request = blocking(AsyncSMCPAgentClient.request)

    def watch_desktop(
        self, computer: str, size: int | None = None, window: str | None = None, *, office: str | None = None
    ) -> Iterator[list[Desktop]]:
        frames = self._flows.watch_desktop(computer, size, window, office)
        try:
            while (frame := self._wait(_next(frames))) is not None:
                yield frame
        finally:
            if self._background:
                self._background.submit(frames.aclose())

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._background is None:
            work.close()
            raise not_connected()
        if self._process != os.getpid():
            work.close()
            raise Unavailable("a connection does not survive a fork: create a client in this process and connect() it")
        return self._background.wait(work, "use AsyncSMCPAgentClient here")


async def _next(frames: AsyncIterator[list[Desktop]]) -> list[Desktop] | None:
    return await anext(frames, None)
