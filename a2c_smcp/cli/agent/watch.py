"""What happens in an office, as it happens, until Ctrl-C: events, or the desktop of one computer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any

from a2c_smcp import smcp
from a2c_smcp.agent import AgentEvents
from a2c_smcp.cli.agent.run import Visit
from a2c_smcp.cli.results import put_json, put_text
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.smcp import SMCPTool
from a2c_smcp.types import Desktop

__all__ = ["DesktopWatch", "Watch", "put_desktop"]

_TOLD_OTHERWISE = {
    smcp.ENTER_OFFICE_NOTIFICATION,
    smcp.LEAVE_OFFICE_NOTIFICATION,
    smcp.UPDATE_CONFIG_NOTIFICATION,
    smcp.UPDATE_TOOL_LIST_NOTIFICATION,
}
_SHOWN = 8


class _Endless(AgentEvents):
    """Shows until Ctrl-C, which is how a watch is meant to end, or until the Server refuses it for good."""

    def __init__(self) -> None:
        self._refusal: asyncio.Queue[Exception] = asyncio.Queue()

    def on_refused(self, error: Exception) -> None:
        self._refusal.put_nowait(error)

    async def go_on(self, showing: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.create_task(showing), asyncio.create_task(self._stay())]
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _stay(self) -> None:
        raise await self._refusal.get()


class Watch(_Endless):
    """The work of `a2c-smcp agent watch`: one line for each event."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._lines: asyncio.Queue[str] = asyncio.Queue()

    async def __call__(self, visit: Visit) -> None:
        visit.terminal.show(f"watching office {visit.office} (Ctrl-C ends it)")
        await self.go_on(self._show())

    async def _show(self) -> None:
        while True:
            put_text(await self._lines.get())

    def on_computer_enter_office(self, data: dict[str, Any]) -> None:
        self._tell("enter", data["computer"], "is here")

    def on_computer_leave_office(self, data: dict[str, Any]) -> None:
        self._tell("leave", data["computer"], "has left")

    def on_computer_update_config(self, data: dict[str, Any]) -> None:
        self._tell("config", data["computer"], "has another configuration")

    def on_tools_received(self, computer: str, tools: list[SMCPTool], office: str) -> None:
        names = [tool["name"] for tool in tools]
        more = ", …" if len(names) > _SHOWN else ""
        listed = f": {', '.join(names[:_SHOWN])}{more}" if names else ""
        self._tell("tools", computer, f"has {len(names)} tool{'' if len(names) == 1 else 's'}{listed}", tools=names)

    def on_office_lost(self, office: str, error: Exception) -> None:
        self._tell("office_lost", None, f"the office would not have this agent back: {error}", reason=str(error))

    def on_notice(self, event: str, data: dict[str, Any]) -> None:
        computer = data.get("computer")
        named = computer if isinstance(computer, str) else None
        if event == smcp.UPDATE_DESKTOP_NOTIFICATION:
            self._tell("desktop", named, "has another desktop")
        elif event not in _TOLD_OTHERWISE:
            self._tell(event, named, f"{event} {dumps(data)}", data=data)

    def _tell(self, event: str, computer: str | None, words: str, **more: Any) -> None:
        now = datetime.now().astimezone()
        if self._as_json:
            about = {"computer": computer} if computer is not None else {}
            line = dumps({"time": now.isoformat("T", "milliseconds"), "event": event, **about, **more})
        else:
            line = f"{now:%H:%M:%S}  {computer or '-'}  {words}".replace("\n", " ")
        self._lines.put_nowait(line)


class DesktopWatch(_Endless):
    """The work of `a2c-smcp agent desktop --watch`: the desktop now, and again whenever it has changed."""

    def __init__(self, computer: str, size: int | None, window: str | None, *, as_json: bool) -> None:
        super().__init__()
        self._wanted = (computer, size, window)
        self._as_json = as_json
        self._visit: Visit | None = None

    async def __call__(self, visit: Visit) -> None:
        await visit.agent.get_desktop(*self._wanted)
        self._visit = visit
        await self.go_on(self._show(visit))

    async def _show(self, visit: Visit) -> None:
        async with aclosing(visit.agent.watch_desktop(*self._wanted)) as desktops:
            async for desktop in desktops:
                if not self._as_json:
                    visit.terminal.show(f"{datetime.now().astimezone():%H:%M:%S}  {self._wanted[0]}", "dim")
                put_desktop(desktop, as_json=self._as_json, in_one_line=True)

    def on_computer_leave_office(self, data: dict[str, Any]) -> None:
        if self._visit and data["computer"] == self._wanted[0]:
            self._visit.terminal.show(f"{data['computer']} has left; its desktop is shown when it is back", "yellow")


def put_desktop(desktop: list[Desktop], *, as_json: bool, in_one_line: bool = False) -> None:
    """Windows, each with its URI above its text."""
    if as_json:
        put_json(desktop, in_one_line=in_one_line)
    elif desktop:
        put_text("\n\n".join(window.rstrip("\n") for window in desktop))
