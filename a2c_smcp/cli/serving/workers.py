"""Several processes on one port, each a node, and the parent that starts them, again if need be, and ends them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.serving.node import (
    ListenAddress,
    NodeIdentity,
    WorkerSettings,
    announce,
    cannot_listen,
    check_spelling,
    is_ready,
)
from a2c_smcp.cli.serving.stores import is_on_this_machine, store_at
from a2c_smcp.loops import on_hangup, stop_on_signals
from a2c_smcp.server.run import address_of, reserve
from a2c_smcp.server.settings import Settings

__all__ = ["check_worker_urls", "supervise"]

logger = logging.getLogger(__name__)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_GOOD_LIFE = 60.0
"""A worker that has lived so long starts again soon, whatever happened before."""
_PORTS = 65536
_AT_ONCE = 2.0
"""How long workers that are to stop at once may take."""


async def supervise(settings: Settings, address: ListenAddress, count: int, identity: NodeIdentity) -> None:
    """Until a signal, which the workers are told. Raises `Failed` if they cannot start."""
    stop = stop_on_signals()
    with _reserved(address) as holder:
        async with _shared_store(identity.redis) as redis:
            port = holder.getsockname()[1]
            workers = _Workers(_posts(replace(identity, redis=redis), count, port))
            on_hangup(lambda: workers.signal(signal.SIGHUP))
            place = f"{address.scheme}://{address_of(holder)} with {count} workers, {workers.names}"
            await workers.work(stop, partial(announce, settings, address, place))


def check_worker_urls(identity: NodeIdentity, count: int) -> None:
    """Workers are found one by one, by other nodes, beside the port that they share. Raises `WrongUse`."""
    if not hasattr(socket, "SO_REUSEPORT"):
        remedy = "Run several Servers with --redis, each on a port of its own."
        raise WrongUse("On this system processes cannot share a port, as --workers wants", remedy)
    if identity.url is not None:
        check_spelling(identity.url)
    parts = urlsplit(identity.url or "http:")
    if identity.url is None and identity.redis and not is_on_this_machine(identity.redis):
        what = "Nodes on other machines cannot reach the workers of this one one by one"
        raise WrongUse(what, "Say where they may with --node-url, such as http://10.0.0.5:7100: on ports from there.")
    if parts.scheme != "http":
        raise WrongUse("Workers speak no TLS with other nodes", "Write http:// in --node-url.")
    if parts.port and parts.port + count > _PORTS:
        raise WrongUse(f"There are not {count} ports from {parts.port} on", "Give a lower one in --node-url.")


class _Workers:
    """All workers, from their start to their end."""

    def __init__(self, posts: list[WorkerSettings]) -> None:
        self._workers = [_Worker(post) for post in posts]
        self.names = f"{posts[0].node} to {posts[-1].node}" if len(posts) > 1 else posts[0].node

    async def work(self, stop: asyncio.Event, tell: Callable[[], None]) -> None:
        """Until `stop`. Whatever happens, none of them is left behind."""
        keeping = [asyncio.create_task(worker.keep()) for worker in self._workers]
        started, stopped = asyncio.create_task(self._all_started()), asyncio.create_task(stop.wait())
        try:
            await _first_of(started, stopped, *keeping)
            if started.done():
                tell()
                await _first_of(stopped, *keeping)
            if stopped.done():
                logger.info("stopping: calls in flight may finish (again to stop at once)")
                await self._stop(keeping)
        finally:
            for wait in (started, stopped):
                wait.cancel()
            await self._end(keeping)

    def signal(self, number: int) -> None:
        for worker in self._workers:
            worker.signal(number)

    async def _all_started(self) -> None:
        for worker in self._workers:
            await worker.started.wait()

    async def _stop(self, keeping: list[asyncio.Task[None]]) -> None:
        for worker in self._workers:
            worker.stop()
        await asyncio.wait(keeping)

    async def _end(self, keeping: list[asyncio.Task[None]]) -> None:
        """At once, those that are left."""
        for worker in self._workers:
            worker.stop()
        await asyncio.wait(keeping, timeout=_AT_ONCE)
        self.signal(signal.SIGKILL)
        await asyncio.gather(*keeping, return_exceptions=True)


class _Worker:
    """One of them, in one process after the other."""

    def __init__(self, post: WorkerSettings) -> None:
        self.started = asyncio.Event()
        self._post = post
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def keep(self) -> None:
        """Raises `Failed` if it has never come to serve."""
        pause = _SHORTEST_PAUSE
        for life in itertools.count(1):
            began = time.monotonic()
            code = await self._live(life)
            if self._stopping.is_set():
                return
            if not self.started.is_set():
                raise Failed(f"Worker {self._post.node} did not start", "What it says itself stands above.")
            pause = _SHORTEST_PAUSE if time.monotonic() - began > _GOOD_LIFE else pause
            logger.warning("worker %s %s, and is started again in %g s", self._name(life), _told(code), pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(2 * pause, _LONGEST_PAUSE)

    def stop(self) -> None:
        self._stopping.set()
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _live(self, life: int) -> int:
        """The same command line once more, as a worker. Its exit code."""
        if self._stopping.is_set():
            return 0
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                post = replace(self._post, node=self._name(life), lifeline=theirs.fileno())
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "a2c_smcp", *sys.argv[1:]),
                    env=post.environment(),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C is for the parent, who passes it on
                )
            if self._stopping.is_set():
                self.signal(signal.SIGTERM)
            if await is_ready(ours):
                self.started.set()
            return await self._process.wait()

    def _name(self, life: int) -> str:
        """A new one for each life: the store keeps an old one for as long as the lease of whoever died has left."""
        return self._post.node if life == 1 else f"{self._post.node}-{life}"


@contextmanager
def _reserved(address: ListenAddress) -> Iterator[socket.socket]:
    """The port of all workers, which nobody else listens on, not even others who would share it."""
    try:
        reserve(address.host, address.port, reuse_port=False).close()
        holder = reserve(address.host, address.port, reuse_port=True)
    except OSError as error:
        raise cannot_listen(address.host, address.port, error) from None
    with holder:
        yield holder


@asynccontextmanager
async def _shared_store(redis: str) -> AsyncIterator[str]:
    """The one that is named, if it answers, or a private one."""
    if redis:
        async with store_at(redis):
            pass
        yield redis
        return
    from a2c_smcp.cli.serving.private_store import private_store
    from a2c_smcp.mcp_host.processes.guard import ProcessGuard

    guard = ProcessGuard()
    try:
        async with private_store(guard) as url:
            yield url
    finally:
        await guard.close()


def _posts(identity: NodeIdentity, count: int, port: int) -> list[WorkerSettings]:
    """Where other nodes find each worker: on free ports of this machine, or on those from the one that is given."""
    parts = urlsplit(identity.url or "http://127.0.0.1")
    return [
        WorkerSettings(
            node=f"{identity.node}-{number + 1}",
            redis=identity.redis,
            port=port,
            side_host=parts.hostname or "",
            side_port=parts.port + number if parts.port else 0,
        )
        for number in range(count)
    ]


async def _first_of(*waits: asyncio.Future[Any]) -> None:
    """Returns when one of them is done; raises what it has raised."""
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in done:
        wait.result()


def _told(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
