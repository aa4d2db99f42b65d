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
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import anyio
import anyio.abc

from a2c_smcp.errors import CapabilityNotSupported
from a2c_smcp.mcp_host.failures import RequestRefused, ServerFailure
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.listings import WINDOW_SCHEME
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.protocol.skills import SKILL_SCHEME

__all__ = ["AnnouncedChanges", "Announcements", "Subscriptions", "uris_above"]

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
        policy: HostPolicy,
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
        """Follow these windows and no others. Return whether the server will announce changes of them."""
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
            self._tasks.start_soon(self._try_again)

    async def _try_again(self) -> None:
        await anyio.sleep(_OPEN_AGAIN * self._policy.listen_again)
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
            await anyio.sleep(self._policy.listen_again)
            self._on_gap()


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
