"""One connection to Valkey or Redis: where its URL leads, commands answered in order, and messages of subscriptions."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit, urlunsplit

import hiredis

from a2c_smcp.errors import ConfigError, Unavailable

__all__ = ["NoSuchScript", "Reply", "StoreConnection", "Word", "masked"]

logger = logging.getLogger(__name__)

Word: TypeAlias = str | bytes | int | float
Reply: TypeAlias = "str | int | list[Reply] | None"
"""The answer to a command, with strings decoded."""

_Raw: TypeAlias = "bytes | int | list[_Raw] | Exception | None"
_Answered: TypeAlias = Callable[[_Raw], None]
_OnMessage: TypeAlias = Callable[[str, bytes], None]
"""Takes a channel and what was published there."""

_SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True, "unix": False}
"""Of URLs, with whether they mean TLS."""

_PORT = 6379
_UNKNOWN = float("inf")


class NoSuchScript(Exception):
    """The store does not know a script by this digest: it has to be sent."""


class StoreConnection(asyncio.Protocol):
    """Opened and closed by its owner. Once it is broken it stays broken, and fails every command at once."""

    def __init__(self, patience: float, on_message: _OnMessage, on_break: Callable[[], None]) -> None:
        self._patience = patience
        self._on_message = on_message
        self._on_break = on_break
        self._reader = hiredis.Reader()
        self._waiting: deque[tuple[_Answered, float]] = deque()
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
        on_message: _OnMessage = lambda channel, data: None,
        on_break: Callable[[], None] = lambda: None,
    ) -> StoreConnection:
        """Connects and authenticates within `patience` seconds, which each command may take as well.

        Raises `ConfigError` or `Unavailable`.
        """
        address = Address.read(url)
        connection = cls(patience, on_message, on_break)
        try:
            async with asyncio.timeout(patience):
                await address.dial(connection)
                for words in address.greeting:
                    await connection.ask(*words)
        except (OSError, TimeoutError):
            await connection.close()
            raise Unavailable(f"the shared store {masked(url)} is unreachable") from None
        except BaseException:
            await connection.close()
            raise
        return connection

    async def ask(self, *words: Word) -> Reply:
        """Writes a command and waits for its answer. Raises `Unavailable` or `NoSuchScript`."""
        answer: asyncio.Future[_Raw] = asyncio.get_running_loop().create_future()
        self.command(lambda reply: None if answer.done() else answer.set_result(reply), *words)
        reply = await answer
        if isinstance(reply, Exception):
            raise _translated(reply) from None
        return _decoded(reply)

    def command(self, answered: _Answered, *words: Word) -> None:
        """Writes a command and does not wait. Raises `Unavailable` if the connection is broken.

        A command that waits too long breaks the connection: nothing else shows that a store stands still.
        """
        if self._is_broken or self._transport is None:
            raise Unavailable("the shared store is unreachable")
        self._waiting.append((answered, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(self._patience, self._check_oldest)
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

    def _take(self, reply: _Raw) -> None:
        match reply:
            case [b"message", bytes() as channel, bytes() as data]:
                self._on_message(channel.decode(errors="surrogateescape"), data)
            case _ if self._waiting:
                self._waiting.popleft()[0](reply)

    def _check_oldest(self) -> None:
        """Breaks the connection if the oldest command has waited too long, unless bytes are still being written."""
        self._watch = None
        if not self._waiting or self._transport is None:
            return
        now, due = self._loop.time(), self._waiting[0][1] + self._patience
        unwritten = self._transport.get_write_buffer_size() if due <= now else _UNKNOWN
        if due > now:
            self._watch = self._loop.call_at(due, self._check_oldest)
        elif 0 < unwritten < self._unwritten:
            self._watch = self._loop.call_later(self._patience, self._check_oldest)
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


def _decoded(reply: _Raw) -> Reply:
    if isinstance(reply, list):
        return [_decoded(item) for item in reply]
    return reply.decode(errors="surrogateescape") if isinstance(reply, bytes) else reply  # type: ignore[return-value]


def _translated(error: Exception) -> Exception:
    kind = str(error).partition(" ")[0]
    if kind == "NOSCRIPT":
        return NoSuchScript()
    if kind in ("NOAUTH", "NOPERM", "WRONGPASS"):
        return Unavailable("the shared store refuses this user")
    if isinstance(error, ConnectionError):
        return Unavailable("the shared store does not answer")
    return Unavailable(f"the shared store refuses: {error}")


# Where it is


def masked(url: str) -> str:
    """The URL without its user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port, or the path of a Unix socket; the commands that log in; and TLS, if any."""

    host: str
    port: int
    path: str
    greeting: tuple[tuple[str, ...], ...]
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def read(cls, url: str) -> Address:
        """Reads the URL of a Valkey or Redis. Raises `ConfigError`."""
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES:
            raise ConfigError("the URL of a Valkey or Redis begins with redis://, rediss:// or unix://")
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        try:
            port = parts.port or _PORT
            tls = _tls(options) if _SCHEMES[parts.scheme] else None
        except (ValueError, OSError) as error:
            raise ConfigError(f"not the URL of a Valkey or Redis, {error}") from None
        greeting = _login(parts.username, parts.password) + _select(parts, options)
        path = unquote(parts.path) if parts.scheme == "unix" else ""
        return cls(parts.hostname or "localhost", port, path, greeting, tls)

    async def dial(self, protocol: asyncio.Protocol) -> None:
        """Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if self.path:
            await loop.create_unix_connection(lambda: protocol, self.path)
        else:
            await loop.create_connection(lambda: protocol, self.host, self.port, ssl=self.tls)


def _login(user: str | None, password: str | None) -> tuple[tuple[str, ...], ...]:
    if password is None:
        return ()
    return (("AUTH", *((unquote(user),) if user else ()), unquote(password)),)


def _select(parts: SplitResult, options: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """The command that chooses a database, unless it is the first. Raises `ConfigError`."""
    database = options.get("db", "" if parts.scheme == "unix" else parts.path.strip("/"))
    if database and not database.isdecimal():
        raise ConfigError(f"not the URL of a Valkey or Redis, {database!r} is no number of a database")
    return (("SELECT", database),) if int(database or 0) else ()


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    """The options have the names that redis-py gives them, which people have in their URLs already."""
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path"))
    if options.get("ssl_check_hostname", "true").lower() in ("false", "no", "0"):
        context.check_hostname = False
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate := options.get("ssl_certfile"):
        context.load_cert_chain(certificate, options.get("ssl_keyfile"))
    return context
