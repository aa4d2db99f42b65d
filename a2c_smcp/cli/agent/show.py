"""What `a2c-smcp agent` lists: tools, desktops, configurations and members, each as a person or a program wants it."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, NamedTuple

import typer

from a2c_smcp import smcp
from a2c_smcp.agent import AgentEvents
from a2c_smcp.cli.agent.run import Visit
from a2c_smcp.cli.terminal import first_sentence, put_json, put_table, put_text
from a2c_smcp.errors import ComputerNotFound, SMCPError
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.smcp import GET_TOOLS_EVENT, SMCPTool
from a2c_smcp.types import Desktop

__all__ = ["DesktopWatch", "Watch", "put_desktop", "show_config", "show_desktop", "show_room", "show_tools"]


async def show_tools(visit: Visit, *, computer: str | None, tags: Sequence[str], as_json: bool) -> None:
    """Those of all who answer. If somebody does not, that is a failure in the end."""
    answers = {computer: await _offer_of(visit, computer)} if computer else await _offered(visit)
    offers = {name: offer for name, offer in answers.items() if isinstance(offer, _Offer)}
    tools = [_described(name, tool, offer) for name, offer in offers.items() for tool in offer.tools]
    wanted = [tool for tool in tools if set(tags) <= set(tool["tags"])]
    if as_json:
        put_json(wanted)
    elif wanted:
        put_table(
            ("tool", "computer", "server", "description", "tags", "approval"), map(_tool_row, wanted), cut="description"
        )
    else:
        visit.terminal.show(
            f"no such tools in office {visit.office}" if tools else f"no tools in office {visit.office}"
        )
    for name, offer in offers.items():
        if offer.starting:
            visit.terminal.show(f"still starting on {name}: {', '.join(offer.starting)}", "yellow")
    failures = {name: error for name, error in answers.items() if isinstance(error, SMCPError)}
    for name, failure in failures.items():
        visit.terminal.show(f"{name} does not say what it has: {failure.message}", "red")
    if failures:
        raise typer.Exit(1)


class _Offer(NamedTuple):
    """What a computer says of its tools. `approved` are those it runs unasked for this agent, or `True` for all."""

    tools: Sequence[Any] = ()
    starting: Sequence[str] = ()
    approved: bool | Sequence[str] = ()


async def _offer_of(visit: Visit, computer: str) -> _Offer:
    answer: Any = await visit.agent.request(GET_TOOLS_EVENT, computer)
    found = answer.get("tools") if isinstance(answer, Mapping) else None
    if not isinstance(found, list):
        raise SMCPError("the answer is not a list of tools")
    starting, approved = answer.get("starting"), answer.get("approved")
    return _Offer(
        [tool for tool in found if isinstance(tool, dict) and isinstance(tool.get("name"), str)],
        [str(name) for name in starting] if isinstance(starting, list) else (),
        approved if isinstance(approved, bool | list) else (),
    )


async def _offered(visit: Visit) -> dict[str, _Offer | SMCPError]:
    """What each computer answers. One that leaves meanwhile offers nothing."""

    async def ask(computer: str) -> _Offer | SMCPError:
        try:
            return await _offer_of(visit, computer)
        except ComputerNotFound:
            return _Offer()
        except SMCPError as error:
            return error

    computers = await visit.computers()
    return dict(zip(computers, await asyncio.gather(*map(ask, computers)), strict=True))


async def show_desktop(visit: Visit, *, computer: str, size: int | None, window: str | None, as_json: bool) -> None:
    windows = await visit.agent.get_desktop(computer, size, window)
    put_desktop(windows, as_json=as_json)
    if not windows:
        visit.terminal.show(f"{computer} has no windows to show")


async def show_config(visit: Visit, *, computer: str, as_json: bool) -> None:
    found: Any = await visit.agent.get_config(computer)
    if as_json:
        put_json(found)
        return
    if servers := _objects(found.get("servers")):
        put_table(("server", "type", "runs", "state"), (_server_row(*each) for each in servers.items()))
    else:
        visit.terminal.show(f"{computer} has no MCP servers")
    if inputs := [each for each in found.get("inputs") or () if isinstance(each, Mapping)]:
        put_table(("input", "type", "description"), ([str(each.get(key, "")) for key in _INPUT] for each in inputs))


async def show_room(visit: Visit, *, as_json: bool) -> None:
    members: Any = await visit.agent.list_room(visit.office)
    if as_json:
        put_json(members)
        return
    rows = ((each["name"], each["role"], each.get("a2c_version", "")) for each in members)
    put_table(("name", "role", "protocol"), sorted(rows, key=lambda row: (row[1], row[0])))


_INPUT = ("id", "type", "description")


def _described(computer: str, tool: Mapping[str, Any], offer: _Offer) -> dict[str, Any]:
    """A tool as it came, with its computer, what is hidden in its `meta`, and whether its owner is asked."""
    meta = _object((tool.get("meta") or {}).get("a2c_tool_meta"))
    tags = [str(tag) for tag in meta.get("tags") or ()]
    approved = offer.approved
    is_approved = approved if isinstance(approved, bool) else tool["name"] in approved
    asks = meta.get("auto_apply") is not True and not is_approved
    return {"computer": computer, **tool, "tags": tags, "needs_approval": asks}


def _tool_row(tool: Mapping[str, Any]) -> tuple[str, ...]:
    summary, approval = first_sentence(str(tool.get("description") or "")), "asks" if tool["needs_approval"] else ""
    return tool["name"], tool["computer"], str(tool.get("bundle_id", "")), summary, ", ".join(tool["tags"]), approval


def _server_row(name: str, server: Mapping[str, Any]) -> tuple[str, ...]:
    parameters = _object(server.get("server_parameters"))
    command = [parameters.get("command"), *(parameters.get("args") or ())]
    runs = parameters.get("url") or shlex.join(str(word) for word in command if word is not None)
    return name, str(server.get("type", "")), str(runs), "disabled" if server.get("disabled") else ""


def _object(value: object) -> Mapping[str, Any]:
    """000: `meta` holds objects as JSON strings."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _objects(value: object) -> dict[str, Mapping[str, Any]]:
    return {name: _object(each) for name, each in _object(value).items()}


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
