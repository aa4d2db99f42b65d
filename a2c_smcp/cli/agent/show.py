"""Output of `a2c-smcp agent`, as tables or JSON: tools, desktops, configurations, members, and events until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, NamedTuple

import typer

from a2c_smcp import mcp_events, smcp
from a2c_smcp.agent import AgentEvents
from a2c_smcp.cli.agent.run import OfficeContext
from a2c_smcp.cli.errors import Failed, server_names_hint
from a2c_smcp.cli.terminal import first_sentence, put_json, put_table, put_text
from a2c_smcp.errors import ComputerNotFound, ServerNotFound, SMCPError
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.smcp import GET_TOOLS_EVENT, SMCPTool
from a2c_smcp.types import Desktop


async def show_tools(context: OfficeContext, *, computer: str | None, tags: Sequence[str], as_json: bool) -> None:
    """List the tools of one computer or of all. Exits with 1, after the list, if a computer did not answer."""
    answers = {computer: await _tools_of(context, computer)} if computer else await _tools_of_all(context)
    listed = {name: answer for name, answer in answers.items() if isinstance(answer, _ComputerTools)}
    tools = [_described(name, tool, answer) for name, answer in listed.items() for tool in answer.tools]
    wanted = [tool for tool in tools if set(tags) <= set(tool["tags"])]
    if as_json:
        put_json(wanted)
    elif wanted:
        put_table(_TOOL_COLUMNS, map(_tool_row, wanted), cut="description")
    else:
        context.terminal.show(f"no {'such ' if tools else ''}tools in office {context.office}")
    _show_missing(context, answers)


def _show_missing(context: OfficeContext, answers: Mapping[str, _ComputerTools | SMCPError]) -> None:
    """Name what a list of tools lacks: servers that are still starting, and computers that gave no list."""
    failed = False
    for name, answer in answers.items():
        if isinstance(answer, SMCPError):
            failed = True
            context.terminal.show(f"{name} gave no list of its tools: {answer.message}", "red")
        elif answer.starting:
            context.terminal.show(f"still starting on {name}: {', '.join(answer.starting)}", "yellow")
    if failed:
        raise typer.Exit(1)


_TOOL_COLUMNS = ("tool", "computer", "server", "description", "tags", "approval")


class _ComputerTools(NamedTuple):
    """The answer of a computer. `approved`: tools that run without approval for this agent, `True` for all."""

    tools: Sequence[Any] = ()
    starting: Sequence[str] = ()
    approved: bool | Sequence[str] = ()


async def _tools_of(context: OfficeContext, computer: str) -> _ComputerTools:
    answer: Any = await context.agent.request(GET_TOOLS_EVENT, computer)
    tools = answer.get("tools") if isinstance(answer, Mapping) else None
    if not isinstance(tools, list):
        raise SMCPError("the answer is not a list of tools")
    starting, approved = answer.get("starting"), answer.get("approved")
    return _ComputerTools(
        [tool for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)],
        [str(name) for name in starting] if isinstance(starting, list) else (),
        approved if isinstance(approved, bool | list) else (),
    )


async def _tools_of_all(context: OfficeContext) -> dict[str, _ComputerTools | SMCPError]:
    """The answer or the error of each computer. One that leaves meanwhile has no tools."""

    async def ask(computer: str) -> _ComputerTools | SMCPError:
        try:
            return await _tools_of(context, computer)
        except ComputerNotFound:
            return _ComputerTools()
        except SMCPError as error:
            return error

    computers = await context.computers()
    return dict(zip(computers, await asyncio.gather(*map(ask, computers)), strict=True))


async def show_desktop(
    context: OfficeContext, *, computer: str, size: int | None, window: str | None, as_json: bool
) -> None:
    windows = await context.agent.get_desktop(computer, size, window)
    put_desktop(windows, as_json=as_json)
    if not windows:
        context.terminal.show(f"{computer} has no windows to show")


async def show_config(context: OfficeContext, *, computer: str, as_json: bool) -> None:
    config: Any = await context.agent.get_config(computer)
    if as_json:
        put_json(config)
        return
    if servers := _object(config.get("servers")):
        put_table(("server", "type", "runs", "state"), (_server_row(name, _object(servers[name])) for name in servers))
    else:
        context.terminal.show(f"{computer} has no MCP servers")
    if inputs := [entry for entry in config.get("inputs") or () if isinstance(entry, Mapping)]:
        fields = ("id", "type", "description")
        put_table(("input", *fields[1:]), ([str(entry.get(field, "")) for field in fields] for entry in inputs))


async def show_room(context: OfficeContext, *, as_json: bool) -> None:
    members: Any = await context.agent.list_room(context.office)
    if as_json:
        put_json(members)
        return
    rows = [
        (member["name"], member["role"], member.get("a2c_version", ""), "frozen" if member.get("frozen") else "")
        for member in members
    ]
    put_table(("name", "role", "protocol", "state"), sorted(rows, key=lambda row: (row[1], row[0])))


def _described(computer: str, tool: Mapping[str, Any], answer: _ComputerTools) -> dict[str, Any]:
    """A tool as it came, with its computer, its tags, whether it needs approval, and whether it has changed."""
    known = tool.get("meta") or {}
    meta, changed = _object(known.get("a2c_tool_meta")), _object(known.get("a2c_changed"))
    tags = [str(tag) for tag in meta.get("tags") or ()]
    approved = answer.approved
    is_approved = approved if isinstance(approved, bool) else tool["name"] in approved
    asks = (meta.get("auto_apply") is not True and not is_approved) or changed.get("asks") is True
    return {"computer": computer, **tool, "tags": tags, "needs_approval": asks, "has_changed": bool(changed)}


def _tool_row(tool: Mapping[str, Any]) -> tuple[str, ...]:
    summary = first_sentence(str(tool.get("description") or ""))
    approval = ", ".join(["asks"] * tool["needs_approval"] + ["changed"] * tool["has_changed"])
    server = str(tool.get("mcp_server") or tool.get("bundle_id", ""))
    return tool["name"], tool["computer"], server, summary, ", ".join(tool["tags"]), approval


def _server_row(name: str, server: Mapping[str, Any]) -> tuple[str, ...]:
    parameters = _object(server.get("server_parameters"))
    command = [parameters.get("command"), *(parameters.get("args") or ())]
    runs = parameters.get("url") or shlex.join(str(word) for word in command if word is not None)
    shown = str(server.get("name") or name)  # 0.4.2 has bundle ids as keys
    return shown, str(server.get("type", "")), str(runs), "disabled" if server.get("disabled") else ""


def _object(value: object) -> Mapping[str, Any]:
    """000: `meta` holds objects as JSON strings."""
    try:
        read = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return read if isinstance(read, Mapping) else {}


_SHOWN_BY_OTHER_METHODS = {
    smcp.ENTER_OFFICE_NOTIFICATION,
    smcp.LEAVE_OFFICE_NOTIFICATION,
    smcp.UPDATE_CONFIG_NOTIFICATION,
    smcp.UPDATE_TOOL_LIST_NOTIFICATION,
    mcp_events.UPDATE_PROMPTS_NOTIFICATION,
    mcp_events.UPDATE_RESOURCE_LIST_NOTIFICATION,
}
_SHOWN = 8


class UntilStopped(AgentEvents):
    """Runs until Ctrl-C, which is success, or until the Server refuses this agent for good, which is an error."""

    def __init__(self) -> None:
        self._refusal: asyncio.Queue[Exception] = asyncio.Queue()

    def on_refused(self, error: Exception) -> None:
        self._refusal.put_nowait(error)

    async def run(self, showing: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.create_task(showing), asyncio.create_task(self._raise_refusal())]
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _raise_refusal(self) -> None:
        raise await self._refusal.get()


class _PrintsLines(UntilStopped):
    """Prints lines from a queue, which may be limited."""

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self._lines: asyncio.Queue[str] = asyncio.Queue(most)

    async def _show(self) -> None:
        while True:
            put_text(await self._lines.get())


class Watch(_PrintsLines):
    """The work of `a2c-smcp agent watch`: print a line for each event."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    async def __call__(self, context: OfficeContext) -> None:
        context.terminal.show(f"watching office {context.office} (Ctrl-C ends it)")
        await self.run(self._show())

    def on_computer_enter_office(self, data: dict[str, Any]) -> None:
        self._put("enter", data["computer"], "is here")

    def on_computer_leave_office(self, data: dict[str, Any]) -> None:
        self._put("leave", data["computer"], "has left")

    def on_computer_update_config(self, data: dict[str, Any]) -> None:
        self._put("config", data["computer"], "has another configuration")

    def on_tools_received(self, computer: str, tools: list[SMCPTool], office: str) -> None:
        names = [tool["name"] for tool in tools]
        more = ", …" if len(names) > _SHOWN else ""
        listed = f": {', '.join(names[:_SHOWN])}{more}" if names else ""
        self._put("tools", computer, f"has {len(names)} tool{'' if len(names) == 1 else 's'}{listed}", tools=names)

    def on_resources_changed(self, computer: str, server: str | None, office: str) -> None:
        self._put("resources", computer, f"has other resources in {server or 'an MCP server'}", mcp_server=server)

    def on_prompts_changed(self, computer: str, server: str | None, office: str) -> None:
        self._put("prompts", computer, f"has other prompts in {server or 'an MCP server'}", mcp_server=server)

    def on_office_lost(self, office: str, error: Exception) -> None:
        self._put("office_lost", None, f"this agent could not join the office again: {error}", reason=str(error))

    def on_notice(self, event: str, data: dict[str, Any]) -> None:
        computer = data.get("computer")
        named = computer if isinstance(computer, str) else None
        if event == smcp.UPDATE_DESKTOP_NOTIFICATION:
            self._put("desktop", named, "has another desktop")
        elif event not in _SHOWN_BY_OTHER_METHODS:
            self._put(event, named, f"{event} {dumps(data)}", data=data)

    def _put(self, event: str, computer: str | None, words: str, **more: Any) -> None:
        now = datetime.now().astimezone()
        if self._as_json:
            about = {"computer": computer} if computer is not None else {}
            line = dumps({"time": now.isoformat("T", "milliseconds"), "event": event, **about, **more})
        else:
            line = f"{now:%H:%M:%S}  {computer or '-'}  {words}".replace("\n", " ")
        self._lines.put_nowait(line)


