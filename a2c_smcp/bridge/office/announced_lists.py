"""Lists that an MCP server says have changed although they look the same: clients are told as well.

The agent fetches a list again when its computer announces a change, and the registry tells of a difference. If there is
none, nothing would be said, but an MCP client may rely on the announcement itself. So each announcement waits a moment
here; if the registry has told of a change meanwhile, it is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

__all__ = ["AnnouncedLists", "ListName"]

ListName: TypeAlias = Literal["tools", "resources", "prompts"]

_PAUSE = 0.2
"""Seconds in which a list that has changed is fetched."""


class AnnouncedLists:
    """A listener to an agent's events. `tell` is called for lists that were announced and have not changed."""

    def __init__(self, office: str, tell: Callable[[ListName], None]) -> None:
        self._office, self._tell = office, tell
        self._timers: dict[ListName, asyncio.TimerHandle] = {}

    def changed(self, name: ListName) -> None:
        """The registry has told of a change."""
        if timer := self._timers.pop(name, None):
            timer.cancel()

    def close(self) -> None:
        for name in [*self._timers]:
            self.changed(name)

    def _announced(self, name: ListName, office: str) -> None:
        if office == self._office and name not in self._timers:
            self._timers[name] = asyncio.get_running_loop().call_later(_PAUSE, self._tell_of, name)

    def _tell_of(self, name: ListName) -> None:
        del self._timers[name]
        self._tell(name)

    # Events of the agent (`AgentEvents`)

    def on_tools_received(self, computer: str, tools: list[Any], office: str) -> None:
        self._announced("tools", office)

    def on_resources_changed(self, computer: str, server: str | None, office: str) -> None:
        self._announced("resources", office)

    def on_prompts_changed(self, computer: str, server: str | None, office: str) -> None:
        self._announced("prompts", office)
