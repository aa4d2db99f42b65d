"""What `a2c-smcp agent` lists: tools, desktops, configurations and members, each as a person or a program wants it."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from a2c_smcp.cli.answers import put_json, put_table
from a2c_smcp.cli.visits import Visit
from a2c_smcp.cli.watching import put_desktop
from a2c_smcp.errors import ComputerNotFound, SMCPError
from a2c_smcp.smcp import SMCPTool

__all__ = ["show_config", "show_desktop", "show_room", "show_tools"]


async def show_tools(visit: Visit, *, computer: str | None, tags: Sequence[str], as_json: bool) -> None:
    """Those of all who answer. If somebody does not, that is a failure in the end."""
    answers = {computer: await visit.agent.get_tools(computer)} if computer else await _offered(visit)
    tools = [_described(name, tool) for name, found in answers.items() if isinstance(found, list) for tool in found]
    wanted = [tool for tool in tools if set(tags) <= set(tool["tags"])]
    if as_json:
        put_json(wanted)
    elif wanted:
        put_table(("tool", "computer", "description", "tags", "approval"), map(_tool_row, wanted))
    else:
        visit.terminal.show(
            f"no such tools in office {visit.office}" if tools else f"no tools in office {visit.office}"
        )
    failures = {name: error for name, error in answers.items() if isinstance(error, SMCPError)}
    for name, failure in failures.items():
        visit.terminal.show(f"{name} does not say what it has: {failure.message}", "red")
    if failures:
        raise typer.Exit(1)


async def _offered(visit: Visit) -> dict[str, list[SMCPTool] | SMCPError]:
    """What each computer answers. One that leaves meanwhile offers nothing."""

    async def ask(computer: str) -> list[SMCPTool] | SMCPError:
        try:
            return await visit.agent.get_tools(computer)
        except ComputerNotFound:
            return []
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


def _described(computer: str, tool: SMCPTool) -> dict[str, Any]:
    """A tool as it came, with its computer, and what is hidden in its `meta`."""
    meta = _object((tool.get("meta") or {}).get("a2c_tool_meta"))
    tags = [str(tag) for tag in meta.get("tags") or ()]
    return {"computer": computer, **tool, "tags": tags, "needs_approval": meta.get("auto_apply") is not True}


def _tool_row(tool: Mapping[str, Any]) -> tuple[str, ...]:
    summary = " ".join((tool.get("description") or "").partition("\n\n")[0].split())
    approval = "asks" if tool["needs_approval"] else ""
    return tool["name"], tool["computer"], summary, ", ".join(tool["tags"]), approval


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
