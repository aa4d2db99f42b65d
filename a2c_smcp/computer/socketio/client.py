"""The Computer's connection to a Server: dials out, joins, answers, and comes back by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from secrets import token_hex
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Protocol

from a2c_smcp import mcp_events, smcp
from a2c_smcp.computer.calls.incoming import CallOptions, IncomingCall
from a2c_smcp.computer.calls.journal import Journal
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.agent_requests import AgentRequests
from a2c_smcp.computer.observation import AgentRequestRefused, ConfigShown, SeatChanged
from a2c_smcp.computer.secrets.rules import secrets_in
from a2c_smcp.computer.types import ServerUpdate, Update
from a2c_smcp.connection import PATIENCE, Connection, Deferred, join, leave
from a2c_smcp.endpoint import Credentials, Endpoint, Reconnect
from a2c_smcp.errors import BadRequest, CallTimeout, Forbidden, NotAuthenticated, SMCPError, Unavailable
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.limits import Rate
from a2c_smcp.protocol import codec, operations
from a2c_smcp.protocol.events import OLDER_FIELDS, lookup
from a2c_smcp.protocol.names import fault_in_client
from a2c_smcp.protocol.operations import Operation
from a2c_smcp.protocol.questions import Answer
from a2c_smcp.protocol.results import computer_error_ack, error_ack
from a2c_smcp.protocol.structure import ANSWER, Structure

if TYPE_CHECKING:
    from a2c_smcp.computer.device import ComputerDevice
    from a2c_smcp.computer.sealed import SealedAnswers

logger = logging.getLogger(__name__)

# After a standstill of this process: receive all that the Server has sent before any call begins.
#
# A process that was stopped for a while (SIGSTOP, a debugger, an overloaded machine) finds calls in its buffers whose
# agents were told long ago that they took too long. The cancels of these calls are behind them: in the same buffer,
# in the kernel's, or still at the Server, which could not write more. If such a call began, its tool would run
# although its agent has given up.
#
# A standstill is noticed by a clock that ticks four times a second: the last tick was more than a second ago. The
# clock is also read when a call arrives, since that may be handled before the timer. The Server is then asked
# something that changes nothing. Packets of a connection keep their order, so everything that the Server had sent
# before, cancels included, is here when its answer is. Calls that arrive meanwhile wait for the answer and begin
# then, unless they were cancelled; what is read together from the connection is handled together, cancels before
# calls begin. If the connection is lost instead, the waiting calls do not begin at all, and the Server sends those
# again that are still wanted. Another standstill while the answer is awaited asks again; only the last answer counts.

_TICK = 0.25
_STANDSTILL = 1.0


class StandstillGuard:
    """For one connection. `ask` asks the Server something that changes nothing, and returns with the answer."""

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        self._ask = ask
        self._clock = asyncio.get_running_loop().time
        self._last_tick = self._clock()
        self._asking: asyncio.Future[None] | None = None

    async def watch(self) -> None:
        """Watch the clock until cancelled."""
        try:
            while True:
                await asyncio.sleep(_TICK)
                self._tick()
        finally:
            if self._asking:
                await cancel_and_wait(self._asking)

    def must_wait(self) -> bool:
        """True if a call may not begin yet."""
        self._tick()
        return self._asking is not None

    async def wait(self, timeout: float) -> float:
        """Wait until a call may begin. Returns the rest of its timeout. Raises `CallTimeout` or `Unavailable`."""
        if not self.must_wait():
            return timeout
        deadline = self._clock() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._answered()
        except TimeoutError:
            raise CallTimeout(f"it could not begin within {timeout:g} s", outcome="not_run") from None
        return max(deadline - self._clock(), 0.001)

    async def _answered(self) -> None:
        while asking := self._asking:
            await asyncio.wait([asking])
            if _has_failed(asking) and self._asking is None:
                raise Unavailable("the connection was lost before the call could begin", outcome="not_run")

    def _tick(self) -> None:
        now = self._clock()
        if now - self._last_tick > _STANDSTILL:
            before, self._asking = self._asking, asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(self._ended)
            if before:
                before.cancel()
        self._last_tick = now

    def _ended(self, asking: asyncio.Future[None]) -> None:
        if asking is self._asking:
            self._asking = None
        _has_failed(asking)  # marks the exception as retrieved


def _has_failed(asking: asyncio.Future[None]) -> bool:
    return asking.cancelled() or asking.exception() is not None


_FINAL = (NotAuthenticated, BadRequest)
_FAREWELL = 2.0
_MOST_UPDATES = 20  # a second, about lists of MCP servers: a Server refuses more than 50 (WIRE §6)
_UPDATE_PAUSE = 0.1
_TOOL_CALL = lookup(smcp.TOOL_CALL_EVENT)


class ServesAgents(Protocol):
    """A `Computer`, as far as its connection uses it."""

    agents: AgentRequests


class ConnectionEvent(str):
    """A sentence about the connection to a Server. `error` is the reason if it cannot connect."""

    error: SMCPError | None = None


class SMCPComputerClient:
    """The connection of one computer to one office of a Server.

    `on_connection` is called with a `ConnectionEvent`, a sentence, when the computer has joined, has lost the
    connection or cannot connect; without it these are logged, failures as warnings. `journal` keeps which calls were
    begun; the one of `journal_of` does so across a crash. Without a journal they are kept in memory.
    """

    def __init__(
        self,
        computer: ServesAgents,
        url: str,
        office: str,
        *,
        instance: str,
        journal: Journal | None = None,
        api_key: str | None = None,
        ssl: SSLContext | None = None,
        proxy: str | None = None,
        reconnect: Reconnect | None = None,
        on_connection: Callable[[ConnectionEvent], None] | None = None,
    ) -> None:
        self._agents = agents = computer.agents
        credentials = partial(Credentials.of_key, api_key)
        self._endpoint = Endpoint(url=url, credentials=credentials, ssl=ssl, proxy=proxy, prover=agents.prover(url))
        self._office = office
        self._instance = instance
        self._journal = journal
        self._reconnect = reconnect or Reconnect()
        self._on_connection = on_connection
        self._has_joined = False
        self._agent = Caller(office, "")
        self._updates: set[Update] = set()
        self._has_updates = asyncio.Event()
        self._pace = Rate(_MOST_UPDATES)
        self._sealed = self._sealed_answers(agents.device) if agents.device else None
        agents.mask.add([instance, *([api_key] if api_key else []), *secrets_in(url), *secrets_in(proxy or "")])
        whole: dict[Operation, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            operations.TOOL_CALL: self._tool_call,
            operations.GET_TOOLS: self._get_tools,
            operations.GET_CONFIG: self._get_config,
            operations.GET_BLOB: self._get_blob,
            operations.PUT_BLOB: self._put_blob,
        }
        fields: dict[Operation, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            operations.GET_DESKTOP: self._get_desktop,
            operations.WITHDRAW_CALL: self._withdraw_call,
            operations.ANSWER_QUESTION: self._answer_question,
            operations.GET_QUESTIONS: self._get_questions,
            operations.SET_LOG_LEVEL: self._set_log_level,
            operations.GET_SKILLS: self._get_skills,
            operations.GET_SKILL: self._get_skill,
            **{row: partial(self._read, row) for row in agents.reading.operations},
        }
        self._by_event = {row.event: self._masked(row, answer) for row, answer in whole.items()}
        self._by_event |= {
            row.event: partial(_with_req_id, self._masked(row, answer)) for row, answer in fields.items()
        }

    async def run(self) -> None:
        """Connect, join and answer, again and again, until cancelled.

        Raises the `SMCPError` with which the Server refuses the computer; every other failure is tried again. After it
        has joined once, `Forbidden` is tried again, too: another computer may have taken the seat meanwhile.
        """
        stop_listening = self._agents.on_update(self._on_update)
        try:
            with (
                self._agents.calls.in_flight.recording(self._office, self._journal) if self._journal else nullcontext()
            ):
                attempt, clock = 0, asyncio.get_running_loop().time
                while True:
                    begun = clock()
                    try:
                        await self._serve()
                        attempt = 0
                    except SMCPError as error:
                        if isinstance(error, (*_FINAL, Forbidden)):
                            self._agents.observation.report(SeatChanged(self._office, "refused", error.code))
                        if isinstance(error, _FINAL) or (isinstance(error, Forbidden) and not self._has_joined):
                            logger.info("%s is refused for good: %s", self._agents.name, error)
                            raise
                        self._report(f"not connected: {error}; trying again", logging.WARNING, error)
                        attempt += 1
                    await asyncio.sleep(self._reconnect.pause(attempt, clock() - begun))
        finally:
            stop_listening()
            self._agents.forget(self._office)
            if self._sealed:
                await self._sealed.close()

    def _report(self, event: str, level: int = logging.INFO, error: SMCPError | None = None) -> None:
        masked = ConnectionEvent(self._agents.mask.text(event))
        masked.error = error
        if self._on_connection:
            self._on_connection(masked)
        else:
            logger.log(level, "%s: %s", self._agents.name, masked)

    async def _serve(self) -> None:
        """One connection, from dialling to its end. Calls outlive it: their results are sent on the next one."""
        logger.info("%s: connecting to %s", self._agents.name, self._agents.mask.text(self._endpoint.url))
        async with Connection(self._endpoint, self._on_event) as connection:
            self._connection = connection
            largest = connection.max_message
            self._agents.limit_messages(self._sealed.room(largest) if self._sealed else largest)
            self._standstill = StandstillGuard(lambda: self._join(connection))
            await self._join(connection)
            self._has_joined = True
            if self._agents.owner.frozen:
                self._on_update("state")
            self._report(f"joined {self._office}")
            self._agents.observation.report(SeatChanged(self._office, "joined"))
            tasks = [asyncio.create_task(each) for each in (self._send_updates(connection), self._standstill.watch())]
            try:
                with self._agents.tells.connected(self._office, connection):
                    await connection.lost.wait()
                self._report("connection lost", logging.WARNING)
                self._agents.observation.report(SeatChanged(self._office, "lost"))
            finally:
                await cancel_and_wait(*tasks)
                with suppress(SMCPError):
                    await leave(connection, self._office, _FAREWELL)

    async def _join(self, connection: Connection) -> None:
        """Take the seat. Changes nothing if the computer has it already."""
        await join(connection, "computer", self._agents.name, self._office, self._instance, seats=True)

    def _on_event(self, name: str, data: Any) -> Deferred | Awaitable[Any] | None:
        """Handle an event of the Server: a request, whose answer is returned, or a notice."""
        payload = data if isinstance(data, dict) else {}
        if not name.startswith("notify:"):
            return self._dispatch(name, payload) if self._sealed is None else self._sealed.answer(name, payload)
        self._on_notice(name, payload)
        return None

    def _dispatch(self, name: str, data: dict[str, Any]) -> Deferred | Awaitable[Any]:
        starts = name == smcp.TOOL_CALL_EVENT and not self._standstill.must_wait()
        return Deferred(partial(self._start_call, data)) if starts else self._answer(name, data)

    def _start_call(self, data: dict[str, Any], answer: Callable[[Any], None]) -> None:
        """Answer a tool call as `_answer` does, but without a task beside that of the call."""
        try:
            self._agents.calls.start(self._call_in(data), answer)
        except SMCPError as error:
            self._on_refused(smcp.TOOL_CALL_EVENT, data, error)
            answer(self._agents.mask.data(error_ack(_TOOL_CALL, error), ANSWER))
        except Exception:
            logger.exception("%s failed", smcp.TOOL_CALL_EVENT)
            answer(error_ack(_TOOL_CALL, SMCPError()))

    async def _answer(self, name: str, data: dict[str, Any]) -> Any:
        """The answer to a request. Errors become answers, too."""
        event = None
        try:
            event = lookup(name)
            is_call = event.name == smcp.TOOL_CALL_EVENT  # refused and cancelled where it runs
            async with nullcontext() if is_call else self._agents.owner.freezing.passing():
                if event.name not in self._by_event:
                    raise BadRequest(f"this computer does not know {name!r}")
                answer = await self._by_event[event.name](codec.decode(event, data))
            return answer if is_call else self._agents.within_limit(answer)
        except SMCPError as error:
            self._on_refused(name, data, error)
            return self._agents.mask.data(computer_error_ack(event, error), ANSWER)
        except Exception:
            logger.exception("%s failed", name)
            return computer_error_ack(event, SMCPError())

    def _masked(
        self, row: Operation, answer: Callable[[dict[str, Any]], Awaitable[Any]]
    ) -> Callable[[dict[str, Any]], Awaitable[Any]]:
        """The same, with an answer that is masked as it leaves, unless that is done where it is made."""
        if row.is_masked:
            return answer
        structure = Structure(row.result)

        async def masked(data: dict[str, Any]) -> Any:
            return await self._agents.mask.answer(await answer(data), structure, None)

        return masked

    def _on_notice(self, name: str, data: dict[str, Any]) -> None:
        agent = data.get("agent", data.get(OLDER_FIELDS["agent"]))
        if name == smcp.LEAVE_OFFICE_NOTIFICATION and data.get("lost") is True and "computer" not in data:
            self._agents.withdraw(self._office)  # it may come back: see `_take_place`
        elif name == mcp_events.UPDATE_STATE_NOTIFICATION:
            self._on_freeze(data)
        elif not isinstance(agent, str):
            return
        elif name == smcp.CANCEL_TOOL_CALL_NOTIFICATION and isinstance(data.get("req_id"), str):
            self._agents.calls.cancel(self._seated(agent), data["req_id"])
        elif name == smcp.LEAVE_OFFICE_NOTIFICATION:
            self._take_place(Caller(self._office, ""))
        elif name == smcp.ENTER_OFFICE_NOTIFICATION:
            seat = data.get("seat")
            self._take_place(Caller(self._office, agent, seat=seat if isinstance(seat, str) else ""))

    def _on_freeze(self, data: dict[str, Any]) -> None:
        """An operator has frozen a computer. Its calls in flight are cancelled one by one; all else ends here."""
        if data.get("computer") == self._agents.name and data.get("frozen") is True:
            self._agents.calls.end_rounds()

    def _take_place(self, agent: Caller) -> None:
        """The agent of the office is this one now. All of the one before it ends, unless it is the same, who is back.

        Without a seat nobody can tell, so all ends.
        """
        if agent.seat and agent == self._agent:
            return
        self._agent = agent
        self._agents.forget(self._office, agent if agent.seat else None)
        if self._sealed:
            self._sealed.forget()

    def _seated(self, agent: str) -> Caller:
        """An agent of this name. Only the present one has a seat, as far as the Server tells it."""
        return self._agent if agent == self._agent.agent else Caller(self._office, agent)

    async def _tool_call(self, data: dict[str, Any]) -> Any:
        call = self._call_in(data)
        left = await self._standstill.wait(call.timeout)
        return await self._agents.calls.result_of(replace(call, timeout=left))

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
        self._agents.observation.report(AgentRequestRefused.of(self._office, name, data, error))

    def _caller_in(self, data: dict[str, Any]) -> Caller:
        caller, client = self._seated(_agent_in(data)), _client_in(data)
        caller = replace(caller, client=client) if client else caller
        return caller if self._sealed is None else self._sealed.caller(caller, data)

    def _sealed_answers(self, device: ComputerDevice) -> SealedAnswers:
        from a2c_smcp.computer.sealed import SealedAnswers

        about, answers = (self._agents.name, self._office, self._endpoint.origin), (self._dispatch, self._on_refused)
        return SealedAnswers(device, *about, *answers, self._agents.mask, self._agents.owner.freezing)

    async def _get_tools(self, data: dict[str, Any]) -> dict[str, Any]:
        return self._agents.tools_for(_agent_in(data), data["req_id"], self._office)

    async def _get_config(self, data: dict[str, Any]) -> smcp.GetComputerConfigRet:
        config = self._agents.get_config()
        self._agents.observation.report(ConfigShown(self._caller_in(data), data["req_id"]))
        if not any(each["type"] == "pickString" for each in config.get("inputs") or ()):
            return config
        return self._agents.get_config(labelled=await self._wants_labels())

    async def _wants_labels(self) -> bool:
        """True if the options of pick lists must have labels, because this is a published Server.

        It answers the agent with nothing otherwise. It lets a computer list the members; ours, which passes on options
        of any form, refuses that.
        """
        request = {"agent": self._agents.name, "req_id": token_hex(16), "office_id": self._office}
        try:
            answer = await self._connection.ask(smcp.LIST_ROOM_EVENT, request, PATIENCE)
        except SMCPError:
            return False
        return isinstance(answer, dict) and "sessions" in answer

    async def _get_blob(self, data: dict[str, Any]) -> dict[str, Any]:
        binary = data.get("binary") is True and self._sealed is None  # what is signed or sealed is JSON
        return await self._agents.blobs.chunk(self._caller_in(data), data, binary=binary)

    async def _put_blob(self, data: dict[str, Any]) -> dict[str, Any]:
        return await self._agents.uploads.put(self._caller_in(data), data, binary=self._sealed is None)

    # Answers without their `req_id`

    async def _get_desktop(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"desktops": await self._agents.get_desktop(data.get("desktop_size"), data.get("window"))}

    async def _withdraw_call(self, data: dict[str, Any]) -> dict[str, Any]:
        self._agents.calls.withdraw_call(self._caller_in(data), data["call"])
        return {}

    async def _answer_question(self, data: dict[str, Any]) -> dict[str, Any]:
        answer = Answer(data["action"], data.get("content"))
        await self._agents.questions.answer(self._caller_in(data), data["question_id"], answer)
        return {}

    async def _get_questions(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"questions": self._agents.questions.of(self._caller_in(data))}

    async def _set_log_level(self, data: dict[str, Any]) -> dict[str, Any]:
        await self._agents.watch_logs(self._caller_in(data), data.get("mcp_server"), data["level"])
        return {}

    async def _get_skills(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"skills": self._agents.skills.references()}

    async def _get_skill(self, data: dict[str, Any]) -> dict[str, Any]:
        about = self._caller_in(data), data["name"], data.get("rel_path")
        return await self._agents.skills.get(*about, as_mcp=data.get("as_mcp", False))

    async def _read(self, operation: Operation, data: dict[str, Any]) -> dict[str, Any]:
        return await self._agents.reading.answer(operation, self._caller_in(data), data)

    # Updates

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
        if update == "state":
            is_frozen = self._agents.owner.frozen is not None
            return "server:update_state", {"computer": self._agents.name, "frozen": is_frozen}
        if not isinstance(update, ServerUpdate):
            return f"server:update_{update}", {"computer": self._agents.name}
        server = self._agents.mask.name(update.server, update.server)
        return f"server:update_{update.kind}", {"computer": self._agents.name, "mcp_server": server}


async def _with_req_id(
    answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], data: dict[str, Any]
) -> dict[str, Any]:
    return {**await answer(data), "req_id": data["req_id"]}


def _agent_in(data: dict[str, Any]) -> str:
    """The agent of a decoded request, in its current or older field."""
    return str(data.get("agent") or data[OLDER_FIELDS["agent"]])


def _client_in(data: dict[str, Any]) -> str:
    """The MCP client that a request is made for. Where the field is not checked, a faulty one does not count."""
    client = data.get("client")
    return "" if client is None or fault_in_client(client) else client["name"]
