"""The caller of a tool, as the running tool sees it: callbacks for log messages and for requests for input.

`_CALLER` is a context variable like the listener of progress, so the caller is known in threads and tasks that a tool
starts, and in tools that a tool calls.

A callback belongs to the thread or the event loop of the caller. A tool may run elsewhere: a sync tool in a thread, an
async one in the loop of a blocking `call`, a remote one in the loop of its connection. So `ToolCaller` hands each
request over to the caller's loop, and waits in the tool's own way. When the call ends, requests that are still open are
cancelled, and a thread that waits for one gets `CannotAsk`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import LoopIsRunning, in_thread, invoke, is_cancelled, is_in_loop
from a2c_smcp.mcp_events import LogLevel
from a2c_smcp.protocol.questions import ELICITATION, Answer, GivenAnswer, Question
from a2c_smcp.registry.calls.progress import OnProgress, progress_in_loop, progress_in_thread

__all__ = [
    "INPUT_METHODS",
    "CannotAsk",
    "InputAsked",
    "OnInput",
    "OnLog",
    "OnQuestion",
    "ToolCaller",
    "called_by",
    "called_from_loop",
    "called_from_thread",
    "cannot_ask",
    "tool_caller",
]

logger = logging.getLogger(__name__)

OnLog: TypeAlias = Callable[[LogLevel, Any, str | None], None]
"""Called with the level, the data and the name of the logger, if the tool gives one. It must be quick."""
OnQuestion: TypeAlias = Callable[[Question], GivenAnswer | Awaitable[GivenAnswer]]
"""Answers a question: an `Answer`, the content of its form, or `None` if the person does not want to answer."""

INPUT_METHODS: Mapping[str, str] = {
    ELICITATION: "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""MCP's requests for input, and the capability that each needs."""
QUESTIONS: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}


class CannotAsk(SMCPError):
    """The caller of the tool cannot answer this, or the call has ended. `details["method"]` is MCP's request."""

    title = "The caller of this tool cannot be asked"


class InputAsked(NamedTuple):
    """A request for input, with MCP's method and parameters. `key` names it, if the tool cares."""

    method: str
    params: dict[str, Any]
    key: str | None = None


OnInput: TypeAlias = Callable[[InputAsked], Any]
"""Returns MCP's result for a request for input. For a caller with a loop it is async."""


