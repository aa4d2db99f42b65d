"""One connection to Valkey or Redis: commands are written at once and answered in order, pushes come by themselves."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import hiredis

from a2c_smcp.errors import Unavailable
from a2c_smcp.server.directory.addresses import Address, masked

__all__ = ["Line", "NoSuchScript", "Word"]

logger = logging.getLogger(__name__)

Word: TypeAlias = str | bytes | int | float
Hear: TypeAlias = Callable[[str, bytes], None]
"""Takes a channel and what was published there."""

Answered: TypeAlias = Callable[[Any], None]
"""Takes an answer as it came, bytes and numbers, or an exception."""


_UNKNOWN = float("inf")


class NoSuchScript(Exception):
    """The store does not know a script by this digest: it has to be sent."""


class Line(asyncio.Protocol):
    """Opened and closed by whoever owns it. Once it is broken it stays so, and answers everything at once."""

    def __init__(self, patience: float, hear: Hear, on_break: Callable[[], None]) -> None:
        self._patience = patience
        self._hear = hear
        self._on_break = on_break
        self._reader = hiredis.Reader()
        self._waiting: deque[tuple[Answered, float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._unwritten = _UNKNOWN
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._is_broken = False

    @classmethod
    async def open(
        cls,
        url: str,
        patience: float,
        hear: Hear = lambda channel, data: None,
        on_break: Callable[[], None] = lambda: None,
    ) -> Line:
        """Connects and authenticates within `patience` seconds. Each question is answered within the same, or never."""
        address = Address.read(url)
        line = cls(patience, hear, on_break)
        try:
            async with asyncio.timeout(patience):
                await address.dial(line)
                for words in address.greeting:
                    await line.ask(*words)
        except (OSError, TimeoutError):
            await line.close()
            raise Unavailable(f"the shared store {masked(url)} is unreachable") from None
        except BaseException:
            await line.close()
            raise
        return line

    async def ask(self, *words: Word) -> Any:
        """The answer, strings decoded. Raises `Unavailable` if it does not come, and then the line is broken."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.command(lambda reply: None if answer.done() else answer.set_result(reply), *words)
        reply = await answer
        if isinstance(reply, Exception):
            raise _translated(reply) from None
        return _decoded(reply)

    def command(self, answered: Answered, *words: Word) -> None:
        """Writes a command and does not wait. Raises `Unavailable` if the line is broken.

        A store that stands still is noticed by nothing else: a command that waits too long breaks the line.
        """
        if self._is_broken or self._transport is None:
            raise Unavailable("the shared store is unreachable")
        self._waiting.append((answered, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(self._patience, self._look)
        self._transport.write(hiredis.pack_command(words))  # type: ignore[arg-type]  # as many words as one likes

    async def close(self) -> None:
        self._break()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a stream, so it can be written to

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._take(reply)
        except hiredis.ProtocolError:
            logger.exception("the shared store does not speak RESP")
            self._break()

    def connection_lost(self, error: Exception | None) -> None:
        self._break()

    def _take(self, reply: Any) -> None:
        if isinstance(reply, list) and reply and reply[0] == b"message":
            self._hear(reply[1].decode(errors="surrogateescape"), reply[2])
        elif self._waiting:
            self._waiting.popleft()[0](reply)

    def _look(self) -> None:
        """Whether the oldest command has waited too long. As long as large ones are still being written, none has."""
        self._watch = None
        if not self._waiting or self._transport is None:
            return
        now, due = self._loop.time(), self._waiting[0][1] + self._patience
        unwritten = self._transport.get_write_buffer_size() if due <= now else _UNKNOWN
        if due > now:
            self._watch = self._loop.call_at(due, self._look)
        elif 0 < unwritten < self._unwritten:
            self._watch = self._loop.call_later(self._patience, self._look)
        else:
            self._break()
        self._unwritten = unwritten

    def _break(self) -> None:
        if self._is_broken:
            return
        self._is_broken = True
        if self._watch:
            self._watch.cancel()
        if self._transport:
            self._transport.abort()
        self._on_break()
        while self._waiting:
            with suppress(Exception):
                self._waiting.popleft()[0](ConnectionError("the connection has ended"))


def _decoded(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode(errors="surrogateescape")
    return [_decoded(item) for item in reply] if isinstance(reply, list) else reply


def _translated(error: Exception) -> Exception:
    kind = str(error).partition(" ")[0]
    if kind == "NOSCRIPT":
        return NoSuchScript()
    if kind in ("NOAUTH", "NOPERM", "WRONGPASS"):
        return Unavailable("the shared store refuses this user")
    if isinstance(error, ConnectionError):
        return Unavailable("the shared store does not answer")
    return Unavailable(f"the shared store refuses: {error}")
