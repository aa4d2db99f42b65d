"""The desktops that the program has asked for or watches, kept current."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from a2c_smcp.agent.types import Seat
from a2c_smcp.errors import SMCPError
from a2c_smcp.types import Desktop

__all__ = ["Desktops", "Screen"]


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
