"""One serving process: a Server alone, a node among others, or a worker that shares its port with other workers.

A parent (`workers.py`) gives a worker its settings in an environment variable, which other users cannot read as they
could read arguments, and one end of a socket pair. The worker writes to it when it serves, and ends when the other end
is closed: that happens when the parent has died, in whatever way.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import typer

from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.serving.mcp import MCPOptions, mcp_url, mount_offices
from a2c_smcp.cli.serving.operators import OperatorOptions, mount_console
from a2c_smcp.cli.serving.stores import directory_at, is_on_this_machine, usable
from a2c_smcp.http.loopback import is_loopback
from a2c_smcp.loops import on_hangup, stop_on_signals
from a2c_smcp.server.app import SMCPApp, create_app
from a2c_smcp.server.run import address_of, listen, serving
from a2c_smcp.server.settings import Settings, Workers

__all__ = [
    "ListenAddress",
    "NodeIdentity",
    "ParentSocket",
    "WorkerSettings",
    "announce",
    "cannot_listen",
    "check_node_url",
    "check_spelling",
    "is_ready",
    "serve",
    "serve_as_worker",
]

logger = logging.getLogger(__name__)

_NOT_ENCRYPTED = (
    "nothing is encrypted: %s can be reached from other machines, and keys, calls and results travel in plain "
    "(--tls-cert and --tls-key change that, or a proxy with TLS in front)"
)
_M_MMAP_THRESHOLD = -3  # as malloc.h has it
_LARGE_BLOCK = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Where clients connect."""

    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """A node, and the store that it shares with others. `url`: where other nodes reach it; default: as clients do."""

    redis: str
    node: str
    url: str | None = None


async def serve(
    settings: Settings,
    address: ListenAddress,
    identity: NodeIdentity | None,
    mcp: MCPOptions | None = None,
    operators: OperatorOptions = OperatorOptions(),  # noqa: B008  # frozen
) -> None:
    """Serve until a signal. Raises `Failed` or `WrongUse`."""
    listener = _listener(address.host, address.port)
    place = f"{address.scheme}://{address_of(listener)}"
    known = replace(identity, url=identity.url or place) if identity else None
    who = f" as node {identity.node}" if identity else ""
    app = _app(settings, known)
    own_listener = mount_offices(app, place, mcp) if mcp else None
    console = mount_console(app, operators) if operators.has_console else None

    def on_ready() -> None:
        announce(settings, address, place, who)
        if mcp:
            _print(f"mcp at {mcp_url(place)}", event="mcp", url=mcp_url(place))
        if console:
            pages = console(place)
            _print(f"console at {pages}", event="console", url=pages)

    await _serve(app, address, listener, known, on_ready, own_listener=own_listener)


async def serve_as_worker(
    settings: Settings, address: ListenAddress, worker: WorkerSettings, operators: OperatorOptions
) -> None:
    """Serve as a worker, on the port that all workers share. The parent prints where, not the worker."""
    parent = ParentSocket(worker.parent_socket)
    parent.stop_when_closed()
    listener = _listener(address.host, worker.port, is_shared=True)
    node_listener = _listener(worker.node_host, worker.node_port, remedy=_FREE_PORTS)
    identity = NodeIdentity(redis=worker.redis, node=worker.node, url=f"http://{address_of(node_listener)}")
    audit = _own_file(settings.audit, worker.number)
    app = _app(replace(settings, workers=worker.workers, audit=audit), identity)
    if operators.has_console:
        mount_console(app, operators)
    await _serve(app, address, listener, identity, parent.send_ready, node_listener)


def _own_file(audit: Path | None, number: int) -> Path | None:
    """The audit file of one worker: `audit-2.jsonl` for the second, if that of all is `audit.jsonl`."""
    return audit and audit.with_name(f"{audit.stem}-{number}{audit.suffix}")


def announce(settings: Settings, address: ListenAddress, place: str, node: str = "") -> None:
    """Print where it listens, as JSON if logs are. Warn if there is no authentication, or no encryption."""
    if settings.auth is None:
        who = "every user of this machine" if is_loopback(address.host) else "EVERYONE WHO CAN REACH IT"
        logger.warning("no authentication: %s may connect (--api-key changes that)", who)
    if not (address.tls_cert or is_loopback(address.host)):
        logger.warning(_NOT_ENCRYPTED, address.host)
    parts = urlsplit(place)
    _print(f"listening on {place}{node}", event="listening", url=place, host=parts.hostname, port=parts.port)


