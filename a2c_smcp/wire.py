"""The websocket below a line: packets of our namespace, written at once and read without a task for each.

python-socketio opens it, and goes on to handle whatever else comes over it: pings, attachments, the end. Without this,
its queue, its loops and their timers cost more than all that is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import aiohttp
import engineio
import socketio
from socketio import packet

from a2c_smcp.errors import BadRequest, TooLarge
from a2c_smcp.protocol import codec
from a2c_smcp.smcp import SMCP_NAMESPACE

__all__ = ["OnAck", "OnPacket", "Wire", "WiredClient"]

OnAck: TypeAlias = Callable[..., None]
OnPacket: TypeAlias = Callable[[int | None, list[Any]], None]
"""Given the number under which an answer is expected, if one is, and the name and the arguments of an event."""

_EVENT, _ACK = f"42{SMCP_NAMESPACE},", f"43{SMCP_NAMESPACE},"
_KINDS = {_EVENT: packet.EVENT, _ACK: packet.ACK}
_LONGEST = 18  # digits
_LARGEST_SENT = 8 * 1024 * 1024 - 1024  # bytes


class Wire:
    """Stands where the library's websocket would."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse, client: WiredClient) -> None:
        self._websocket = websocket
        self._client = client
        self.send_str, self.send_bytes, self.close = websocket.send_str, websocket.send_bytes, websocket.close

    async def emit(self, event: str, data: Any, on_ack: OnAck) -> None:
        """Raises `OSError` when there is no connection any more."""
        number = self._client.expect(on_ack)
        try:
            await self._send(_EVENT, number, [event, data])
        except BaseException:
            self._client.expected(number)  # by nobody any more
            raise

    async def ack(self, number: int, answer: Any) -> None:
        """A tuple is several arguments, `None` is none."""
        if isinstance(answer, codec.Written):
            await self._websocket.send_str(_fitting(f"{_ACK}{number}[{answer.text}]"))
        else:
            arguments = [] if answer is None else list(answer) if isinstance(answer, tuple) else [answer]
            await self._send(_ACK, number, arguments)

    async def _send(self, head: str, number: int, content: list[Any]) -> None:
        try:
            text = f"{head}{number}{codec.dumps(content)}"
        except BadRequest:
            await self._send_attached(head, number, content)
        else:
            await self._websocket.send_str(_fitting(text))

    async def _send_attached(self, head: str, number: int, content: list[Any]) -> None:
        """What has bytes in it. Raises `BadRequest` where they are not what is wrong with it.

        A frame is written before its sending waits for anything, so that nothing comes between these.
        """
        first, *attachments = _Packet(_KINDS[head], content, SMCP_NAMESPACE, number, binary=True).encode()
        await asyncio.gather(self._websocket.send_str(f"4{first}"), *map(self._websocket.send_bytes, attachments))

    async def receive(self) -> aiohttp.WSMessage:
        """The next thing that is the library's business."""
        while True:
            message = await self._websocket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT or not self._takes(message.data):
                return message

    def _takes(self, text: str) -> bool:
        """Whether it is ours. What is malformed is nobody's."""
        if text.startswith(_ACK):
            number, content = _split(text)
            if content and (on_ack := self._client.expected(number)):
                on_ack(*_read(content))
            return True
        if text.startswith(_EVENT):
            number, content = _split(text)
            if content and (parts := _read(content)):
                self._client.on_packet(number, parts)
            return True
        return False


class WiredClient(socketio.AsyncClient):  # type: ignore[misc]  # untyped base
    """A Socket.IO client whose websocket is a wire; where it polls, it has none.

    `on_packet` is called in the order in which events come, `on_end` when the connection has ended. Answers are
    expected in the library's own table: one that has attachments comes its way.
    """

    def __init__(self, on_packet: OnPacket, on_end: Callable[[], None], **options: Any) -> None:
        self.on_packet = on_packet
        self._on_end = on_end
        self._numbers = count(1)
        super().__init__(serializer=_Packet, **options)

    @property
    def wire(self) -> Wire | None:
        found: Wire | None = self.eio.ws
        return found

    def expect(self, on_ack: OnAck) -> int:
        """The number under which to ask."""
        number = next(self._numbers)
        self.callbacks.setdefault(SMCP_NAMESPACE, {})[number] = on_ack
        return number

    def expected(self, number: int | None) -> OnAck | None:
        """Who waits for this answer, which is the only one."""
        on_ack: OnAck | None = self.callbacks.get(SMCP_NAMESPACE, {}).pop(number, None)
        return on_ack

    def forget(self) -> None:
        """Removes this client from the library's global list of clients, where one whose dial was cut off stays."""
        with suppress(ValueError):
            engineio.base_client.connected_clients.remove(self.eio)

    async def _handle_eio_disconnect(self, reason: Any) -> None:
        """The library tells nobody of an end before the namespace is connected, and `connect` waits on."""
        is_dialling = not self.connected
        await super()._handle_eio_disconnect(reason)
        self._on_end()
        if is_dialling:
            self.namespaces: dict[str, Any] = {}
            self.failed_namespaces = [SMCP_NAMESPACE]
            self._connect_event.set()

    def _engineio_client_class(self) -> Callable[..., Any]:
        return partial(_WiredEngine, self)


class _WiredEngine(engineio.AsyncClient):  # type: ignore[misc]  # untyped base
    def __init__(self, client: WiredClient, **options: Any) -> None:
        self._client = client
        super().__init__(**options)

    @property
    def ws(self) -> Wire | None:
        return self._wire

    @ws.setter
    def ws(self, websocket: aiohttp.ClientWebSocketResponse | None) -> None:
        self._wire = Wire(websocket, self._client) if websocket else None


def _split(packet: str) -> tuple[int | None, str | None]:
    """The number, if there is one, and the rest, which is a list: else it is `None`."""
    start = packet.find("[", len(_EVENT))
    number = packet[len(_EVENT) : start]
    if start < 0 or len(number) > _LONGEST or (number and not (number.isdecimal() and number.isascii())):
        return None, None
    return int(number) if number else None, packet[start:]


def _read(text: str) -> Any:
    """What cannot be read is the error itself: of a packet's parts it is the last, so its addressee is known."""
    try:
        return codec.loads_exactly(text)
    except BadRequest as error:
        return [error]


def _fitting(text: str) -> str:
    """What a Server would not even read, and drop the line for, is not sent."""
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    if size > _LARGEST_SENT:
        raise TooLarge(f"it has {size} bytes, at most {_LARGEST_SENT} can be sent", size=size)
    return text


class _StrictJSON:
    loads = staticmethod(_read)

    @staticmethod
    def dumps(value: Any, separators: object = None) -> str:
        return codec.dumps(value)


class _Packet(packet.Packet):  # type: ignore[misc]  # untyped base
    """The library's own, as strict as the wire's."""

    json = _StrictJSON

    def encode(self) -> Any:
        encoded = super().encode()
        return _fitting(encoded) if isinstance(encoded, str) else encoded
