"""One HTTP request of the program's web server, from its head to its response, and its body, which comes in parts."""

from __future__ import annotations

import asyncio
from typing import Protocol

from a2c_smcp.errors import TooLarge
from a2c_smcp.server.http_requests import Request

__all__ = ["MAX_HELD", "Exchange"]

MAX_HELD = 64 * 1024
"""Bytes that are kept of a body before it is asked for."""


class Reader(Protocol):
    """The connection that a request comes over."""

    def trust(self) -> None:
        """The request belongs to an authenticated session."""

    def wants_body(self, exchange: Exchange) -> None:
        """Reads on."""


class Exchange:
    """One request from its head to its response."""

    __slots__ = (
        "_error", "_head_size", "_http", "_limit", "_parts", "_size", "_waiter", "expects", "is_whole", "keeps_alive",
        "request",
    )  # fmt: skip

    def __init__(self, http: Reader, head_size: int, *, keeps_alive: bool, expects: bool) -> None:
        self.is_whole = False
        self.keeps_alive = keeps_alive
        self.expects = expects
        self.request: Request
        self._http = http
        self._head_size = head_size
        self._parts: list[bytes] = []
        self._size = 0
        self._limit = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    @property
    def held(self) -> int:
        """Bytes that it has taken so far."""
        return self._head_size + self._size

    def trust(self) -> None:
        self._http.trust()

    async def read(self, limit: int) -> bytes:
        if self._error:
            raise self._error
        if not self.is_whole:
            self._limit = limit
            self._waiter = asyncio.get_running_loop().create_future()
            self._http.wants_body(self)
            self._check()
            await self._waiter
        if self._size > limit:
            raise TooLarge(f"at most {limit} bytes are taken in one request", size=self._size, limit=limit)
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole

    def fed(self, part: bytes) -> bool:
        """Whether more is welcome. What came is kept: nobody may have had a chance to ask for it yet."""
        self._size += len(part)
        self._parts.append(part)
        if self._waiter:
            self._check()
        return self._waiter is not None or self._size <= MAX_HELD

    def ended(self, error: Exception | None = None) -> None:
        """The body is whole, or will never be."""
        self.is_whole, self._error = error is None, error
        if self._waiter and not self._waiter.done():
            if error:
                self._waiter.set_exception(error)
            else:
                self._waiter.set_result(None)

    def forget(self) -> None:
        """Nothing may hold a body until the garbage collector comes by: a request and its exchange know each other."""
        self._parts.clear()
        del self.request

    def _check(self) -> None:
        if self._size > self._limit:
            self._parts.clear()
            if self._waiter and not self._waiter.done():
                self._waiter.set_result(None)
