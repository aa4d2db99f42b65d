"""A tool call as it arrives, with what its agent asks for beside the result (WIRE §9)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from statistics import median
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from a2c_smcp.computer.calls.journal import Key
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.blob_handles import Blobs
from a2c_smcp.computer.types import AttributedCall
from a2c_smcp.errors import AnswerTooLarge, NotPrivate, SMCPError
from a2c_smcp.mcp_events import CallEnd, CallState
from a2c_smcp.mcp_host.limits import is_within, text_in
from a2c_smcp.protocol.codec import Encoded, dumps
from a2c_smcp.protocol.results import call_result, failed_call, is_own_key
from a2c_smcp.types import TOOL_NAME

logger = logging.getLogger(__name__)

_OPTIONS = frozenset(
    ("progress", "states", "questions", "extend", "input_responses", "request_state", "client_capabilities", "_meta")
)
_NONE = (None, None, None)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of a call: wishes of its agent beside the result.

    `progress`: to be told the progress, and the states; `states`: these alone. `questions`: `True`, to be asked what
    the tool asks; `"result"`, to get MCP's `InputRequiredResult` and ask again with `input_responses` and
    `request_state`; `client_capabilities` are what is declared to the MCP server then. `extend`: the timeout is the
    longest silence. `meta` is for the MCP server.
    """

    progress: bool = False
    states: bool = False
    questions: bool | Literal["result"] = False
    extend: bool = False
    input_responses: Mapping[str, Any] | None = field(default=None, repr=False)
    request_state: str | None = field(default=None, repr=False)
    client_capabilities: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of_request(cls, data: Mapping[str, Any]) -> CallOptions | None:
        """The options in a decoded request; `None` if it has none."""
        if _OPTIONS.isdisjoint(data):
            return None
        return cls(
            progress=data.get("progress") is True,
            states=data.get("states") is True,
            questions="result" if data.get("questions") == "result" else data.get("questions") is True,
            extend=data.get("extend") is True,
            input_responses=data.get("input_responses"),
            request_state=data.get("request_state"),
            client_capabilities=data.get("client_capabilities"),
            meta={key: value for key, value in (data.get("_meta") or {}).items() if not is_own_key(key)},
        )

    @property
    def is_live(self) -> bool:
        """True if the options need more than passing on `meta` and the progress."""
        given = self.input_responses, self.request_state, self.client_capabilities
        return bool(self.questions or self.extend) or given != _NONE


def key_of(caller: Caller, req_id: str) -> Key:
    """The key by which a call of this agent is known."""
    return caller.office, caller.agent, caller.seat, req_id


def caller_of(key: Key) -> Caller:
    return Caller(key[0], key[1], seat=key[2])


