"""The tools and windows that one MCP server offers, kept up to date."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, Literal

import anyio
import anyio.abc

from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused, ServerFailure, StartFailed
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.listings import AskForPage, ToolList, WindowList, read_pages, uris_of, wrong_headers
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.mcp_host.sessions.subscriptions import AnnouncedChanges, Announcements, Subscriptions, uris_above
from a2c_smcp.protocol.skills import SKILL_SCHEME

__all__ = ["OfferChange", "Offers", "OnOfferChange"]

logger = logging.getLogger(__name__)

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
resource that agents have subscribed to, or about a part of one, and `skill_updated`
about any file of a skill."""
OnOfferChange = Callable[[OfferChange, str | None], None]


class Offers:
    """`keep_current` is a task of the session. Windows are listed only if the server announces changes of them.

    A list is kept until the server announces a change. If it does not announce changes of that list, it is kept for as
    long as the server allows (2026-07-28), and then listed again.
    """

    def __init__(
        self,
        name: str,
        policy: HostPolicy,
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
        """The server allows to keep its lists no longer."""
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
        found = ToolList()
        warnings: list[str] = []
        try:
            await self._read(self._client.list_tools, "tools", found)
        except RequestRefused:
            return []
        except OversizedAnswer as error:
            warnings.append(f"its list of tools cannot be used: {error.message}")
        tools = self._client.usable_tools(found.tools)
        warnings += [*found.warnings, *wrong_headers(found.tools, tools)]
        for warning in warnings:
            if warning not in self.warnings:
                logger.warning("%s: %s", self._name, warning)
        self.warnings = warnings
        return tools

    async def _read(self, ask: AskForPage, field: str, into: ToolList | WindowList) -> None:
        ttl = await read_pages(ask, field, into, self._policy, self._name)
        self._ttl.pop(field, None)
        if ttl is not None and not self._client.about.declares(f"{field}.listChanged"):
            self._ttl[field] = ttl

    async def _list_windows(self) -> list[dict[str, Any]]:
        found = WindowList()
        if self._client.about.declares("resources"):
            try:
                await self._read(self._client.list_resources, "resources", found)
            except RequestRefused:
                pass
            except OversizedAnswer as error:
                logger.warning("%s: its list of resources cannot be used: %s", self._name, error.message)
        windows = found.windows
        assert self._subscriptions
        is_watched = await self._subscriptions.follow_windows([window["uri"] for window in windows])
        if not windows or is_watched or self._all_windows:
            return windows
        if not self._has_warned:
            logger.warning("%s: its windows stay off the desktop, it has no subscriptions (desktop: any)", self._name)
            self._has_warned = True
        return []
