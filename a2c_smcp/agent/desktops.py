"""The desktops that the program has asked for or watches, kept current."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict

from a2c_smcp.device_events import Sealing
from a2c_smcp.endpoint import Credentials, Reconnect
from a2c_smcp.errors import SMCPError
from a2c_smcp.types import Desktop

if TYPE_CHECKING:
    from a2c_smcp.devices.identity import Identity

# Small types that several modules of the agent share.

DEFAULT_TIMEOUT = 60
"""The default timeout of a tool, in seconds."""


class Seat(NamedTuple):
    """A computer in an office. A computer's name is unique in its office only."""

    office: str
    computer: str

    def __str__(self) -> str:
        return f"{self.office}/{self.computer}"


class ClientOptions(TypedDict, total=False):
    """Further options of a client. All of them are optional.

    - `ssl`, `proxy`: how the Server is reached. `reconnect`: how long to wait between two attempts to connect.
    - `trusted_computers`: the tags and hints of their tools count for the registry's policy and retries; those of other
      computers are only shown. A client that takes such a name after another is not trusted.
    - `max_result`: the bytes of large contents that one answer may bring into memory.
    - `list_resources`: unless it is false, the registry shows the resources and prompts of computers, too.
    - `instance` is a secret of 16 to 128 characters that outlives the process: the next one that has it takes over the
      seats of one that was killed. Keep it in a private file, and use it in one process at a time.

    The others are about devices, and need the extra `devices`:

    - `e2e`: the computers that are sent sealed requests, which the Server cannot read: `"off"`; `"prefer"`, those that
      can open them, and then always; `"require"`, only these, and only those that were trusted beforehand
      (`a2c-smcp device trust`).
    - `verify`: answers must be signed by the device that a computer is known by.
    - `identity`: the keys of this agent. Without it they are kept in the keyring, or in `state_folder`, and made on
      first use. An `api_key` that is bound to a device is proved with them.
    - `origin`: the Server under which devices are known, which is that of `url` unless this is only another way to it.
    """

    ssl: SSLContext | None
    proxy: str | None
    reconnect: Reconnect | None
    trusted_computers: Iterable[str]
    max_result: int
    list_resources: bool
    instance: str | None
    e2e: Sealing
    verify: bool
    identity: Identity | None
    state_folder: Path | None
    origin: str | None


class DeviceOptions(NamedTuple):
    """Sealing of requests and checking of answers, with the keys for it."""

    e2e: Sealing
    verify: bool
    identity: Identity | None
    folder: Path | None
    origin: str

    @classmethod
    def of(cls, options: ClientOptions, origin: str) -> DeviceOptions | None:
        """`None` if nothing is sealed or checked. `origin` is that of the URL."""
        e2e, verify = options.get("e2e", "off"), options.get("verify", False)
        if e2e == "off" and not verify:
            return None
        return cls(e2e, verify, options.get("identity"), options.get("state_folder"), options.get("origin") or origin)


def new_req_id() -> str:
    return token_hex(16)


@dataclass(slots=True)
class OutgoingCall:
    """A tool call that an agent makes: which tool of which computer, and how long it may take."""

    computer: str
    tool: str
    params: dict[str, Any]
    timeout: float = DEFAULT_TIMEOUT
    office: str | None = None
    req_id: str = field(default_factory=new_req_id)


class AgentAuthProvider(Protocol):
    """Supplies the credentials of an agent. It is called on every dial, so a token may be refreshed each time."""

    def credentials(self) -> Credentials | Awaitable[Credentials]: ...


class Screen(NamedTuple):
    """A desktop request: at most `size` windows of a computer, or one `window`."""

    seat: Seat
    size: int | None = None
    window: str | None = None


@dataclass(slots=True)
class _WatchedScreen:
    latest: list[Desktop] | None = None
    watchers: set[asyncio.Queue[list[Desktop] | SMCPError | None]] = field(default_factory=set)


class Desktops:
    """The last requested screen of each computer, and all watched ones. `on_updated` is called after each change."""

    def __init__(self, on_updated: Callable[[Screen, list[Desktop]], None]) -> None:
        self._on_updated = on_updated
        self._views: dict[Screen, _WatchedScreen] = {}
        self._asked: dict[Seat, Screen] = {}

    def latest(self, seat: Seat) -> list[Desktop] | None:
        """The latest desktop of the last requested screen; `None` if none was requested."""
        screen = self._asked.get(seat)
        return self._views[screen].latest if screen else None

    def screens(self, seat: Seat) -> list[Screen]:
        """The screens of a computer that are kept current."""
        return [screen for screen in self._views if screen.seat == seat]

    def ask(self, screen: Screen) -> None:
        """Make this the requested screen of its computer, instead of the one before."""
        before, self._asked[screen.seat] = self._asked.get(screen.seat), screen
        self._views.setdefault(screen, _WatchedScreen())
        if before:
            self._forget_unused(before)

    def receive(self, screen: Screen, desktops: list[Desktop]) -> None:
        view = self._views.get(screen)
        if view is None or view.latest == desktops:
            return
        was_seen, view.latest = view.latest is not None, desktops
        for watcher in view.watchers:
            while not watcher.empty():
                watcher.get_nowait()
            watcher.put_nowait(desktops)
        if was_seen:
            self._on_updated(screen, desktops)

    async def watch(self, screen: Screen, refresh: Callable[[Screen], None]) -> AsyncGenerator[list[Desktop], None]:
        """Yield the desktop now and after every change. A slow reader gets only the latest.

        It continues while the computer is away, and ends when the agent leaves the office.
        """
        news: asyncio.Queue[list[Desktop] | SMCPError | None] = asyncio.Queue()
        view = self._views.setdefault(screen, _WatchedScreen())
        view.watchers.add(news)
        if view.latest is not None:
            news.put_nowait(view.latest)
        refresh(screen)
        try:
            while (desktops := await news.get()) is not None:
                if isinstance(desktops, SMCPError):
                    raise desktops
                yield desktops
        finally:
            view.watchers.discard(news)
            self._forget_unused(screen)

    def fail(self, screen: Screen, error: SMCPError) -> None:
        """Raise this error in all watchers of a screen."""
        for watcher in self._views[screen].watchers if screen in self._views else ():
            watcher.put_nowait(error)

    def close(self, office: str | None = None) -> None:
        """End all watchers, of one office or of all."""
        for screen in [screen for screen in self._views if office in (None, screen.seat.office)]:
            for watcher in self._views.pop(screen).watchers:
                watcher.put_nowait(None)
            self._asked.pop(screen.seat, None)

    def _forget_unused(self, screen: Screen) -> None:
        view = self._views.get(screen)
        if view and not view.watchers and self._asked.get(screen.seat) != screen:
            del self._views[screen]