class DesktopWatch(UntilStopped):
    """The work of `a2c-smcp agent desktop --watch`: print the desktop now, and again after each change."""

    def __init__(self, computer: str, size: int | None, window: str | None, *, as_json: bool) -> None:
        super().__init__()
        self._wanted = (computer, size, window)
        self._as_json = as_json
        self._context: OfficeContext | None = None

    async def __call__(self, context: OfficeContext) -> None:
        await context.agent.get_desktop(*self._wanted)
        self._context = context
        await self.run(self._show(context))

    async def _show(self, context: OfficeContext) -> None:
        async with aclosing(context.agent.watch_desktop(*self._wanted)) as desktops:
            async for desktop in desktops:
                if not self._as_json:
                    context.terminal.show(f"{datetime.now().astimezone():%H:%M:%S}  {self._wanted[0]}", "dim")
                put_desktop(desktop, as_json=self._as_json, in_one_line=True)

    def on_computer_leave_office(self, data: dict[str, Any]) -> None:
        if self._context and data["computer"] == self._wanted[0]:
            self._context.terminal.show(f"{data['computer']} has left; its desktop is shown when it is back", "yellow")


def put_desktop(desktop: list[Desktop], *, as_json: bool, in_one_line: bool = False) -> None:
    """Print windows, each with its URI above its text."""
    if as_json:
        put_json(desktop, in_one_line=in_one_line)
    elif desktop:
        put_text("\n\n".join(window.rstrip("\n") for window in desktop))