class ToolCaller:
    """The program that has called a tool. Without a `loop` it blocks, and so may its callbacks."""

    def __init__(
        self,
        *,
        on_log: OnLog | None = None,
        on_input: OnInput | None = None,
        capabilities: Mapping[str, Any] | None = None,
        client: Mapping[str, str] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`capabilities` are MCP's names for what `on_input` can answer; by default, questions for a person.

        `client` is the name and version of an MCP client that calls the tool, as it gives them.
        """
        self.capabilities = (QUESTIONS if capabilities is None else capabilities) if on_input else {}
        self.client = client
        self._on_log, self._on_input = on_log, on_input
        self._loop = loop
        self._open: set[Future[dict[str, Any]]] = set()
        self._is_over = False

    def log(self, level: LogLevel, data: Any, name: str | None) -> None:
        """From any thread. A callback of a loop is called there."""
        if self._on_log is None:
            return
        if self._loop is None or _running_loop() is self._loop:
            self._tell(level, data, name)
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tell, level, data, name)

    async def request(self, asked: InputAsked) -> dict[str, Any]:
        """MCP's result. Raises `CannotAsk`."""
        on_input = self._require(asked)
        is_here = asyncio.get_running_loop() is self._loop
        if is_here or self._loop is None:
            answered: dict[str, Any] = await (on_input(asked) if is_here else in_thread(on_input, asked))
            return answered
        try:
            return await asyncio.wrap_future(self._begin(on_input, asked))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise _ended(asked) from None

    def request_blocking(self, asked: InputAsked) -> dict[str, Any]:
        """MCP's result. Raises `CannotAsk`, and `LoopIsRunning` where blocking would stop an event loop."""
        on_input = self._require(asked)
        if self._loop is None:
            answered: dict[str, Any] = on_input(asked)
            return answered
        if is_in_loop():
            raise LoopIsRunning("a tool in an event loop asks with AsyncToolContext")
        try:
            return self._begin(on_input, asked).result()
        except CancelledError:
            raise _ended(asked) from None

    def end(self) -> None:
        """The call has ended: open requests are cancelled, and there are no others."""
        self._is_over = True
        for future in [*self._open]:
            future.cancel()

    def _require(self, asked: InputAsked) -> OnInput:
        if self._is_over:
            raise _ended(asked)
        if INPUT_METHODS.get(asked.method) not in self.capabilities or self._on_input is None:
            raise cannot_ask(asked.method)
        return self._on_input

    def _begin(self, on_input: OnInput, asked: InputAsked) -> Future[dict[str, Any]]:
        assert self._loop
        work = on_input(asked)
        try:
            future: Future[dict[str, Any]] = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise _ended(asked) from None
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        if self._is_over:  # it became so after `_require`: `end` has not seen this future
            future.cancel()
        return future

    def _tell(self, level: LogLevel, data: Any, name: str | None) -> None:
        assert self._on_log
        try:
            self._on_log(level, data, name)
        except Exception:
            logger.exception("on_log failed")


_CALLER: ContextVar[ToolCaller | None] = ContextVar("tool_caller", default=None)


def tool_caller() -> ToolCaller | None:
    """The caller of the tool that this code belongs to, if it listens."""
    return _CALLER.get()


@contextmanager
def called_by(caller: ToolCaller) -> Iterator[None]:
    """Tools that are called in this block are called by this caller."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)
        caller.end()


@contextmanager
def called_from_thread(
    on_progress: OnProgress | None, on_log: OnLog | None, on_question: OnQuestion | None
) -> Iterator[None]:
    """Tools in this block report to the callbacks. Raises `TypeError` for an async one."""
    if inspect.iscoroutinefunction(on_question) or inspect.iscoroutinefunction(on_log):
        raise TypeError("a callback is async, and this call blocks: await acall instead")

    def on_input(asked: InputAsked) -> dict[str, Any]:
        assert on_question
        given = on_question(Question.of_request(asked.params))
        return Answer.of(given).to_mcp()  # type: ignore[arg-type]  # it is not awaitable

    with ExitStack() as stack:
        if on_progress is not None:
            stack.enter_context(progress_in_thread(on_progress))
        if on_log is not None or on_question is not None:
            stack.enter_context(called_by(ToolCaller(on_log=on_log, on_input=on_input if on_question else None)))
        yield


@asynccontextmanager
async def called_from_loop(
    on_progress: OnProgress | None, on_log: OnLog | None, on_question: OnQuestion | None
) -> AsyncIterator[None]:
    """Tools in this block report to the callbacks, which are called in this event loop."""
    if inspect.iscoroutinefunction(on_log):
        raise TypeError("on_log is called while the tool runs on, so it cannot be async")

    async def on_input(asked: InputAsked) -> dict[str, Any]:
        assert on_question
        return Answer.of(await invoke(on_question, Question.of_request(asked.params))).to_mcp()

    async with AsyncExitStack() as stack:
        if on_progress is not None:
            await stack.enter_async_context(progress_in_loop(on_progress))
        if on_log is not None or on_question is not None:
            asking = on_input if on_question else None
            caller = ToolCaller(on_log=on_log, on_input=asking, loop=asyncio.get_running_loop())
            stack.enter_context(called_by(caller))
        yield


def cannot_ask(method: str) -> CannotAsk:
    return CannotAsk(f"it does not answer {method}", method=method)


def _ended(asked: InputAsked) -> CannotAsk:
    return CannotAsk("the call has ended", method=asked.method)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
