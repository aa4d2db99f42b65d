"""Serving the application on sockets, in plain or with TLS, until an orderly end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from a2c_smcp.server.app import SMCPApp
from a2c_smcp.server.auth.authentication import loopback_origins
from a2c_smcp.server.transport.admission import Descriptors
from a2c_smcp.server.transport.listener import HttpListener, TLSServer
from a2c_smcp.server.transport.picows_adapter import check as check_picows

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