def _print(words: str, **facts: object) -> None:
    typer.echo(logs.as_json_line(logger, logging.INFO, words, **facts) or words)
    sys.stdout.flush()


def _app(settings: Settings, identity: NodeIdentity | None) -> SMCPApp:
    directory = directory_at(identity.redis, identity.node, identity.url or "") if identity else None
    return create_app(replace(settings, directory=directory))


async def _serve(
    app: SMCPApp,
    address: ListenAddress,
    listener: socket.socket,
    identity: NodeIdentity | None,
    on_ready: Callable[[], None],
    node_listener: socket.socket | None = None,
    own_listener: socket.socket | None = None,
) -> None:
    _collect_rarely()
    _return_large_blocks()
    stop = stop_on_signals()
    if identity:
        with usable(identity.redis):
            await app.start()
    on_hangup(app.hub.reload)
    more = {"node_listener": node_listener, "own_listener": own_listener}
    async with serving(app, listener, **more, tls_cert=address.tls_cert, tls_key=address.tls_key):
        on_ready()
        await stop.wait()
        logger.info("stopping: calls in flight may finish (again to stop at once)")


def check_node_url(url: str | None, address: ListenAddress, redis: str) -> None:
    """Raises `WrongUse` if other nodes could not reach this one."""
    if url is not None:
        check_spelling(url)
    elif _is_everywhere(address.host):
        raise WrongUse(f"{address.host} is no address at which other nodes could reach this one", _GIVE_URL)
    elif is_loopback(address.host) and not is_on_this_machine(redis):
        raise WrongUse(f"Nodes on other machines cannot reach this one at {address.host}", _GIVE_URL)
    elif address.tls_cert:
        what = "Other nodes check the certificate of this one, which is for a name"
        raise WrongUse(what, "Give the name with --node-url, such as https://north.example:7000.")


def cannot_listen(host: str, port: int, error: OSError, remedy: str = "") -> Failed:
    is_foreign = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
    usual = "Give --host an address of this machine." if is_foreign else "Choose another --port, or 0 for a free one."
    return Failed(f"Cannot listen on {host}:{port}: {error.strerror}", remedy or usual)


_FREE_PORTS = "Give --node-url an address of this machine, and a port from which on enough are free."
_GIVE_URL = "Say where they do with --node-url, such as http://10.0.0.5:7000."


def check_spelling(url: str) -> None:
    """Raises `WrongUse` for a --node-url that is no URL of a node."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise WrongUse(f"--node-url: {url!r} is no address", "Write http://HOST:PORT or https://HOST:PORT.")


def _is_everywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def _listener(host: str, port: int, *, is_shared: bool = False, remedy: str = "") -> socket.socket:
    try:
        return listen(host, port, reuse_port=is_shared)
    except OSError as error:
        raise cannot_listen(host, port, error, remedy) from None


def _collect_rarely() -> None:
    """Let the garbage collector run rarely: reference counts free nearly everything that a Server makes."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _return_large_blocks() -> None:
    """Return the memory of large messages to the system at once; by default glibc would keep it, fragmented."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


_VARIABLE = "A2C_WORKER"
_READY = b"ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a parent gives a worker: its name, who the others are, the shared store and port, and where nodes reach it.

    `number` is the worker's place among the others, from 1 on: all processes of a worker have the same one.
    `parent_socket` is the descriptor of its end of the socket pair.
    """

    node: str
    number: int
    workers: Workers
    redis: str
    port: int
    node_host: str
    node_port: int
    parent_socket: int = -1

    @classmethod
    def from_environment(cls) -> WorkerSettings | None:
        """The settings of this process, if it is a worker. Processes that it starts do not inherit them."""
        given = os.environ.pop(_VARIABLE, None)
        if not given:
            return None
        facts = json.loads(given)
        return cls(**facts | {"workers": Workers(**facts["workers"])})

    def environment(self) -> Mapping[str, str]:
        """The environment of a worker: that of its parent, and these settings."""
        return {**os.environ, _VARIABLE: json.dumps(asdict(self))}


class ParentSocket:
    """The worker's end of the socket pair."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)

    def stop_when_closed(self) -> None:
        """Send SIGTERM to this process when the parent has ended."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.remove_reader(self._socket)
            os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(self._socket, stop)

    def send_ready(self) -> None:
        self._socket.send(_READY)


async def is_ready(worker: socket.socket) -> bool:
    """Wait, in the parent, until the worker serves; `False` if it ended before."""
    worker.setblocking(False)
    return await asyncio.get_running_loop().sock_recv(worker, len(_READY)) == _READY
