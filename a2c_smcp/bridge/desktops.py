"""The Desktops of computers as resources, `desktop://<computer>`, and as the tool `get_desktop`.

A computer has a Desktop here once it has shown a window. The bridge asks when the computer enters and after each notice
of changed windows, and the Desktop stays until the computer leaves: so the lists of clients do not change each time a
window opens or closes, and an office without windows has neither the resources nor the tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

from a2c_smcp import smcp
from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import BadRequest, ComputerNotFound, SMCPError
from a2c_smcp.loops import LoopIsRunning, OwnedTasks
from a2c_smcp.registry.content import RawResult
from a2c_smcp.registry.sources import TEXT, BothWays, ResourceEntry

GET_DESKTOP = "get_desktop"
_MOST_WINDOWS = 1000


def desktop_uri(computer: str) -> str:
    return f"desktop://{quote(computer, safe='')}"


class DesktopResources:
    """Keeps the agent's registry equal to the Desktops there are. `on_change` is called when the tool has changed."""

    def __init__(self, agent: AsyncSMCPAgentClient, office: str, on_change: Callable[[], None]) -> None:
        self._agent, self._office, self._on_change = agent, office, on_change
        self._entries: dict[str, ResourceEntry] = {}
        self._checking: dict[str, bool] = {}
        self._tasks = OwnedTasks()
        self._stop_listening: Callable[[], None] = lambda: None

    def open(self) -> None:
        self._stop_listening = self._agent.listen(self)

    async def close(self) -> None:
        self._stop_listening()
        await self._tasks.close()
        for computer in [*self._entries]:
            self._remove(computer)

    @property
    def tool(self) -> dict[str, Any] | None:
        """The listing of `get_desktop`; `None` if no computer has a Desktop."""
        if not self._entries:
            return None
        return {
            "name": GET_DESKTOP,
            "title": "Desktop of a computer",
            "description": "Shows the windows that are open on a computer, as text, the most important first. "
            "Without `computer`, on all computers.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "computer": {"type": "string", "enum": sorted(self._entries)},
                    "size": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": _MOST_WINDOWS,
                        "description": "How many windows of a computer at most.",
                    },
                },
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        }

    async def call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of `get_desktop`. Raises `SMCPError`."""
        computer, size = arguments.get("computer"), arguments.get("size")
        if size is not None and (type(size) is not int or not 1 <= size <= _MOST_WINDOWS):
            raise BadRequest(f"size: must be a whole number from 1 to {_MOST_WINDOWS}", field="size")
        if computer is not None and computer not in self._entries:
            raise ComputerNotFound(f"{str(computer)[:128]!r} has no Desktop here", computer=str(computer)[:128])
        wanted = sorted(self._entries) if computer is None else [str(computer)]
        shown = await asyncio.gather(*(self._windows(name, size) for name in wanted))
        blocks: list[str] = []
        for name, windows in zip(wanted, shown, strict=True):
            title = [f"Desktop of {name}:"] if len(wanted) > 1 else []
            blocks += [*title, *(windows or ["No window is open."])]
        return {"content": [{"type": "text", "text": text} for text in blocks], "isError": False}

    # Events of the agent (`AgentEvents`)

    def on_computer_enter_office(self, data: dict[str, Any]) -> None:
        if data["office_id"] == self._office:
            self._check(data["computer"])

    def on_computer_update_state(self, data: dict[str, Any]) -> None:
        if not data["frozen"]:
            self.on_computer_enter_office(data)

    def on_computer_leave_office(self, data: dict[str, Any]) -> None:
        if data["office_id"] == self._office:
            self._remove(data["computer"])

    def on_notice(self, event: str, data: dict[str, Any]) -> None:
        computer = data.get("computer")
        is_ours = data.get("office_id", self._office) == self._office
        if event != smcp.UPDATE_DESKTOP_NOTIFICATION or not isinstance(computer, str) or not is_ours:
            return
        if computer in self._entries:
            self._agent.registry.resource_updated(desktop_uri(computer))
        else:
            self._check(computer)

    def _check(self, computer: str) -> None:
        """Ask whether the computer has a window; once more, if that is being asked already."""
        if computer in self._checking:
            self._checking[computer] = True
            return
        self._checking[computer] = False
        self._tasks.spawn(self._ask(computer))

    async def _ask(self, computer: str) -> None:
        try:
            windows = await self._windows(computer, 1)
        except SMCPError:
            windows = []
        is_asked_again = self._checking.pop(computer)
        if windows:
            self._add(computer)
        elif is_asked_again:
            self._check(computer)

    def _add(self, computer: str) -> None:
        if computer in self._entries or f"{self._office}/{computer}" not in self._agent.computers:
            return
        uri = desktop_uri(computer)
        listing = {
            "uri": uri,
            "name": f"desktop of {computer}",
            "title": f"Desktop of {computer}",
            "description": f"The windows that are open on {computer}, the most important first.",
            "mimeType": TEXT,
        }
        read = BothWays(_refuse, partial(self._read, computer, uri))
        self._entries[computer] = entry = ResourceEntry(uri, listing, read)
        self._agent.registry.update_readable(add=[entry])
        self._on_change()

    def _remove(self, computer: str) -> None:
        if entry := self._entries.pop(computer, None):
            self._agent.registry.update_readable(remove=[entry])
            self._on_change()

    async def _read(self, computer: str, uri: str, _: dict[str, Any]) -> RawResult:
        windows = await self._windows(computer, None) or [""]
        return RawResult({"contents": [{"uri": uri, "mimeType": TEXT, "text": text} for text in windows]})

    async def _windows(self, computer: str, size: int | None) -> list[str]:
        return await self._agent.get_desktop(computer, size, office=self._office, keep=False)


def _refuse(_: dict[str, Any]) -> Any:
    raise LoopIsRunning("a bridge is used in its event loop: await aread_resource instead")
