"""MCPRegistry: tools by name. Everything about a tool is worked out when it is registered."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from threading import Lock
from typing import Any, TypeAlias, TypeVar, overload

from a2c_smcp.errors import ToolNotFound
from a2c_smcp.registry.functions import FunctionTool
from a2c_smcp.registry.threads import in_thread

__all__ = ["LoopIsRunning", "MCPRegistry", "UnknownTool"]

Arguments: TypeAlias = dict[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])

MAX_QUOTED = 256


class UnknownTool(ToolNotFound, KeyError):
    """No tool has this name. `details["near"]` has those that were perhaps meant."""


class LoopIsRunning(RuntimeError):
    """An async tool was called as if it were a sync one, where waiting for it would block the loop that it needs."""


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: Any
    call: Callable[[Arguments], Any]
    acall: Callable[[Arguments], Awaitable[Any]]
    described: dict[str, Any]


class MCPRegistry:
    """In-process tools: registered, described to a planner, and called by name (001).

    A tool is any object with a `name` and `call(arguments)`; `description` and `input_schema` are shown if it has
    them. What a tool says of itself is read once, when it is registered. Usable from several threads.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._described: dict[str, dict[str, Any]] | None = None
        self._lock = Lock()

    def register(self, tool_obj: Any) -> None:
        """Adds a tool, in place of one with the same name. Raises `TypeError` without `name` or `call`."""
        name, entry = _name_of(tool_obj), _compile(tool_obj)
        with self._lock:
            self._entries[name] = entry
            self._described = None

    def unregister(self, name: str) -> None:
        """Removes a tool. Raises `KeyError` if there is none."""
        self._entry(name)
        with self._lock:
            self._entries.pop(name, None)
            self._described = None

    @overload
    def tool(self, function: Function, /) -> Function: ...

    @overload
    def tool(
        self, function: None = None, /, *, name: str | None = None, description: str | None = None, **meta: Any
    ) -> Callable[[Function], Function]: ...

    def tool(
        self, function: Any = None, /, *, name: str | None = None, description: str | None = None, **meta: Any
    ) -> Any:
        """Registers a function, which remains what it is: `@registry.tool` or `@registry.tool(name=…)`."""

        def register(function: Function) -> Function:
            self.register(FunctionTool(function, name=name, description=description, **meta))
            return function

        return register if function is None else register(function)

    def describe(self) -> dict[str, dict[str, Any]]:
        """`{name: {description, input_schema}}`, plain JSON. The same snapshot until the tools change: do not edit."""
        described = self._described
        if described is None:
            with self._lock:
                described = {name: dict(entry.described) for name, entry in self._entries.items()}
                self._described = described
        return described

    def call(self, name: str, arguments: Arguments) -> Any:
        """What the tool returns or raises. Raises `KeyError` for an unknown name.

        An async tool is run to its end, in an event loop of its own; `LoopIsRunning` where one is running already.
        """
        entry = self._entries.get(name) or self._entry(name)
        return entry.call(arguments)

    async def acall(self, name: str, arguments: Arguments) -> Any:
        """As `call`, without blocking the loop: async tools are awaited, the others run in a thread."""
        return await self._entry(name).acall(arguments)

    def items(self) -> list[tuple[str, Any]]:
        """Names and tools, in the order of registration, as they are now."""
        return [(name, entry.tool) for name, entry in list(self._entries.items())]

    def __getitem__(self, name: str) -> Any:
        """The tool of this name."""
        return self._entry(name).tool

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of registration, as they are now."""
        return iter(list(self._entries))

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise _unknown(name, list(self._entries))
        return entry


def _name_of(tool: Any) -> str:
    name = getattr(tool, "name", None)
    if not isinstance(name, str) or not name:
        hint = "; a function is registered with registry.tool(function)" if inspect.isroutine(tool) else ""
        raise TypeError(f"{_kind(tool)} has no name, so it is not a tool{hint}")
    if not callable(getattr(tool, "call", None)):
        raise TypeError(f"{_kind(tool)} {name!r} has no call(arguments), so it is not a tool")
    return name


def _compile(tool: Any) -> _Entry:
    described = {
        "description": str(getattr(tool, "description", None) or ""),
        "input_schema": _plain(tool, getattr(tool, "input_schema", None) or {}),
    }
    call = tool.call
    if _is_async(call):
        return _Entry(tool, partial(_run, tool.name, call), call, described)
    return _Entry(tool, call, partial(_run_in_thread, call), described)


def _plain(tool: Any, schema: Any) -> dict[str, Any]:
    """A copy made of dicts and lists, which `json.dumps` takes whoever calls it."""
    try:
        copy = json.loads(json.dumps(schema, default=_as_dict))
    except (TypeError, ValueError) as error:
        raise TypeError(f"the input_schema of tool {tool.name!r} is not JSON: {error}") from None
    if not isinstance(copy, dict):
        raise TypeError(f"the input_schema of tool {tool.name!r} is not an object")
    return copy


def _as_dict(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it contains {_kind(value)}")


def _is_async(call: Any) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


def _run(name: str, call: Callable[[Arguments], Awaitable[Any]], arguments: Arguments) -> Any:
    async def to_its_end() -> Any:
        return await call(arguments)

    if _loop_is_running():
        raise LoopIsRunning(f"tool {name!r} is async, and an event loop is running in this thread: await acall instead")
    return asyncio.run(to_its_end())


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _run_in_thread(call: Callable[[Arguments], Any], arguments: Arguments) -> Any:
    result = await in_thread(call, arguments)
    return await result if inspect.isawaitable(result) else result


def _unknown(name: object, names: list[str]) -> UnknownTool:
    shown = str(name)[:MAX_QUOTED]
    near = get_close_matches(shown, names)
    meant = f", did you mean {' or '.join(map(repr, near))}?" if near else ""
    return UnknownTool(f"{shown!r}{meant}", toolId=shown, near=near)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} object" if not isinstance(value, type) else f"class {value.__name__}"
