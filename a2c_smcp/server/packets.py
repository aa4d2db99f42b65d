"""Socket.IO packets that can always be answered: strict JSON, sizes, and payloads that stay the text they came as."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from socketio import packet

from a2c_smcp.errors import BadRequest, SMCPError, TooLarge
from a2c_smcp.protocol.codec import dumps, loads, loads_exactly
from a2c_smcp.server.fields import LARGE, Json, is_array, read_fields

__all__ = ["HEAD_ROOM", "Answer", "Payload", "Rejected", "SMCPPacket", "size_of"]

HEAD_ROOM = 64
"""Bytes that the head of a packet may take: what is passed on gets another one, and may not outgrow the limit by it."""

_MAX_ATTACHMENTS = 64
_HEAD = re.compile(r'\s*\[\s*("(?:[^"\\]|\\.){0,1024}")\s*,\s*')
_NOBODY_ASKED = -1
_MOST_BESIDE_ATTACHMENTS = 256 * 1024
"""Of JSON, in bytes: what has binary parts cannot be passed on as it came, and has to be parsed."""


class Payload(dict[str, Any]):
    """A JSON object that knows its size, and the JSON it was read from. One with binary parts has no JSON.

    As a dict it holds the fields that the Server decides by; the JSON holds all.
    """

    __slots__ = ("json", "size")

    def __init__(self, value: dict[str, Any], json: Json = b"", size: int | None = None) -> None:
        super().__init__(value)
        self.json = json
        self.size = len(json) if size is None else size

    @property
    def text(self) -> str:
        return str(self.json, "utf-8")


class Answer:
    """The arguments of an ack, as the JSON of their array."""

    __slots__ = ("json",)

    def __init__(self, json: Json) -> None:
        self.json = json

    @property
    def text(self) -> str:
        return str(self.json, "utf-8")


@dataclass(frozen=True, slots=True)
class Rejected:
    """Stands in for a payload that could not be taken, so that its sender can be told."""

    error: SMCPError

    def __post_init__(self) -> None:
        self.error.__traceback__ = None  # it would hold the frames that hold what was refused


def size_of(text: str | bytes) -> int:
    """Bytes as encoded."""
    return len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode(errors="surrogatepass"))


class _Text:
    """The `json` of our packets: on the way in text stays text until the packet's type is known."""

    @staticmethod
    def loads(text: str) -> str:
        return text

    @staticmethod
    def dumps(data: Any, separators: object = None) -> str:
        if not isinstance(data, list):
            return dumps(data)
        if len(data) == 1 and isinstance(data[0], Answer):
            return data[0].text
        return f"[{','.join(_text_of(item) or dumps(item) for item in data)}]"


def _text_of(item: Any) -> str:
    return item.text if isinstance(item, Payload) else ""


