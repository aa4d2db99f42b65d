"""The commands with which the owner looks after his MCP servers and their inputs."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.console import Console
from a2c_smcp.cli.prompt.jobs import Job
from a2c_smcp.cli.prompt.language import Command, WrongUse
from a2c_smcp.computer.inputs.resolver import InputState
from a2c_smcp.computer.secrets import secrets_of
from a2c_smcp.mcp_host.config.servers import parse_server, source

__all__ = ["OWNING"]


async def _add(console: Console, arguments: list[str]) -> Job:
    name, *words = arguments
    if name in console.computer.status():
        raise WrongUse(f"there is a server {name!r} already: server rm {name} removes it")
    config = parse_server(_config(words), name)
    console.computer.mask.add(secrets_of({"servers": {name: source(config)}}).found, name)
    return Job(f"server add {name}", partial(_put, console, config))


def _config(words: list[str]) -> dict[str, Any]:
    """JSON, a URL, or a command with its arguments. Raises `WrongUse`."""
    if words[0].startswith("{"):
        try:
            found = json.loads(words[0])
        except ValueError as error:
            raise WrongUse(f"not JSON: {error}") from None
        return found if isinstance(found, dict) else {}
    if words[0].startswith(("http://", "https://")):
        return {"type": "streamable", "url": words[0]}
    return {"command": words[0], "args": words[1:]}


async def _put(console: Console, config: Any) -> None:
    await console.computer.put_server(config)
    console.say(f"{config.name} is here until this program ends; a file given with --config keeps it")


async def _rm(console: Console, arguments: list[str]) -> Job:
    return Job(f"server rm {arguments[0]}", partial(_removed, console, arguments[0]))


async def _removed(console: Console, name: str) -> None:
    await console.computer.remove_server(name)
    console.errors.pop(name, None)
    console.say(f"{name} is removed")


async def _start(console: Console, arguments: list[str]) -> Job:
    return Job(f"server start {arguments[0]}", partial(console.computer.start, _known(console, arguments[0])))


async def _stop(console: Console, arguments: list[str]) -> Job:
    return Job(f"server stop {arguments[0]}", partial(console.computer.stop, _known(console, arguments[0])))


async def _restart(console: Console, arguments: list[str]) -> Job:
    return Job(f"server restart {arguments[0]}", partial(console.computer.restart, _known(console, arguments[0])))


async def _logs(console: Console, arguments: list[str]) -> None:
    diagnostics = console.computer.status()[_known(console, arguments[0])].diagnostics
    text = str(diagnostics.get("stderr") or "").rstrip()
    console.say(text or f"{arguments[0]} has written nothing to stderr")


async def _list(console: Console, arguments: list[str]) -> None:
    if known := console.computer.inputs.list():
        console.draw(views.inputs(known))
    else:
        console.say("no inputs are defined")


async def _set(console: Console, arguments: list[str]) -> None:
    id_, *keep = arguments
    if keep not in ([], ["keep"]):
        raise WrongUse("the value is asked for, so that it is not seen: usage: inputs set ID [keep]")
    definition = _input(console, id_).definition
    value = await console.questions.value(definition)
    if value is None:
        raise WrongUse(f"{id_} stays as it was")
    console.computer.mask.add([value] if _input(console, id_).is_secret else [])
    place = await console.computer.inputs.set(id_, value, keep=bool(keep))
    console.say(f"{id_} is set ({place})")


async def _clear(console: Console, arguments: list[str]) -> None:
    had = await console.computer.inputs.clear(_input(console, arguments[0]).id)
    console.say(f"{arguments[0]} {'is forgotten' if had else 'had no value'}")


def _known(console: Console, name: str) -> str:
    if name not in console.computer.status():
        raise WrongUse(f"there is no server {name!r}: status lists them")
    return name


def _input(console: Console, id_: str) -> InputState:
    for known in console.computer.inputs.list():
        if known.id == id_:
            return known
    raise WrongUse(f"there is no input {id_!r}: inputs list shows them")


OWNING = (
    Command("server add", "NAME COMMAND…", "Add a server: a command with arguments, a URL, or JSON.", _add),
    Command("server rm", "SERVER", "Stop a server and forget it.", _rm),
    Command("server start", "SERVER", "Start a server.", _start),
    Command("server stop", "SERVER", "Stop a server.", _stop),
    Command("server restart", "SERVER", "Stop and start a server.", _restart),
    Command("logs", "SERVER", "Show the last of what a server has written to stderr.", _logs),
    Command("inputs list", "", "Show inputs and where their values come from; secrets are hidden.", _list),
    Command("inputs set", "INPUT [keep]", "Ask for a value; servers that use it restart.", _set),
    Command("inputs clear", "INPUT", "Forget a value.", _clear),
)
