"""The callers of one MCP server: they wait for its session and for a free slot, send their request, and are counted.

A caller counts as active before it waits for anything, so a server with callers is never idle. The time that a caller
waits is taken from the timeout of its request. Timeouts in a row are reported, because the server may be stuck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from a2c_smcp.errors import CallTimeout
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.session import MCPSession
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest, ToolRequest
from a2c_smcp.telemetry import conventions, tracing

__all__ = ["Callers"]

_MOMENT = 0.001  # seconds


class Callers:
    """`current` returns the session if it can be used now; `wait` waits for one, or raises why there is none."""

    def __init__(
        self,
        name: str,
        policy: HostPolicy,
        current: Callable[[], MCPSession | None],
        wait: Callable[[], Awaitable[MCPSession]],
        suspect: Callable[[], None],
    ) -> None:
        self.active = 0
        self.last_used = 0.0
        self._name = name
        self._policy = policy
        self._current = current
        self._wait = wait
        self._suspect = suspect
        self._slots = asyncio.Semaphore(policy.calls_at_once)
        self._timeouts = 0
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """A session begins: nothing is known against it."""
        self.last_used = self._loop.time()
        self._timeouts = 0

    async def call_tool(self, request: ToolRequest) -> dict[str, Any]:
        """Wait for a server that is starting or asleep, then for a free slot, and call. The timeout covers all."""
        deadline = self._loop.time() + request.timeout
        session = await self._acquire(request.timeout)
        try:
            left = max(deadline - self._loop.time(), _MOMENT)
            if left + _MOMENT < request.timeout and not request.extend:  # it had to wait
                request = replace(request, timeout=left)
            request.begin()
            result = await session.call_tool(request)
        except CallTimeout:
            self._count_timeout()
            raise
        finally:
            self._release()
        self._timeouts = 0
        return result

    async def read(self, request: ReadRequest) -> dict[str, Any]:
        deadline = self._loop.time() + request.timeout
        session = await self._acquire(request.timeout)
        try:
            return await session.read(replace(request, timeout=max(deadline - self._loop.time(), _MOMENT)))
        finally:
            self._release()

    async def subscribe(self, uri: str, timeout: float) -> None:
        """Takes no slot, so that many subscriptions that are asked for together can become one request."""
        self.active += 1
        try:
            async with asyncio.timeout(timeout) as limit:
                session = self._current() or await self._wait()
                await session.subscribe(uri, max((limit.when() or 0) - self._loop.time(), _MOMENT))
        except TimeoutError:
            raise CallTimeout(f"{self._name!r} had no time for it within {timeout:g} s") from None
        finally:
            self._end_call()

    async def _acquire(self, timeout: float) -> MCPSession:
        """Wait for a usable session and a slot for a call. The caller gives the slot back with `_release`."""
        self.active += 1
        try:
            if (session := self._current()) is not None and not self._slots.locked():
                await self._slots.acquire()
                return session
            return await self._acquire_within(timeout)
        except BaseException:
            self._end_call()
            raise

    async def _acquire_within(self, timeout: float) -> MCPSession:
        began = self._loop.time()
        try:
            async with asyncio.timeout(timeout):
                session = await self._wait()
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

    def _count_timeout(self) -> None:
        self._timeouts += 1
        if self._timeouts >= self._policy.timeouts_in_a_row:
            self._timeouts = 0
            self._suspect()
