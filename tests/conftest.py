"""A real Server and raw Socket.IO clients that play agents and computers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from a2c_smcp.server import Limits, Settings, SMCPApp, create_app
from a2c_smcp.server.cluster.redis import RedisDirectory
from a2c_smcp.server.run import address_of, listen, serving
from tests.fast import forbidden_processes, is_fast
from tests.peer import Peer, Wire
from tests.valkey import Valkey, running_valkey
from tests.waiting import until
from tests.web_server import by_uvicorn
from tests.workers import Workers, number_of_workers

if TYPE_CHECKING:
    from tests.shown_output import Machine
    from tests.stage.place import Place

os.environ.setdefault("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")  # nothing enters the user's own
gc.disable()  # until all tests are collected, which takes two thirds of the time without it

# A slow machine is not a failing test: there is no bound on the time of an example.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", settings.get_profile("suite"), max_examples=3_000)  # make test-deep
settings.load_profile("suite")

TRANSPORTS = {"websocket": ["websocket"], "polling": ["polling"], "upgrade": ["polling", "websocket"]}


def pytest_configure(config: pytest.Config) -> None:
    if config.option.workers:
        config.pluginmanager.register(Workers(number_of_workers(config.option.workers)))
    # A shell lets its background jobs ignore Ctrl-C, and the programs of the tests would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was collected stays: the collector shall not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that start no process (make test-fast)")
    parser.addoption("--workers", metavar="N", help="run the tests in N processes, or auto: three for each core")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with forbidden_processes() if item.config.option.fast else nullcontext():
        return (yield)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.fast and not is_fast(collection_path) else None


class Hub:
    """A Server that is running somewhere. One of several nodes is another one whenever somebody asks where it is."""

    def __init__(self, apps: Sequence[SMCPApp], addresses: Sequence[str]) -> None:
        self.app = apps[0]
        self.directories = [app.settings.directory for app in apps if app.settings.directory]
        self.urls = [f"http://{address}" for address in addresses]
        self._turns = cycle(self.urls)

    @property
    def url(self) -> str:
        return next(self._turns)


@asynccontextmanager
async def serving_hub(settings: Settings, store: str | None, *, is_mounted: bool = False) -> AsyncIterator[Hub]:
    """One Server, or two nodes that share a place in the store at this URL."""
    serve = mounted if is_mounted else serving
    prefix = f"test-{uuid4().hex[:12]}:"
    async with AsyncExitStack() as stack:
        apps, addresses = [], []
        for name in ("n1", "n2") if store else ("",):
            listener = listen("127.0.0.1", 0)
            addresses.append(address_of(listener))
            node_url = f"http://{addresses[-1]}"
            directory = RedisDirectory(store, node=name, node_url=node_url, prefix=prefix) if store else None
            apps.append(create_app(replace(settings, directory=directory or settings.directory)))
            await stack.enter_async_context(serve(apps[-1], listener))
        yield Hub(apps, addresses)


@asynccontextmanager
async def mounted(app: SMCPApp, listener: socket.socket) -> AsyncIterator[None]:
    """Served as an application that somebody mounts it in would be."""
    size = app.settings.limits.max_transport
    async with by_uvicorn(app, listener, waits_for_clients=False, ws="websockets-sansio", ws_max_size=size):
        yield


@pytest.fixture(scope="session")
def hosting() -> str:
    """How Servers of a test are served: by the `program`, `mounted` in an ASGI server, or as two `nodes`."""
    return "program"


class SharedHubs:
    """One Server with default settings for each way of hosting, for all tests that need no other."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._hubs: dict[str, Hub] = {}
        self._store: str | None = None

    def store(self, hosting: str) -> str | None:
        if hosting == "nodes" and self._store is None:
            self._store = self._stack.enter_context(running_valkey()).url
        return self._store if hosting == "nodes" else None

    def hub(self, hosting: str) -> Hub:
        if hosting not in self._hubs:
            hub = running(Settings(), self.store(hosting), is_mounted=hosting == "mounted")
            self._hubs[hosting] = self._stack.enter_context(hub)
        return self._hubs[hosting]


@pytest.fixture(scope="session")
def lasting_valkey() -> Iterator[Valkey]:
    """One store for all tests that do it no harm."""
    with running_valkey() as valkey:
        yield valkey


@pytest.fixture
def valkey(lasting_valkey: Valkey) -> Valkey:
    """The store of the test's nodes. A module whose tests hurt it has one of its own."""
    return lasting_valkey


@pytest.fixture
def prefix() -> str:
    """A place in the store that no other test knows."""
    return f"test-{uuid4().hex[:12]}:"


