"""The registry of 001: `register` tools, `describe` them to a planner, `call` them by name.

Threads: the tools are an immutable `ToolSet`. A change makes another set and puts it in place under a lock; readers
take the current set without a lock and see all of a change or nothing of it. A tool and the registry's rules are
compiled into two functions when it is registered (`calls/pipeline.py`), so a call is a lookup and one function call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from time import perf_counter
from typing import Any, Generic, ParamSpec, overload

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.questions import OnQuestion
from a2c_smcp.registry.calls.arguments import Arguments
from a2c_smcp.registry.calls.context import OnLog, OnProgress, called_from_loop, called_from_thread
from a2c_smcp.registry.calls.pipeline import Limit, Rules, compile_tool, refused_tool
from a2c_smcp.registry.content import envelope as in_envelope
from a2c_smcp.registry.planning.provider_formats import Format
from a2c_smcp.registry.tool_info import as_words
from a2c_smcp.registry.toolset import RegisteredTool, ToolSet, unknown_tool

logger = logging.getLogger(__name__)


Event = ParamSpec("Event")


class Listeners(Generic[Event]):
    """Functions that are called after each change, in its thread. Usable from several threads."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[Event, None]] = {}
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Callable[Event, None]) -> Callable[[], None]:
        """Add a listener. Returns its unsubscribe function."""
        token = object()
        with self._lock:
            self._listeners[token] = listener

        def stop() -> None:
            with self._lock:
                self._listeners.pop(token, None)

        return stop

    def notify(self, *arguments: Event.args, **named: Event.kwargs) -> None:
        """Call all listeners. The exception of one is logged."""
        with self._lock:
            listeners = [*self._listeners.values()]
        for listener in listeners:
            try:
                listener(*arguments, **named)
            except Exception:
                logger.exception("A listener to changes failed")


class ToolRegistry:
    """Tools by name."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._tools = ToolSet()
        self._listeners = Listeners[[]]()
        self._lock = Lock()

    def register(self, tool_obj: Any, *, timeout: float | None = None, limit: Limit | None = None) -> None:
        """Adds a tool, in place of one with the same name. Raises `TypeError` without `name` or `call`.

        `timeout` and `limit` replace the registry's own for this tool; `math.inf` is no timeout.
        """
        self._change([compile_tool(tool_obj, self._rules, timeout=timeout, limit=limit)], ())

    def unregister(self, name: str) -> None:
        """Removes a tool. Raises `KeyError` if there is none of this name."""
        if not self._change((), [name]):
            raise unknown_tool(name, [*self])

    def update(self, *, add: Iterable[Any] = (), remove: Iterable[str] = ()) -> None:
        """Adds and removes tools in one step. Names to remove may be unknown."""
        self._change([compile_tool(tool, self._rules) for tool in add], [*remove])

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call the listener after every change, in the thread of the change. Returns its unsubscribe function."""
        return self._listeners.add(listener)

    @overload
    def describe(self, format: None = None, *, tags: Iterable[str] | None = None) -> dict[str, dict[str, Any]]: ...

    @overload
    def describe(self, format: Format, *, tags: Iterable[str] | None = None) -> list[dict[str, Any]]: ...

    def describe(self, format: Format | None = None, *, tags: Iterable[str] | None = None) -> Any:  # noqa: A002
        """Returns `{name: {description, input_schema}}`, or with `format` the `tools` of a provider. Plain JSON.

        With `tags`, only tools that have any of them. The result is cached until the tools change: do not edit it.
        Providers see names that they accept, and `call` knows these too.
        """
        return self._tools.describe(format, as_words(tags))

    # The options of both are not keyword-only: Python would look each of them up in a dict, at every call.

    def call(
        self,
        name: str,
        arguments: Arguments,
        envelope: bool = False,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        on_question: OnQuestion | None = None,
    ) -> Any:
        """Returns the tool's result, or raises its error. Raises `KeyError` for an unknown name.

        An async tool runs in an event loop of its own; raises `LoopIsRunning` inside a running loop.
        With `envelope`, the result is `{"output": …, "meta": {…}}` (001 §7). `on_progress(progress, total, message)` is
        called, in a thread, when the tool reports progress: tools of computers and MCP servers do, and functions that
        call `report_progress`. `on_log(level, data, logger)` gets log messages of functions with a `ToolContext`.
        `on_question(question)` answers the questions of these and of MCP servers.
        """
        if on_progress is not None or on_log is not None or on_question is not None:
            with called_from_thread(on_progress, on_log, on_question):
                return self.call(name, arguments, envelope=envelope)
        tool = self._tools.allowed.get(name) or self._find(name)
        if not envelope:
            return tool.call(arguments)
        began = perf_counter()
        result = tool.call(arguments)
        return in_envelope(result, tool=tool.info.name, duration=perf_counter() - began)

    async def acall(
        self,
        name: str,
        arguments: Arguments,
        envelope: bool = False,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        on_question: OnQuestion | None = None,
    ) -> Any:
        """As `call`, without blocking the event loop: async tools are awaited, the others run in a thread.

        The callbacks are called in this event loop; `on_progress` and `on_question` may be async.
        """
        if on_progress is not None or on_log is not None or on_question is not None:
            async with called_from_loop(on_progress, on_log, on_question):
                return await self.acall(name, arguments, envelope=envelope)
        tool = self._tools.allowed.get(name) or self._find(name)
        if not envelope:
            return await tool.acall(arguments)
        began = perf_counter()
        result = await tool.acall(arguments)
        return in_envelope(result, tool=tool.info.name, duration=perf_counter() - began)

    def items(self) -> list[tuple[str, Any]]:
        """Names and tools in the order of registration, as they are now."""
        return [(name, registered.tool) for name, registered in self._tools.allowed.items()]

    def __getitem__(self, name: str) -> Any:
        """The tool of this name."""
        return self._tools.find(name).tool

    def __contains__(self, name: object) -> bool:
        return name in self._tools.allowed

    def is_registered(self, name: str) -> bool:
        """True if there is a tool of this name, also one that is not allowed."""
        return name in self._tools.allowed or name in self._tools.forbidden

    def __len__(self) -> int:
        return len(self._tools.allowed)

    def __iter__(self) -> Iterator[str]:
        """The names in the order of registration, as they are now."""
        return iter(self._tools.allowed)

    def _find(self, name: str) -> RegisteredTool:
        try:
            return self._tools.find(name)
        except SMCPError as error:
            if self._rules.hooks:
                return refused_tool(name, error, self._rules.hooks)
            raise

    def _change(self, add: Iterable[RegisteredTool], remove: Iterable[str]) -> bool:
        """Apply a change. True if the set of tools has changed."""
        with self._lock:
            before, self._tools = self._tools, self._tools.changed(add, remove)
            has_changed = self._tools is not before
        if has_changed:
            self._listeners.notify()
        return has_changed
