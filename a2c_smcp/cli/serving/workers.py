"""`a2c-smcp server --workers`: a parent process that starts several serving processes on one port and supervises them.

The kernel spreads connections over the workers (SO_REUSEPORT); each is a node of its own, which other nodes reach on a
second port. The parent serves nobody: it holds the port, starts workers, restarts one that dies (with growing pauses),
kills one whose event loop stands still, forwards signals, and ends them all before it ends. If the parent is killed,
workers notice it by their end of a socket pair and stop (`node.py`). A worker that dies before it has ever served is an
error of configuration: everything stops.
"""

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
    is_on_this_machine,
    is_ready,
    lives_on,
)
from a2c_smcp.loops import on_hangup, stop_on_signals
from a2c_smcp.server.run import address_of, reserve
from a2c_smcp.server.settings import Settings, Workers

logger = logging.getLogger(__name__)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_LONG_RUN = 60.0
"""Seconds after which a worker that dies is restarted with the shortest pause again."""
_PORTS = 65536
_STOPS_WITHIN = 14.0
"""Seconds for workers to let calls in flight finish."""
_KILL_AFTER = 4.0
"""Seconds until workers that should stop at once are killed."""
_SILENCE = 10.0
"""Seconds without a sign of life after which a worker is replaced. It gives one each second."""


async def supervise(
    settings: Settings, address: ListenAddress, count: int, identity: NodeIdentity, *, has_mcp: bool
) -> None:
    """Run the workers until a signal. Raises `Failed` if they cannot start."""
    stop = stop_on_signals()
    with _reserved(address) as holder:
        async with _shared_store(identity.redis) as redis:
            port = holder.getsockname()[1]
            workers = _Workers(_worker_settings(replace(identity, redis=redis), count, port))
            on_hangup(lambda: workers.signal(signal.SIGHUP))
            place, who = f"{address.scheme}://{address_of(holder)}", f" with {count} workers, {workers.names}"
            await workers.run(stop, partial(announce, settings, address, place, who, has_mcp=has_mcp))


def check_worker_urls(identity: NodeIdentity, count: int) -> None:
    """Raises `WrongUse` if other nodes could not reach each worker on a port of its own."""
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
    """All workers, from the first start to the end."""

    def __init__(self, settings: list[WorkerSettings]) -> None:
        self._workers = list(map(_Worker, settings))
        self.names = f"{settings[0].node} to {settings[-1].node}" if len(settings) > 1 else settings[0].node

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Run until `stop`. When it returns or raises, no worker is left."""
        keeping = [asyncio.create_task(worker.keep()) for worker in self._workers]
        started = asyncio.gather(*(worker.started.wait() for worker in self._workers))
        stopped = asyncio.create_task(stop.wait())
        try:
            await _first_of(started, stopped, *keeping)
            if started.done():
                on_ready()
                await _first_of(stopped, *keeping)
            if stopped.done():
                logger.info("stopping: calls in flight may finish (again to stop at once)")
                for worker in self._workers:
                    worker.stop()
                await asyncio.wait(keeping, timeout=_STOPS_WITHIN)
        finally:
            for wait in (started, stopped):
                wait.cancel()
            await self._end(keeping)

    def signal(self, number: int) -> None:
        for worker in self._workers:
            worker.signal(number)

    async def _end(self, keeping: list[asyncio.Task[None]]) -> None:
        """Stop at once what still runs, and kill it after a few seconds."""
        for worker in self._workers:
            worker.stop()
        self.signal(signal.SIGINT)  # the second signal: SIGTERM could be merged with one that is pending
        await asyncio.wait(keeping, timeout=_KILL_AFTER)
        self.signal(signal.SIGKILL)
        await asyncio.gather(*keeping, return_exceptions=True)


class _Worker:
    """One worker, in one process after the other."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.started = asyncio.Event()
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def keep(self) -> None:
        """Run processes until `stop`. Raises `Failed` if the first one ends before it has served."""
        pause = _SHORTEST_PAUSE
        for number in itertools.count(1):
            began = time.monotonic()
            code = await self._run_process(number)
            if self._stopping.is_set():
                return
            if not self.started.is_set():
                raise Failed(f"Worker {self._settings.node} did not start", "Its own error message is above.")
            pause = _SHORTEST_PAUSE if time.monotonic() - began > _LONG_RUN else pause
            end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
            logger.warning("worker %s %s, and is started again in %g s", self._name(number), end, pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(2 * pause, _LONGEST_PAUSE)

    def stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _run_process(self, number: int) -> int:
        """Run this command line in a new process, as a worker. Returns its exit code."""
        if self._stopping.is_set():
            return 0
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                settings = replace(self._settings, node=self._name(number), parent_socket=theirs.fileno())
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "a2c_smcp", *sys.argv[1:]),
                    env=settings.environment(),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C is for the parent, who passes it on
                )
            if self._stopping.is_set():
                self.signal(signal.SIGTERM)
            if await is_ready(ours):
                self.started.set()
                if not await lives_on(ours, _SILENCE):
                    logger.error("worker %s stands still, and is killed", self._name(number))
                    self.signal(signal.SIGKILL)
            return await self._process.wait()

    def _name(self, number: int) -> str:
        """A new name for each process: the store keeps that of a dead one until its lease has ended."""
        return self._settings.node if number == 1 else f"{self._settings.node}-{number}"


@contextmanager
def _reserved(address: ListenAddress) -> Iterator[socket.socket]:
    """Hold the port of all workers, after checking that no other program listens on it, not even with SO_REUSEPORT."""
    try:
        reserve(address.host, address.port, reuse_port=False).close()
        holder = reserve(address.host, address.port, reuse_port=True)
    except OSError as error:
        raise cannot_listen(address.host, address.port, error) from None
    with holder:
        yield holder


@asynccontextmanager
async def _shared_store(redis: str) -> AsyncIterator[str]:
    """The URL of the store that --redis names, which workers wait for, or of a private one."""
    if redis:
        yield redis
        return
    from a2c_smcp.cli.serving.node import private_store
    from a2c_smcp.mcp_host.processes.guard import ProcessGuard

    guard = ProcessGuard()
    try:
        async with private_store(guard) as url:
            yield url
    finally:
        await guard.close()


def _worker_settings(identity: NodeIdentity, count: int, port: int) -> list[WorkerSettings]:
    """Settings of each worker. Other nodes reach them on free ports, or on consecutive ones from that of --node-url."""
    parts = urlsplit(identity.url or "http://127.0.0.1")
    return [
        WorkerSettings(
            node=f"{identity.node}-{number + 1}",
            number=number + 1,
            workers=Workers(identity.node, count),
            redis=identity.redis,
            port=port,
            node_host=parts.hostname or "",
            node_port=parts.port + number if parts.port else 0,
        )
        for number in range(count)
    ]


async def _first_of(*waits: asyncio.Future[Any]) -> None:
    """Wait until one of them is done; raise its exception."""
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in done:
        wait.result()
