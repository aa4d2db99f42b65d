"""What is known of each computer's tools, and a registry that shows them beside the local ones."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from a2c_smcp.agent.naming import names_of
from a2c_smcp.agent.types import Seat
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.background import is_in_loop
from a2c_smcp.registry.registry import LoopIsRunning
from a2c_smcp.registry.results import value_of
from a2c_smcp.smcp import SMCPTool

__all__ = ["CallSeat", "RemoteTool", "Toolbox"]

logger = logging.getLogger(__name__)

CallSeat: TypeAlias = Callable[[Seat, str, dict[str, Any]], Coroutine[Any, Any, CallToolResult]]
"""Calls a tool of a computer by the name it has there."""


class RemoteTool:
    """A tool of a computer, as a registry knows it. Its result is a Python value, or `ToolFailed`."""

    def __init__(self, name: str, seat: Seat, tool: SMCPTool, call: CallSeat, loop: asyncio.AbstractEventLoop) -> None:
        meta = tool.get("meta") or {}
        ours = _object_in(meta.get("a2c_tool_meta"))
        self.name = name
        self.seat = seat
        self.tool = tool
        self.description = tool.get("description") or ""
        self.input_schema = tool.get("params_schema") or {}
        self.output_schema = tool.get("return_schema")
        self.tags = [str(tag) for tag in ours.get("tags") or ()]
        self.meta = {"annotations": _object_in(meta.get("MCP_TOOL_ANNOTATION"))}
        self.origin = str(seat)
        self._call = call
        self._loop = loop

    def __repr__(self) -> str:
        return f"RemoteTool({self.name!r}, {self.origin!r})"

    def call(self, arguments: dict[str, Any]) -> Any:
        """For those who can block: raises `LoopIsRunning` where an event loop would be stopped by that."""
        if is_in_loop():
            raise LoopIsRunning(f"tool {self.name!r} runs elsewhere, and an event loop here: await acall instead")
        future = asyncio.run_coroutine_threadsafe(self._value(arguments), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def acall(self, arguments: dict[str, Any]) -> Any:
        """From any event loop."""
        work = self._value(arguments)
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _value(self, arguments: dict[str, Any]) -> Any:
        return value_of((await self._call(self.seat, self.tool["name"], arguments)).to_wire())


class Toolbox:
    """The computers that are there, with their tools, and the registry in step with them. Lives in one event loop."""

    def __init__(self, registry: MCPRegistry, call: CallSeat) -> None:
        self.registry = registry
        self._call = call
        self._tools: dict[Seat, list[SMCPTool] | None] = {}
        self._shown: dict[str, RemoteTool] = {}
        self._stop_listening: Callable[[], None] = lambda: None

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_listening = self.registry.on_change(self._on_change)

    def close(self) -> None:
        self._stop_listening()
        self._tools.clear()
        self._show()

    def seats(self, office: str | None = None) -> list[Seat]:
        """The computers that are there."""
        return [seat for seat in list(self._tools) if office in (None, seat.office)]

    def seats_of(self, computer: str, office: str | None) -> list[Seat]:
        """A computer by its name, in one office or in any."""
        return [seat for seat in self.seats(office) if seat.computer == computer]

    def enter(self, seat: Seat) -> bool:
        """Whether it is new here. What it offers is not known yet."""
        is_new = seat not in self._tools
        self._tools.setdefault(seat, None)
        return is_new

    def leave(self, seat: Seat) -> bool:
        """Whether it was here. Its tools go with it."""
        was_here = seat in self._tools
        if self._tools.pop(seat, None):
            self._show()
        return was_here

    def receive(self, seat: Seat, tools: list[SMCPTool]) -> None:
        """What a computer offers now, if it is still here."""
        sound = [tool for tool in tools if _is_sound(tool)]
        if len(sound) < len(tools):
            logger.warning("%s: %d of its tools are malformed and left out", seat, len(tools) - len(sound))
        if seat in self._tools and self._tools[seat] != sound:
            self._tools[seat] = sound
            self._show()

    def _on_change(self) -> None:
        """Somebody changed the registry, perhaps in another thread: a local tool may need a name of ours."""
        self._loop.call_soon_threadsafe(self._show)

    def _show(self) -> None:
        local = {name for name, tool in self.registry.items() if self._shown.get(name) is not tool}
        wanted = self._named(local)
        gone = [name for name in self._shown if name not in wanted and name not in local]
        new = {name: tool for name, tool in wanted.items() if self._shown.get(name) is not tool}
        self._shown = wanted
        if not (gone or new):
            return
        try:
            self.registry.update(add=new.values(), remove=gone)
        except TypeError:  # one of them is not fit to be a tool, and nothing is changed
            self.registry.update(remove=gone)
            for tool in new.values():
                self._add(tool)

    def _add(self, tool: RemoteTool) -> None:
        try:
            self.registry.update(add=[tool])
        except TypeError as error:
            logger.warning("%s of %s is left out: %s", tool.name, tool.origin, error)

    def _named(self, local: set[str]) -> dict[str, RemoteTool]:
        """A tool that is shown already under its name is kept as it is."""
        offered = {seat: {tool["name"]: tool for tool in tools} for seat, tools in self._tools.items() if tools}
        named = {}
        for (seat, tool_name), name in names_of(offered, local).items():
            tool, shown = offered[seat][tool_name], self._shown.get(name)
            is_same = shown is not None and shown.seat == seat and shown.tool == tool
            named[name] = shown if is_same and shown else RemoteTool(name, seat, tool, self._call, self._loop)
        return named


def _is_sound(tool: Any) -> bool:
    """Computers of other makes may say anything."""
    schemas = (tool.get("params_schema"), tool.get("return_schema")) if isinstance(tool, dict) else ()
    return (
        all(schema is None or isinstance(schema, dict) for schema in schemas)
        and bool(schemas)
        and isinstance(tool.get("name"), str)
        and bool(tool["name"])
    )


def _object_in(text: object) -> Mapping[str, Any]:
    """000: `meta` holds objects as JSON strings."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}
