"""The two transports of a client over aiohttp, websocket and polling. Each carries the bytes of one Engine.IO session.

A transport owns its session from the OPEN packet on. `run` reads until either side ends, `send` writes, `close`
disconnects. Only `run` reads, in one task; any task may write.

Writing. On a websocket, `send` hands the whole packet with its attachments to the socket before it waits for anything.
So packets leave in the order of the calls, nothing comes between a packet and its attachments, and a caller that is
cancelled while a slow Server reads leaves no half packet behind. `write` is `send` without the wait, for answers: they
are in memory either way. Several packets of one turn of the event loop leave together (`_Cork`). Packets of the session
itself (CONNECT, PONG) are queued by it and written by `flush`. `run` never waits for a write: if both ends waited until
the other one reads, they would wait for ever. While polling, all packets go through the session's queue; one task posts
it, one request after the other.

Dialling. A websocket takes one round trip and one socket, so it is tried first. A proxy or a Server that forbids it
answers with a status, closes, or does not answer. Polling begins when the websocket has failed, or beside it after
`_HEAD_START`. The first that opens is taken, and the other one closed. If no TCP connection could be made, polling is
not tried, because it would fail in the same way. A transport is never changed for the other one later.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal, TypeAlias

import aiohttp

from a2c_smcp.endpoint import Endpoint
from a2c_smcp.engine.client import ClientSession
from a2c_smcp.engine.events import Happening, Opened
from a2c_smcp.engine.packets import Attachment, Malformed, encode_payload
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits
from a2c_smcp.loops import cancel_and_wait

_HEAD_START = 1.0  # seconds
_CLOSE = 1.0
_POST = aiohttp.ClientTimeout(total=60)
_POLL = aiohttp.ClientTimeout(total=None)  # the deadline of pings ends it
_LARGEST = 16 * 1024 * 1024
_LARGEST_REFUSAL = 64 * 1024
_CHUNK = 64 * 1024
_LIMITS = EngineLimits(
    max_payload=_LARGEST, max_message=_LARGEST, max_ack=_LARGEST, max_attachments=4096, max_beside_attachments=_LARGEST
)
_UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError)

_Websocket: TypeAlias = aiohttp.ClientWebSocketResponse[Literal[False]]
Take: TypeAlias = Callable[[Happening], None]


class NotOpened(Exception):
    """The answer is not that of an Engine.IO server, or is a refusal, with its HTTP status and JSON object if any."""

    def __init__(self, reason: str, body: Mapping[str, Any] | None = None, status: int | None = None) -> None:
        self.body, self.status = body, status
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Dial:
    """The parameters of a dial. `on_answer` is called for each HTTP answer."""

    http: aiohttp.ClientSession
    endpoint: Endpoint
    headers: Mapping[str, str]
    on_answer: Callable[[], None]


class _Cork:
    """Holds back the second and later packets of a turn of the event loop until its end, so that they leave together.

    To deliver a small packet and wake its reader costs more than everything else about it. The kernel gathers the
    packets (TCP_CORK); systems without it send them one by one.
    """

    __slots__ = ("_count", "_loop", "_socket")

    def __init__(self, found: Any) -> None:
        self._socket: Any = found if hasattr(socket, "TCP_CORK") else None
        self._loop = asyncio.get_running_loop()
        self._count = 0

    def on_packet(self) -> None:
        """Call this before each packet is written."""
        self._count += 1
        if self._count == 1:
            self._loop.call_soon(self._on_turn)
        elif self._count == 2:
            self._set(1)

    def _on_turn(self) -> None:
        if self._count > 1:
            self._set(0)
        self._count = 0

    def _set(self, on: int) -> None:
        if self._socket:
            with suppress(OSError):  # the socket is closed
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, on)


class Websocket:
    def __init__(self, websocket: _Websocket, session: ClientSession) -> None:
        self.session = session
        self._websocket = websocket
        self._cork = _Cork(websocket.get_extra_info("socket"))
        self._flushing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, dial: Dial) -> Websocket:
        websocket = await dial.http.ws_connect(
            dial.endpoint.socketio_url("websocket"),
            headers=dial.headers,
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE),
            max_msg_size=_LARGEST,
            decode_text=False,
        )
        opening = cls(websocket, ClientSession(_LIMITS, WEBSOCKET))
        try:
            dial.on_answer()
            message = await websocket.receive()
            is_text = message.type is aiohttp.WSMsgType.TEXT
            _require_open(opening.session.receive(message.data, _now()) if is_text else None)
        except BaseException:
            await opening.abort()
            raise
        return opening

    async def send(self, packet: bytes, attachments: Sequence[bytes] = ()) -> None:
        """Waits while the Server is slow to read. Raises `OSError` if the connection is lost."""
        self._cork.on_packet()
        if not attachments:
            await self._websocket.send_frame(packet, aiohttp.WSMsgType.TEXT)
            return
        text = self._websocket.send_frame(packet, aiohttp.WSMsgType.TEXT)
        await asyncio.gather(text, *map(self._websocket.send_bytes, attachments))

    def write(self, packet: bytes, attachments: Sequence[bytes] = ()) -> None:
        """`send` without waiting, however slow the Server is."""
        self._cork.on_packet()
        _begin(self._websocket.send_frame(packet, aiohttp.WSMsgType.TEXT))
        for data in attachments:
            _begin(self._websocket.send_bytes(data))

    async def flush(self) -> None:
        while packets := self.session.take(WEBSOCKET):
            for packet in packets:
                assert not isinstance(packet, Attachment)
                await self._websocket.send_frame(packet, aiohttp.WSMsgType.TEXT)

    async def run(self, take: Take) -> None:
        receive, session = self._websocket.receive, self.session
        text, binary = aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY
        while True:
            message = await receive()
            if message.type is text:
                happening = session.receive(message.data, _now())
            elif message.type is binary:
                happening = session.receive_binary(message.data, _now())
            else:
                return
            if happening is not None:
                take(happening)
            if session.queued and (self._flushing is None or self._flushing.done()):
                self._flushing = asyncio.create_task(self.flush())

    async def close(self) -> None:
        """Write the packets that the session has queued, then close and wait for the other side."""
        try:
            if self._flushing:
                await self._flushing
            await self.flush()
            await self._websocket.close()
        except BaseException:
            await self.abort()
            raise

    async def abort(self) -> None:
        """Close without waiting for the other side."""
        if self._flushing:
            await cancel_and_wait(self._flushing)
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                await self._websocket.close()


class Polling:
    def __init__(self, dial: Dial, session: ClientSession, early: Sequence[Happening]) -> None:
        self.session = session
        self._dial = dial
        self._url = f"{dial.endpoint.socketio_url('polling')}&sid={session.sid}"
        self._early = early
        self._is_queued = asyncio.Event()

    @classmethod
    async def open(cls, dial: Dial) -> Polling:
        async with dial.http.get(dial.endpoint.socketio_url("polling"), headers=dial.headers, timeout=_POLL) as answer:
            dial.on_answer()
            await _require_ok(answer)
            body = await _read(answer, _LARGEST)
        session = ClientSession(_LIMITS, POLLING)
        try:
            happenings = [*session.receive_payload(body, _now())]
        except Malformed:
            raise NotOpened("Unexpected response from server") from None
        _require_open(happenings[0] if happenings else None)
        return cls(dial, session, early=happenings[1:])

    async def send(self, packet: bytes, attachments: Sequence[bytes] = ()) -> None:
        self.write(packet, attachments)

    def write(self, packet: bytes, attachments: Sequence[bytes] = ()) -> None:
        if self.session.is_closed:
            raise ConnectionResetError
        self.session.send(packet, attachments)
        self._is_queued.set()

    async def flush(self) -> None:
        self._is_queued.set()

    async def run(self, take: Take) -> None:
        for happening in self._early:
            take(happening)
        tasks = [asyncio.create_task(self._read(take)), asyncio.create_task(self._write())]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                await task
        finally:
            await cancel_and_wait(*tasks)

    async def _read(self, take: Take) -> None:
        while not self.session.is_closed:
            async with self._dial.http.get(self._url, headers=self._dial.headers, timeout=_POLL) as answer:
                await _require_ok(answer)
                body = await _read(answer, _LARGEST)
            for happening in self.session.receive_payload(body, _now()):
                take(happening)
            if self.session.queued:
                self._is_queued.set()

    async def _write(self) -> None:
        while True:
            await self._is_queued.wait()
            self._is_queued.clear()
            await self._post()

    async def _post(self) -> None:
        while packets := self.session.take(POLLING):
            body = BytesIO(encode_payload(packets))  # aiohttp warns of large bytes
            headers = {**self._dial.headers, "Content-Type": "text/plain;charset=UTF-8"}
            async with self._dial.http.post(self._url, data=body, headers=headers, timeout=_POST) as answer:
                await _require_ok(answer)

    async def close(self) -> None:
        """Post the packets that the session has queued. To be called when `run` has ended."""
        await self._post()


Transport: TypeAlias = Websocket | Polling


async def open_transport(dial: Dial) -> Transport:
    """Dial by websocket, else by polling. Raises `NotOpened` and the errors of aiohttp."""
    websocket = asyncio.create_task(Websocket.open(dial))
    polling: asyncio.Task[Polling] | None = None
    taken: Transport | None = None
    try:
        await asyncio.wait([websocket], timeout=_HEAD_START)
        if websocket.done() and (websocket.exception() is None or isinstance(websocket.exception(), _UNREACHABLE)):
            taken = websocket.result()
        else:
            polling = asyncio.create_task(Polling.open(dial))
            taken = await _first_open(websocket, polling)
        return taken
    finally:
        if losers := [task for task in (websocket, polling) if task and not task.done()]:
            for task in losers:
                task.cancel()
            await asyncio.wait(losers)
        if not websocket.cancelled() and not websocket.exception() and websocket.result() is not taken:
            await websocket.result().abort()


async def _first_open(websocket: asyncio.Task[Websocket], polling: asyncio.Task[Polling]) -> Transport:
    racing: set[asyncio.Task[Any]] = {websocket, polling}
    while racing:
        ended, racing = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
        if opened := [task for task in (websocket, polling) if task in ended and task.exception() is None]:
            return opened[0].result()
    return polling.result()


async def _require_ok(answer: aiohttp.ClientResponse) -> None:
    if 200 <= answer.status < 300:
        return
    body = None
    with suppress(ValueError, NotOpened):
        body = json.loads(await _read(answer, _LARGEST_REFUSAL))
    reason = f"Unexpected status code {answer.status} in server response"
    raise NotOpened(reason, body if isinstance(body, dict) else None, answer.status)


def _require_open(happening: Happening | None) -> None:
    if not isinstance(happening, Opened):
        raise NotOpened("OPEN packet not returned by server")


async def _read(answer: aiohttp.ClientResponse, most: int) -> bytes:
    found = bytearray()
    async for chunk in answer.content.iter_chunked(_CHUNK):
        found += chunk
        if len(found) > most:
            raise NotOpened(f"more than {most} bytes in one answer")
    return bytes(found)


def _begin(sending: Coroutine[Any, Any, None]) -> None:
    """Run the first step, which hands the frame to the socket. A second one would only wait."""
    try:
        sending.send(None)
    except StopIteration:
        return
    sending.close()


def _now() -> float:
    return asyncio.get_running_loop().time()
