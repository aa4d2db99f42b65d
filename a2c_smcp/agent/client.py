"""The two clients of an agent, `AsyncSMCPAgentClient` and the blocking `SMCPAgentClient`, on the same flows."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from a2c_smcp.agent.base import AgentBase
from a2c_smcp.agent.blobs.methods import AsyncTransferMethods, TransferMethods
from a2c_smcp.agent.connection import not_connected
from a2c_smcp.agent.listening_calls import EmitOptions
from a2c_smcp.agent.reading.methods import AsyncReadingMethods, ReadingMethods
from a2c_smcp.agent.skills import AsyncSkillMethods, SkillMethods
from a2c_smcp.agent.types import DEFAULT_TIMEOUT, OutgoingCall, new_req_id
from a2c_smcp.errors import Unavailable
from a2c_smcp.loops import BackgroundLoop, invoke, invoke_in_thread
from a2c_smcp.mcp_events import LogLevel
from a2c_smcp.protocol.questions import Answer, GivenAnswer, Question
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.smcp import GetComputerConfigRet, SessionInfo, SMCPTool
from a2c_smcp.types import Desktop

__all__ = ["AsyncSMCPAgentClient", "SMCPAgentClient"]

Result = TypeVar("Result")

_CLOSE_TIMEOUT = 10.0


class AsyncSMCPAgentClient(AsyncReadingMethods, AsyncSkillMethods, AsyncTransferMethods, AgentBase):
    """An agent: calls tools on the computers of its offices, and shows all their tools in one registry.

    It reconnects by itself when the connection is lost, and calls in flight continue. Its methods raise `SMCPError`:
    the error of the Server or the computer, `CallTimeout`, or `Unavailable` before `connect` and after `disconnect`.
    """

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        computer. `options` are those of `EmitOptions`: `on_progress`, `on_question`, `questions`, `extend`, `meta`,
        `input_responses`, `request_state`, `client_capabilities`, `client`, `save_to` and `on_transfer`. Raises an
        `SMCPError` for all other failures; its `outcome` says whether the tool has run.
        """
        limit, req_id = _limit(timeout, expires), req_id or new_req_id()
        call = OutgoingCall(computer, tool_name, params or {}, limit, office, req_id)
        return await self._flows.call_tool(call, options)

    async def cancel(self, req_id: str) -> None:
        """Cancel a call, which then raises `CallCancelled`."""
        await self._flows.ask.cancel(req_id)

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
        await self._flows.set_log_level(computer, level, mcp_server, office)

    async def get_tools(self, computer: str, *, office: str | None = None) -> list[SMCPTool]:
        """Ask a computer for its tools."""
        return await self._flows.ask.tools(computer, office)

    async def get_config(self, computer: str, *, office: str | None = None) -> GetComputerConfigRet:
        """Ask a computer for its MCP servers; secrets are masked."""
        return await self._flows.ask.config(computer, office)

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


class SMCPAgentClient(ReadingMethods, SkillMethods, TransferMethods, AgentBase):
    """`AsyncSMCPAgentClient` with blocking methods that may be called from any thread; they do the same.

    Event handlers are called in threads, one at a time, and may use the client. `on_progress` and `on_question` are
    called in threads too. A thread cannot be stopped: the answer of one whose question is over is dropped.
    """

    _background: BackgroundLoop | None = None
    _process = 0

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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

    def join_office(self, office: str) -> None:
        self._wait(self._flows.join_office(office))

    def leave_office(self, office: str) -> None:
        self._wait(self._flows.leave_office(office))

    def emit_tool_call(
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
        limit, req_id = _limit(timeout, expires), req_id or new_req_id()
        call = OutgoingCall(computer, tool_name, params or {}, limit, office, req_id)
        return self._wait(self._flows.call_tool(call, options))

    def cancel(self, req_id: str) -> None:
        self._wait(self._flows.ask.cancel(req_id))

    def answer_question(
        self, computer: str, question_id: str, answer: GivenAnswer, *, office: str | None = None
    ) -> None:
        self._wait(self._flows.ask.answer_question(computer, question_id, Answer.of(answer), office))

    def get_questions(self, computer: str, *, office: str | None = None) -> list[Question]:
        return self._wait(self._flows.get_questions(computer, office))

    def set_log_level(
        self, computer: str, level: LogLevel | None, mcp_server: str | None = None, *, office: str | None = None
    ) -> None:
        self._wait(self._flows.set_log_level(computer, level, mcp_server, office))

    def get_tools(self, computer: str, *, office: str | None = None) -> list[SMCPTool]:
        return self._wait(self._flows.ask.tools(computer, office))

    def get_config(self, computer: str, *, office: str | None = None) -> GetComputerConfigRet:
        return self._wait(self._flows.ask.config(computer, office))

    def get_desktop(
        self,
        computer: str,
        size: int | None = None,
        window: str | None = None,
        *,
        office: str | None = None,
        keep: bool = True,
    ) -> list[Desktop]:
        return self._wait(self._flows.get_desktop(computer, size, window, office, keep=keep))

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

    def list_room(self, office: str | None = None) -> list[SessionInfo]:
        return self._wait(self._flows.ask.members(office))

    def events_handled(self) -> None:
        self._wait(self._flows.listeners.settle())

    def request(
        self,
        event: str,
        computer: str,
        data: dict[str, Any] | None = None,
        *,
        timeout: float = 30,
        office: str | None = None,
    ) -> Any:
        return self._wait(self._flows.ask.send(event, computer, data or {}, timeout, office))

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._background is None:
            work.close()
            raise not_connected()
        try:
            self._require_own_process()
        except Unavailable:
            work.close()
            raise
        return self._background.wait(work, "use AsyncSMCPAgentClient here")

    def _require_own_process(self) -> None:
        if self._process != os.getpid():
            raise Unavailable("a connection does not survive a fork: create a client in this process and connect() it")


def _limit(timeout: float | None, expires: float | None) -> float:
    given = expires if timeout is None else timeout
    return DEFAULT_TIMEOUT if given is None else given


async def _next(frames: AsyncIterator[list[Desktop]]) -> list[Desktop] | None:
    return await anext(frames, None)