@dataclass(frozen=True, slots=True)
class IncomingCall:
    """A tool call as an agent sends it. `timeout` is in seconds from now. `blobs`: it fetches large contents in chunks.

    `replaced` are the arguments that a scanner has put in place of `params`, by which the agent knows its call.
    """

    caller: Caller
    req_id: str
    name: TOOL_NAME
    params: dict[str, Any]
    timeout: float
    options: CallOptions | None = None
    blobs: bool = False
    replaced: dict[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments for the tool."""
        return self.params if self.replaced is None else self.replaced

    @property
    def key(self) -> Key:
        return key_of(self.caller, self.req_id)

    @property
    def what(self) -> list[Any]:
        """The tool with its arguments: the same for duplicates of one call."""
        options = self.options
        if options is None or (options.input_responses is None and options.request_state is None):
            return [self.name, self.params]
        return [self.name, self.params, options.input_responses, options.request_state]


# Reports about tool calls: their progress to listeners, statistics for the owner, and a span for a trace.

OnProgress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[Any] | Any]
"""Called with progress, total and message, in the event loop: a plain function must return at once."""

_MAX_PENDING = 100
_LAST_REPORTS = 0.2  # seconds that a result waits for reports of progress that came before it
_DURATIONS = 100


class ProgressListener(Protocol):
    """Takes reports in order, and returns at once."""

    def report(self, progress: float, total: float | None, message: str | None) -> None: ...

    def changed(self, state: CallState, reason: str) -> None:
        """The call is in this state from now on. `reason` is for whom or what it waits, in words."""


class CallWatch(Protocol):
    """Follows all calls, for the owner. Its methods are called in the event loop, and return at once.

    Everything in a record is masked. A call that ended with `success` false and no error has a result with `isError`.
    """

    def began(self, call: Key, record: AttributedCall) -> None: ...

    def progressed(self, call: Key, progress: float, total: float | None, message: str | None) -> None: ...

    def changed(self, call: Key, clock: CallClock) -> None: ...

    def ended(self, call: Key, end: CallEnd, clock: CallClock) -> None: ...


class CallClock:
    """The state of a call, and how long it has been in each. Its time ends when the tool has answered."""

    def __init__(self) -> None:
        self.state: CallState = "queued"
        self.record: AttributedCall | None = None
        self.questions = 0
        """Open ones: several may wait at once."""
        self._spent: dict[CallState, float] = {}
        self._since: float | None = time.monotonic()

    def become(self, state: CallState) -> bool:
        """Return `False` if the time of the call has ended."""
        if self._since is None:
            return False
        self.end()
        self.state, self._since = state, time.monotonic()
        if self.record:
            self.record["state"] = state
        return True

    def end(self) -> None:
        if self._since is not None:
            self._spent[self.state] = self._spent.get(self.state, 0.0) + time.monotonic() - self._since
            self._since = None

    @property
    def before(self) -> float:
        """The seconds for which the call has been in this state before."""
        return self._spent.get(self.state, 0.0)

    @property
    def ran(self) -> float | None:
        """The seconds for which the tool ran, without those in which its questions waited; `None` if it did not run."""
        return self._spent.get("running")

    @property
    def waited(self) -> float:
        """All other seconds."""
        return sum(self._spent.values()) - (self.ran or 0.0)


class ProgressListeners:
    """The listeners to each call, and `watch`, which follows all. A slow one never delays a call."""

    def __init__(self, computer: str) -> None:
        self.owner = f"the owner of {computer}"
        self.watch: CallWatch | None = None
        self._listeners: dict[Key, list[ProgressListener]] = {}
        self._clocks: dict[Key, CallClock] = {}

    def add(self, call: Key, listener: ProgressListener) -> None:
        self._listeners.setdefault(call, []).append(listener)

    def has(self, call: Key) -> bool:
        return call in self._listeners or self.watch is not None

    @contextmanager
    def timed(self, call: Key, clock: CallClock) -> Iterator[None]:
        """Inside the `with` block, the states of a call are measured by its clock."""
        self._clocks[call] = clock
        try:
            yield
        finally:
            clock.end()
            if self._clocks.get(call) is clock:  # not that of a call in place of one that was dropped
                del self._clocks[call]

    @contextmanager
    def watched(self, call: Key, record: AttributedCall, clock: CallClock) -> Iterator[None]:
        """Report the beginning and the end of a call to `watch`, and keep its state in the record."""
        watch, clock.record = self.watch, record
        failure: BaseException | None = None
        if watch:
            watch.began(call, record)
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            clock.end()
            record["state"] = end = _end_of(record, failure, clock)
            if watch:
                watch.ended(call, end, clock)

    @contextmanager
    def waiting(self, call: Key, person: str) -> Iterator[None]:
        """Report that a call waits for this person's approval meanwhile, also if it ends while it does."""
        self.changed(call, "waiting", person)
        yield
        self.changed(call, "queued")

    @contextmanager
    def asking(self, call: Key, person: str) -> Iterator[None]:
        """Stop the time of a call, and report that it waits for this person's answer meanwhile."""
        clock = self._clocks.get(call)
        if clock is None or clock.state == "queued":
            yield
            return
        clock.questions += 1
        self.changed(call, "asked", person)
        try:
            yield
        finally:
            clock.questions -= 1
            if not clock.questions:
                self.changed(call, "running")

    def changed(self, call: Key, state: CallState, reason: str = "") -> None:
        """A call is in this state from now on. `reason` is for whom or what it waits."""
        clock = self._clocks.get(call)
        if clock is None or not clock.become(state):
            return
        for listener in self._listeners.get(call, ()):
            listener.changed(state, reason)
        if self.watch:
            self.watch.changed(call, clock)

    def remove(self, call: Key, listener: ProgressListener) -> None:
        self._listeners[call].remove(listener)
        if not self._listeners[call]:
            del self._listeners[call]

    @asynccontextmanager
    async def listening(self, call: Key, listener: OnProgress) -> AsyncGenerator[None, None]:
        """Report the progress of a call to a listener meanwhile. A slow one misses the oldest pending reports."""
        reporting = _Listener(listener)
        self.add(call, reporting)
        try:
            yield
            await reporting.drain()
        finally:
            self.remove(call, reporting)
            await reporting.close()

    def report(
        self, call: Key, progress: float, total: float | None, message: str | None, mask: Callable[[str], str]
    ) -> None:
        """Report the progress of a call, with its message masked. Without listeners this costs nothing."""
        listeners = self._listeners.get(call, ())
        if not listeners and self.watch is None:
            return
        masked = mask(message) if message else message
        for listener in listeners:
            listener.report(progress, total, masked)
        if self.watch:
            self.watch.progressed(call, progress, total, masked)


def _end_of(record: AttributedCall, failure: BaseException | None, clock: CallClock) -> CallEnd:
    """The end of a call. One that ends without a failure and without success says why, or its tool has failed."""
    if isinstance(failure, asyncio.CancelledError):
        return "cancelled"
    if isinstance(failure, TimeoutError):
        return "timed out"
    if failure is None:
        return "done" if record["success"] else "refused" if record["error"] else "tool error"
    code = failure.code if isinstance(failure, SMCPError) else SMCPError.code
    return call_result(code, ran="not_run" if clock.ran is None else None).end


class _Listener:
    """Calls one listener in order, in a task of its own."""

    def __init__(self, listener: OnProgress) -> None:
        self._listener = listener
        self._pending: deque[tuple[float, float | None, str | None]] = deque(maxlen=_MAX_PENDING)
        self._task: asyncio.Task[None] | None = None

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        self._pending.append((progress, total, message))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._call())

    def changed(self, state: CallState, reason: str) -> None:
        """A function that listens to progress is told no states."""

    async def drain(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_LAST_REPORTS)

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await self.drain()

    async def _call(self) -> None:
        while self._pending:
            try:
                outcome = self._listener(*self._pending.popleft())
                if isawaitable(outcome):
                    await outcome
            except Exception:
                logger.exception("a progress callback failed")


