"""What one MCP server offers, tools and windows, and what of it has changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import anyio
import anyio.abc

from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused, ServerFailure, StartFailed
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.listings import ToolList, WindowList, all_pages, uris_of
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.mcp_host.sessions.subscriptions import AnnouncedChanges, Announcements, Subscriptions

__all__ = ["OfferChange", "Offers", "OnOfferChange"]

logger = logging.getLogger(__name__)

OfferChange = Literal["tools_changed", "windows_changed", "window_updated"]
OnOfferChange = Callable[[OfferChange, str | None], None]


class Offers:
    """Kept up to date by `follow()`, a task of the connection's owner. Windows are in only if they are watched."""

    def __init__(
        self, name: str, policy: HostPolicy, on_change: OnOfferChange, notices: Announcements, *, all_windows: bool
    ) -> None:
        self.tools: list[dict[str, Any]] = []
        self.windows: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        """What the owner should know about the tools."""
        self._name = name
        self._policy = policy
        self._on_change = on_change
        self._notices = notices
        self._all_windows = all_windows
        self._warned = False

    async def take(self, client: SDKClient, tasks: anyio.abc.TaskGroup) -> None:
        """Lists everything. A server that cannot show its windows is used without them."""
        self._client = client
        self._subscriptions = Subscriptions(client, tasks, self._notices.doubt, self._policy)
        try:
            self.tools = await self._list_tools()
        except TimeoutError:
            raise StartFailed("it did not list its tools in time") from None
        try:
            self.windows = await self._list_windows()
        except TimeoutError:
            logger.warning("%s: did not list its resources in time", self._name)

    async def follow(self) -> None:
        while True:
            news = await self._notices.take()
            try:
                await self._look_into(news)
            except (ServerFailure, TimeoutError) as error:
                logger.warning("%s: announced a change and did not show it: %s", self._name, error)
            except Exception:
                logger.exception("%s: a notice could not be followed", self._name)
            await anyio.sleep(self._policy.notice_pause)

    async def _look_into(self, news: AnnouncedChanges) -> None:
        if news.tools and (tools := await self._list_tools()) != self.tools:
            self.tools = tools
            self._on_change("tools_changed", None)
        if news.resources:
            before, self.windows = self.windows, await self._list_windows()
            if uris_of(before) != uris_of(self.windows):
                self._on_change("windows_changed", None)
        for uri in news.updated.keys() & uris_of(self.windows):
            self._on_change("window_updated", uri)

    async def _list_tools(self) -> list[dict[str, Any]]:
        found = ToolList()
        warnings: list[str] = []
        try:
            await all_pages(self._client.list_tools, "tools", found, self._policy, self._name)
        except RequestRefused:
            return []
        except OversizedAnswer as error:
            warnings.append(f"its list of tools cannot be used: {error.message}")
        warnings += found.warnings
        for warning in warnings:
            if warning not in self.warnings:
                logger.warning("%s: %s", self._name, warning)
        self.warnings = warnings
        return self._client.learn(found.tools)

    async def _list_windows(self) -> list[dict[str, Any]]:
        found = WindowList()
        if self._client.has_resources:
            try:
                await all_pages(self._client.list_resources, "resources", found, self._policy, self._name)
            except RequestRefused:
                pass
            except OversizedAnswer as error:
                logger.warning("%s: its list of resources cannot be used: %s", self._name, error.message)
        windows = found.windows
        is_watched = await self._subscriptions.follow([window["uri"] for window in windows])
        if not windows or is_watched or self._all_windows:
            return windows
        if not self._warned:
            logger.warning("%s: its windows stay off the desktop, it has no subscriptions (desktop: any)", self._name)
            self._warned = True
        return []