class SMCPPacket(packet.Packet):  # type: ignore[misc]  # untyped base
    """Reading one never fails: what cannot be understood is rejected with an answer, or an ack nobody asked for."""

    json = _Text
    max_message: ClassVar[int] = 4 * 1024 * 1024
    packet_type: int
    namespace: str | None
    id: int | None
    data: Any
    _size: int = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.packet_type == packet.EVENT and self.data is None:
            self._ignore()

    def encode(self) -> str | list[str | bytes]:
        if self.packet_type == packet.CONNECT_ERROR and isinstance(self.data, str):
            refusal = BadRequest(self.data)
            self.data = {"message": refusal.message, "data": {"code": refusal.code, "message": refusal.message}}
        encoded: str | list[str | bytes] = super().encode()
        return encoded

    def decode(self, encoded_packet: Any) -> int:
        try:
            attachments: int = super().decode(encoded_packet)
        except (TypeError, ValueError):
            return self._ignore()
        text = self.data if isinstance(self.data, str) else ""
        self._size = size_of(encoded_packet) if isinstance(encoded_packet, str) else 0
        match self.packet_type:
            case packet.CONNECT:
                self.data = self._auth(text)
            case packet.EVENT | packet.BINARY_EVENT:
                return self._event(text, attachments)
            case packet.ACK | packet.BINARY_ACK:
                return self._ack(text, attachments)
            case packet.DISCONNECT:
                pass
            case _:
                self._ignore()
        return 0

    def add_attachment(self, attachment: bytes | str) -> bool:
        """Whether the packet is complete, by now or because it is rejected."""
        self._size += len(attachment)
        try:
            if isinstance(attachment, str):
                raise BadRequest("expected a binary attachment")
            self._check(self._size, 0)
            if not super().add_attachment(attachment):
                return False
            if self._is_event and len(self.data) == 2 and isinstance(self.data[1], dict):
                self.data[1] = Payload(self.data[1], size=self._size)
        except (BadRequest, TooLarge) as error:
            self._reject(error)
        except (IndexError, TypeError, RecursionError):
            self._reject(BadRequest("the attachments do not match their placeholders"))
        # The library tells events from acks by these two alone.
        self.packet_type = packet.BINARY_EVENT if self._is_event else packet.BINARY_ACK
        return True

    @property
    def _is_event(self) -> bool:
        return self.packet_type in (packet.EVENT, packet.BINARY_EVENT)

    @classmethod
    def data_is_binary(cls, data: Any) -> bool:
        """The library's own is recursive, and a payload may be nested more deeply than the stack allows."""
        stack = [data]
        while stack:
            item = stack.pop()
            if isinstance(item, bytes | bytearray):
                return True
            if isinstance(item, list):
                stack.extend(item)
            elif isinstance(item, dict) and not _text_of(item):
                stack.extend(item.values())
        return False

    def _auth(self, text: str) -> Any:
        try:
            return loads(text) if text else None
        except BadRequest:
            return None

    def _event(self, text: str, attachments: int) -> int:
        """The data of an event: its name and its arguments."""
        head = _HEAD.match(text)
        self.data = [""]
        try:
            self.data = [loads(head[1]) if head else ""]
            self._check(self._size, attachments)
            if head and not attachments and (payload := _payload(text[head.end() :])) is not None:
                self.data.append(payload)
            else:
                self.data = self._parsed(text, attachments)
        except (BadRequest, TooLarge) as error:
            return self._reject(error)
        if not attachments:
            self.packet_type = packet.EVENT
        return attachments

    def _parsed(self, text: str, attachments: int) -> list[Any]:
        """The name and the arguments of an event that is not read as most are."""
        if not attachments and len(text) >= LARGE:
            raise BadRequest("an event carries one object")
        args = loads_exactly(text) if attachments else loads(text)
        if not (isinstance(args, list) and args and isinstance(args[0], str)):
            raise BadRequest("an event is an array that begins with its name")
        if not attachments and len(args) == 2 and type(args[1]) is dict and (head := _HEAD.match(text)):
            args[1] = Payload(args[1], text[head.end() : text.rindex("]")].encode())
        return args

    def _ack(self, text: str, attachments: int) -> int:
        """The data of an ack: its arguments, left as text unless parts of them are binary."""
        self.id = self.id or _NOBODY_ASKED  # the library keeps a counter of its own under 0
        self.data = []
        try:
            self._check(self._size + HEAD_ROOM, attachments)
            self.data = _binary_arguments(text) if attachments else [_answer(text)]
        except (BadRequest, TooLarge) as error:
            return self._reject(error)
        self.packet_type = packet.BINARY_ACK if attachments else packet.ACK
        return attachments

    def _check(self, size: int, attachments: int) -> None:
        if size > self.max_message:
            raise TooLarge(f"{size} bytes, at most {self.max_message} are taken", size=size, limit=self.max_message)
        if attachments > _MAX_ATTACHMENTS:
            raise BadRequest(f"at most {_MAX_ATTACHMENTS} binary attachments are taken")
        if attachments and size > _MOST_BESIDE_ATTACHMENTS:
            what = f"{size} bytes of JSON, at most {_MOST_BESIDE_ATTACHMENTS} are taken beside binary attachments"
            raise TooLarge(what, size=size, limit=_MOST_BESIDE_ATTACHMENTS)

    def _reject(self, error: SMCPError) -> int:
        """Becomes a packet without attachments that carries the reason in place of its payload."""
        self.data = [*self.data[:1], Rejected(error)] if self._is_event else [Rejected(error)]
        self.packet_type = packet.EVENT if self._is_event else packet.ACK
        return 0

    def _ignore(self) -> int:
        self.packet_type, self.id, self.data, self.namespace = packet.ACK, _NOBODY_ASKED, [], None
        return 0


def _payload(text: str) -> Payload | None:
    """The only argument of an event, which begins here and ends with the packet; `None` if it is to be parsed."""
    body = text.rstrip()
    if not body.endswith("]"):
        return None
    json = body[:-1].encode()
    fields = read_fields(json)
    return None if fields is None else Payload(fields, json)


def _answer(text: str) -> Answer:
    json = text.encode()
    if not is_array(json) and (len(json) >= LARGE or not isinstance(loads(text), list)):
        raise BadRequest("an ack is an array")
    return Answer(json)


def _binary_arguments(text: str) -> list[Any]:
    args = loads_exactly(text)
    if not isinstance(args, list):
        raise BadRequest("an ack is an array")
    return args
