"""The shared store of nodes in Valkey or Redis, and the scripts (`lua/`) that are its only writers."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from glob import escape
from hashlib import sha1
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit, urlunsplit

import hiredis

from a2c_smcp.errors import ConfigError, Unavailable
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.cluster.memory import LeaseLost, LeaseToken, NameInUse, Node, Posted
from a2c_smcp.server.cluster.mirror import SeatRecord, change_text, field_of, office_of, seat_text

logger = logging.getLogger(__name__)

# One connection to Valkey or Redis: where its URL leads, commands answered in order, and messages of subscriptions.

Word: TypeAlias = str | bytes | int | float
Reply: TypeAlias = "str | int | list[Reply] | None"
"""The answer to a command, with strings decoded."""

_Raw: TypeAlias = "bytes | int | list[_Raw] | Exception | None"
_Answered: TypeAlias = Callable[[_Raw], None]
_OnMessage: TypeAlias = Callable[[str, bytes], None]
"""Takes a channel and what was published there."""

_SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True, "unix": False}
"""Schemes of URLs: true for those with TLS."""

_REFUSALS = {
    "NOAUTH": "wants a password",
    "WRONGPASS": "refuses the user or the password",
    "NOPERM": "does not permit this user what a node needs",
}
_PORT = 6379
_UNKNOWN = float("inf")


class StoreRefused(Unavailable):
    """The store takes no commands from this user."""


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
        except (OSError, TimeoutError) as error:
            await connection.close()
            why = f": {error.verify_message}" if isinstance(error, ssl.SSLCertVerificationError) else ""
            raise Unavailable(f"the shared store {masked(url)} is unreachable{why}") from None
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
    if kind in _REFUSALS:
        return StoreRefused(f"the shared store {_REFUSALS[kind]}")
    if isinstance(error, ConnectionError):
        return Unavailable("the shared store does not answer")
    return StoreRefused(f"the shared store refuses: {error}")


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
        greeting = _select(parts, options)
        if parts.password is not None:
            user = (unquote(parts.username),) if parts.username else ()
            greeting = (("AUTH", *user, unquote(parts.password)), *greeting)
        path = unquote(parts.path) if parts.scheme == "unix" else ""
        return cls(parts.hostname or "localhost", port, path, greeting, tls)

    async def dial(self, protocol: asyncio.Protocol) -> None:
        """Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if self.path:
            await loop.create_unix_connection(lambda: protocol, self.path)
        else:
            await loop.create_connection(lambda: protocol, self.host, self.port, ssl=self.tls)


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


Published: TypeAlias = list[tuple[str, str]]
"""Offices, and what was published about each."""

OnAsked: TypeAlias = Callable[[str, float, bool], None]
"""Called after each round trip with the command, its seconds, and true if it was answered."""

_SeatKey: TypeAlias = tuple[str, str, str]
"""A seat by its connection, office and field."""

_MICRO = 1_000_000
_SCRIPTS = Path(__file__).parent / "lua"
_COMMON = "seats.lua"
_BATCH = 128  # a script that takes longer than some milliseconds keeps all nodes waiting


def ignore_asked(command: str, seconds: float, is_answered: bool) -> None:
    """Count no round trips."""


