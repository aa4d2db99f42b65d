"""Socket.IO packets that can always be answered: strict JSON, sizes, and payloads that stay the text they came as."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from socketio import packet

from a2c_smcp.errors import BadRequest, SMCPError, TooLarge
from a2c_smcp.protocol.codec import dumps, loads

__all__ = ["Answer", "Payload", "Rejected", "SMCPPacket", "size_of"]

_MAX_ATTACHMENTS = 64
_HEAD = re.compile(r'\s*\[\s*("(?:[^"\\]|\\.)*")\s*,\s*')
_HEAD_LENGTH = 1024
_NOBODY_ASKED = -1


class Payload(dict[str, Any]):
    """A JSON object that remembers the text it was read from, to be passed on untouched."""

    __slots__ = ("text",)

    def __init__(self, value: dict[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


@dataclass(frozen=True, slots=True)
class Answer:
    """The arguments of an ack, as the text of their array."""

    text: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Stands in for a payload that could not be taken, so that its sender can be told."""

    error: SMCPError


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
        return f"[{','.join(item.text if isinstance(item, Payload) else dumps(item) for item in data)}]"


class SMCPPacket(packet.Packet):  # type: ignore[misc]  # untyped base
    """Reading one never fails: what cannot be understood is rejected with an answer, or an ack nobody asked for."""

    json = _Text
    max_message: ClassVar[int] = 4 * 1024 * 1024
    packet_type: int
    namespace: str | None
    id: int | None
    data: Any

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
        size = size_of(encoded_packet) if isinstance(encoded_packet, str) else 0
        match self.packet_type:
            case packet.CONNECT:
                self.data = self._auth(text)
            case packet.EVENT | packet.BINARY_EVENT:
                return self._event(text, size, attachments)
            case packet.ACK | packet.BINARY_ACK:
                return self._ack(text, size, attachments)
            case packet.DISCONNECT:
                pass
            case _:
                self._ignore()
        return 0

    def add_attachment(self, attachment: bytes | str) -> bool:
        size = sum(len(part) for part in self.attachments) + len(attachment)
        try:
            if size > self.max_message:
                raise TooLarge(f"{size} bytes, at most {self.max_message} are taken")
            if isinstance(attachment, str):
                raise BadRequest("expected a binary attachment")
            done: bool = super().add_attachment(attachment)
        except SMCPError as error:
            self._reject(error)
        except (IndexError, TypeError, RecursionError):
            self._reject(BadRequest("the attachments do not match their placeholders"))
        else:
            return done
        return True

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
            elif isinstance(item, dict) and not isinstance(item, Payload):
                stack.extend(item.values())
        return False

    def _auth(self, text: str) -> Any:
        try:
            return loads(text) if text else None
        except BadRequest:
            return None

    def _event(self, text: str, size: int, attachments: int) -> int:
        """The data of an event: its name and its arguments."""
        head = _HEAD.match(text, 0, _HEAD_LENGTH)
        try:
            self.data = [loads(head[1]) if head else ""]
            self._check(size, attachments)
            args = loads(text)
            if not (isinstance(args, list) and args and isinstance(args[0], str)):
                raise BadRequest("an event is an array that begins with its name")
        except (BadRequest, TooLarge) as error:
            return self._reject(error)
        self.data = args
        if attachments:
            return attachments
        self.packet_type = packet.EVENT
        if head and len(args) == 2 and type(args[1]) is dict:
            args[1] = Payload(args[1], text[head.end() : text.rindex("]")])
        return 0

    def _ack(self, text: str, size: int, attachments: int) -> int:
        """The data of an ack: its arguments, left as text unless parts of them are binary."""
        self.id = self.id or _NOBODY_ASKED  # the library keeps a counter of its own under 0
        self.data = []
        try:
            self._check(size, attachments)
            args = loads(text)
            if not isinstance(args, list):
                raise BadRequest("an ack is an array")
        except (BadRequest, TooLarge) as error:
            return self._reject(error)
        self.data = args if attachments else [Answer(text)]
        self.packet_type = packet.BINARY_ACK if attachments else packet.ACK
        return attachments

    def _check(self, size: int, attachments: int) -> None:
        if size > self.max_message:
            raise TooLarge(f"{size} bytes, at most {self.max_message} are taken", size=size, limit=self.max_message)
        if attachments > _MAX_ATTACHMENTS:
            raise BadRequest(f"at most {_MAX_ATTACHMENTS} binary attachments are taken")

    def _reject(self, error: SMCPError) -> int:
        """Becomes a packet without attachments that carries the reason in place of its payload."""
        is_event = self.packet_type in (packet.EVENT, packet.BINARY_EVENT)
        self.packet_type = packet.EVENT if is_event else packet.ACK
        self.data = [*self.data[:1], Rejected(error)] if is_event else [Rejected(error)]
        return 0

    def _ignore(self) -> int:
        self.packet_type, self.id, self.data, self.namespace = packet.ACK, _NOBODY_ASKED, [], None
        return 0
