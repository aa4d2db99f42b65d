"""JSON lines between a published peer and the test that drives it. Import it before the package.

Towards the peer: `{"id": 1, "do": "<command>", …its arguments}`. Back: `{"id": 1, "ok": true, "result": …}`, or
`{"id": 1, "ok": false, "error": "<exception>", "message": …}`. What the peer hears by itself is
`{"event": "<name>", "data": …}`; the first is `ready` or `failed`. The end of standard input ends the peer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable
from importlib.metadata import version
from typing import Any

NAMESPACE = "/smcp"
VERSION = version("a2c-smcp")

# The package logs to standard output: it gets standard error in its place, only the lines here reach the test.
_out = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


class Commands:
    """What any peer can be told. The public coroutines of a subclass are its commands."""

    def __init__(self, client: Any, name: str, office: str) -> None:
        self.client = client
        self.name = name
        self.office = office

    async def call(self, event: str, data: Any, timeout: float = 20) -> Any:
        """Any event, and its ack as it comes."""
        return await self.client.call(event, data, namespace=NAMESPACE, timeout=timeout)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--office", required=True)
    parser.add_argument("--api-key")
    return parser


def heard(event: str, data: Any) -> None:
    _send({"event": event, "data": data})


async def obey(commands: Commands, connecting: Awaitable[None]) -> None:
    """Connects, says how that went, and does as it is told. Events the package has no handler for are reported."""

    async def unhandled(event: str, *data: Any) -> None:
        heard(event, data[0] if len(data) == 1 else data)

    commands.client.on("*", unhandled, namespace=NAMESPACE)
    try:
        await connecting
    except Exception as error:  # whatever the package raises is what the test wants to see
        heard("failed", {"error": type(error).__name__, "message": str(error)})
        return
    heard("ready", {"version": VERSION})
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as running:
        while line := await reader.readline():
            running.create_task(_run(commands, json.loads(line)))


async def _run(commands: Commands, arguments: dict[str, Any]) -> None:
    number, command = arguments.pop("id"), getattr(commands, arguments.pop("do"))
    try:
        result = await command(**arguments)
    except Exception as error:
        _send({"id": number, "ok": False, "error": type(error).__name__, "message": str(error)})
    else:
        _send({"id": number, "ok": True, "result": result})


def _send(line: dict[str, Any]) -> None:
    print(json.dumps(line, default=_plain), file=_out, flush=True)


def _plain(value: Any) -> Any:
    """A pydantic model as its aliases spell it, and the text of anything else that JSON does not know."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", by_alias=True, exclude_none=True) if dump else str(value)
