"""One bridge of a principal in an office, for all its stdio bridges on this machine: the first holds it for the others.

An *identity* is a digest of the Server's URL, the key, the office, the name and how the Server is reached. The holder
has a lock on the file of its identity, which names its socket (`HolderFile`). The first half of the digest is the name
of the file; the second half, which is on no disk, is what a newcomer shows at the socket. Each connection is one more
session of the holder's `Bridge`. All processes take the same way (`SharedBridge.link`): take the lock, else connect.

A Server that serves the office to MCP clients itself comes before all that (`ServerWay`): it is asked before each dial,
so no bridge takes the office from the clients that have its URL.

When a holder ends, its lock ends with it, and all others come here again: one of them gets the lock. What a killed
holder has left means nothing without the lock, and is removed by the next one. A holder that shows no life for
`_PATIENCE` loses its file to a new one of the same name. It notices that as soon as it goes on, and comes here like all
others; until then its seat at the Server may keep its successor out. Before each dial, a holder takes the file of the
key that it dials with. So another key never gets in, and bridges whose key was replaced find each other again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import struct
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import Any, NamedTuple, Protocol, cast

import anyio
import msgspec
from mcp import stdio_server

from a2c_smcp.agent import AgentAuthProvider, AsyncSMCPAgentClient
from a2c_smcp.bridge.bridge import Bridge
from a2c_smcp.bridge.catalog import CatalogOptions
from a2c_smcp.bridge.office import BridgeOptions
from a2c_smcp.bridge.serving.moving_session import Link, MovingSession
from a2c_smcp.bridge.serving.through_server import ServerWay
from a2c_smcp.endpoint import Credentials
from a2c_smcp.errors import ConfigError, SMCPError, Unavailable
from a2c_smcp.files import Stamp, lock, stamp
from a2c_smcp.loops import OwnedTasks, cancel_and_wait

logger = logging.getLogger(__name__)

# The transport: lines of text between processes of one user, by a Unix socket in a folder of this user alone.
#
# Nothing below this section knows which transport it is. A system without Unix sockets in asyncio needs another one
# here that shows which user is at the other end, which a port of this machine does not.

IS_SUPPORTED = hasattr(socket, "AF_UNIX") and hasattr(asyncio, "open_unix_connection")

_LONGEST = 1 << 30  # bytes of a line: as on stdio, the messages are limited elsewhere
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class Lines:
    """One end of a connection. A blank line is a sign of life. After `close`, nothing arrives and nothing is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience: float | None) -> None:
        self._reader, self._writer, self._patience = reader, writer, patience
        self._is_closed = False
        self.heard = monotonic()
        """When the other end was last alive: its last line, or that it has closed the connection."""

    async def read(self, within: float | None) -> str | None:
        """The next line, also a blank one; `None` at the end, and after so many seconds without one."""
        try:
            async with asyncio.timeout(within):
                line = await self._reader.readline()
        except (OSError, ValueError):  # also a timeout
            return None
        self.heard = monotonic()
        return line.decode("utf-8", "replace") if line.endswith(b"\n") and not self._is_closed else None

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self.read(self._patience)) is not None:
            if line != "\n":
                yield line

    async def write(self, text: str) -> None:
        if not self._is_closed:
            self._writer.write(text.encode())

    async def flush(self) -> None:
        with suppress(OSError):  # the other end is gone, which the reader notices
            await self._writer.drain()

    def show_life(self) -> None:
        if not self._is_closed and not self._writer.transport.get_write_buffer_size():
            self._writer.write(b"\n")

    def close(self) -> None:
        self._is_closed = True
        self._writer.transport.abort()


async def _connect(path: Path, patience: float) -> Lines | None:
    """Connect to a `_door` of this user; `None` if there is none. `patience` limits the silence of the other end."""
    if not _is_private(path.parent):
        return None
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=_LONGEST)
    except OSError:
        return None
    lines = Lines(reader, writer, patience)
    if _is_of_this_user(writer):
        return lines
    lines.close()
    return None