@pytest.fixture(scope="session")
def shared_hubs() -> Iterator[SharedHubs]:
    with ExitStack() as stack:
        yield SharedHubs(stack)


# A folder may have a `hosting` of its own, which pytest does not tell apart from that of others: what depends on it
# must not be kept for the session, or a test of another folder gets the Server of the test before it.


@pytest.fixture
def store(hosting: str, shared_hubs: SharedHubs) -> str | None:
    """The URL of what nodes share, where there are some."""
    return shared_hubs.store(hosting)


@pytest.fixture
def shared_hub(hosting: str, shared_hubs: SharedHubs) -> Hub:
    """One Server with default settings for all tests that need no other."""
    return shared_hubs.hub(hosting)


@contextmanager
def running(settings: Settings, store: str | None = None, *, is_mounted: bool = False) -> Iterator[Hub]:
    """A Server in a thread of its own."""
    ready: Future[tuple[Hub, Callable[[], None]]] = Future()

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with serving_hub(settings, store, is_mounted=is_mounted) as hub:
            ready.set_result((hub, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    hub, stop = ready.result(timeout=60)
    try:
        yield hub
    finally:
        stop()
        thread.join(15)


@pytest.fixture
async def serve(hosting: str, store: str | None) -> AsyncIterator[Callable[..., Any]]:
    """Starts a Server with settings of its own: `await serve(require_version="0.4", limits={"resume_grace": 0.2})`."""
    async with AsyncExitStack() as stack:

        async def start(*, limits: dict[str, Any] | None = None, **settings: Any) -> Hub:
            chosen = Settings(limits=Limits(**(limits or {})), **settings)
            return await stack.enter_async_context(serving_hub(chosen, store, is_mounted=hosting == "mounted"))

        yield start


def _agreement(hub: Hub) -> Callable[[str], Awaitable[None]] | None:
    """Waits until both nodes, if they have looked at an office, know what one of them has acknowledged."""
    directories = hub.directories if isinstance(hub, Hub) and len(hub.urls) > 1 else []

    def versions(office_id: str) -> set[int]:
        offices = [directory.cached_office(office_id) for directory in directories]
        return {office.version for office in offices if office}

    async def agree(office_id: str) -> None:
        await until(lambda: len(versions(office_id)) < 2)

    return agree if directories else None


@pytest.fixture
async def connect(shared_hub: Hub) -> AsyncIterator[Callable[..., Any]]:
    """Connects a client: `await connect()` to the shared Server, `await connect(hub, auth=…)` to another."""
    async with AsyncExitStack() as stack:

        async def start(hub: Hub | None = None, transport: str = "websocket", **options: Any) -> Peer:
            peer = await Peer.connect((hub or shared_hub).url, transports=TRANSPORTS[transport], **options)
            peer.agree = _agreement(hub or shared_hub)
            stack.push_async_callback(peer.close)
            return peer

        yield start


@pytest.fixture
async def connect_wire(shared_hub: Hub) -> AsyncIterator[Callable[..., Any]]:
    """Connects a websocket whose frames the test writes by hand."""
    async with AsyncExitStack() as stack:

        async def start(hub: Hub | None = None, **options: Any) -> Wire:
            wire = await Wire.connect((hub or shared_hub).url, **options)
            wire.agree = _agreement(hub or shared_hub)
            stack.push_async_callback(wire.close)
            return wire

        yield start


@pytest.fixture
def office() -> str:
    """An office that no other test knows."""
    return f"office-{uuid4().hex[:12]}"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A folder with a configuration, in which programs of a user run."""
    from tests.stage.place import place_in

    async with place_in(tmp_path) as place:
        yield place


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    """A home folder, and terminals."""
    from tests.shown_output import Machine

    async with AsyncExitStack() as stack:
        yield Machine(tmp_path, stack)


Seat = Callable[..., Awaitable[Peer]]


@pytest.fixture
def seat(connect: Callable[..., Any]) -> Seat:
    """Connects a member: `await seat("computer", "laptop", office)`, `await seat(…, hub=hub, instance=…)`."""

    async def start(
        role: str, name: str, office: str, *, hub: Hub | None = None, transport: str = "websocket", **more: Any
    ) -> Peer:
        peer: Peer = await connect(hub, transport)
        await peer.join(role, name, office, **more)
        return peer

    return start


@pytest.fixture
async def agent(seat: Seat, office: str) -> Peer:
    """An agent called `planner`, in the test's office."""
    return await seat("agent", "planner", office)


@pytest.fixture
async def computer(seat: Seat, office: str) -> Peer:
    """A computer called `laptop`, in the test's office."""
    return await seat("computer", "laptop", office)