# `a2c-smcp agent logs`: print what MCP servers of a computer log, until Ctrl-C.

_WAITING = 1000
"""Lines that may wait to be printed; of more, the newest are dropped."""


class LogWatch(_PrintsLines):
    """The work of `a2c-smcp agent logs`."""

    def __init__(self, computer: str, server: str | None, level: mcp_events.LogLevel, *, as_json: bool) -> None:
        super().__init__(_WAITING)
        self._computer, self._server, self._level, self._as_json = computer, server, level, as_json
        self._context: OfficeContext | None = None

    async def __call__(self, context: OfficeContext) -> None:
        self._context = context
        try:
            await context.agent.set_log_level(self._computer, self._level, self._server)
        except ServerNotFound as error:
            config: Any = await context.agent.get_config(self._computer)
            raise Failed(error.message, server_names_hint(str(self._server), [*config.get("servers", {})])) from None
        whose = f"{self._server} logs" if self._server else f"the MCP servers of {self._computer} log"
        context.terminal.show(f"showing what {whose}, from {self._level} on (Ctrl-C ends it)")
        await self.run(self._show())

    def on_log(self, computer: str, log: dict[str, Any], office: str) -> None:
        if not self._lines.full():
            self._lines.put_nowait(self._line(log))

    def on_computer_leave_office(self, data: dict[str, Any]) -> None:
        if self._context and data["computer"] == self._computer:
            self._context.terminal.show(f"{self._computer} has left; its logs go on when it is back", "yellow")

    def _line(self, log: dict[str, Any]) -> str:
        now = datetime.now().astimezone()
        if self._as_json:
            known = {key: log[key] for key in ("mcp_server", "level", "logger", "data") if key in log}
            return dumps({"time": now.isoformat("T", "milliseconds"), "computer": self._computer, **known})
        data = log.get("data")
        text = data if isinstance(data, str) else dumps(data)
        logger = f"{log['logger']}: " if log.get("logger") else ""
        message = f"{logger}{text}".rstrip().replace("\n", "\n    ")
        return f"{now:%H:%M:%S}  {log.get('mcp_server')}  {log.get('level')}  {message}"
