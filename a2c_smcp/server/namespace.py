"""The same Server on a user's own python-socketio `AsyncServer`: an adapter between the library and the hub.

This is the only module that imports `socketio` (extra `socketio`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import socketio

from a2c_smcp.engine.events import Ack, Event, Fault, Faulty
from a2c_smcp.engine.packets import ACK, BINARY_ACK, Json, attach, detach, read_packet
from a2c_smcp.errors import BadRequest, NotAuthenticated, SMCPError
from a2c_smcp.protocol.codec import dumps, loads_exactly
from a2c_smcp.protocol.results import error_ack
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Handshake
from a2c_smcp.server.cluster.memory import Directory
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.hub import Hub
from a2c_smcp.server.settings import Limits
from a2c_smcp.smcp import SMCP_NAMESPACE
from a2c_smcp.telemetry.metrics import Metrics

_CLEAN = "client disconnect"
_SMCP = SMCP_NAMESPACE.encode()


class SMCPNamespace(socketio.AsyncNamespace):  # type: ignore[misc]  # untyped base
    """Offices on your own `socketio.AsyncServer`: `sio.register_namespace(SMCPNamespace(auth_provider))`.

    The rules are those of `create_app`, because it is the same hub. The transport is the library's, so these limits do
    not hold here, and `create_app` is the better choice if you can use it:

    - The size of what clients send is limited by your `AsyncServer` alone (`max_http_buffer_size`, which ends the whole
      connection), before and after authentication. A packet that the library cannot read is not answered.
    - Packets that a client has not read yet are not limited: a slow reader makes the process grow.
    - The ack of a join may arrive after notices and calls that it caused.
    - Payloads are decoded and encoded again on their way, at several times the cost; numbers beyond the library's JSON
      change as they do there.
    - No device can be proved here: a key that is bound to one is refused.
    - An ack that a client never sends stays in the library's memory until the client disconnects.
    """

    def __init__(
        self,
        auth_provider: AuthenticationProvider,
        *,
        directory: Directory | None = None,
        limits: Limits | None = None,
        require_version: str | None = None,
        legacy_notices: bool = False,
        metrics: Metrics | None = None,
        namespace: str = SMCP_NAMESPACE,
    ) -> None:
        super().__init__(namespace)
        self.hub = Hub(
            auth_provider,
            directory=directory,
            limits=limits,
            require_version=require_version,
            legacy_notices=legacy_notices,
            metrics=metrics,
        )
        self._channels: dict[str, _NamespaceChannel] = {}

    async def trigger_event(self, event: str, sid: str, *args: Any) -> Any:
        """The library calls this for every event. A client may send one named `connect`: only the library's counts."""
        if event == "connect" and self.server.manager.is_pre_connected(sid, self.namespace):
            return await self._connect(sid, *args)
        if event == "disconnect" and not self.server.manager.is_connected(sid, self.namespace):
            return self._disconnect(sid, *args)
        channel = self._channels.get(sid)
        return error_ack(None, NotAuthenticated()) if channel is None else await channel.ask(event, args)

    async def reload(self) -> None:
        """Reads the credentials again, and disconnects clients that they no longer admit."""
        self.hub.reload()

    async def drain(self) -> None:
        """Takes no new connections and calls, and returns when no call is in flight any more."""
        await self.hub.drain()

    async def close(self) -> None:
        """Ends everything that runs for this namespace."""
        await self.hub.close()

    async def _connect(self, sid: str, environ: dict[str, Any], auth: object = None) -> None:
        channel = _NamespaceChannel(self.hub, self, sid)
        client = environ.get("asgi.scope", {}).get("client")  # behind a proxy, the proxy
        address, query = client[0] if client else None, environ.get("QUERY_STRING", "")
        handshake = Handshake(_headers_in(environ), query, address, sio=self.server, own=environ)
        try:
            channel.connection = await self.hub.connect(channel, handshake, _as_json(auth), sid=sid)
        except SMCPError as error:
            raise socketio.exceptions.ConnectionRefusedError(error.message, error.to_refusal()) from None
        self._channels[sid] = channel

    def _disconnect(self, sid: str, reason: Any = None) -> None:
        """End a connection, cleanly only by a Socket.IO disconnect: clients close Engine.IO also on network faults."""
        channel = self._channels.pop(sid, None)
        if channel and channel.connection:
            socket = self.server.eio.sockets.get(self.server.manager.eio_sid_from_sid(sid, self.namespace))
            is_clean = reason == _CLEAN and socket is not None and not socket.closing
            self.hub.disconnected(channel.connection, is_clean=is_clean, reason=reason)
            channel.end()


class _Event(NamedTuple):
    """An event to a client, and the number under which the hub awaits its ack."""

    name: str
    data: object
    number: int | None


