"""Messages of a running tool to its caller: progress, log messages, questions.

A function gets a `ToolContext` (an async one an `AsyncToolContext`) by a parameter with that annotation, which its
schema does not show. The two differ in waiting; what is asked, and how an answer is read, is said once below them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

from a2c_smcp.errors import BadRequest, SMCPError
from a2c_smcp.loops import LoopIsRunning, in_thread, invoke, is_cancelled, is_in_loop
from a2c_smcp.mcp_events import LogLevel
from a2c_smcp.protocol.questions import (
    ELICITATION,
    INPUT_METHODS,
    ROOTS,
    SAMPLING,
    Answer,
    InputRequest,
    OnQuestion,
    Question,
)
from a2c_smcp.registry.content import json_of, without_nothing
from a2c_smcp.registry.schemas.check import Fault, Schema, find_faults, find_faults_async

logger = logging.getLogger(__name__)

# Progress of a call on its way to the caller's `on_progress`.
#
# A report may come from any thread. It is dropped unless it is larger than the last one. A callback gets one report
# at a time. Reports that come together, as those of a server that sends them with its answer, wait for it
# (`_waiting`), at most the last `_MOST_WAITING`. While the callback runs, a new report replaces all that wait, so a
# slow callback delays nothing and nothing piles up. `_is_delivering` is true from the first report of a burst until
# the deliverer has found nothing waiting, both under the lock: so there is one deliverer at a time, and no report
# stays behind. `_is_calling` is true from the first callback of the deliverer until then. `_idle` changes under the
# same lock: the end of the call clears it if there is a deliverer, which sets it later.
#
# When the call has ended, later reports are dropped, and the reports that wait are still delivered. The caller gets
# the result after the callback has returned, or after `_LAST_CALLBACK` seconds.
#
# `_LISTENER` is the callback of the call that this code runs in. It is a context variable: threads and tasks that a
# tool starts through `loops.py` or asyncio inherit it, and a call without a callback costs nothing.

OnProgress: TypeAlias = Callable[[float, float | None, str | None], Any]
"""Called with the progress, which grows, the total if it is known, and a message if there is one."""


_LAST_CALLBACK = 1.0  # seconds
_MOST_WAITING = 5

_LISTENER: ContextVar[OnProgress | None] = ContextVar("on_progress", default=None)


def report_progress(progress: float, total: float | None = None, message: str | None = None) -> None:
    """Reports the progress of the tool that this code belongs to. No effect if its caller does not want to know.

    Does not block, and may be called in any thread. `progress` must grow with each report; others are dropped.
    """
    if listener := _LISTENER.get():
        listener(progress, total, message)


def progress_listener() -> OnProgress | None:
    """Return the listener to reports of this call, usable in any thread; `None` if the caller has none."""
    return _LISTENER.get()


class _Progress(ABC):
    """The reports that the callback has not got yet."""

    def __init__(self, callback: Callable[..., Any], idle: asyncio.Event | threading.Event) -> None:
        self._callback, self._idle = callback, idle
        self._lock = threading.Lock()
        self._last = float("-inf")
        self._waiting = deque[tuple[Any, ...]](maxlen=_MOST_WAITING)
        self._is_delivering = self._is_calling = False
        self._is_over = False

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self.put(progress, progress, total, message)

    def put(self, number: float, *report: Any) -> None:
        """Call the callback with this report, unless one with this or a greater number came before."""
        with self._lock:
            if self._is_over or not number > self._last:
                return
            self._last = number
            if self._is_calling:
                self._waiting.clear()
            self._waiting.append(report)
            if self._is_delivering:
                return
            self._is_delivering = True
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Starts a deliverer, which calls `_next` until there is nothing."""

    def _next(self) -> tuple[Any, ...] | None:
        with self._lock:
            self._is_calling = self._is_delivering = bool(self._waiting)
            if not self._waiting:
                self._idle.set()
                return None
            return self._waiting.popleft()

    def _end(self) -> bool:
        """Drop later reports. True if the callback is still to be waited for."""
        with self._lock:
            self._is_over = True
            if self._is_delivering:
                self._idle.clear()
            return self._is_delivering


class ProgressInLoop(_Progress):
    """Calls the callback from a task of the event loop in which this was made. `call` may call it in a thread."""

    def __init__(
        self, callback: Callable[..., Any], call: Callable[..., Awaitable[Any]] = invoke, name: str = "on_progress"
    ) -> None:
        self._idle: asyncio.Event = asyncio.Event()
        super().__init__(callback, self._idle)
        self._name = name
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    async def finish(self) -> None:
        """Drops later reports and waits for the callback, at most `_LAST_CALLBACK` seconds."""
        if self._end():
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_CALLBACK):
                    await self._idle.wait()
        self.stop()

    def stop(self) -> None:
        """Drops all reports, and cancels the callback if it is async."""
        self._end()
        self._waiting.clear()
        self._is_delivering = self._is_calling = False
        if self._task:
            self._task.cancel()

    def _start(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._deliver())

    async def _deliver(self) -> None:
        while (report := self._next()) is not None:
            try:
                await self._call(self._callback, *report)
            except Exception:
                logger.exception("%s failed", self._name)


