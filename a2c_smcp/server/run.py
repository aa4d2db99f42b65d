"""Serving the application on a socket: uvicorn, set up for long-lived connections and an orderly end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from a2c_smcp.server import web
from a2c_smcp.server.app import SMCPApp

__all__ = ["address_of", "listen", "reserve", "serving"]

_DEAD_PEER = 20_000  # milliseconds until the kernel gives up on a peer that takes no data
_CLOSE_TIMEOUT = 2
_BACKLOG = 2048


class _Uvicorn(uvicorn.Server):
    """Signals belong to whoever runs the event loop. What comes in by the side door speaks no TLS.

    Of a TLS peer that says nothing uvicorn would wait for a minute, so it is not asked to listen.
    """

    def __init__(self, config: uvicorn.Config, patience: float, side_door: socket.socket | None) -> None:
        super().__init__(config)
        self._patience = patience
        self._side_door = side_door

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        tls = {"ssl": self.config.ssl, "ssl_handshake_timeout": self._patience} if self.config.ssl else {}
        for front in sockets or ():
            await self._listen(front, **tls)
        if self._side_door:
            await self._listen(self._side_door)

    async def _listen(self, listener: socket.socket, **tls: Any) -> None:
        create = asyncio.get_running_loop().create_server
        self.servers.append(await create(self._protocol, sock=listener, backlog=_BACKLOG, **tls))

    def close_front(self) -> None:
        """Accepts no more. By the side door other nodes still bring what belongs to sessions here."""
        for accepting in self.servers[:-1] if self._side_door else self.servers:
            accepting.close()

    def _protocol(self) -> asyncio.Protocol:
        create: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = create(self.config, self.server_state, self.lifespan.state)
        return protocol

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A socket that accepts connections; with `reuse_port`, beside others of this user. Raises `OSError`."""
    listener = reserve(host, port, reuse_port=reuse_port)
    try:
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def reserve(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """A socket that holds a port and accepts nothing; with `reuse_port`, others of this user may listen there."""
    *kind, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    holder = socket.socket(*kind)  # with its protocol: asyncio sets TCP_NODELAY only where it sees that it is TCP
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
    """`HOST:PORT` as it stands in a URL."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@asynccontextmanager
async def serving(
    app: SMCPApp,
    listener: socket.socket,
    *,
    side_door: socket.socket | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> AsyncIterator[None]:
    """Serves until the block ends, then stops accepting, lets calls finish, and closes every connection.

    The `side_door` is a second listener, for other nodes, without TLS.
    """
    config = uvicorn.Config(
        app,
        http=web.http_protocol(app.settings.limits.handshake_timeout),
        ws=asyncio.Protocol,  # that upgrades are wanted: our HTTP protocol hands them over itself
        ws_max_size=app.settings.limits.max_transport,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSE_TIMEOUT,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    await app.start()
    server = _Uvicorn(config, app.settings.limits.handshake_timeout, side_door)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not task.done():  # noqa: ASYNC110, uvicorn offers nothing to wait for
            await asyncio.sleep(0.01)
        if task.done():
            task.result()
        yield
        if side_door or not app.is_shared:  # else there is no other door for other nodes: newcomers are refused
            server.close_front()
        await app.drain()
    finally:
        server.should_exit = True
        await task
