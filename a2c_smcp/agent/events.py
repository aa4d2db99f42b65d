"""Events for the program that uses an agent: the methods it may implement, and their calls in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.smcp import SMCPTool
from a2c_smcp.types import Desktop
from a2c_smcp.v04_events import A2CSkillRef

logger = logging.getLogger(__name__)

Invoke: TypeAlias = Callable[..., Awaitable[Any]]
"""Calls a handler with its arguments and waits until it has returned."""

_MAX_WAITING = 1000


class _HandlerCall(NamedTuple):
    """`once` is set if no second call that equals it may wait."""

    handler: str | Callable[..., Any]
    arguments: tuple[Any, ...]
    once: Hashable | None = None


class AgentEvents:
    """Override the methods that you need, in a subclass of a client or in an `event_handler` of your own.

    The methods may be async or not. They are called one at a time, in the order of the events. An exception of a method
    is logged and has no other effect. The agent's own reaction to an event does not depend on them.
    """

    def on_computer_enter_office(self, data: dict[str, Any]) -> Any:
        """A computer has entered, or was there when the agent joined: `{"office_id", "computer"}`."""

    def on_computer_leave_office(self, data: dict[str, Any]) -> Any:
        """A computer has left, or its connection was lost: `{"office_id", "computer"}`."""

    def on_computer_update_config(self, data: dict[str, Any]) -> Any:
        """A computer's configuration has changed: `{"office_id", "computer"}`."""

    def on_computer_update_mcp_config(self, data: dict[str, Any]) -> Any:
        """The same, under its older name (003)."""

    def on_computer_update_state(self, data: dict[str, Any]) -> Any:
        """A computer was frozen, by its owner or an operator, or released: `{"office_id", "computer", "frozen"}`."""

    def on_tools_received(self, computer: str, tools: list[SMCPTool], office: str) -> Any:
        """The tools that a computer offers now."""

    def on_desktop_updated(self, computer: str, desktops: list[Desktop], office: str) -> Any:
        """A desktop that the program has asked for before has changed."""

    def on_office_joined(self, office: str) -> Any:
        """The agent sits in the office: it has joined, or has its seat again after a reconnect."""

    def on_disconnected(self) -> Any:
        """The connection was lost. The agent reconnects by itself."""

    def on_office_lost(self, office: str, error: Exception) -> Any:
        """After a reconnect the office refused the agent. The agent keeps trying."""

    def on_refused(self, error: Exception) -> Any:
        """After a lost connection the Server refused the agent for good, for instance because its key was revoked."""

    def on_log(self, computer: str, log: dict[str, Any], office: str) -> Any:
        """A log message of an MCP server, after `set_log_level`: `{"mcp_server", "level", "logger", "data"}`.

        If this method is slow, the newest messages are dropped.
        """

    def on_resource_updated(self, computer: str, server: str, uri: str, office: str) -> Any:
        """A resource has changed, after `subscribe_resource`. The URI may be that of a part of the resource."""

    def on_resources_changed(self, computer: str, server: str | None, office: str) -> Any:
        """The list of resources of an MCP server has changed; `None` if the computer does not say which server."""

    def on_prompts_changed(self, computer: str, server: str | None, office: str) -> Any:
        """The list of prompts of an MCP server has changed."""

    def on_skills_received(self, computer: str, skills: list[A2CSkillRef], office: str) -> Any:
        """The skills that a computer offers now, after a change of them or of one of their files."""

    def on_notice(self, event: str, data: dict[str, Any]) -> Any:
        """Any `notify:*` as it came, also one newer than this client.

        Progress, logs and updated resources do not come here, because they have their own methods.
        """


class EventDispatcher:
    """Calls the methods of `AgentEvents` on its listeners, which may have some of them only."""

    def __init__(self, listeners: Iterable[object]) -> None:
        self._listeners = [*listeners]
        self._queue: asyncio.Queue[_HandlerCall] = asyncio.Queue()
        self._waiting_once: set[Hashable] = set()
        self._dispatching: asyncio.Task[None] | None = None

    def open(self, invoke: Invoke) -> None:
        self._queue = asyncio.Queue()
        self._waiting_once.clear()
        self._dispatching = asyncio.create_task(self._dispatch_all(invoke))

    async def close(self) -> None:
        """Drop the calls that are still queued."""
        dispatching, self._dispatching = self._dispatching, None
        if dispatching and dispatching is not asyncio.current_task():
            await cancel_and_wait(dispatching)

    def add(self, listener: object) -> Callable[[], None]:
        """Add a listener. Returns how to remove it."""
        self._listeners = [*self._listeners, listener]

        def remove() -> None:
            self._listeners = [each for each in self._listeners if each is not listener]

        return remove

    async def settle(self) -> None:
        """Wait until the listeners have handled all events so far. It does not end if the agent is closed meanwhile."""
        if self._dispatching is not None and self._dispatching is not asyncio.current_task():
            handled = asyncio.Event()
            self._queue.put_nowait(_HandlerCall(handled.set, ()))
            await handled.wait()

    def has_handler(self, method: str) -> bool:
        """True if a listener does something in this method."""
        return bool(self._handlers(method))

    def dispatch(self, method: str, *arguments: Any) -> None:
        """Queue a call of this method on every listener that has it."""
        self._queue.put_nowait(_HandlerCall(method, arguments))

    def dispatch_if_free(self, method: str, *arguments: Any) -> None:
        """As `dispatch`, but dropped while `_MAX_WAITING` calls wait."""
        if self._queue.qsize() < _MAX_WAITING:
            self.dispatch(method, *arguments)

    def dispatch_once(self, handler: str | Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """As `dispatch`, unless the same call waits already. `handler` may be a function of the program."""
        once = (handler if isinstance(handler, str) else id(handler), arguments)
        if once not in self._waiting_once:
            self._waiting_once.add(once)
            self._queue.put_nowait(_HandlerCall(handler, arguments, once))

    async def _dispatch_all(self, invoke: Invoke) -> None:
        queue = self._queue
        while self._dispatching is asyncio.current_task():  # a handler may close, or open again
            call = await queue.get()
            if call.once:
                self._waiting_once.discard(call.once)
            for handler in self._handlers(call.handler):
                try:
                    await invoke(handler, *call.arguments)
                except Exception:
                    logger.exception("%s failed", call.handler)

    def _handlers(self, method: str | Callable[..., Any]) -> list[Callable[..., Any]]:
        """The methods that do something: those of `AgentEvents` itself do nothing."""
        if not isinstance(method, str):
            return [method]
        found = (getattr(listener, method, None) for listener in self._listeners)
        nothing = getattr(AgentEvents, method, None)
        return [handler for handler in found if handler and getattr(handler, "__func__", None) is not nothing]
