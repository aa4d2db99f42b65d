"""Calls between nodes: each has an inbox, a channel of the shared store, and tells its answers to the others' inboxes.

Payloads and answers travel as the JSON they came as. What is said to one node in one turn of the event loop is
published once. A channel nobody listens to is a node that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import msgspec

from a2c_smcp.errors import SMCPError, Unavailable
from a2c_smcp.protocol.codec import dumps, loads
from a2c_smcp.protocol.offices import Member
from a2c_smcp.protocol.routing import Forward
from a2c_smcp.server.background import Background
from a2c_smcp.server.directory.nodes import node_of
from a2c_smcp.server.directory.post import Post
from a2c_smcp.server.packets import Answer, Json, Payload

__all__ = ["GONE", "LOST", "Bus", "Outcome", "Request"]

logger = logging.getLogger(__name__)

_SIZES = struct.Struct(">II")
_WATCH_INTERVAL = 0.25

Outcome: TypeAlias = Any
"""What becomes of a request: an `Answer`, several ack arguments as a tuple, an `SMCPError`, `GONE` or `LOST`."""


class _Word:
    """Neither an answer nor an error."""

    def __init__(self, meaning: str) -> None:
        self._meaning = meaning

    def __repr__(self) -> str:
        return self._meaning


GONE = _Word("nobody sits there under this session any more")
LOST = _Word("the node is gone, and what became of the request is not known")


class _Seat(msgspec.Struct, array_like=True):
    sid: str
    name: str
    office_id: str
    instance: str | None
    owner: str
    version: str


class _Ask(msgspec.Struct, array_like=True, tag="?"):
    id: int
    node: str
    event: str
    req_id: str
    target: str
    timeout: float
    caller: _Seat


class _Tell(msgspec.Struct, array_like=True, tag="="):
    """An answer: its arguments as JSON, or as msgpack where parts of them are binary."""

    id: int
    is_binary: bool = False


class _Refuse(msgspec.Struct, array_like=True, tag="!"):
    id: int


class _Gone(msgspec.Struct, array_like=True, tag="-"):
    id: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Ask | _Tell | _Refuse | _Gone).decode


@dataclass(frozen=True, slots=True)
class Request:
    """What another node asks of a member of this one, who may have left meanwhile."""

    event: str
    caller: Member
    target: str
    payload: Payload
    timeout: float


@dataclass(slots=True)
class _Asked:
    node: str
    reply: Callable[[Outcome], None]


class Bus:
    """Asks other nodes, and has `serve` answer what they ask. Raises `Unavailable` while the store is out of reach."""

    def __init__(
        self, directory: Post, serve: Callable[[Request, Callable[[Outcome], None]], None], background: Background
    ) -> None:
        self._node = directory.node
        self._directory = directory
        self._serve = serve
        self._background = background
        self._numbers = count(1)
        self._asked: dict[int, _Asked] = {}
        self._outgoing: dict[str, list[Json]] = {}
        self._ids: dict[str, list[int]] = {}
        self._is_watched = False

    def ask(self, node: str, sid: str, forward: Forward, timeout: float, reply: Callable[[Outcome], None]) -> None:
        """Sends a request to the node of its target. `reply` is called once."""
        self._directory.check()
        number, data, seat = next(self._numbers), forward.data, forward.caller
        caller = _Seat(seat.sid, seat.name, seat.office_id, seat.instance, seat.owner, seat.version)
        head = _Ask(number, self._node, forward.event, data.get("req_id", ""), sid, timeout, caller)
        self._asked[number] = _Asked(node, reply)
        self._send(node, _encode(head), _body_of(data))
        self._ids.setdefault(node, []).append(number)
        if not self._is_watched:
            self._is_watched = True
            self._background.spawn(self._watch())

    def hear(self, data: bytes) -> None:
        """What has come into the inbox."""
        for head, body in _frames(data):
            try:
                self._take(_decode(head), body)
            except Exception:
                logger.exception("another node said what is not understood here")

    def fail(self) -> None:
        """The store is out of reach: what was asked may never be answered."""
        self._outgoing.clear()
        self._ids.clear()
        for number in list(self._asked):
            self._settle(number, Unavailable("the nodes cannot reach each other"))

    def elsewhere(self, sid: str) -> str | None:
        """The node, if it is another one, that a session is on."""
        node = node_of(sid)
        return None if node == self._node else node

    def _take(self, head: _Ask | _Tell | _Refuse | _Gone, body: bytes) -> None:
        match head:
            case _Ask():
                self._take_request(head, body)
            case _Tell():
                self._settle(head.id, tuple(msgspec.msgpack.decode(body)) if head.is_binary else Answer(body))
            case _Refuse():
                self._settle(head.id, SMCPError.from_wire(loads(str(body, "utf-8"))) or SMCPError())
            case _Gone():
                self._settle(head.id, GONE)

    def _take_request(self, head: _Ask, body: bytes) -> None:
        seat = head.caller
        caller = Member(seat.sid, "agent", seat.name, seat.office_id, seat.instance, seat.owner, seat.version)
        payload = Payload({"req_id": head.req_id}, body) if body[:1] == b"{" else Payload(msgspec.msgpack.decode(body))

        def reply(outcome: Outcome) -> None:
            self._answer(head.node, head.id, outcome)

        try:
            self._serve(Request(head.event, caller, head.target, payload, head.timeout), reply)
        except SMCPError as error:
            reply(error)

    def _answer(self, node: str, number: int, outcome: Outcome) -> None:
        if isinstance(outcome, Answer):
            self._send(node, _encode(_Tell(number)), outcome.json)
        elif isinstance(outcome, SMCPError):
            self._send(node, _encode(_Refuse(number)), dumps(outcome.to_wire()).encode())
        elif outcome is GONE:
            self._send(node, _encode(_Gone(number)), b"")
        else:
            self._send(node, _encode(_Tell(number, is_binary=True)), msgspec.msgpack.encode(outcome))

    def _settle(self, number: int, outcome: Outcome) -> None:
        if asked := self._asked.pop(number, None):
            asked.reply(outcome)

    def _send(self, node: str, head: bytes, body: Json) -> None:
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.setdefault(node, []).extend((_SIZES.pack(len(head), len(body)), head, body))

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        ids, self._ids = self._ids, {}
        for node, parts in outgoing.items():
            numbers = ids.get(node, ())

            published = partial(self._published, numbers)
            try:
                self._directory.post(node, b"".join(parts), published)
            except Unavailable as error:
                published(error)

    def _published(self, numbers: Sequence[int], listeners: int | Exception) -> None:
        if isinstance(listeners, Exception):
            outcome: Outcome = Unavailable("the nodes cannot reach each other")
        elif listeners:
            return
        else:
            outcome = LOST
        for number in numbers:
            self._settle(number, outcome)

    async def _watch(self) -> None:
        """As long as something is asked, whether those who were asked are still there."""
        while self._asked:
            await asyncio.sleep(_WATCH_INTERVAL)
            with suppress(Unavailable):
                absent = await self._directory.absent({each.node for each in self._asked.values()})
                for number in [number for number, each in self._asked.items() if each.node in absent]:
                    self._settle(number, LOST)
        self._is_watched = False


def _body_of(data: dict[str, Any]) -> Json:
    if isinstance(data, Payload) and data.json:
        return data.json
    return msgspec.msgpack.encode(dict(data))


def _frames(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """What was published, taken apart. Raises nothing: a writer on the bus is trusted to be one of us."""
    at = 0
    while at < len(data):
        head_size, body_size = _SIZES.unpack_from(data, at)
        head = at + _SIZES.size
        body = head + head_size
        at = body + body_size
        yield data[head:body], data[body:at]
