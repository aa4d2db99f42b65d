"""The tools and windows that one MCP server offers, kept up to date."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import anyio
import anyio.abc

from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused, ServerFailure, StartFailed
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.listings import ToolList, WindowList, read_pages, uris_of, wrong_headers
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.mcp_host.sessions.subscriptions import AnnouncedChanges, Announcements, Subscriptions

__all__ = ["OfferChange", "Offers", "OnOfferChange"]

logger = logging.getLogger(__name__)

OfferChange = Literal["tools_changed", "windows_changed", "window_updated"]
OnOfferChange = Callable[[OfferChange, str | None], None]


class Offers:
    """`keep_current` is a task of the session. Windows are listed only if the server announces changes of them."""

    def __init__(
        self,
        name: str,
        policy: HostPolicy,
        on_change: OnOfferChange,
        announcements: Announcements,
        *,
        all_windows: bool,
    ) -> None:
        self.tools: list[dict[str, Any]] = []
        self.windows: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        """Sentences for the owner about tools that are left out."""
        self._name = name
        self._policy = policy
        self._on_change = on_change
        self._announcements = announcements
        self._all_windows = all_windows
        self._has_warned = False

    async def list_all(self, client: SDKClient, tasks: anyio.abc.TaskGroup) -> None:
        """List tools and windows. A server that does not list its windows in time is used without them."""
        self._client = client
        self._subscriptions = Subscriptions(client, tasks, self._announcements.add_all, self._policy)
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
            changes = await self._announcements.take()
            try:
                await self._list_changed(changes)
            except (ServerFailure, TimeoutError) as error:
                logger.warning("%s: announced a change and did not list it: %s", self._name, error)
            except Exception:
                logger.exception("%s: an announced change could not be handled", self._name)
            await anyio.sleep(self._policy.notice_pause)

    async def _list_changed(self, changes: AnnouncedChanges) -> None:
        if changes.tools and (tools := await self._list_tools()) != self.tools:
            self.tools = tools
            self._on_change("tools_changed", None)
        if changes.resources:
            before, self.windows = self.windows, await self._list_windows()
            if uris_of(before) != uris_of(self.windows):
                self._on_change("windows_changed", None)
        for uri in changes.updated.keys() & uris_of(self.windows):
            self._on_change("window_updated", uri)

    async def _list_tools(self) -> list[dict[str, Any]]:
        found = ToolList()
        warnings: list[str] = []
        try:
            await read_pages(self._client.list_tools, "tools", found, self._policy, self._name)
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

    async def _list_windows(self) -> list[dict[str, Any]]:
        found = WindowList()
        if self._client.has_resources:
            try:
                await read_pages(self._client.list_resources, "resources", found, self._policy, self._name)
            except RequestRefused:
                pass
            except OversizedAnswer as error:
                logger.warning("%s: its list of resources cannot be used: %s", self._name, error.message)
        windows = found.windows
        is_watched = await self._subscriptions.follow([window["uri"] for window in windows])
        if not windows or is_watched or self._all_windows:
            return windows
        if not self._has_warned:
            logger.warning("%s: its windows stay off the desktop, it has no subscriptions (desktop: any)", self._name)
            self._has_warned = True
        return []