class _AnsweredEvent(NamedTuple):
    """The ack of an event: the library sends it once the future is done."""

    future: asyncio.Future[object]
    arguments: tuple[object, ...]


class _NamespaceChannel:
    """The channel of one client: emits what the hub sends, in order, and gives acks to the library or to the hub.

    The library starts a task for an event, and handles an ack at once. Both orders are restored here: an ack that comes
    is given to the hub after events that came before it, and one that is sent waits behind events that are emitted.
    """

    def __init__(self, hub: Hub, namespace: SMCPNamespace, sid: str) -> None:
        self.connection: Connection | None = None
        self._hub = hub
        self._namespace = namespace
        self._sid = sid
        self._number = 0
        self._asked: dict[int, asyncio.Future[object]] = {}
        self._outgoing: deque[_Event | _AnsweredEvent | None] = deque()
        self._is_emitting = False

    async def ask(self, event: str, args: Sequence[object]) -> object:
        """Gives an event to the hub, and waits for its ack. Returns the arguments of the ack as a tuple."""
        assert self.connection
        self._number += 1
        number, answered = self._number, asyncio.get_running_loop().create_future()
        self._asked[number] = answered
        try:
            arguments, attachments = detach([event, *args])
            came: Event | Faulty = Event(_SMCP, number, dumps(arguments).encode(), tuple(attachments))
        except BadRequest as error:
            came = Faulty(_SMCP, number, False, dumps(event).encode(), Fault.MALFORMED, error.message)
        self._hub.receive(self.connection, came)
        return await answered

    def end(self) -> None:
        """Sends no acks any more: another session on the same transport would take them as its own."""
        sent = [waiting.future for waiting in self._outgoing if isinstance(waiting, _AnsweredEvent)]
        for answered in (*self._asked.values(), *sent):
            if not answered.done():
                answered.set_result(self._namespace.server.not_handled)
        self._asked.clear()
        self._outgoing.clear()

    # For the hub

    def send(self, *parts: Json) -> None:
        self.send_attached(b"".join(parts), ())

    def send_all(self, packets: Sequence[bytes]) -> None:
        for packet in packets:
            self.send_attached(packet, ())

    def send_attached(self, packet: bytes, attachments: Sequence[bytes]) -> None:
        kind, _, number, _, body = read_packet(packet)
        arguments = attach(loads_exactly(str(body, "utf-8")), attachments)
        if kind in (ACK, BINARY_ACK):
            if answered := self._asked.pop(number or 0, None):
                ack = _AnsweredEvent(answered, tuple(arguments))
                if self._is_emitting:
                    self._outgoing.append(ack)
                else:
                    _resolve(ack)
        else:
            self._put(_Event(arguments[0], arguments[1], number))

    def check_room(self, size: int) -> None:
        """There is always room: unread packets are in the library's queue."""

    def dismiss(self) -> None:
        self._put(None)

    abort = dismiss

    def _put(self, packet: _Event | None) -> None:
        self._outgoing.append(packet)
        if not self._is_emitting:
            self._is_emitting = True
            self._hub.background.spawn(self._emit_all())

    async def _emit_all(self) -> None:
        try:
            while self._outgoing:
                await self._emit(self._outgoing.popleft())
        finally:
            self._is_emitting = False

    async def _emit(self, packet: _Event | _AnsweredEvent | None) -> None:
        if packet is None:
            await self._namespace.disconnect(self._sid)
            return
        if isinstance(packet, _AnsweredEvent):
            _resolve(packet)
            return
        event, data, number = packet
        callback = None
        if number is not None:

            def callback(*answer: object) -> None:
                assert self.connection
                try:
                    arguments, attachments = detach(list(answer))
                    ack: Ack | Faulty = Ack(_SMCP, number, dumps(arguments).encode(), tuple(attachments))
                except BadRequest as error:
                    ack = Faulty(_SMCP, number, True, b"", Fault.MALFORMED, error.message)
                asyncio.get_running_loop().call_soon(self._hub.acked, self.connection, ack)

        await self._namespace.emit(event, data, to=self._sid, callback=callback)


def _resolve(ack: _AnsweredEvent) -> None:
    if not ack.future.done():
        ack.future.set_result(ack.arguments)


def _as_json(auth: object) -> bytes:
    try:
        return dumps(auth).encode() if auth is not None else b""
    except BadRequest:
        return b""


def _headers_in(environ: Mapping[str, Any]) -> dict[str, str]:
    """The headers of the request under lower-case names. Outside of ASGI the library does not tell `_` from `-`."""
    if scope := environ.get("asgi.scope"):
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    headers = {name.removeprefix("HTTP_").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    return headers | {name.replace("_", "-"): value for name, value in headers.items()}
