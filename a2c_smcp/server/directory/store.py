"""What nodes keep in Valkey or Redis, and the scripts (`lua/`) that are its only writers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import TypeAlias

from a2c_smcp.errors import Unavailable
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.directory.interface import Posted
from a2c_smcp.server.directory.nodes import LeaseLost, LeaseToken, NameInUse, Node
from a2c_smcp.server.directory.records import SeatRecord, change_text, field_of, office_of, seat_text
from a2c_smcp.server.directory.store_connection import NoSuchScript, Reply, StoreConnection, Word

__all__ = ["OnAsked", "Published", "Store", "ignore_asked"]

Published: TypeAlias = list[tuple[str, str]]
"""Offices, and what was published about each."""

OnAsked: TypeAlias = Callable[[str, float, bool], None]
"""Is told of each round trip: the command, how many seconds it took, and whether it was answered."""

_SeatKey: TypeAlias = tuple[str, str, str]
"""A seat by its connection, office and field."""

_MICRO = 1_000_000
_SCRIPTS = Path(__file__).parent / "lua"
_COMMON = "seats.lua"
_BATCH = 128  # a script that takes longer than some milliseconds keeps all nodes waiting


def ignore_asked(command: str, seconds: float, is_answered: bool) -> None:
    """For a store whose round trips are not counted."""


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
        """What was published; `None`, and nothing is done, if an office has changed since its snapshot."""
        answer = _leased(await self._run("commit", lease.node, lease.epoch, change_text(change)))
        if answer[0] == "awaiting":
            raise Unavailable("the shared store has been restarted, and waits for its nodes")
        return _published(answer[1]) if answer[0] == "ok" else None

    async def look(
        self, office_id: str, known: int | None = None
    ) -> tuple[int, tuple[Office, tuple[SeatRecord, ...]] | None]:
        """The stamp of the last change that this answer shows, and an office with its seats unless its version is
        `known`."""
        at, *more = _items(await self._run("look", office_id, "" if known is None else known))
        if not more:
            return _number(at), None
        flat = _texts(more[0])
        return _number(at), office_of(office_id, dict(zip(flat[::2], flat[1::2], strict=True)))

    async def seats(self, sid: str) -> tuple[Member, ...]:
        found = [SeatRecord.read(*_texts(words)) for words in _items(await self._run("find", sid))]
        return tuple(seat.member for seat in sorted(found, key=lambda seat: seat.at))

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
        found = map(_texts, _items(await self._run("held", node)))
        return {(sid, office_id, field) for sid, office_id, field in found}

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
        found = []
        for reply in _items(await self._run("nodes")):
            name, epoch, url, started, left, members = _items(reply)
            node = (_text(name), _number(epoch), _text(url), float(_text(started)), _number(left) / _MICRO)
            found.append(Node(*node, _number(members)))
        return found

    async def secret(self) -> str:
        """The secret that nodes show to one another. The first node that asks makes it."""
        key = f"{self._prefix}secret"
        await self._connection.ask("SET", key, secrets.token_hex(32), "NX")
        return _text(await self._connection.ask("GET", key))

    def post(self, channel: str, message: bytes, posted: Posted) -> None:
        self._connection.command(
            lambda reply: posted(reply if isinstance(reply, Exception) else _number(reply)), "PUBLISH", channel, message
        )

    async def listeners(self, channels: Sequence[str]) -> dict[str, int]:
        """How many connections listen to each channel."""
        found = _items(await self._connection.ask("PUBSUB", "NUMSUB", *channels))
        return dict(zip(map(_text, found[::2]), map(_number, found[1::2]), strict=True))

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
