"""One HTTP request of the program's own web server from its head to its response, with the body that comes in parts."""

from __future__ import annotations

import asyncio
from typing import Protocol

from a2c_smcp.errors import TooLarge
from a2c_smcp.server.http_requests import HttpRequest

__all__ = ["MAX_HELD", "Exchange"]

MAX_HELD = 64 * 1024
"""Bytes of a body that are kept before it is read."""


class BodySource(Protocol):
    """The connection that a request comes over."""

    def trust(self) -> None:
        """The request belongs to an authenticated session."""

    def wants_body(self, exchange: Exchange) -> None:
        """Continues to read."""


class Exchange:
    """One request from its head to its response."""

    __slots__ = (
        "_error", "_head_size", "_http", "_limit", "_parts", "_size", "_waiter", "expects", "is_trusted", "is_whole",
        "keeps_alive", "may_chunk", "request",
    )  # fmt: skip

    def __init__(
        self, http: BodySource, head_size: int, *, keeps_alive: bool, expects: bool, may_chunk: bool = True
    ) -> None:
        self.is_whole = self.is_trusted = False
        self.keeps_alive = keeps_alive
        self.expects = expects
        self.may_chunk = may_chunk
        self.request: HttpRequest
        self._http = http
        self._head_size = head_size
        self._parts: list[bytes] = []
        self._size = 0
        self._limit = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    @property
    def held(self) -> int:
        """Bytes of the request so far."""
        return self._head_size + self._size

    def trust(self) -> None:
        self.is_trusted = True
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
        """Takes a part of the body. Whether more may be read now. Parts are kept until the body is read."""
        self._size += len(part)
        self._parts.append(part)
        if self._waiter:
            self._check()
        return self._waiter is not None or self._size <= MAX_HELD

    def ended(self, error: Exception | None = None) -> None:
        """The body is whole, or has failed."""
        self.is_whole, self._error = error is None, error
        if self._waiter and not self._waiter.done():
            if error:
                self._waiter.set_exception(error)
            else:
                self._waiter.set_result(None)

    def forget(self) -> None:
        """Frees the body: a request and its exchange refer to each other, so only the garbage collector would."""
        self._parts.clear()
        del self.request

    def _check(self) -> None:
        if self._size > self._limit:
            self._parts.clear()
            if self._waiter and not self._waiter.done():
                self._waiter.set_result(None)