@asynccontextmanager
async def _door(serve: Callable[[Lines], Coroutine[Any, Any, None]]) -> AsyncGenerator[Path, None]:
    """Serve each connection of this user in a task of its own. Raises `OSError`."""
    path, tasks = Path(mkdtemp(prefix="a2c-bridge-")) / "bridge", OwnedTasks()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if _is_of_this_user(writer):
            tasks.spawn(serve(Lines(reader, writer, None)))
        else:
            writer.transport.abort()

    try:
        server = await asyncio.start_unix_server(accept, path, limit=_LONGEST)
        path.chmod(0o600)
        try:
            yield path
        finally:
            server.close()
            await tasks.close()
    finally:
        _discard(path)


def _discard(path: Path) -> None:
    """Remove a door that nobody serves, and its folder; nothing that is of others or holds anything else."""
    with suppress(OSError):
        if _is_private(path.parent) and stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    with suppress(OSError):
        if _is_private(path.parent):
            path.parent.rmdir()


def _is_private(folder: Path) -> bool:
    """True for a folder of this user that nobody else can enter. Names in /tmp can be taken by others."""
    try:
        known = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(known.st_mode) and known.st_uid == os.geteuid() and not known.st_mode & 0o077


def _is_of_this_user(writer: asyncio.StreamWriter) -> bool:
    """True if the other end runs as this user. Where the system does not say so, the folder alone protects."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    found = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.geteuid())


# Who holds the office, and the way there.

_PATIENCE = 15.0
"""Seconds without a sign of life after which a holder is replaced. It needs less to start."""
_SIGN_OF_LIFE = 3.0
_ADMITTED_WITHIN = 5.0
_PAUSE = 0.05
_REPLACED_AT_MOST = 2
_BACK_WITHIN = 10.0
"""Seconds for which clients wait for a Server that has served them, before they are told that it is gone."""


class _Auth(Protocol):
    """As `AgentAuthProvider`, at once."""

    def credentials(self) -> Credentials: ...


class HolderFile:
    """The file of an identity. The holder has its lock, as long as the file is the one that has the name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """True if this process is the holder now. Raises `OSError`."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        if not lock(descriptor):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        if not self.is_held:  # it was removed or replaced after it had been opened
            self.release()
            return False
        if stale := self.named_socket():
            _discard(stale)
        os.truncate(descriptor, 0)
        return True

    @property
    def is_held(self) -> bool:
        with suppress(OSError):
            return self._descriptor is not None and os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        return False

    def named_socket(self) -> Path | None:
        """The socket of the holder, if it has one yet."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return Path(json.loads(self.path.read_bytes())["socket"])
        return None

    def publish(self, socket: Path) -> None:
        """Write where the holder is."""
        if self._descriptor is not None:
            os.pwrite(self._descriptor, json.dumps({"pid": os.getpid(), "socket": str(socket)}).encode(), 0)

    def replace(self) -> None:
        """Take the name from a holder that shows no life."""
        if socket := self.named_socket():
            _discard(socket)
        self.path.unlink(missing_ok=True)

    def release(self) -> None:
        if self._descriptor is not None:
            if self.is_held:
                self.path.unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def remove_stale(self) -> None:
        """Remove the files of other identities whose holders were killed."""
        for path in self.path.parent.glob(f"*{self.path.suffix}"):
            other = HolderFile(path)
            with suppress(OSError):
                if path != self.path and other.take():
                    other.release()


class _Identity(NamedTuple):
    file: HolderFile
    proof: str


@dataclass(frozen=True)
class _Hello:
    """The first line of a connection: the proof of the identity, and the options of this session."""

    proof: str
    catalog: CatalogOptions
    timeout: float


