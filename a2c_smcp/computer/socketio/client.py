"""The Computer's connection to a Server: dials out, joins, answers, and comes back by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from secrets import token_hex
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Protocol

from a2c_smcp import mcp_events, published_events, smcp
from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.blobs.offers import Blobs
from a2c_smcp.computer.blobs.uploads import Uploads
from a2c_smcp.computer.calls.incoming import CallOptions, IncomingCall
from a2c_smcp.computer.calls.journal import Journal
from a2c_smcp.computer.observation import AgentRequestRefused, ComputerObservation, ConfigShown, SeatChanged
from a2c_smcp.computer.questions.open_questions import OpenQuestions
from a2c_smcp.computer.reading.requests import ReadAnswers
from a2c_smcp.computer.secrets import ANSWER, Mask, secrets_in
from a2c_smcp.computer.skills.skills import Skills
from a2c_smcp.computer.socketio.standstill import StandstillGuard
from a2c_smcp.computer.tells import Tells
from a2c_smcp.computer.types import ServerUpdate, Update
from a2c_smcp.connection import PATIENCE, Connection, Later
from a2c_smcp.devices.proving import Prover
from a2c_smcp.endpoint import Credentials, Endpoint, Reconnect
from a2c_smcp.errors import BadRequest, CallTimeout, Forbidden, NotAuthenticated, SMCPError, Unavailable
from a2c_smcp.joining import join, leave
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.rate import Rate
from a2c_smcp.protocol import codec
from a2c_smcp.protocol.events import OLDER_FIELDS, lookup
from a2c_smcp.protocol.names import fault_in_client
from a2c_smcp.protocol.questions import Answer
from a2c_smcp.protocol.results import computer_error_ack, error_ack
from a2c_smcp.types import Desktop

if TYPE_CHECKING:  # they need the extra `devices`
    from a2c_smcp.computer.sealed.device import ComputerDevice
    from a2c_smcp.computer.sealed.guard import GuardedAnswers

__all__ = ["Reconnect", "SMCPComputerClient"]

logger = logging.getLogger(__name__)

_FINAL = (NotAuthenticated, BadRequest)
_FAREWELL = 2.0
_MOST_UPDATES = 20  # a second, about lists of MCP servers: a Server refuses more than 50 (WIRE §6)
_UPDATE_PAUSE = 0.1
_TOOL_CALL = lookup(smcp.TOOL_CALL_EVENT)


class ConnectedComputer(Protocol):
    """The part of `Computer` that its connection uses: what agents ask for."""

    name: str
    mask: Mask
    observation: ComputerObservation
    tells: Tells
    questions: OpenQuestions
    blobs: Blobs
    skills: Skills
    reading: ReadAnswers
    uploads: Uploads
    device: ComputerDevice | None

    def prover(self, url: str) -> Prover: ...
    def start_tool(self, call: IncomingCall, then: Callable[[dict[str, Any]], None]) -> None: ...
    async def watch_logs(self, caller: Caller, server: str | None, level: str) -> None: ...
    def cancel(self, agent: str, req_id: str, office: str = "") -> None: ...
    def tools_for(self, agent: str, req_id: str, office: str) -> dict[str, Any]: ...
    def get_config(self, *, labelled: bool = False) -> smcp.GetComputerConfigRet: ...
    async def get_desktop(self, size: int | None, window: str | None) -> list[Desktop]: ...
    def fitting(self, answer: dict[str, Any]) -> dict[str, Any]: ...
    def limit_messages(self, largest: int) -> None: ...
    def on_update(self, listener: Callable[[Update], None]) -> Callable[[], None]: ...
    def recording(self, office: str, journal: Journal) -> AbstractContextManager[None]: ...
    def forget(self, office: str, agent: str | None = None) -> None: ...
    def end_standing(self, office: str, agent: str | None = None) -> None: ...
    def keep_only(self, office: str, agent: str) -> None: ...


class SMCPComputerClient:
    """The connection of one computer to one office of a Server.

    `on_connection` is called with a sentence when the computer has joined, has lost the connection or cannot connect;
    without it these are logged, failures as warnings. `journal` keeps which calls were begun; the one of `journal_of`
    does so across a crash. Without a journal they are kept in memory.
    """

    def __init__(
        self,
        computer: ConnectedComputer,
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
        credentials = partial(Credentials.of_key, api_key)
        self._endpoint = Endpoint(url=url, credentials=credentials, ssl=ssl, proxy=proxy, prover=computer.prover(url))
        self._office = office
        self._instance = instance
        self._journal = journal
        self._reconnect = reconnect or Reconnect()
        self._on_connection = on_connection
        self._has_joined = False
        self._updates: set[Update] = set()
        self._has_updates = asyncio.Event()
        self._pace = Rate(_MOST_UPDATES)
        self._guard = self._guarded(computer.device) if computer.device else None
        computer.mask.add([instance, *([api_key] if api_key else []), *secrets_in(url), *secrets_in(proxy or "")])
        self._answers: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            smcp.TOOL_CALL_EVENT: self._tool_call,
            smcp.GET_TOOLS_EVENT: self._get_tools,
            smcp.GET_CONFIG_EVENT: self._get_config,
            smcp.GET_DESKTOP_EVENT: self._get_desktop,
            mcp_events.ANSWER_QUESTION_EVENT: self._answer_question,
            mcp_events.GET_QUESTIONS_EVENT: self._get_questions,
            mcp_events.SET_LOG_LEVEL_EVENT: self._set_log_level,
            published_events.GET_BLOB_EVENT: self._get_blob,
            published_events.GET_SKILLS_EVENT: self._get_skills,
            published_events.GET_SKILL_EVENT: self._get_skill,
            published_events.PUT_BLOB_EVENT: self._put_blob,
            **{event: partial(self._read, event) for event in computer.reading.events},
        }

    async def run(self) -> None:
        """Connect, join and answer, again and again, until cancelled.

        Raises the `SMCPError` with which the Server refuses the computer; every other failure is tried again. After it
        has joined once, `Forbidden` is tried again, too: another computer may have taken the seat meanwhile.
        """
        stop_listening = self._computer.on_update(self._on_update)
        try:
            with self._computer.recording(self._office, self._journal) if self._journal else nullcontext():
                await self._keep_serving()
        finally:
            stop_listening()
            self._computer.forget(self._office)
            if self._guard:
                await self._guard.close()

    async def _keep_serving(self) -> None:
        attempt, clock = 0, asyncio.get_running_loop().time
        while True:
            begun = clock()
            try:
                await self._serve()
                attempt = 0
            except SMCPError as error:
                if isinstance(error, (*_FINAL, Forbidden)):
                    self._computer.observation.report(SeatChanged(self._office, "refused", error.code))
                if isinstance(error, _FINAL) or (isinstance(error, Forbidden) and not self._has_joined):
                    logger.info("%s is refused for good: %s", self._computer.name, error)
                    raise
                self._report(f"not connected: {error}; trying again", logging.WARNING)
                attempt += 1
            await asyncio.sleep(self._reconnect.pause(attempt, clock() - begun))

    def _report(self, event: str, level: int = logging.INFO) -> None:
        masked = self._computer.mask.text(event)
        if self._on_connection:
            self._on_connection(masked)
        else:
            logger.log(level, "%s: %s", self._computer.name, masked)

    async def _serve(self) -> None:
        """One connection, from dialling to its end. Calls outlive it: their results are sent on the next one."""
        logger.info("%s: connecting to %s", self._computer.name, self._computer.mask.text(self._endpoint.url))
        async with Connection(self._endpoint, self._on_event) as connection:
            self._connection = connection
            largest = connection.max_message
            self._computer.limit_messages(self._guard.room(largest) if self._guard else largest)
            self._standstill = StandstillGuard(lambda: self._join(connection))
            await self._join(connection)
            self._has_joined = True
            self._report(f"joined {self._office}")
            self._computer.observation.report(SeatChanged(self._office, "joined"))
            tasks = [asyncio.create_task(each) for each in (self._send_updates(connection), self._standstill.watch())]
            try:
                with self._computer.tells.connected(self._office, connection):
                    await connection.lost.wait()
                self._report("connection lost", logging.WARNING)
                self._computer.observation.report(SeatChanged(self._office, "lost"))
            finally:
                await cancel_and_wait(*tasks)
                with suppress(SMCPError):
                    await leave(connection, self._office, _FAREWELL)

    async def _join(self, connection: Connection) -> None:
        """Take the seat. Changes nothing if the computer has it already."""
        await join(connection, "computer", self._computer.name, self._office, self._instance)

    def _on_event(self, name: str, data: Any) -> Later | Awaitable[Any] | None:
        """Handle an event of the Server: a request, whose answer is returned, or a notice."""
        payload = data if isinstance(data, dict) else {}
        if not name.startswith("notify:"):
            return self._answered(name, payload) if self._guard is None else self._guard.answer(name, payload)
        self._on_notice(name, payload)
        return None

    def _answered(self, name: str, data: dict[str, Any]) -> Later | Awaitable[Any]:
        starts = name == smcp.TOOL_CALL_EVENT and not self._standstill.must_wait()
        return Later(partial(self._start_call, data)) if starts else self._answer(name, data)

    def _start_call(self, data: dict[str, Any], answer: Callable[[Any], None]) -> None:
        """Answer a tool call as `_answer` does, but without a task beside that of the call."""
        try:
            self._computer.start_tool(self._call_in(data), answer)
        except SMCPError as error:
            self._on_refused(smcp.TOOL_CALL_EVENT, data, error)
            answer(self._computer.mask.data(error_ack(_TOOL_CALL, error), ANSWER))
        except Exception:
            logger.exception("%s failed", smcp.TOOL_CALL_EVENT)
            answer(error_ack(_TOOL_CALL, SMCPError()))

    async def _answer(self, name: str, data: dict[str, Any]) -> Any:
        """The answer to a request. Errors become answers, too."""
        event = None
        try:
            event = lookup(name)
            if event.name not in self._answers:
                raise BadRequest(f"this computer does not know {name!r}")
            answer = await self._answers[event.name](codec.decode(event, data))
            return answer if event.name == smcp.TOOL_CALL_EVENT else self._computer.fitting(answer)
        except SMCPError as error:
            self._on_refused(name, data, error)
            return self._computer.mask.data(computer_error_ack(event, error), ANSWER)
        except Exception:
            logger.exception("%s failed", name)
            return computer_error_ack(event, SMCPError())

    def _on_notice(self, name: str, data: dict[str, Any]) -> None:
        agent = data.get("agent", data.get(OLDER_FIELDS["agent"]))
        if not isinstance(agent, str):
            return
        if name == smcp.CANCEL_TOOL_CALL_NOTIFICATION and isinstance(data.get("req_id"), str):
            self._computer.cancel(agent, data["req_id"], self._office)
        elif name == smcp.LEAVE_OFFICE_NOTIFICATION:
            self._computer.end_standing(self._office, agent)
            if data.get("lost") is not True:
                self._computer.forget(self._office, agent)
                if self._guard:
                    self._guard.forget()
        elif name == smcp.ENTER_OFFICE_NOTIFICATION:
            self._computer.keep_only(self._office, agent)

    async def _tool_call(self, data: dict[str, Any]) -> Any:
        call = self._call_in(data)
        left = await self._standstill.wait(call.timeout)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._computer.start_tool(
            replace(call, timeout=left), lambda result: None if answered.done() else answered.set_result(result)
        )
        return await answered

    def _call_in(self, data: dict[str, Any]) -> IncomingCall:
        """The call in a request. Raises `BadRequest`."""
        codec.decode(_TOOL_CALL, data)
        timeout = codec.timeout_of(_TOOL_CALL, data)
        assert timeout
        return IncomingCall(
            self._caller_in(data),
            data["req_id"],
            data["tool_name"],
            data["params"],
            timeout,
            CallOptions.of_request(data),
            blobs=data.get("blobs") is True,
        )

    def _on_refused(self, name: str, data: dict[str, Any], error: SMCPError) -> None:
        self._computer.observation.report(AgentRequestRefused.of(self._office, name, data, error))

    def _caller_in(self, data: dict[str, Any]) -> Caller:
        caller = Caller(self._office, _agent_in(data), _client_in(data))
        return caller if self._guard is None else self._guard.caller(caller, data)

    def _guarded(self, device: ComputerDevice) -> GuardedAnswers:
        from a2c_smcp.computer.sealed.guard import GuardedAnswers

        about, answers = (self._computer.name, self._office, self._endpoint.origin), (self._answered, self._on_refused)
        return GuardedAnswers(device, *about, *answers, self._computer.mask)

    async def _get_tools(self, data: dict[str, Any]) -> dict[str, Any]:
        return self._computer.tools_for(_agent_in(data), data["req_id"], self._office)

    async def _get_config(self, data: dict[str, Any]) -> smcp.GetComputerConfigRet:
        config = self._computer.get_config()
        self._computer.observation.report(ConfigShown(self._caller_in(data), data["req_id"]))
        if not any(each["type"] == "pickString" for each in config.get("inputs") or ()):
            return config
        return self._computer.get_config(labelled=await self._wants_labels())

    async def _wants_labels(self) -> bool:
        """Whether the options of pick lists must have labels, because this is a published Server.

        It answers the agent with nothing otherwise. It lets a computer list the members; ours, which passes on options
        of any form, refuses that.
        """
        request = {"agent": self._computer.name, "req_id": token_hex(16), "office_id": self._office}
        try:
            answer = await self._connection.ask(smcp.LIST_ROOM_EVENT, request, PATIENCE)
        except SMCPError:
            return False
        return isinstance(answer, dict) and "sessions" in answer

    async def _get_desktop(self, data: dict[str, Any]) -> smcp.GetDeskTopRet:
        desktops = await self._computer.get_desktop(data.get("desktop_size"), data.get("window"))
        return smcp.GetDeskTopRet(desktops=desktops, req_id=data["req_id"])

    async def _answer_question(self, data: dict[str, Any]) -> mcp_events.AnswerQuestionRet:
        answer = Answer(data["action"], data.get("content"))
        await self._computer.questions.answer(self._caller_in(data), data["question_id"], answer)
        return mcp_events.AnswerQuestionRet(req_id=data["req_id"])

    async def _get_questions(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"questions": self._computer.questions.of(self._caller_in(data)), "req_id": data["req_id"]}

    async def _set_log_level(self, data: dict[str, Any]) -> mcp_events.SetLogLevelRet:
        await self._computer.watch_logs(self._caller_in(data), data.get("mcp_server"), data["level"])
        return mcp_events.SetLogLevelRet(req_id=data["req_id"])

    async def _get_blob(self, data: dict[str, Any]) -> dict[str, Any]:
        binary = data.get("binary") is True and self._guard is None  # what is signed or sealed is JSON
        return await self._computer.blobs.chunk(self._caller_in(data), data, binary=binary)

    async def _get_skills(self, data: dict[str, Any]) -> published_events.GetSkillsRet:
        return published_events.GetSkillsRet(skills=self._computer.skills.references(), req_id=data["req_id"])

    async def _get_skill(self, data: dict[str, Any]) -> dict[str, Any]:
        found = await self._computer.skills.get(self._caller_in(data), data["name"], data.get("rel_path"))
        return {**found, "req_id": data["req_id"]}

    async def _read(self, event: str, data: dict[str, Any]) -> dict[str, Any]:
        return {**await self._computer.reading.answer(event, self._caller_in(data), data), "req_id": data["req_id"]}

    async def _put_blob(self, data: dict[str, Any]) -> dict[str, Any]:
        return await self._computer.uploads.put(self._caller_in(data), data, binary=self._guard is None)

    def _on_update(self, update: Update) -> None:
        self._updates.add(update)
        self._has_updates.set()

    async def _send_updates(self, connection: Connection) -> None:
        """Send notices of updates, including those that came while there was no connection.

        Updates of one kind that come together are sent once. A notice that the Server has not acknowledged is sent
        again, on the next connection if need be.
        """
        while not connection.lost.is_set():
            await self._has_updates.wait()
            self._has_updates.clear()
            for update in sorted(self._updates, key=str):
                if isinstance(update, ServerUpdate) and not self._pace.allows():
                    asyncio.get_running_loop().call_later(_UPDATE_PAUSE, self._has_updates.set)
                    continue
                self._updates.discard(update)
                try:
                    await connection.ask(*self._notice(update), PATIENCE)
                except (CallTimeout, Unavailable, asyncio.CancelledError) as error:
                    self._on_update(update)
                    if isinstance(error, asyncio.CancelledError):
                        raise

    def _notice(self, update: Update) -> tuple[str, dict[str, Any]]:
        """The event that announces an update, and its payload."""
        if not isinstance(update, ServerUpdate):
            return f"server:update_{update}", {"computer": self._computer.name}
        server = self._computer.mask.name(update.server, update.server)
        return f"server:update_{update.kind}", {"computer": self._computer.name, "mcp_server": server}


def _agent_in(data: dict[str, Any]) -> str:
    """The agent of a decoded request, in its current or older field."""
    return str(data.get("agent") or data[OLDER_FIELDS["agent"]])


def _client_in(data: dict[str, Any]) -> str:
    """The MCP client that a request is made for. Where the field is not checked, a faulty one does not count."""
    client = data.get("client")
    return "" if client is None or fault_in_client(client) else client["name"]
