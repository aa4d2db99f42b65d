"""Calls between nodes: each has an inbox, a channel of the shared store, and tells its answers to the others' inboxes.

Payloads and answers travel as the JSON they came as. A channel nobody listens to is a node that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from a2c_smcp.server.fields import Json
from a2c_smcp.server.mail import Mail, frame, frames
from a2c_smcp.server.packets import Answer, Payload
from a2c_smcp.smcp import TOOL_CALL_EVENT

__all__ = ["GONE", "LOST", "UNHEARD", "Bus", "Outcome", "Request"]

logger = logging.getLogger(__name__)

_WATCH_INTERVAL = 0.25
_APART = "the nodes cannot reach each other"

Outcome: TypeAlias = Any
"""What becomes of a request: an `Answer`, ack arguments as a tuple, an `SMCPError`, or one of the words below."""


class _Word:
    """Neither an answer nor an error."""

    def __init__(self, meaning: str) -> None:
        self._meaning = meaning

    def __repr__(self) -> str:
        return self._meaning


GONE = _Word("nobody sits there under this session any more")
LOST = _Word("the node is gone, and what became of the request is not known")
UNHEARD = _Word("nobody listens at the node, so the request has not arrived")


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
    sent_before: bool = False


class _Tell(msgspec.Struct, array_like=True, tag="="):
    """An answer: its arguments as JSON, or as msgpack where parts of them are binary."""

    id: int
    is_binary: bool = False


class _Refuse(msgspec.Struct, array_like=True, tag="!"):
    id: int


class _Gone(msgspec.Struct, array_like=True, tag="-"):
    """Nobody sits there, or no longer, once the node that says so has gone too."""

    id: int
    is_lost: bool = False


class _AskReceipt(msgspec.Struct, array_like=True, tag="#"):
    """For everything that was published together with it."""

    node: str


class _Receipt(msgspec.Struct, array_like=True, tag="~"):
    node: str
    size: int


_Head: TypeAlias = _Ask | _Tell | _Refuse | _Gone | _AskReceipt | _Receipt

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Head).decode


@dataclass(frozen=True, slots=True)
class Request:
    """What another node asks of a member of this one, who may have left meanwhile."""

    event: str
    caller: Member
    target: str
    payload: Payload
    timeout: float
    sent_before: bool


@dataclass(slots=True)
class _Asked:
    node: str
    reply: Callable[[Outcome], None]


class Bus:
    """Asks other nodes, and has `serve` answer what they ask. Raises `Unavailable` while the store is out of reach.

    What was asked before is then neither answered nor refused: it may have been heard. Its calls stay as they are, and
    are sent again, marked as such, when this node or the other one is back. The node that owns a call joins the two.
    """

    def __init__(
        self, directory: Post, serve: Callable[[Request, Callable[[Outcome], None]], None], background: Background
    ) -> None:
        self._node = directory.node
        self._directory = directory
        self._serve = serve
        self._background = background
        self._numbers = count(1)
        self._asked: dict[int, _Asked] = {}
        self._mail = Mail(directory, self._published, frame(_encode(_AskReceipt(self._node))))
        self._is_watched = False

    def ask(self, node: str, sid: str, forward: Forward, timeout: float, reply: Callable[[Outcome], None]) -> None:
        """Sends a request to the node of its target. `reply` is called once."""
        self._directory.check()
        number, data, seat = next(self._numbers), forward.data, forward.caller
        caller = _Seat(seat.sid, seat.name, seat.office_id, seat.instance, seat.owner, seat.version)
        asked = (number, self._node, forward.event, data.get("req_id", ""), sid, timeout, caller)
        head = _Ask(*asked, sent_before=forward.sent_before)
        self._asked[number] = _Asked(node, reply)
        self._mail.send(node, _encode(head), _body_of(data), number)
        if not self._is_watched:
            self._is_watched = True
            self._background.spawn(self._watch())

    def hear(self, data: bytes) -> None:
        """What has come into the inbox."""
        for head, body in frames(data):
            try:
                self._take(_decode(head), body, len(data))
            except Exception:
                logger.exception("another node said what is not understood here")

    def forget(self, node: str) -> None:
        """The node was out of reach: what was on its way there is lost, and what it was asked is asked again."""
        self._mail.forget(node)
        for number in [number for number, asked in self._asked.items() if asked.node == node]:
            del self._asked[number]

    def forget_all(self) -> None:
        """The store is out of reach: nothing that was asked will be answered, until it is asked again."""
        self._mail.clear()
        self._asked.clear()

    @property
    def is_settling(self) -> bool:
        """Whether the store was out of reach a moment ago, so that other nodes may not be back yet."""
        return self._directory.is_settling

    @property
    def is_cut_off(self) -> bool:
        """Whether the store is out of reach. What was asked is then asked again when it is back."""
        try:
            self._directory.check()
        except Unavailable:
            return True
        return False

    def elsewhere(self, sid: str) -> str | None:
        """The node, if it is another one, that a session is on."""
        node = node_of(sid)
        return None if node == self._node else node

    def _take(self, head: _Head, body: bytes, size: int) -> None:
        match head:
            case _Ask():
                self._take_request(head, body)
            case _Tell():
                self._settle(head.id, tuple(msgspec.msgpack.decode(body)) if head.is_binary else Answer(body))
            case _Refuse():
                self._settle(head.id, SMCPError.from_wire(loads(str(body, "utf-8"))) or SMCPError())
            case _Gone():
                self._settle(head.id, LOST if head.is_lost else GONE)
            case _AskReceipt():
                self._mail.send_at_once(head.node, _encode(_Receipt(self._node, size)))
            case _Receipt():
                self._mail.receive_receipt(head.node, head.size)

    def _take_request(self, head: _Ask, body: bytes) -> None:
        seat = head.caller
        caller = Member(seat.sid, "agent", seat.name, seat.office_id, seat.instance, seat.owner, seat.version)
        payload = Payload({"req_id": head.req_id}, body) if body[:1] == b"{" else Payload(msgspec.msgpack.decode(body))

        def reply(outcome: Outcome) -> None:
            self._answer(head, outcome)

        try:
            self._serve(Request(head.event, caller, head.target, payload, head.timeout, head.sent_before), reply)
        except SMCPError as error:
            reply(error)

    def _answer(self, asked: _Ask, outcome: Outcome) -> None:
        node, number = asked.node, asked.id
        if isinstance(outcome, Answer):
            self._mail.send(node, _encode(_Tell(number)), outcome.json)
        elif isinstance(outcome, SMCPError):
            became = {"outcome": outcome.outcome} if asked.event == TOOL_CALL_EVENT else {}
            self._mail.send(node, _encode(_Refuse(number)), dumps(outcome.to_wire(**became)).encode())
        elif outcome is GONE or outcome is LOST:
            self._mail.send(node, _encode(_Gone(number, outcome is LOST)), b"")
        else:
            self._mail.send(node, _encode(_Tell(number, is_binary=True)), msgspec.msgpack.encode(outcome))

    def _settle(self, number: int, outcome: Outcome) -> None:
        if asked := self._asked.pop(number, None):
            asked.reply(outcome)

    def _published(self, numbers: Sequence[int], listeners: int | Exception) -> None:
        """While the store is out of reach nothing is settled: requests are repeated when it is back."""
        if isinstance(listeners, Exception):
            outcome: Outcome = None if self.is_cut_off else Unavailable(_APART, outcome="not_run")
        else:
            outcome = None if listeners else UNHEARD
        for number in numbers if outcome else ():
            self._settle(number, outcome)

    async def _watch(self) -> None:
        """As long as something is asked, whether those who were asked are still there."""
        while self._asked:
            await asyncio.sleep(_WATCH_INTERVAL)
            asked = {number: each.node for number, each in self._asked.items()}
            with suppress(Unavailable):
                absent = await self._directory.absent(set(asked.values()))
                for number in [number for number, node in asked.items() if node in absent]:
                    self._settle(number, LOST)
        self._is_watched = False


def _body_of(data: dict[str, Any]) -> Json:
    if isinstance(data, Payload) and data.json:
        return data.json
    return msgspec.msgpack.encode(dict(data))
