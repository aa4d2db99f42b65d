"""Listeners of the program's own web server: the connections that were accepted, in plain or with TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from a2c_smcp.loops import OwnedTasks
from a2c_smcp.server.cluster.proxy import ProxiedRequest, tunnel
from a2c_smcp.server.settings import Limits, Network
from a2c_smcp.server.transport.admission import ArrivingBytes, Descriptors, Newcomers, is_in
from a2c_smcp.server.transport.exchange import ResponseStream
from a2c_smcp.server.transport.http import HttpConnection
from a2c_smcp.server.transport.session_channel import Application, SocketOwner
from a2c_smcp.server.transport.websocket import Turns, WebSocket

_MAX_FRAME_HELD = 48 * 1024  # picows' buffer, which doubles, stays below 64 KiB with it
_AFTER_AN_END = 0.5  # seconds for an application to hear that its client is gone
_AFTER_A_FAILURE = 0.1  # such as too many open files


class HttpListener:
    """All connections that have not become websockets, tunnels to other nodes, and responses that are streamed."""

    def __init__(
        self,
        app: Application,
        limits: Limits,
        proxies: Sequence[Network],
        before_writes: Callable[[], None] | None = None,
        descriptors: Descriptors | None = None,
    ) -> None:
        self.app = app
        self.descriptors = descriptors or Descriptors(lambda: None)
        most = self.descriptors.reserve // 2  # the others are for files, and for connections to other nodes
        self._reserved = Newcomers(most, most)
        self.limits = limits
        self.newcomers = Newcomers(limits.newcomers_per_address, limits.newcomers)
        self.arriving = ArrivingBytes(limits.arriving_bytes)
        self._proxies = proxies
        self._connections: set[HttpConnection] = set()
        self._tunnels: set[asyncio.Task[None]] = set()
        self._streams = OwnedTasks()
        self.before_writes = before_writes or (lambda: None)
        self._turns = Turns(before_writes)

    def protocol(self) -> HttpConnection:
        """Makes the protocol of a connection that was accepted."""
        return HttpConnection(self)

    def opened(self, http: HttpConnection, transport: asyncio.Transport) -> None:
        self._connections.add(http)
        address = self.counted(transport.get_extra_info("peername"))
        self.newcomers.add(transport, address)
        if self.descriptors.is_reserved(transport.get_extra_info("socket").fileno()):
            http.is_reserved = True
            self._reserved.add(transport, address)

    def counted(self, peer: object) -> str:
        """The address under which a peer counts; empty for a proxy of ours, which does not count."""
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        return "" if is_in(host, self._proxies) else host

    def closed(self, http: HttpConnection, transport: asyncio.Transport) -> None:
        self._connections.discard(http)
        self.newcomers.discard(transport)
        self._reserved.discard(transport)

    def start_websocket(
        self, http: HttpConnection, transport: asyncio.Transport, owner: SocketOwner, key: str, ahead: bytes
    ) -> None:
        self.closed(http, transport)
        if transport.is_closing():
            owner.detach()
            return
        socket = WebSocket(transport, owner, self._turns)
        socket.start(key, max_size=self.limits.max_transport, most_held=_MAX_FRAME_HELD)
        owner.attach(socket)
        socket.listen(ahead)

    async def carry(
        self, http: HttpConnection, transport: asyncio.Transport, proxied: ProxiedRequest, ahead: bytes
    ) -> None:
        there = await proxied.dial()
        self.closed(http, transport)
        task = asyncio.current_task()
        assert task
        self._tunnels.add(task)
        try:
            await tunnel(transport, there, proxied.upgrade_request() + ahead)
        finally:
            self._tunnels.discard(task)

    def run_stream(self, stream: ResponseStream) -> None:
        self._streams.spawn(stream.run())

    def end_late(self, now: float) -> None:
        """Ends connections whose deadline has passed."""
        for http in [http for http in self._connections if http.deadline < now]:
            http.is_late()

    async def close(self, patience: float) -> None:
        """Ends every connection. Requests that are being answered have a moment (`patience`)."""
        for http in list(self._connections):
            http.shut()
        for task in list(self._tunnels):
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._connections or self._tunnels:  # noqa: ASYNC110, a handful of turns, once
                    await asyncio.sleep(0.01)
        for http in list(self._connections):
            http.abort()
        await asyncio.sleep(0)
        await self._streams.finish(_AFTER_AN_END)
        await self._streams.close()


class TLSServer:
    """Accepts connections with TLS until it is closed.

    Event loops accept and shake hands by themselves, but report a peer only after its handshake. Here a peer counts as
    a newcomer from the moment it is accepted: one that does not begin its handshake is limited like any other.
    """

    def __init__(self, listener: HttpListener, accepting: socket.socket, context: ssl.SSLContext) -> None:
        self._listener = listener
        self._socket = accepting
        self._context = context
        self._handshakes: set[_Handshake] = set()
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        self._accepting.cancel()
        self._socket.close()
        for handshake in list(self._handshakes):
            handshake.abort()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, address = await loop.sock_accept(self._socket)
            except OSError as error:
                self._listener.descriptors.run_out(error.strerror or str(error))
                await asyncio.sleep(_AFTER_A_FAILURE)
                continue
            handshake = _Handshake(asyncio.create_task(self._shake_hands(peer)))
            self._handshakes.add(handshake)
            self._listener.newcomers.add(handshake, self._listener.counted(address))
            handshake.task.add_done_callback(partial(self._is_over, handshake))

    async def _shake_hands(self, peer: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._listener.protocol,
                peer,
                ssl=self._context,
                ssl_handshake_timeout=self._listener.limits.handshake_timeout,
            )
        except (OSError, asyncio.CancelledError):
            peer.close()

    def _is_over(self, handshake: _Handshake, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(handshake)
        self._listener.newcomers.discard(handshake)


class _Handshake:
    """A handshake under way, as a newcomer that can be ended."""

    __slots__ = ("task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task

    def abort(self) -> None:
        self.task.cancel()
