"""What a server has announced and nobody has looked into yet. A thousand updates of one window are one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.mcp_host.sessions.listings import WINDOW_SCHEME

__all__ = ["News", "Notices"]

_MOST_WINDOWS = 1000


@dataclass(slots=True)
class News:
    """What has come since the last time."""

    tools: bool = False
    resources: bool = False
    updated: dict[str, None] = field(default_factory=dict)


class Notices:
    """Adding never waits, so that the MCP connection never does."""

    def __init__(self) -> None:
        self._news = News()
        self._come = asyncio.Event()

    def hear(self, method: str, params: Mapping[str, Any]) -> None:
        match method:
            case "notifications/tools/list_changed":
                self._news.tools = True
            case "notifications/resources/list_changed":
                self._news.resources = True
            case "notifications/resources/updated":
                self._updated(params.get("uri"))
            case _:
                return
        self._come.set()

    def doubt(self) -> None:
        """Something may have been missed: look at everything again."""
        self._news.tools = self._news.resources = True
        self._come.set()

    async def take(self) -> News:
        await self._come.wait()
        self._come.clear()
        news, self._news = self._news, News()
        return news

    def _updated(self, uri: object) -> None:
        if isinstance(uri, str) and uri.startswith(WINDOW_SCHEME) and len(self._news.updated) < _MOST_WINDOWS:
            self._news.updated[uri] = None