class SharedBridge:
    """The way of one process to the bridge that serves its client."""

    def __init__(
        self,
        office: str,
        options: BridgeOptions,
        agent: Callable[[AgentAuthProvider], AbstractContextManager[AsyncSMCPAgentClient]],
        auth: _Auth,
        about: Sequence[str] = (),
        folder: Path | None = None,
        server: ServerWay | None = None,
    ) -> None:
        """`agent` makes the agent of a bridge. `about` is the identity beside the key. Alone without a `folder`.

        If the Server serves the office to MCP clients, the client is served by it (`server`).
        """
        self.office, self.options, self.agent, self.auth = office, options, agent, auth
        self.folder = folder if IS_SUPPORTED else None
        self._about = about
        self._server, self._was_served = server, False
        self.refused: SMCPError | None = None
        """The newest answer of the Server, so that the first dial need not ask it again."""
        self._known: Stamp | None = None
        self._alive = monotonic()

    async def serve_stdio(self, stop: asyncio.Event, on_stopped: Callable[[], None]) -> None:
        """Serve one client on standard input and output, until it disconnects.

        If `stop` is set before, everything is ended and `on_stopped` is called: a blocked read of stdin cannot be.
        """
        stopping = asyncio.create_task(stop.wait())
        tasks: list[asyncio.Task[Any]] = [stopping]
        try:
            async with stdio_server() as streams:
                serving = asyncio.create_task(MovingSession(*streams).serve(self.link))
                tasks.append(serving)
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not serving.done():
                    await cancel_and_wait(serving)
                    on_stopped()
                serving.result()
        except* (BrokenPipeError, anyio.BrokenResourceError):
            logger.info("the client reads no more")
        finally:
            await cancel_and_wait(*tasks)
            sys.stdout.flush()  # to standard error, as long as the SDK has its place

    @asynccontextmanager
    async def link(self) -> AsyncGenerator[Link, None]:
        """The next bridge for the client: the Server's, that of a holder, or one that this process opens and holds."""
        if self._server and (credentials := await self._served()):
            async with self._server.link(credentials) as link:
                yield link
            return
        replaced = 0
        while True:
            identity = self._present_identity()
            if identity is None or self._is_taken(identity):
                async with _Holder(self, identity).held() as link:
                    yield link
                return
            if (found := stamp(identity.file.path)) != self._known:
                self._known, self._alive = found, monotonic()
            elif monotonic() - self._alive > _PATIENCE:
                logger.warning("the process that holds this office does not answer: another one takes its place")
                identity.file.replace()
                self._known, replaced = None, replaced + 1
                if replaced == _REPLACED_AT_MOST:
                    self.share_nothing("its lock cannot be had")
            elif lines := await self._admitted(identity):
                async with _streams(lines) as (incoming, outgoing):
                    yield Link(incoming, outgoing)
                self._alive = lines.heard
                return
            await asyncio.sleep(_PAUSE)

    async def _served(self) -> Credentials | None:
        """The credentials with which the Server serves the client, if it does. If it did, it may come back soon."""
        late = monotonic() + (_BACK_WITHIN if self._was_served else 0)
        while True:
            try:
                credentials = self.auth.credentials()
                self._was_served = await self.is_served_with(credentials)
            except SMCPError as error:
                if monotonic() >= late:
                    self._was_served, self.refused = False, error
                    return None
            else:
                return credentials if self._was_served else None
            await asyncio.sleep(_PAUSE)

    async def is_served_with(self, credentials: Credentials) -> bool:
        """True if the Server serves MCP clients itself. Raises `SMCPError` if that is not known now."""
        return self._server is not None and await self._server.is_open(credentials)

    def dialled(self) -> tuple[Credentials, _Identity | None]:
        """The credentials of this moment, and the identity with them. Raises `ConfigError`."""
        credentials = self.auth.credentials()
        if self.folder is None:
            return credentials, None
        digest = sha256("\0".join([*self._about, credentials.token]).encode()).hexdigest()
        return credentials, _Identity(HolderFile(self.folder / f"{digest[:32]}.holder"), digest[32:])

    def share_nothing(self, reason: object) -> None:
        logger.warning("this bridge is for one client only: %s", reason)
        self.folder = None

    def _is_taken(self, identity: _Identity) -> bool:
        try:
            return identity.file.take()
        except OSError as error:
            self.share_nothing(error)
            return True

    def _present_identity(self) -> _Identity | None:
        with suppress(ConfigError):  # the key cannot be read, of which the client is told
            return self.dialled()[1]
        return None

    async def _admitted(self, identity: _Identity) -> Lines | None:
        """A connection to the holder; `None` if it has none now."""
        path = identity.file.named_socket()
        lines = await _connect(path, _PATIENCE) if path else None
        if lines is None:
            return None
        hello = _Hello(identity.proof, self.options.catalog, self.options.timeout)
        await lines.write(f"{msgspec.json.encode(hello).decode()}\n")
        if await lines.read(_ADMITTED_WITHIN) is not None:
            return lines
        lines.close()
        return None


