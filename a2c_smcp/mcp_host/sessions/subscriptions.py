"""Changes that a server announces: subscriptions to its resources, and the announcements that were not handled yet.

**What is followed.** The windows that the server lists, and the URIs that agents have subscribed to. On older revisions
there is a request for each URI. On 2026-07-28 there is one stream with a fixed list of URIs, for all announcements; if
the list changes, a new stream is opened before the old one is closed, so that nothing is missed in between. Changes of
the list wait for each other (`_changing`), and those that wait together lead to one new stream.

**Gaps.** A stream that ends by itself is opened again after a pause. Meanwhile announcements may have been missed, so
`on_gap` is called: everything counts as changed, and the URIs are told as changed only when the new stream is open.

**What may fail.** A server that refuses the first stream has none, and is not asked again. If a later one is refused,
the old one stays; if that has ended, too, opening is tried again and again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import anyio
import anyio.abc

from a2c_smcp.errors import CapabilityNotSupported
from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused, ServerFailure, StartFailed
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.sessions.listings import (
    WINDOW_SCHEME,
    ToolList,
    WindowList,
    read_pages,
    uris_of,
    wrong_headers,
)
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.protocol.skills import SKILL_SCHEME

logger = logging.getLogger(__name__)

_AT_ONCE = 16
_MOST_UPDATED = 1000
_LONGEST_URI = 2048
_PARTS = re.compile("[/?#]")
_MOST_PARTS = 64
_OPEN_AGAIN = 10  # times the pause after a stream that ended


class Subscriptions:
    """Subscriptions to a changing set of URIs, with the older or the newer protocol.

    `wanted` are the URIs of agents. `on_gap` is called when announcements may have been missed.
    """

    def __init__(
        self,
        client: SDKClient,
        tasks: anyio.abc.TaskGroup,
        on_gap: Callable[[], None],
        policy: HostLimits,
        wanted: Collection[str] = (),
    ) -> None:
        self.wanted = set(wanted)
        self._client = client
        self._tasks = tasks
        self._on_gap = on_gap
        self._policy = policy
        self._windows: set[str] = set()
        self._followed: set[str] = set()
        self._changing = anyio.Lock()
        self._at_once = anyio.Semaphore(_AT_ONCE)
        self._stream: anyio.CancelScope | None = None
        self._honoured: frozenset[str] = frozenset()
        self._has_listened = False
        self._is_refused = False

    async def follow_windows(self, uris: Collection[str]) -> bool:
        """Follow these windows and no others. Return True if the server will announce changes of them."""
        self._windows = set(uris)
        if self._client.is_modern:
            with suppress(RequestRefused):
                await self._listen()
            return self._client.can_subscribe or not self._honoured.isdisjoint(uris)
        if self._client.can_subscribe:
            await self._subscribe_to_all()
        return self._client.can_subscribe

    async def add(self, uri: str) -> None:
        """Follow a URI for agents. Raises `RequestRefused`, or `CapabilityNotSupported` if the server cannot."""
        if uri in self.wanted:
            return
        if not self._client.is_modern:
            await self._subscribe(uri)
            return
        self.wanted.add(uri)
        try:
            await self._listen()
            if uri not in self._honoured:
                raise _not_supported()
        except BaseException:
            self.wanted.discard(uri)
            raise

    async def remove(self, uri: str) -> None:
        """Follow a URI for agents no longer."""
        self.wanted.discard(uri)
        if self._client.is_modern:
            with suppress(RequestRefused):
                await self._listen()
        elif uri in self._followed - self._windows:
            self._followed.discard(uri)
            with suppress(ServerFailure):
                await self._client.unsubscribe(uri)

    async def _subscribe(self, uri: str) -> None:
        if not self._client.can_subscribe:
            raise _not_supported()
        if uri not in self._followed:
            async with self._at_once:
                await self._client.subscribe(uri)
            self._followed.add(uri)
        self.wanted.add(uri)

    async def _subscribe_to_all(self) -> None:
        uris = self._windows | self.wanted
        gone, new, self._followed = self._followed - uris, uris - self._followed, uris

        async def change(ask: Callable[[str], Awaitable[None]], uri: str) -> None:
            async with self._at_once:
                with anyio.move_on_after(self._policy.read_limit), suppress(ServerFailure):
                    await ask(uri)

        async with anyio.create_task_group() as tasks:
            for uri in new:
                tasks.start_soon(change, self._client.subscribe, uri)
            for uri in gone:
                tasks.start_soon(change, self._client.unsubscribe, uri)

    async def _listen(self) -> None:
        """Have a stream for all URIs. Raises `RequestRefused`."""
        if self._is_refused:
            raise RequestRefused("it keeps no subscriptions")
        async with self._changing:
            uris = self._windows | self.wanted
            if self._stream is not None and self._followed == uris:
                return
            before = self._stream
            try:
                with anyio.fail_after(self._policy.read_limit):
                    self._stream, self._honoured = await self._tasks.start(self._hold, sorted(uris))
            except (RequestRefused, TimeoutError) as error:
                self._refused()
                raise error if isinstance(error, RequestRefused) else RequestRefused("no answer in time") from None
            self._followed, self._has_listened = uris, True
            if before is not None:
                before.cancel()

    def _refused(self) -> None:
        if not self._has_listened:
            self._is_refused = True
        elif self._stream is None:
            self._tasks.start_soon(self._report_gap, _OPEN_AGAIN * self._policy.listen_again)

    async def _report_gap(self, pause: float) -> None:
        """After a pause, have everything listed and the stream opened again."""
        await anyio.sleep(pause)
        self._on_gap()

    async def _hold(
        self, uris: list[str], *, task_status: anyio.abc.TaskStatus[tuple[anyio.CancelScope, frozenset[str]]]
    ) -> None:
        with anyio.CancelScope() as scope:
            async with self._client.subscription(uris) as (honoured, ended):
                task_status.started((scope, honoured))
                await ended()
            if self._stream is scope:
                self._stream = None
            await self._report_gap(self._policy.listen_again)


def uris_above(uri: str) -> set[str]:
    """Return the URIs of all resources that this one may be a part of, itself included. MCP: a "sub-resource"."""
    if len(uri) > _LONGEST_URI:
        return set()
    ends = [found.start() for found in islice(_PARTS.finditer(uri), _MOST_PARTS)]
    return {uri, *(uri[:end] for end in ends), *(uri[: end + 1] for end in ends)}


def _not_supported() -> CapabilityNotSupported:
    return CapabilityNotSupported("it announces no changes of it", capability="resources.subscribe")


@dataclass(slots=True)
class AnnouncedChanges:
    """The announcements since the last `take`. A thousand updates of one window, or of one file of a skill, are one.

    `missed`: others may have been missed, so every window and every subscribed resource counts as changed.
    """

    tools: bool = False
    resources: bool = False
    prompts: bool = False
    missed: bool = False
    updated: dict[str, None] = field(default_factory=dict)


class Announcements:
    """Collects announcements. Adding never waits, so that the MCP connection never does."""

    def __init__(self, on_updated: Callable[[str], None]) -> None:
        self._changes = AnnouncedChanges()
        self._added = asyncio.Event()
        self._on_updated = on_updated

    def add(self, method: str, params: Mapping[str, Any]) -> None:
        match method:
            case "notifications/tools/list_changed":
                self._changes.tools = True
            case "notifications/resources/list_changed":
                self._changes.resources = True
            case "notifications/prompts/list_changed":
                self._changes.prompts = True
            case "notifications/resources/updated" if isinstance(uri := params.get("uri"), str):
                self._on_updated(uri)  # agents are told at once
                if not uri.startswith((WINDOW_SCHEME, SKILL_SCHEME)) or len(self._changes.updated) >= _MOST_UPDATED:
                    return
                self._changes.updated[uri] = None
            case _:
                return
        self._added.set()

    def add_all(self) -> None:
        """Announcements may have been missed: everything counts as changed."""
        self._changes.tools = self._changes.resources = self._changes.prompts = self._changes.missed = True
        self._added.set()

    async def take(self) -> AnnouncedChanges:
        """Wait for an announcement, and return all that have come."""
        await self._added.wait()
        self._added.clear()
        changes, self._changes = self._changes, AnnouncedChanges()
        return changes


# The tools and windows that one MCP server offers, kept up to date.

OfferChange = Literal[
    "tools_changed",
    "tools_announced",
    "windows_changed",
    "window_updated",
    "resource_list_changed",
    "resource_updated",
    "skill_updated",
    "prompts_changed",
]
"""`tools_announced`: the server says that its tools have changed, and they look the same. `resource_updated` is about a
resource that agents have subscribed to, or about a part of one, and `skill_updated` about any file of a skill."""
OnOfferChange = Callable[[OfferChange, str | None], None]


class ServerListings:
    """`keep_current` is a task of the session. Windows are listed only if the server announces changes of them.

    A list is kept until the server announces a change. If it does not announce changes of that list, it is kept for as
    long as the server allows (2026-07-28), and then listed again.
    """

    def __init__(
        self,
        name: str,
        policy: HostLimits,
        on_change: OnOfferChange,
        *,
        all_windows: bool,
        subscribed: Collection[str] = (),
    ) -> None:
        self.tools: list[dict[str, Any]] = []
        self.windows: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        """Sentences for the owner about tools that are left out."""
        self._name = name
        self._policy = policy
        self._on_change = on_change
        self.announcements = Announcements(self._updated)
        self._subscribed = subscribed
        self._subscriptions: Subscriptions | None = None
        self._all_windows = all_windows
        self._has_warned = False
        self._ttl: dict[str, float] = {}

    async def list_all(self, client: SDKClient, tasks: anyio.abc.TaskGroup) -> None:
        """List tools and windows. A server that does not list its windows in time is used without them."""
        self._client = client
        self._subscriptions = Subscriptions(client, tasks, self.announcements.add_all, self._policy, self._subscribed)
        try:
            self.tools = await self._list_tools()
        except TimeoutError:
            raise StartFailed("it did not list its tools in time") from None
        try:
            self.windows = await self._list_windows()
        except TimeoutError:
            logger.warning("%s: did not list its resources in time", self._name)

    async def keep_current(self) -> None:
        while True:
            changes = None
            with anyio.move_on_after(min(self._ttl.values(), default=None)):
                changes = await self.announcements.take()
            try:
                await (self._list_again() if changes is None else self._list_changed(changes))
            except (ServerFailure, TimeoutError) as error:
                logger.warning("%s: announced a change and did not list it: %s", self._name, error)
            except Exception:
                logger.exception("%s: an announced change could not be handled", self._name)
            await anyio.sleep(self._policy.notice_pause)

    async def subscribe(self, uri: str) -> None:
        """Announce changes of a resource. Raises `RequestRefused` or `CapabilityNotSupported`."""
        assert self._subscriptions
        await self._subscriptions.add(uri)

    async def unsubscribe(self, uri: str) -> None:
        assert self._subscriptions
        await self._subscriptions.remove(uri)

    def _updated(self, uri: str) -> None:
        wanted = self._subscriptions.wanted if self._subscriptions else ()
        if wanted and not uris_above(uri).isdisjoint(wanted):
            self._on_change("resource_updated", uri)

    async def _list_again(self) -> None:
        """Renew the lists that the server allows to keep no longer."""
        if "tools" in self._ttl:
            await self._renew_tools()
        if "resources" in self._ttl:
            await self._renew_windows()

    async def _renew_tools(self, *, is_announced: bool = False) -> None:
        before, self.tools = self.tools, await self._list_tools()
        if before != self.tools:
            self._on_change("tools_changed", None)
        elif is_announced:
            self._on_change("tools_announced", None)

    async def _renew_windows(self) -> None:
        before, self.windows = self.windows, await self._list_windows()
        if before != self.windows:  # also an order, a priority
            self._on_change("windows_changed", None)

    async def _list_changed(self, changes: AnnouncedChanges) -> None:
        if changes.prompts:
            self._on_change("prompts_changed", None)
        if changes.tools:
            await self._renew_tools(is_announced=True)
        if changes.resources:
            self._on_change("resource_list_changed", None)
            await self._renew_windows()
        windows = uris_of(self.windows)
        for uri in windows if changes.missed else changes.updated.keys() & windows:
            self._on_change("window_updated", uri)
        for uri in [uri for uri in changes.updated if uri.startswith(SKILL_SCHEME)]:
            self._on_change("skill_updated", uri)
        if changes.missed and self._subscriptions:
            for uri in self._subscriptions.wanted:
                self._on_change("resource_updated", uri)

    async def _list_tools(self) -> list[dict[str, Any]]:
        listed = ToolList()
        warnings: list[str] = []
        try:
            await self._read("tools", listed)
        except RequestRefused:
            return []
        except OversizedAnswer as error:
            warnings.append(f"its list of tools cannot be used: {error.message}")
        tools = self._client.usable_tools(listed.tools)
        warnings += [*listed.warnings, *wrong_headers(listed.tools, tools)]
        for warning in warnings:
            if warning not in self.warnings:
                logger.warning("%s: %s", self._name, warning)
        self.warnings = warnings
        return tools

    async def _read(self, field: str, into: ToolList | WindowList) -> None:
        ttl = await read_pages(self._client, field, into, self._policy, self._name)
        self._ttl.pop(field, None)
        if ttl is not None and not self._client.about.declares(f"{field}.listChanged"):
            self._ttl[field] = ttl

    async def _list_windows(self) -> list[dict[str, Any]]:
        listed = WindowList()
        if self._client.about.declares("resources"):
            try:
                await self._read("resources", listed)
            except RequestRefused:
                pass
            except OversizedAnswer as error:
                logger.warning("%s: its list of resources cannot be used: %s", self._name, error.message)
        windows = listed.windows
        assert self._subscriptions
        is_watched = await self._subscriptions.follow_windows([window["uri"] for window in windows])
        if not windows or is_watched or self._all_windows:
            return windows
        if not self._has_warned:
            logger.warning("%s: its windows stay off the desktop, it has no subscriptions (desktop: any)", self._name)
            self._has_warned = True
        return []