class Store:
    """Runs the scripts, each by a method of its name. Raises `Unavailable` if the store does not answer."""

    def __init__(self, connection: StoreConnection, prefix: str, on_asked: OnAsked = ignore_asked) -> None:
        self._connection = connection
        self._on_asked = on_asked
        self._prefix = prefix

    async def prepare(self) -> None:
        """Loads the scripts, so that no command has to bring its own."""
        names = sorted(path.stem for path in _SCRIPTS.glob("*.lua") if path.name != _COMMON)
        await asyncio.gather(*(self._connection.ask("SCRIPT", "LOAD", _script(name)[0]) for name in names))

    async def run_id(self) -> str:
        """Changes when the store is restarted: then it may have lost what it knew."""
        facts = _text(await self._connection.ask("INFO", "server"))
        return next(line.partition(":")[2].strip() for line in facts.splitlines() if line.startswith("run_id:"))

    async def register(
        self, node: str, process: str, run: str, remembers: str, ttl: float, facts: dict[str, str], peers: Sequence[str]
    ) -> tuple[LeaseToken, set[str]]:
        """A lease under a new epoch, and the names of all nodes. Seats that a dead process left under this name are
        freed before. Raises `NameInUse`."""
        words = (node, process, run, remembers, _micro(ttl), dumps(facts), dumps(list(peers)))
        while (answer := _items(await self._run("register", *words)))[0] == "haunted":
            await self.bury(node)
        if answer[0] == "taken":
            raise NameInUse(node, _number(answer[1]) / _MICRO)
        return LeaseToken(node, _text(answer[1])), set(_texts(answer[2]))

    async def beat(self, lease: LeaseToken, ttl: float) -> list[str]:
        """Renews the lease. Returns the nodes whose lease has ended."""
        return _texts(_leased(await self._run("beat", lease.node, lease.epoch, _micro(ttl)))[1])

    async def commit(self, lease: LeaseToken, change: Change) -> Published | None:
        """Publish a change, and return the message; `None`, without effect, if an office has changed since."""
        answer = _leased(await self._run("commit", lease.node, lease.epoch, change_text(change)))
        if answer[0] == "awaiting":
            raise Unavailable("the shared store has been restarted, and waits for its nodes")
        return _published(answer[1]) if answer[0] == "ok" else None

    async def look(
        self, office_id: str, known: int | None = None
    ) -> tuple[int, tuple[Office, tuple[SeatRecord, ...]] | None]:
        """The stamp of the last change that this answer shows, and an office with its seats unless its version is
        `known`."""
        at, *content = _items(await self._run("look", office_id, "" if known is None else known))
        if not content:
            return _number(at), None
        flat = _texts(content[0])
        return _number(at), office_of(office_id, dict(zip(flat[::2], flat[1::2], strict=True)))

    async def seats(self, sid: str) -> tuple[Member, ...]:
        seats = [SeatRecord.read(*_texts(words)) for words in _items(await self._run("find", sid))]
        return tuple(seat.member for seat in sorted(seats, key=lambda seat: seat.at))

    async def holder(self, instance: str) -> str | None:
        holder = await self._connection.ask("GET", f"{self._prefix}instance:{instance}")
        return None if holder is None else _text(holder)

    async def bury(self, node: str) -> int:
        """Frees the seats of a node whose lease has ended. Returns how many of them were still there."""
        freed, has_more = 0, 1
        while has_more:
            count, has_more = map(_number, _items(await self._run("bury", node, _BATCH)))
            freed += count
        return freed

    async def held(self, node: str) -> set[_SeatKey]:
        """Every seat that belongs to a node."""
        keys = map(_texts, _items(await self._run("held", node)))
        return {(sid, office_id, field) for sid, office_id, field in keys}

    async def restore(
        self, lease: LeaseToken, leaves: Sequence[_SeatKey], seats: Sequence[SeatRecord]
    ) -> tuple[list[str], Published]:
        """Gives up some seats of the node and takes others. Returns what became of each, and what was published."""
        words = [
            [seat.member.office_id, field_of(seat.member), str(seat.since), seat_text(seat.member)] for seat in seats
        ]
        answer = _leased(await self._run("restore", lease.node, lease.epoch, dumps(list(leaves)), dumps(words)))
        return _texts(answer[1]), _published(answer[2])

    async def settle(self, node: str) -> int:
        """The node has seated its members again. Returns how many nodes are still awaited."""
        return _number(await self._run("settle", node))

    async def retire(self, lease: LeaseToken, linger: float) -> str:
        return _text(await self._run("retire", lease.node, lease.epoch, _micro(linger)))

    async def nodes(self) -> list[Node]:
        nodes = []
        for reply in _items(await self._run("nodes")):
            name, epoch, url, started, left, members = _items(reply)
            node = (_text(name), _number(epoch), _text(url), float(_text(started)), _number(left) / _MICRO)
            nodes.append(Node(*node, _number(members)))
        return nodes

    async def secret(self) -> str:
        """The secret that nodes show to one another. The first node that asks makes it."""
        key = f"{self._prefix}secret"
        await self._connection.ask("SET", key, secrets.token_hex(32), "NX")
        return _text(await self._connection.ask("GET", key))

    async def withhold(self, credential: str) -> None:
        """Keep the id of a key that all nodes refuse."""
        await self._connection.ask("SADD", f"{self._prefix}withheld", credential)

    async def withheld(self) -> list[str]:
        return _texts(await self._connection.ask("SMEMBERS", f"{self._prefix}withheld"))

    async def kept(self, name: str) -> str | None:
        found = await self._connection.ask("GET", f"{self._prefix}kept:{name}")
        return None if found is None else _text(found)

    async def swap(self, name: str, before: str | None, after: str | None, seconds: float) -> bool:
        return _number(await self._run("swap", name, before or "", after or "", seconds)) == 1

    async def kept_names(self, beginning: str) -> list[str]:
        cursor, names, own = "0", set[str](), f"{self._prefix}kept:"
        while True:
            pattern = f"{escape(own + beginning)}*"
            answer = _items(await self._connection.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
            names.update(name.removeprefix(own) for name in _texts(answer[1]))
            if (cursor := _text(answer[0])) == "0":
                return sorted(names)

    def post(self, channel: str, message: bytes, posted: Posted) -> None:
        self._connection.command(
            lambda reply: posted(reply if isinstance(reply, Exception) else _number(reply)), "PUBLISH", channel, message
        )

    async def listeners(self, channels: Sequence[str]) -> dict[str, int]:
        """Return the number of connections that listen to each channel."""
        counts = _items(await self._connection.ask("PUBSUB", "NUMSUB", *channels))
        return dict(zip(map(_text, counts[::2]), map(_number, counts[1::2]), strict=True))

    async def publish(self, channel: str, text: str) -> int:
        """Returns how many connections have received it."""
        return _number(await self._connection.ask("PUBLISH", channel, text))

    async def _run(self, name: str, *words: Word) -> Reply:
        source, digest = _script(name)
        began, is_answered = time.monotonic(), False
        try:
            answer = await self._connection.ask("EVALSHA", digest, 0, self._prefix, *words)
            is_answered = True
        except NoSuchScript:
            answer = await self._connection.ask("EVAL", source, 0, self._prefix, *words)
            is_answered = True
        finally:
            self._on_asked(name, time.monotonic() - began, is_answered)
        return answer


@cache
def _script(name: str) -> tuple[str, str]:
    source = (_SCRIPTS / _COMMON).read_text() + (_SCRIPTS / f"{name}.lua").read_text()
    return source, sha1(source.encode()).hexdigest()  # noqa: S324, the store's own name for it


def _leased(reply: Reply) -> list[Reply]:
    answer = _items(reply)
    if answer[0] == "lost":
        raise LeaseLost("this node has lost its lease")
    return answer


def _published(reply: Reply) -> Published:
    flat = _texts(reply)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _items(reply: Reply) -> list[Reply]:
    assert isinstance(reply, list)
    return reply


def _texts(reply: Reply) -> list[str]:
    return [_text(item) for item in _items(reply)]


def _text(reply: Reply) -> str:
    return str(reply)


def _number(reply: object) -> int:
    assert isinstance(reply, int | str)
    return int(reply)


def _micro(seconds: float) -> int:
    return int(seconds * _MICRO)