class _Holder:
    """The tenure of a holder. `is_over` when another process has taken its place."""

    def __init__(self, shared: SharedBridge, identity: _Identity | None) -> None:
        self._shared, self._identity = shared, identity
        self.is_over = False
        self._socket: Path | None = None
        self._lines: set[Lines] = set()
        self._own: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[Link, None]:
        """The bridge, for the client of this process and for others. At the end: others first, the lock last."""
        try:
            with self._shared.agent(self) as agent:
                opened = Bridge(agent, self._shared.office, self._shared.options)
                async with opened as bridge, self._open_door(bridge), self._own_session(bridge) as link:
                    yield link
        finally:
            self.is_over = True  # a dial that still runs takes nothing
            self._release()

    async def credentials(self) -> Credentials:
        """Raises `SMCPError` if another process holds what these credentials stand for, or the Server serves itself."""
        credentials, identity = self._shared.dialled()
        refused, self._shared.refused = self._shared.refused, None
        if refused:
            raise refused
        if await self._shared.is_served_with(credentials):
            self._end()
            raise Unavailable("the Server serves MCP clients itself now", outcome="not_run")
        if identity and (self._identity is None or identity.proof != self._identity.proof):
            if self.is_over or not identity.file.take():
                self._end()
                raise Unavailable("another bridge of this machine has the key now", outcome="not_run")
            self._close_all()
            self._release()
            self._identity = identity
            self._publish()
        return credentials

    @asynccontextmanager
    async def _open_door(self, bridge: Bridge) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as stack:
            if self._shared.folder:
                try:
                    self._socket = await stack.enter_async_context(_door(partial(self._admit, bridge)))
                except OSError as error:
                    self._shared.share_nothing(error)
                    self._release()
                stack.callback(self._close_all)
                self._publish()
                stack.push_async_callback(cancel_and_wait, asyncio.create_task(self._show_life()))
            yield

    def _release(self) -> None:
        if self._identity:
            self._identity.file.release()
            self._identity = None

    def _publish(self) -> None:
        if self._identity and self._socket:
            self._identity.file.publish(self._socket)
            self._identity.file.remove_stale()

    @asynccontextmanager
    async def _own_session(self, bridge: Bridge) -> AsyncGenerator[Link, None]:
        to_bridge, from_client = anyio.create_memory_object_stream[Any](0)
        to_client, from_bridge = anyio.create_memory_object_stream[Any](0)
        self._own = asyncio.create_task(bridge.serve(from_client, to_client, self._shared.options))
        if self.is_over:
            self._end()
        try:
            yield Link(from_bridge, to_bridge, lambda: self.is_over)
            if not self.is_over:
                await self._own
        finally:
            from_bridge.close()
            to_bridge.close()
            await cancel_and_wait(self._own)

    async def _admit(self, bridge: Bridge, lines: Lines) -> None:
        """Serve a client of another process, whose bridge shows that it has the same identity."""
        try:
            options = self._admitted(await lines.read(_ADMITTED_WITHIN))
            if options is None:
                return
            self._lines.add(lines)
            lines.show_life()
            async with _streams(lines) as (incoming, outgoing):
                await bridge.serve(incoming, outgoing, options)
        finally:
            self._lines.discard(lines)
            lines.close()

    def _admitted(self, hello: str | None) -> BridgeOptions | None:
        """The options of a session; `None` if the other process may not have one."""
        try:
            told = msgspec.json.decode(hello or "", type=_Hello)
        except msgspec.DecodeError:
            return None
        if self.is_over or not self._identity or not compare_digest(told.proof.encode(), self._identity.proof.encode()):
            return None
        return replace(self._shared.options, catalog=told.catalog, timeout=told.timeout)

    async def _show_life(self) -> None:
        """Tell the others that the holder is alive, and end when the file is another's."""
        while not self.is_over:
            await asyncio.sleep(_SIGN_OF_LIFE)
            for lines in self._lines:
                lines.show_life()
            if self._identity and not self._identity.file.is_held:
                self._end()

    def _end(self) -> None:
        self.is_over = True
        if self._own:
            self._own.cancel()

    def _close_all(self) -> None:
        for lines in self._lines:
            lines.close()


@asynccontextmanager
async def _streams(lines: Lines) -> AsyncGenerator[tuple[Any, Any], None]:
    """The SDK's streams of messages over a connection, which is closed at the end."""
    async with stdio_server(cast(Any, lines), cast(Any, lines)) as (incoming, outgoing):
        try:
            yield incoming, outgoing
        finally:
            lines.close()
            outgoing.close()