class ProgressInThread(_Progress):
    """Calls the callback in a thread of its own, for callers that block."""

    def __init__(self, callback: OnProgress) -> None:
        """Raises `TypeError` for an async callback."""
        if inspect.iscoroutinefunction(callback):
            raise TypeError("on_progress is async, and this call blocks: await acall instead")
        self._idle: threading.Event = threading.Event()
        super().__init__(callback, self._idle)

    def finish(self) -> None:
        """Drops later reports and waits for the callback, at most `_LAST_CALLBACK` seconds."""
        if self._end():
            self._idle.wait(_LAST_CALLBACK)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._deliver, name="a2c-progress", daemon=True).start()
        except RuntimeError:  # no thread can be started: the next report tries again
            self._is_delivering = False

    def _deliver(self) -> None:
        while (report := self._next()) is not None:
            try:
                self._callback(*report)
            except Exception:
                logger.exception("on_progress failed")


@contextmanager
def progress_in_thread(callback: OnProgress) -> Iterator[None]:
    """Code in this block reports to the callback. Raises `TypeError` for an async callback."""
    progress = ProgressInThread(callback)
    token = _LISTENER.set(progress.report)
    try:
        yield
    finally:
        _LISTENER.reset(token)
        progress.finish()


@asynccontextmanager
async def progress_in_loop(callback: OnProgress) -> AsyncIterator[None]:
    """Code in this block reports to the callback, which is called in this event loop and may be async."""
    progress = ProgressInLoop(callback)
    token = _LISTENER.set(progress.report)
    try:
        yield
    except asyncio.CancelledError:
        progress.stop()
        raise
    finally:
        _LISTENER.reset(token)
        await progress.finish()


# The caller of a tool, as the running tool sees it: callbacks for log messages and for requests for input.
#
# `_CALLER` is a context variable like the listener of progress, so the caller is known in threads and tasks that a
# tool starts, and in tools that a tool calls.
#
# A callback belongs to the thread or the event loop of the caller. A tool may run elsewhere: a sync tool in a thread,
# an async one in the loop of a blocking `call`, a remote one in the loop of its connection. So `ToolCaller` hands
# each request over to the caller's loop, and waits in the tool's own way. When the call ends, requests that are still
# open are cancelled, and a thread that waits for one gets `CannotAsk`.

OnLog: TypeAlias = Callable[[LogLevel, Any, str | None], None]
"""Called with the level, the data and the name of the logger, if the tool gives one. It must be quick."""
QUESTIONS: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}


class CannotAsk(SMCPError):
    """The caller of the tool cannot answer this, or the call has ended. `details["method"]` is MCP's request."""

    title = "The caller of this tool cannot be asked"


OnInput: TypeAlias = Callable[[InputRequest], Any]
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

    async def request(self, asked: InputRequest) -> dict[str, Any]:
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

    def request_blocking(self, asked: InputRequest) -> dict[str, Any]:
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

    def _require(self, asked: InputRequest) -> OnInput:
        if self._is_over:
            raise _ended(asked)
        if INPUT_METHODS.get(asked.method) not in self.capabilities or self._on_input is None:
            raise cannot_ask(asked.method)
        return self._on_input

    def _begin(self, on_input: OnInput, asked: InputRequest) -> Future[dict[str, Any]]:
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

    def on_input(asked: InputRequest) -> dict[str, Any]:
        assert on_question
        answer = on_question(Question.of_request(asked.params))
        return Answer.of(answer).to_mcp()  # type: ignore[arg-type]  # it is not awaitable

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

    async def on_input(asked: InputRequest) -> dict[str, Any]:
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


def _ended(asked: InputRequest) -> CannotAsk:
    return CannotAsk("the call has ended", method=asked.method)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


Ability: TypeAlias = Literal["ask", "sample", "roots"]
_ABILITIES: Mapping[str, Ability] = {"elicitation": "ask", "sampling": "sample", "roots": "roots"}

Messages: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A question to a model, or MCP's messages."""

_LEVELS = get_args(LogLevel)
_NO_FIELDS = {"type": "object", "properties": {}}


class _CallContext:
    """The common part of the contexts of sync and async tools. Usable in any thread."""

    is_for_async: ClassVar[bool]

    def __init__(self, caller: ToolCaller | None, report: OnProgress | None) -> None:
        self._caller, self._report = caller, report

    @classmethod
    def current(cls) -> Self:
        """The context of the call that this code runs in, for tools that are not functions."""
        return cls(tool_caller(), progress_listener())

    @property
    def can(self) -> frozenset[Ability]:
        """The requests that the caller answers: `ask`, `sample`, `roots`. Others raise `CannotAsk`."""
        declared = self._caller.capabilities if self._caller else {}
        return frozenset(_ABILITIES[name] for name in declared if name in _ABILITIES)

    def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._report is not None:
            self._report(progress, total, message)

    def _log(self, level: LogLevel, data: Any, name: str | None) -> None:
        if level not in _LEVELS:
            raise ValueError(f"{level!r} is not a level: {', '.join(_LEVELS)}")
        if self._caller is not None:
            self._caller.log(level, json_of(data), name)

    def _require(self, method: str) -> ToolCaller:
        if self._caller is None:
            raise cannot_ask(method)
        return self._caller


