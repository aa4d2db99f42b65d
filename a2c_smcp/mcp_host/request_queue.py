"""Requests of callers to one MCP server: they wait for its session and for a free slot, and are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from a2c_smcp.errors import CallTimeout
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.sessions.session import MCPSession
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest, ToolRequest
from a2c_smcp.mcp_host.sessions.turns import CallTurns
from a2c_smcp.protocol.questions import is_input_required
from a2c_smcp.telemetry import conventions, tracing

# A caller counts as active before it waits for anything, so a server with callers is never idle. The time that a caller
# waits is taken from the timeout of its request. Timeouts in a row are reported, because the server may be stuck.

_MOMENT = 0.001  # seconds
_MOST_QUESTIONS = 256
R = TypeVar("R", ToolRequest, ReadRequest)


class RequestQueue:
    """Requests of callers to one server: they wait for its session and for a free slot, and are counted.

    `current` returns the session if it can be used now; `wait` waits for one, for a call of a tool or something else,
    or raises why there is none. `listed` returns the page of a list of a server that is asleep.
    """

    def __init__(
        self,
        name: str,
        policy: HostLimits,
        current: Callable[[], MCPSession | None],
        wait: Callable[[bool], Awaitable[MCPSession]],
        suspect: Callable[[], None],
        listed: Callable[[ReadRequest], dict[str, Any] | None],
    ) -> None:
        self.active = 0
        self._questions: dict[str, float] = {}
        self.last_used = 0.0
        self._name = name
        self._policy = policy
        self._current = current
        self._wait = wait
        self._suspect = suspect
        self._listed = listed
        self._slots = asyncio.Semaphore(policy.calls_at_once)
        self._timeouts = 0
        self._loop = asyncio.get_running_loop()
        self.turns = CallTurns()

    @property
    def is_busy(self) -> bool:
        """True while there are requests, or questions with which requests have ended."""
        now = self._loop.time()
        self._questions = {state: until for state, until in self._questions.items() if until > now}
        return bool(self.active or self._questions)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count as a request."""
        self.active += 1
        try:
            yield
        finally:
            self._end_call()

    def begin(self, *, is_modern: bool) -> None:
        """Begin with a new session: no timeout counts against it."""
        self.last_used = self._loop.time()
        self._timeouts = 0
        self.turns.are_needed = not is_modern

    def call_tool(self, request: ToolRequest) -> Coroutine[Any, Any, dict[str, Any]]:
        """Wait for a turn, a server that is starting or asleep, and a free slot, and call. The timeout covers all.

        Return the raw MCP result, also of a tool that failed. Raises `ServerFailure` or `CallTimeout`.
        """
        if self.turns.concern(request.tool, request):
            return self._in_turn(request.tool, request, self._call)
        return self._call(request)

    def read(self, request: ReadRequest) -> Coroutine[Any, Any, dict[str, Any]]:
        """Return MCP's result. Raises `ServerFailure`, `CallTimeout`, `CapabilityNotSupported`."""
        if self.turns.concern(request.method, request):
            return self._in_turn(request.method, request, self._read)
        return self._read(request)

    async def _in_turn(self, what: str, request: R, send: Callable[[R], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Send a request in its turn (`turns`). While it waits it has no slot, which others can use."""
        began = self._loop.time()
        self.active += 1
        try:
            async with AsyncExitStack() as turn:
                try:
                    async with asyncio.timeout(request.timeout):
                        await turn.enter_async_context(self.turns.turn(what, request))
                except TimeoutError:
                    late = f"a call of {self._name!r} that may ask a question was before it for {request.timeout:g} s"
                    raise CallTimeout(late) from None
                finally:
                    tracing.record_wait(conventions.queue, began, self._name)
                waited = self._loop.time() - began
                is_extended = isinstance(request, ToolRequest) and request.extend
                left = request.timeout if is_extended else max(request.timeout - waited, _MOMENT)
                return await send(replace(request, timeout=left))
        finally:
            self._end_call()

    async def _call(self, request: ToolRequest) -> dict[str, Any]:
        deadline = self._loop.time() + request.timeout
        session = await self._acquire(request.timeout, is_call=True)
        try:
            left = max(deadline - self._loop.time(), _MOMENT)
            if left + _MOMENT < request.timeout and not request.extend:  # it had to wait
                request = replace(request, timeout=left)
            request.begin()
            result = self._noted(request, await session.call_tool(request))
        except CallTimeout:
            self._timeouts += 1
            if self._timeouts >= self._policy.timeouts_in_a_row:
                self._timeouts = 0
                self._suspect()
            raise
        finally:
            self._release()
        self._timeouts = 0
        return result

    async def _read(self, request: ReadRequest) -> dict[str, Any]:
        if (page := self._listed(request)) is not None:
            return page
        deadline = self._loop.time() + request.timeout
        session = await self._acquire(request.timeout, is_call=False)
        try:
            left = max(deadline - self._loop.time(), _MOMENT)
            return self._noted(request, await session.read(replace(request, timeout=left)))
        finally:
            self._release()

    def _noted(self, request: ToolRequest | ReadRequest, result: dict[str, Any]) -> dict[str, Any]:
        """The result. A question in it stays open until a request answers it: the process may know its state."""
        self._questions.pop(str(request.request_state), None)
        if is_input_required(result):
            self._questions[str(result.get("requestState"))] = self._loop.time() + self._policy.question_limit
            if len(self._questions) > _MOST_QUESTIONS:
                del self._questions[next(iter(self._questions))]
        return result

    async def subscribe(self, uri: str, timeout: float) -> None:
        """Subscribe without a slot, so that many subscriptions at the same time can become one request."""
        self.active += 1
        try:
            async with asyncio.timeout(timeout) as limit:
                session = self._current() or await self._wait(False)
                await session.subscribe(uri, max((limit.when() or 0) - self._loop.time(), _MOMENT))
        except TimeoutError:
            raise CallTimeout(f"{self._name!r} had no time for it within {timeout:g} s") from None
        finally:
            self._end_call()

    async def _acquire(self, timeout: float, *, is_call: bool) -> MCPSession:
        """Wait for a usable session and a slot for a call. The caller gives the slot back with `_release`."""
        self.active += 1
        try:
            if (session := self._current()) is not None and not self._slots.locked():
                await self._slots.acquire()
                return session
            return await self._acquire_within(timeout, is_call=is_call)
        except BaseException:
            self._end_call()
            raise

    async def _acquire_within(self, timeout: float, *, is_call: bool) -> MCPSession:
        began = self._loop.time()
        try:
            async with asyncio.timeout(timeout):
                session = await self._wait(is_call)
                await self._slots.acquire()
                return session
        except TimeoutError:
            raise CallTimeout(f"{self._name!r} had no time for it within {timeout:g} s") from None
        finally:
            tracing.record_wait(conventions.queue, began, self._name)

    def _release(self) -> None:
        self._slots.release()
        self._end_call()

    def _end_call(self) -> None:
        self.active -= 1
        self.last_used = self._loop.time()
