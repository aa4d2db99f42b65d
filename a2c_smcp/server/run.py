"""Serving the application on a socket: uvicorn, set up for long-lived connections and an orderly end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn

from a2c_smcp.server import web
from a2c_smcp.server.app import SMCPApp

__all__ = ["address_of", "listen", "serving"]

_DEAD_PEER = 20_000  # milliseconds until the kernel gives up on a peer that takes no data
_CLOSE_TIMEOUT = 2


class _Uvicorn(uvicorn.Server):
    """Signals belong to whoever runs the event loop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections. Raises `OSError`."""
    *kind, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(*kind)  # with its protocol: asyncio sets TCP_NODELAY only where it sees that it is TCP
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER)
        listener.bind(address)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """`HOST:PORT` as it stands in a URL."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@asynccontextmanager
async def serving(
    app: SMCPApp, listener: socket.socket, *, tls_cert: Path | None = None, tls_key: Path | None = None
) -> AsyncIterator[None]:
    """Serves until the block ends, then stops accepting, lets calls finish, and closes every connection."""
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
    server = _Uvicorn(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not task.done():  # noqa: ASYNC110, uvicorn offers nothing to wait for
            await asyncio.sleep(0.01)
        if task.done():
            task.result()
        yield
        for accepting in server.servers:
            accepting.close()
        await app.drain()
    finally:
        server.should_exit = True
        await task