class ToolContext(_CallContext):
    """For a tool that is a plain function: annotate a parameter with it."""

    is_for_async = False

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report the progress of the tool, which must grow. Does not block. Ignored unless the caller wants it."""
        self._progress(progress, total, message)

    def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        """Sends a log message: a text, or anything that is JSON. Does not block. Ignored unless the caller wants it."""
        self._log(level, data, logger)

    def ask(self, message: str, schema: Mapping[str, Any] | None = None, *, key: str | None = None) -> Answer:
        """Asks the person behind the caller to fill in a form, and waits for the answer.

        `schema` is a JSON schema of an object with one level of properties; without one there is only yes or no. The
        answer's `action` is `accept`, `decline` or `cancel`, its `content` has the values and fits the schema. `key`
        names the question in MCP's messages. Raises `CannotAsk`, and `BadRequest` for an answer that does not fit.
        """
        asked = _form(message, schema, key)
        answer = _read_answer(self._require(ELICITATION).request_blocking(asked))
        return _checked(answer, find_faults(*_to_check(answer, schema)))

    def sample(
        self, messages: Messages, max_tokens: int = 1000, *, key: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Asks the caller's model, and returns MCP's result. `more` are MCP's parameters. Deprecated in MCP."""
        asked = _sampling(messages, max_tokens, key, more)
        return self._require(asked.method).request_blocking(asked)

    def roots(self, *, key: str | None = None) -> list[dict[str, Any]]:
        """The folders that the caller works in. Deprecated in MCP."""
        asked = InputRequest(ROOTS, {}, key)
        return _read_roots(self._require(asked.method).request_blocking(asked))


class AsyncToolContext(_CallContext):
    """For a tool that is an async function: annotate a parameter with it. As `ToolContext`, but awaited."""

    is_for_async = True

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> Awaitable[None]:
        """Report the progress of the tool, which must grow. It is done at once, whether it is awaited or not."""
        self._progress(progress, total, message)
        return _DONE

    def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> Awaitable[None]:
        """Sends a log message: a text, or anything that is JSON. It is done at once, whether it is awaited or not."""
        self._log(level, data, logger)
        return _DONE

    async def ask(self, message: str, schema: Mapping[str, Any] | None = None, *, key: str | None = None) -> Answer:
        """Asks the person behind the caller to fill in a form. See `ToolContext.ask`."""
        asked = _form(message, schema, key)
        answer = _read_answer(await self._require(ELICITATION).request(asked))
        return _checked(answer, await find_faults_async(*_to_check(answer, schema)))

    async def sample(
        self, messages: Messages, max_tokens: int = 1000, *, key: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Asks the caller's model, and returns MCP's result. See `ToolContext.sample`."""
        asked = _sampling(messages, max_tokens, key, more)
        return await self._require(asked.method).request(asked)

    async def roots(self, *, key: str | None = None) -> list[dict[str, Any]]:
        """The folders that the caller works in. Deprecated in MCP."""
        asked = InputRequest(ROOTS, {}, key)
        return _read_roots(await self._require(asked.method).request(asked))


class _Done:
    """An awaitable that is done."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_DONE = _Done()


def _form(message: str, schema: Mapping[str, Any] | None, key: str | None) -> InputRequest:
    return InputRequest(ELICITATION, {"message": message, "requestedSchema": json_of(dict(schema or _NO_FIELDS))}, key)


def _sampling(messages: Messages, max_tokens: int, key: str | None, more: Mapping[str, Any]) -> InputRequest:
    one = [{"role": "user", "content": {"type": "text", "text": messages}}]
    listed = one if isinstance(messages, str) else json_of([*messages])
    params = {"messages": listed, "maxTokens": max_tokens, **without_nothing(more)}
    return InputRequest(SAMPLING, params, key)


def _read_answer(result: Mapping[str, Any]) -> Answer:
    answer = Answer(result.get("action"), result.get("content"))  # type: ignore[arg-type]  # it checks what came
    return Answer(answer.action, dict(answer.content or {})) if answer.action == "accept" else Answer(answer.action)


def _read_roots(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    roots = result.get("roots")
    return [dict(root) for root in roots] if isinstance(roots, list) else []


def _to_check(answer: Answer, schema: Mapping[str, Any] | None) -> tuple[Schema, Any]:
    """The schema for an answer, and its content. Only an accepted answer has to fit."""
    return Schema(dict(schema or {}) if answer.action == "accept" else {}), answer.content or {}


def _checked(answer: Answer, faults: list[Fault]) -> Answer:
    if not faults:
        return answer
    about = "; ".join(f"{fault['path'].removeprefix('/')}: {fault['message']}".lstrip(": ") for fault in faults)
    raise BadRequest(f"the answer does not fit the question: {about}", errors=faults)