class ServerStatistics(NamedTuple):
    """`p50` is the median duration of the last hundred calls, in seconds."""

    calls: int
    p50: float | None


class CallStatistics:
    """Number and duration of each server's calls. The time for the owner's approval is not counted."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._durations = defaultdict[str, deque[float]](lambda: deque(maxlen=_DURATIONS))

    def add(self, server: str, seconds: float) -> None:
        self._calls[server] += 1
        self._durations[server].append(seconds)

    def of(self, server: str) -> ServerStatistics:
        durations = self._durations.get(server)
        return ServerStatistics(self._calls[server], median(durations) if durations else None)


# How a result leaves the Computer: whole, with large contents by the side band, or as an error that says its size.
#
# WIRE §9. An agent that says `blobs: true` fetches large contents in chunks, so they are always moved: binary of more
# than 32 KiB, and, if the rest is still too large for one message, texts and the structured content. For an agent that
# does not say so, binary is moved only if the result would be too large otherwise: one of the published 0.4 generation
# can fetch it. Its texts are never moved; what is too large without them is an error (413).
#
# What is moved is on disk, and is not in the result that is kept for duplicates: those get the same handles.

_HEAD_ROOM = 256
_JSON = "application/json"


class ResultDelivery:
    """`max_message` is the largest answer that can be sent, in bytes."""

    def __init__(self, blobs: Blobs, max_message: int) -> None:
        self._blobs = blobs
        self.limit(max_message)

    def limit(self, max_message: int) -> None:
        """Send no larger answers from now on."""
        self._max_message = max_message

    def within_limit(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, or, if it is too large to be sent, one that says so.

        A chunk that is sent as it is always fits.
        """
        if isinstance(answer.get("blob"), bytes):
            return answer
        written = answer if isinstance(answer, Encoded) else Encoded(answer, dumps(answer))
        size = _size(written.text)
        return written if self._fits(size) else failed_call(self._too_large(size))

    def refusal(self, call: IncomingCall, raw: dict[str, Any]) -> dict[str, Any] | None:
        """The error for a result that is too large even without its large contents; `None` if it is not."""
        if is_within(raw, self._max_message) or text_in(raw) - self._movable(call, raw) <= self._max_message:
            return None
        return failed_call(self._too_large(text_in(raw)))

    async def of(self, call: IncomingCall, result: dict[str, Any]) -> dict[str, Any]:
        """The result as it is sent. It is masked already."""
        content = result.get("content")
        if not isinstance(content, list):
            return self.within_limit(result)
        if call.blobs:
            moved = await self._blobs.move_large(call.caller, content)
            result = result if moved is content else {**result, "content": moved}
        written = Encoded(result, dumps(result))
        if self._fits(_size(written.text)):
            return written
        if not call.blobs:
            return self.within_limit({**result, "content": await self._blobs.move_large(call.caller, content)})
        return self.within_limit(await self._without_texts(call, result))

    async def _without_texts(self, call: IncomingCall, result: dict[str, Any]) -> dict[str, Any]:
        result = {**result, "content": await self._blobs.move_large(call.caller, result["content"], texts=True)}
        if result.get("structuredContent") is None or is_within(result, self._max_message - _HEAD_ROOM):
            return result
        try:
            text = dumps(result["structuredContent"]).encode()
            mark = await self._blobs.spool(call.caller, text, _JSON)
        except (OSError, NotPrivate, AnswerTooLarge):
            return result
        meta = result.get("_meta")
        meta = {**meta, **mark.to_meta()} if isinstance(meta, dict) else mark.to_meta()
        return {**result, "structuredContent": {}, "_meta": meta}

    def _movable(self, call: IncomingCall, raw: dict[str, Any]) -> int:
        """The characters that need not be in the message."""
        content = raw.get("content")
        movable = self._blobs.movable(content, texts=call.blobs) if isinstance(content, list) else 0
        structured = raw.get("structuredContent")
        return movable + text_in(structured) if call.blobs and isinstance(structured, dict) else movable

    def _fits(self, size: int) -> bool:
        return size + _HEAD_ROOM <= self._max_message

    def _too_large(self, size: int) -> AnswerTooLarge:
        return AnswerTooLarge(f"{size} bytes, at most {self._max_message} can be sent", size=size)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
