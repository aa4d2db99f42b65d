"""Who came first to a tool's name: a number for each tool, the smaller one before the larger.

At start the order of the configuration decides, not which server happens to be ready first: the tools of a server's
first list have the number that the server got when it was configured. What comes later is behind everything that is
there: tools that are added, and all tools of a server whose first start failed. A server that is restarted keeps the
numbers of its tools, otherwise a crash would be the moment to take over the name of another's tool.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Literal, TypeAlias

from a2c_smcp.types import SERVER_NAME, TOOL_NAME

__all__ = ["Precedence"]

_Phase: TypeAlias = Literal["first start", "late", "listed"]


class Precedence:
    """Told of every server and its tools, it answers with `of`."""

    def __init__(self) -> None:
        self._numbers = count()
        self._servers: dict[SERVER_NAME, int] = {}
        self._phases: dict[SERVER_NAME, _Phase] = {}
        self._tools: dict[SERVER_NAME, dict[TOOL_NAME, int]] = {}

    def configured(self, servers: Iterable[SERVER_NAME]) -> None:
        """All servers that there are now, in the order of the configuration."""
        now = list(servers)
        for gone in self._servers.keys() - set(now):
            del self._servers[gone]
            self._phases.pop(gone)
            self._tools.pop(gone)
        for server in now:
            if server not in self._servers:
                self._servers[server] = next(self._numbers)
                self._phases[server], self._tools[server] = "first start", {}

    def failed(self, server: SERVER_NAME) -> None:
        """It is not ready, and no longer about to be for the first time."""
        if self._phases[server] == "first start":
            self._phases[server] = "late"

    def listed(self, server: SERVER_NAME, tools: Iterable[TOOL_NAME]) -> None:
        """All that a server offers now."""
        known, names = self._tools[server], list(tools)
        if known.keys() != set(names):
            place = self._servers[server] if self._phases[server] == "first start" else next(self._numbers)
            self._tools[server] = {tool: known.get(tool, place) for tool in names}
        self._phases[server] = "listed"

    def of(self, server: SERVER_NAME, tool: TOOL_NAME) -> int:
        return self._tools[server][tool]
