"""Serving the application on sockets, in plain or with TLS, until an orderly end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from a2c_smcp.loops import OwnedTasks
from a2c_smcp.server.app import SMCPApp
from a2c_smcp.server.auth.authentication import loopback_origins
from a2c_smcp.server.cluster.proxy import ProxiedRequest, tunnel
from a2c_smcp.server.settings import Limits, Network
from a2c_smcp.server.transport.admission import ArrivingBytes, Descriptors, Newcomers, is_in
from a2c_smcp.server.transport.exchange import ResponseStream
from a2c_smcp.server.transport.http import HttpConnection
from a2c_smcp.server.transport.picows_adapter import check as check_picows
from a2c_smcp.server.transport.session_channel import Application, SocketOwner
from a2c_smcp.server.transport.websocket import Turns, WebSocket

# Listeners of the program's own web server: the connections that were accepted, in plain or with TLS.

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


_DEAD_PEER = 20_000  # milliseconds until the kernel ends the connection of a peer that takes no data
_CLOSE_TIMEOUT = 2
_BACKLOG = 2048
_OWN_PORT = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
"""The option of a socket with a port of its own. On Windows, SO_REUSEADDR shares the port with any other program."""


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A socket that accepts connections. With `reuse_port`, other processes of this user may listen there as well.

    Raises `OSError`.
    """
    listener = reserve(host, port, reuse_port=reuse_port)
    try:
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def reserve(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """A socket that holds a port and does not accept; with `reuse_port`, other processes of this user may listen there.

    Raises `OSError`.
    """
    *kind, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    holder = socket.socket(*kind)  # with its protocol: asyncio sets TCP_NODELAY only where it sees that it is TCP
    try:
        holder.setsockopt(socket.SOL_SOCKET, _OWN_PORT, 1)
        if reuse_port:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            holder.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER)
        holder.bind(address)
    except OSError:
        holder.close()
        raise
    return holder


def address_of(listener: socket.socket) -> str:
    """`HOST:PORT` as a URL has it."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@asynccontextmanager
async def serving(
    app: SMCPApp,
    listener: socket.socket,
    *,
    node_listener: socket.socket | None = None,
    own_listener: socket.socket | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> AsyncIterator[None]:
    """Serves until the block ends, then stops accepting, lets calls finish, and closes every connection.

    `node_listener` is a second socket, for other nodes, and `own_listener` one for mounted applications that are
    clients themselves; both have no TLS. Raises `ConfigError` or `Unavailable`.
    """
    check_picows()
    await app.start()
    if not app.settings.origins:
        scheme, port = "https" if tls_cert else "http", listener.getsockname()[1]
        app.hub.admission.bound_keys.origins = loopback_origins(scheme, port)
    limits, proxies = app.settings.limits, app.settings.trusted_proxies
    before_writes = app.gather_audit()
    descriptors = Descriptors(partial(app.metrics.count, "a2c_descriptors_short_total"))
    listeners = [HttpListener(app, limits, proxies, before_writes, descriptors)]
    servers = [await _open(listeners[0], listener, _tls(tls_cert, tls_key))]
    for inner in filter(None, (node_listener, own_listener)):  # many clients come there from few addresses
        many = replace(limits, newcomers_per_address=limits.newcomers)
        listeners.append(HttpListener(app, many, proxies, before_writes, descriptors))
        servers.append(await _open(listeners[-1], inner, None))
    for table in listeners:
        app.sessions.start(table.end_late)
    try:
        yield
        if node_listener or not app.is_shared:  # else other nodes come here too: new clients are refused
            servers[0].close()
        await app.drain()
    finally:
        for server in servers:
            server.close()
        await app.end_calls()
        await app.end_mounts()
        await app.sessions.close()
        await asyncio.gather(*(table.close(_CLOSE_TIMEOUT) for table in listeners))
        await app.close()


async def _open(
    listener: HttpListener, accepting: socket.socket, tls: ssl.SSLContext | None
) -> asyncio.AbstractServer | TLSServer:
    if tls:
        return TLSServer(listener, accepting, tls)
    return await asyncio.get_running_loop().create_server(listener.protocol, sock=accepting, backlog=_BACKLOG)


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if not (cert and key):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context
