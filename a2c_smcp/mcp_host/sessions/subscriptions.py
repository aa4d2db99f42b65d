"""Changes that a server announces: subscriptions to its windows, and the announcements that were not handled yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from a2c_smcp.mcp_host.failures import RequestRefused, ServerFailure
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.listings import WINDOW_SCHEME
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient

__all__ = ["AnnouncedChanges", "Announcements", "Subscriptions"]

_AT_ONCE = 16
_MOST_WINDOWS = 1000


class Subscriptions:
    """Subscriptions to a changing set of URIs, with the older or the newer protocol.

    `on_gap` is called when announcements may have been missed.
    """

    def __init__(
        self, client: SDKClient, tasks: anyio.abc.TaskGroup, on_gap: Callable[[], None], policy: HostPolicy
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._on_gap = on_gap
        self._policy = policy
        self._followed: set[str] = set()
        self._stream: anyio.CancelScope | None = None
        self._honoured = False
        self._refused = False

    async def follow(self, uris: Sequence[str]) -> bool:
        """Subscribe to these URIs and no others. Return whether the server will announce changes of them."""
        if self._client.is_modern:
            await self._listen(uris)
            return self._client.can_subscribe or self._honoured
        if self._client.can_subscribe:
            await self._subscribe(set(uris))
        return self._client.can_subscribe

    async def _subscribe(self, uris: set[str]) -> None:
        gone, new, self._followed = self._followed - uris, uris - self._followed, uris
        at_once = anyio.CapacityLimiter(_AT_ONCE)

        async def change(ask: Callable[[str], Awaitable[None]], uri: str) -> None:
            async with at_once:
                with anyio.move_on_after(self._policy.read_limit), suppress(ServerFailure):
                    await ask(uri)

        async with anyio.create_task_group() as tasks:
            for uri in new:
                tasks.start_soon(change, self._client.subscribe, uri)
            for uri in gone:
                tasks.start_soon(change, self._client.unsubscribe, uri)

    async def _listen(self, uris: Sequence[str]) -> None:
        """Open the new stream before the old one is closed, so that no announcement is missed in between."""
        if self._refused or (self._stream is not None and self._followed == set(uris)):
            return
        before = self._stream
        self._refused = True
        with anyio.move_on_after(self._policy.read_limit), suppress(RequestRefused):
            self._stream, self._honoured = await self._tasks.start(self._hold, list(uris))
            self._followed = set(uris)
            self._refused = False
        if before is not None:
            before.cancel()

    async def _hold(
        self, uris: list[str], *, task_status: anyio.abc.TaskStatus[tuple[anyio.CancelScope, bool]]
    ) -> None:
        with anyio.CancelScope() as scope:
            async with self._client.subscription(uris) as (honoured, ended):
                task_status.started((scope, honoured))
                await ended()
            if self._stream is scope:
                self._stream = None
            await anyio.sleep(self._policy.listen_again)
            self._on_gap()


@dataclass(slots=True)
class AnnouncedChanges:
    """The announcements since the last `take`. A thousand updates of one window are one."""

    tools: bool = False
    resources: bool = False
    updated: dict[str, None] = field(default_factory=dict)


class Announcements:
    """Collects announcements. Adding never waits, so that the MCP connection never does."""

    def __init__(self) -> None:
        self._changes = AnnouncedChanges()
        self._added = asyncio.Event()

    def add(self, method: str, params: Mapping[str, Any]) -> None:
        match method:
            case "notifications/tools/list_changed":
                self._changes.tools = True
            case "notifications/resources/list_changed":
                self._changes.resources = True
            case "notifications/resources/updated":
                self._updated(params.get("uri"))
            case _:
                return
        self._added.set()

    def add_all(self) -> None:
        """Announcements may have been missed: everything counts as changed."""
        self._changes.tools = self._changes.resources = True
        self._added.set()

    async def take(self) -> AnnouncedChanges:
        """Wait for an announcement, and return all that have come."""
        await self._added.wait()
        self._added.clear()
        changes, self._changes = self._changes, AnnouncedChanges()
        return changes

    def _updated(self, uri: object) -> None:
        if isinstance(uri, str) and uri.startswith(WINDOW_SCHEME) and len(self._changes.updated) < _MOST_WINDOWS:
            self._changes.updated[uri] = None
