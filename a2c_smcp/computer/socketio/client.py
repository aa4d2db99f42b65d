"""The Computer's connection to a Server: dials out, joins, answers, and comes back by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import partial
from ssl import SSLContext
from typing import Any

from a2c_smcp import smcp
from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.calls.execution import ToolCall
from a2c_smcp.computer.calls.journal import Journal
from a2c_smcp.computer.computer import Computer, Update
from a2c_smcp.computer.secrets import ANSWER, secrets_in
from a2c_smcp.computer.socketio.standstill import CatchUp
from a2c_smcp.connection import PATIENCE, Connection, Later, Reconnect, join, leave
from a2c_smcp.endpoint import Credentials, Endpoint
from a2c_smcp.errors import (
    BadRequest,
    CallTimeout,
    Forbidden,
    NotAuthenticated,
    SMCPError,
    Unavailable,
    VersionMismatch,
)
from a2c_smcp.protocol import codec
from a2c_smcp.protocol.events import OLDER_FIELDS, lookup
from a2c_smcp.protocol.results import error_ack

__all__ = ["Reconnect", "SMCPComputerClient"]

logger = logging.getLogger(__name__)

_FINAL = (NotAuthenticated, BadRequest, VersionMismatch)
_FAREWELL = 2.0
_TOOL_CALL = lookup(smcp.TOOL_CALL_EVENT)


class SMCPComputerClient:
    """One computer in one office. `run` returns only when it is cancelled, or refused for good.

    `on_connection` is told in a sentence when it has joined, lost the connection or could not connect; without it these
    are logged, the bad news as warnings. `journal` remembers which calls have begun, that of
    `journal_of` also across a crash; without one no tool runs twice for one req_id as long as the computer lives.
    """

    def __init__(
        self,
        computer: Computer,
        url: str,
        office: str,
        *,
        instance: str,
        journal: Journal | None = None,
        api_key: str | None = None,
        ssl: SSLContext | None = None,
        proxy: str | None = None,
        reconnect: Reconnect | None = None,
        on_connection: Callable[[str], None] | None = None,
    ) -> None:
        self._computer = computer
        self._endpoint = Endpoint(url=url, credentials=lambda: Credentials.of_key(api_key), ssl=ssl, proxy=proxy)
        self._office = office
        self._instance = instance
        self._journal = journal
        self._reconnect = reconnect or Reconnect()
        self._on_connection = on_connection
        self._has_joined = False
        self._updates: set[Update] = set()
        self._has_updates = asyncio.Event()
        computer.mask.add([instance, *([api_key] if api_key else []), *secrets_in(url), *secrets_in(proxy or "")])
        self._answers: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            smcp.TOOL_CALL_EVENT: self._tool_call,
            smcp.GET_TOOLS_EVENT: self._get_tools,
            smcp.GET_CONFIG_EVENT: self._get_config,
            smcp.GET_DESKTOP_EVENT: self._get_desktop,
        }

    async def run(self) -> None:
        """Serves until cancelled. Raises what the Server refuses it with; everything else is tried again.

        A seat that it had before may be somebody else's when it comes back: that is tried again, too.
        """
        stop_listening = self._computer.on_update(self._on_update)
        try:
            with self._computer.recording(self._office, self._journal) if self._journal else nullcontext():
                await self._keep_serving()
        finally:
            stop_listening()
            self._computer.forget(self._office)

    async def _keep_serving(self) -> None:
        attempt, clock = 0, asyncio.get_running_loop().time
        while True:
            begun = clock()
            try:
                await self._serve()
                attempt = 0
            except SMCPError as error:
                if isinstance(error, _FINAL) or (isinstance(error, Forbidden) and not self._has_joined):
                    logger.info("%s is refused for good: %s", self._computer.name, error)
                    raise
                self._tell(f"not connected: {error}; trying again", logging.WARNING)
                attempt += 1
            await asyncio.sleep(self._reconnect.pause(attempt, clock() - begun))

    def _tell(self, what: str, level: int = logging.INFO) -> None:
        said = self._computer.mask.text(what)
        if self._on_connection:
            self._on_connection(said)
        else:
            logger.log(level, "%s: %s", self._computer.name, said)

    async def _serve(self) -> None:
        """One connection, from dialling to its end. The calls themselves outlive it, and find the next one."""
        logger.info("%s: connecting to %s", self._computer.name, self._computer.mask.text(self._endpoint.url))
        async with Connection(self._endpoint, self._on_event) as connection:
            self._catch_up = CatchUp(lambda: self._join(connection))
            await self._join(connection)
            self._has_joined = True
            self._tell(f"joined {self._office}")
            tasks = [asyncio.create_task(each) for each in (self._send_updates(connection), self._catch_up.watch())]
            try:
                await connection.lost.wait()
                self._tell("connection lost", logging.WARNING)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                with suppress(SMCPError):
                    await leave(connection, self._office, _FAREWELL)

    async def _join(self, connection: Connection) -> None:
        """Changes nothing where it has the seat already."""
        await join(connection, "computer", self._computer.name, self._office, self._instance)

    def _on_event(self, name: str, data: Any) -> Later | Awaitable[Any] | None:
        """Everything that comes from the Server."""
        payload = data if isinstance(data, dict) else {}
        if name == smcp.TOOL_CALL_EVENT and not self._catch_up.is_behind():
            return Later(partial(self._start_call, payload))
        if not name.startswith("notify:"):
            return self._answer(name, payload)
        self._on_notice(name, payload)
        return None

    def _start_call(self, data: dict[str, Any], answer: Callable[[Any], None]) -> None:
        """As `_answer`, for nearly all that is asked: the call is the only task."""
        try:
            self._computer.start_tool(self._call_in(data), answer)
        except SMCPError as error:
            answer(self._computer.mask.data(error_ack(_TOOL_CALL, error), ANSWER))
        except Exception:
            logger.exception("%s failed", smcp.TOOL_CALL_EVENT)
            answer(error_ack(_TOOL_CALL, SMCPError()))

    async def _answer(self, name: str, data: dict[str, Any]) -> Any:
        """A request always gets an answer."""
        event = None
        try:
            event = lookup(name)
            if event.name not in self._answers:
                raise BadRequest(f"this computer does not know {name!r}")
            answer = await self._answers[event.name](codec.decode(event, data))
            return answer if event.name == smcp.TOOL_CALL_EVENT else self._computer.fitting(answer)
        except SMCPError as error:
            return self._computer.mask.data(error_ack(event, error), ANSWER)
        except Exception:
            logger.exception("%s failed", name)
            return error_ack(event, SMCPError())

    def _on_notice(self, name: str, data: dict[str, Any]) -> None:
        agent = data.get("agent", data.get(OLDER_FIELDS["agent"]))
        if not isinstance(agent, str):
            return
        if name == smcp.CANCEL_TOOL_CALL_NOTIFICATION and isinstance(data.get("req_id"), str):
            self._computer.cancel(agent, data["req_id"])
        elif name == smcp.LEAVE_OFFICE_NOTIFICATION and data.get("lost") is not True:
            self._computer.forget(self._office, agent)
        elif name == smcp.ENTER_OFFICE_NOTIFICATION:
            self._computer.keep_only(self._office, agent)

    async def _tool_call(self, data: dict[str, Any]) -> Any:
        call = self._call_in(data)
        left = await self._catch_up.before_a_call(call.timeout)
        return await self._computer.execute_tool(call.caller, call.req_id, call.name, call.params, left)

    def _call_in(self, data: dict[str, Any]) -> ToolCall:
        """Raises `BadRequest`."""
        codec.decode(_TOOL_CALL, data)
        timeout = codec.timeout_of(_TOOL_CALL, data)
        assert timeout
        caller = Caller(self._office, _agent_in(data))
        return ToolCall(caller, data["req_id"], data["tool_name"], data["params"], timeout)

    async def _get_tools(self, data: dict[str, Any]) -> dict[str, Any]:
        return self._computer.tools_for(_agent_in(data), data["req_id"])

    async def _get_config(self, data: dict[str, Any]) -> smcp.GetComputerConfigRet:
        return self._computer.get_config()

    async def _get_desktop(self, data: dict[str, Any]) -> smcp.GetDeskTopRet:
        desktops = await self._computer.get_desktop(data.get("desktop_size"), data.get("window"))
        return smcp.GetDeskTopRet(desktops=desktops, req_id=data["req_id"])

    def _on_update(self, update: Update) -> None:
        self._updates.add(update)
        self._has_updates.set()

    async def _send_updates(self, connection: Connection) -> None:
        """Tells what has changed, also while there was no connection. What comes together goes together.

        What was not heard is told again, after the connection was lost too.
        """
        while not connection.lost.is_set():
            await self._has_updates.wait()
            self._has_updates.clear()
            for update in sorted(self._updates):
                self._updates.discard(update)
                try:
                    await connection.ask(f"server:update_{update}", {"computer": self._computer.name}, PATIENCE)
                except (CallTimeout, Unavailable, asyncio.CancelledError) as error:
                    self._on_update(update)
                    if isinstance(error, asyncio.CancelledError):
                        raise


def _agent_in(data: dict[str, Any]) -> str:
    """Of a request that was decoded: it has one of both."""
    agent: str = data.get("agent") or data[OLDER_FIELDS["agent"]]
    return agent
