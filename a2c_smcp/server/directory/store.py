"""What nodes keep in Valkey or Redis, and the scripts that are its only writers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any

from a2c_smcp.errors import Unavailable
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.directory.nodes import Lease, LeaseLost, NameInUse, Node
from a2c_smcp.server.directory.records import Seat, change_text, field_of, office_of, seat_text
from a2c_smcp.server.directory.store_connection import Line, NoSuchScript, Word

__all__ = ["Store", "Told"]

Told = list[tuple[str, str]]
"""Offices and what was published about each."""

Place = tuple[str, str, str]
"""A seat by its connection, office and field."""

_MICRO = 1_000_000
_SCRIPTS = Path(__file__).parent / "lua"
_SHARED = "seats.lua"
_BATCH = 128  # a script that takes longer than some milliseconds keeps everybody else waiting


class Store:
    """The scripts by name, on one line. Raises `Unavailable` where the store does not answer."""

    def __init__(self, line: Line, prefix: str) -> None:
        self._line = line
        self._prefix = prefix

    async def prepare(self) -> None:
        """Sends the scripts ahead, so that a crowd does not have to bring each its own copy."""
        names = sorted(path.stem for path in _SCRIPTS.glob("*.lua") if path.name != _SHARED)
        await asyncio.gather(*(self._line.ask("SCRIPT", "LOAD", _script(name)[0]) for name in names))

    async def run_id(self) -> str:
        """Which life of the store this is: it may have forgotten what an earlier one knew."""
        facts: str = await self._line.ask("INFO", "server")
        return next(line.partition(":")[2].strip() for line in facts.splitlines() if line.startswith("run_id:"))

    async def register(
        self, node: str, process: str, run: str, remembers: str, ttl: float, facts: dict[str, str], peers: Sequence[str]
    ) -> tuple[Lease, set[str]]:
        """A lease under a new epoch, and the names of all nodes. What a dead process left under the name is cleared."""
        words = (node, process, run, remembers, _micro(ttl), dumps(facts), dumps(list(peers)))
        while (answer := await self._run("register", *words))[0] == "haunted":
            await self.bury(node)
        if answer[0] == "taken":
            raise NameInUse(node, int(answer[1]) / _MICRO)
        return Lease(node, answer[1]), set(answer[2])

    async def beat(self, lease: Lease, ttl: float) -> list[str]:
        """Renews the lease. Answers the nodes whose own has lapsed."""
        answer = _leased(await self._run("beat", lease.node, lease.epoch, _micro(ttl)))
        return list(answer[1])

    async def commit(self, lease: Lease, change: Change) -> Told | None:
        """What was published, or `None` and nothing done if something has moved on."""
        answer = _leased(await self._run("commit", lease.node, lease.epoch, change_text(change)))
        if answer[0] == "awaiting":
            raise Unavailable("the shared store has been restarted, and waits for its nodes")
        return _told(answer[1]) if answer[0] == "ok" else None

    async def look(
        self, office_id: str, known: int | None = None
    ) -> tuple[int, tuple[Office, tuple[Seat, ...]] | None]:
        """The stamp of the last change that can be seen, and an office with its seats unless its version is known."""
        at, *flat = await self._run("look", office_id, "" if known is None else known)
        fields = dict(zip(flat[0][::2], flat[0][1::2], strict=True)) if flat else None
        return int(at), None if fields is None else office_of(office_id, fields)

    async def seats(self, sid: str) -> tuple[Member, ...]:
        found = [Seat.read(*words) for words in await self._run("find", sid)]
        return tuple(seat.member for seat in sorted(found, key=lambda seat: seat.at))

    async def holder(self, instance: str) -> str | None:
        holder: str | None = await self._line.ask("GET", f"{self._prefix}instance:{instance}")
        return holder

    async def bury(self, node: str) -> int:
        """Unseats the members of a node whose lease has lapsed. How many of them were still there for us to unseat."""
        freed, has_more = 0, 1
        while has_more:
            count, has_more = await self._run("bury", node, _BATCH)
            freed += count
        return freed

    async def held(self, node: str) -> set[Place]:
        return {(sid, office_id, field) for sid, office_id, field in await self._run("held", node)}

    async def restore(self, lease: Lease, leaves: Sequence[Place], seats: Sequence[Seat]) -> tuple[list[str], Told]:
        """Gives up some seats of the node and takes others. What has become of each, and what was published."""
        words = [
            [seat.member.office_id, field_of(seat.member), str(seat.since), seat_text(seat.member)] for seat in seats
        ]
        answer = _leased(await self._run("restore", lease.node, lease.epoch, dumps(list(leaves)), dumps(words)))
        return answer[1], _told(answer[2])

    async def settle(self, node: str) -> int:
        """The node is complete again. How many nodes are still waited for."""
        return int(await self._run("settle", node))

    async def retire(self, lease: Lease, linger: float) -> str:
        return str(await self._run("retire", lease.node, lease.epoch, _micro(linger)))

    async def nodes(self) -> list[Node]:
        return [
            Node(name, int(epoch), url, float(started), int(left) / _MICRO, members)
            for name, epoch, url, started, left, members in await self._run("nodes")
        ]

    async def secret(self) -> str:
        """What nodes show to one another, made by the first that asks for it."""
        key = f"{self._prefix}secret"
        await self._line.ask("SET", key, secrets.token_hex(32), "NX")
        return str(await self._line.ask("GET", key))

    def post(self, channel: str, message: bytes, answered: Callable[[Any], None]) -> None:
        self._line.command(answered, "PUBLISH", channel, message)

    async def listeners(self, channels: Sequence[str]) -> dict[str, int]:
        found = await self._line.ask("PUBSUB", "NUMSUB", *channels)
        return dict(zip(found[::2], found[1::2], strict=True))

    async def publish(self, channel: str, text: str) -> int:
        """How many have heard it."""
        return int(await self._line.ask("PUBLISH", channel, text))

    async def _run(self, name: str, *words: Word) -> Any:
        source, digest = _script(name)
        try:
            return await self._line.ask("EVALSHA", digest, 0, self._prefix, *words)
        except NoSuchScript:
            return await self._line.ask("EVAL", source, 0, self._prefix, *words)


@cache
def _script(name: str) -> tuple[str, str]:
    source = (_SCRIPTS / _SHARED).read_text() + (_SCRIPTS / f"{name}.lua").read_text()
    return source, sha1(source.encode()).hexdigest()  # noqa: S324, the store's own name for it


def _leased(answer: Any) -> Any:
    if answer[0] == "lost":
        raise LeaseLost("this node has lost its lease")
    return answer


def _told(flat: list[str]) -> Told:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _micro(seconds: float) -> int:
    return int(seconds * _MICRO)
