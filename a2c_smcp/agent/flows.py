"""The actions of an agent, and its reactions to notices. Both clients use them; they differ only in how they wait.

What the agent knows is never patched from notices: a notice only says what to fetch again (`standing_requests.py`).
The one exception is who is there, which comes from `list_room` and from the enter and leave notices. The answer to
`list_room` is applied before any later notice is handled, so the two cannot cross.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from a2c_smcp import mcp_events, smcp, v04_events
from a2c_smcp.agent.blobs.transfers import MAX_RESULT
from a2c_smcp.agent.calls import EmitOptions, ListeningCalls, questions_in
from a2c_smcp.agent.connection import AgentConnection
from a2c_smcp.agent.desktops import ClientOptions, Desktops, DeviceOptions, OutgoingCall, Screen, Seat
from a2c_smcp.agent.events import EventDispatcher, Invoke
from a2c_smcp.agent.reading.requests import Reading
from a2c_smcp.agent.requests import Requests
from a2c_smcp.agent.retries import ReturningComputers
from a2c_smcp.agent.skills import SkillRequests
from a2c_smcp.agent.standing_requests import LogSource, Refresher, StandingRequests
from a2c_smcp.agent.toolbox import Toolbox
from a2c_smcp.endpoint import Endpoint, Reconnect
from a2c_smcp.errors import AmbiguousComputer, BadRequest, ComputerNotFound, Frozen, SMCPError, ToolNotFound
from a2c_smcp.protocol.names import name_hint
from a2c_smcp.protocol.operations import SET_LOG_LEVEL
from a2c_smcp.protocol.questions import OnQuestion, Question
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.types import Desktop

if TYPE_CHECKING:  # it needs the extra `devices`
    from a2c_smcp.agent.sealed import DeviceRequests


logger = logging.getLogger(__name__)

_SETTLE = 5.0
_SETTLE_READING = 1.0
_NOT_REPEATED = (
    mcp_events.TELL_PROGRESS_NOTIFICATION,
    mcp_events.TELL_STATE_NOTIFICATION,
    mcp_events.TELL_LOG_NOTIFICATION,
    mcp_events.TELL_RESOURCE_NOTIFICATION,
)
"""Notices that may come many times a second."""


class Flows:
    """Connects an agent, joins offices, and keeps current what it knows of their computers."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        registry: MCPRegistry,
        listeners: Iterable[object],
        on_question: OnQuestion | None,
        options: ClientOptions,
    ) -> None:
        reconnect = options.get("reconnect") or Reconnect()
        self._device = DeviceOptions.of(options, endpoint.origin)
        self._sealed: DeviceRequests | None = None
        self.listeners = EventDispatcher(listeners)
        self.connection = AgentConnection(
            name,
            endpoint,
            reconnect=reconnect,
            on_notice=self._on_notice,
            on_lost=self._on_connection_lost,
            on_seated=self._on_seated,
            on_seat_lost=self._on_seat_lost,
            on_refused=self._on_refused,
            expected_until=self._expected_until,
            seat_of=self._seat_of,
            instance=options.get("instance"),
        )
        self._returning = ReturningComputers()
        self._ours: set[Seat] = set()
        self._identities: dict[Seat, str] = {}
        self.ask = Requests(self.connection, options.get("max_result", MAX_RESULT))
        self._listening = ListeningCalls(self.ask, on_question, reconnect)
        self.logs = StandingRequests(self._send_log_level, self._seat_of, reconnect)
        self._trusted = {name: dict[str, str]() for name in options.get("trusted_computers", ())}
        self.toolbox = Toolbox(registry, self._call, self._is_trusted)
        self.reading = Reading(self.ask, self.listeners, self.toolbox, self._seat_of, reconnect)
        self.reading.registered.is_wanted = options.get("list_resources", True)
        self._desktops = Desktops(self._on_desktop)
        self._members = Refresher(self._fetch_members, reconnect)
        self._tools = Refresher(self._fetch_tools, reconnect)
        self._screens = Refresher(self._fetch_screen, reconnect)
        self.skills = SkillRequests(self.ask, self.listeners, reconnect)
        self._refreshes = (self._members, self._tools, self._screens, self.skills.refreshes)
        self._reactions = {
            smcp.ENTER_OFFICE_NOTIFICATION: self._on_enter,
            smcp.LEAVE_OFFICE_NOTIFICATION: self._on_leave,
            smcp.UPDATE_CONFIG_NOTIFICATION: self._on_update_config,
            smcp.UPDATE_TOOL_LIST_NOTIFICATION: self._on_update_tools,
            smcp.UPDATE_DESKTOP_NOTIFICATION: self._on_update_desktop,
            v04_events.UPDATE_SKILLS_NOTIFICATION: self.skills.on_update,
        }
        self.frozen: set[Seat] = set()
        self._tells = {
            mcp_events.TELL_PROGRESS_NOTIFICATION: self._listening.on_progress,
            mcp_events.TELL_STATE_NOTIFICATION: self._listening.on_state,
            mcp_events.TELL_QUESTION_NOTIFICATION: self._listening.on_question_told,
            mcp_events.TELL_QUESTION_ENDED_NOTIFICATION: self._listening.on_question_ended,
            mcp_events.TELL_LOG_NOTIFICATION: self._on_log,
            **self.reading.notices,
        }

    async def connect(self, invoke: Invoke, offices: Iterable[str]) -> None:
        if self.connection.is_open:
            return
        await self.disconnect()
        if self._device and self._sealed is None:
            from a2c_smcp.agent.sealed import device_requests

            self._sealed = await device_requests(self._device, self.connection, self._addressed_seat)
            self.ask.to_computer = self._sealed.ask
        self.toolbox.open()
        self.ask.open()
        self.ask.transfers.open(invoke)
        self.listeners.open(invoke)
        self._listening.open(invoke)
        for opening in (self.logs, self.reading, *self._refreshes):
            opening.open()
        try:
            await self.connection.open()
            for office in offices:
                await self.join_office(office)
        except BaseException:
            await self.disconnect()
            raise

    def _addressed_seat(self, computer: str, office: str | None) -> Seat:
        """Where a request goes; a computer that is not there yet may be soon. Raises `AmbiguousComputer`."""
        offices = [office] if office is not None else self.connection.seats
        return Seat(next(iter(offices)), computer) if len(offices) == 1 else self._seat(computer, None)

    async def disconnect(self) -> None:
        try:
            for closing in (self._listening, self.logs, self.reading, *self._refreshes):
                await closing.close()
        finally:
            try:
                await self.connection.close()
            finally:
                self.ask.transfers.close()
                self.toolbox.close()
                self._returning.clear()
                self._desktops.close()
                await self.listeners.close()

    async def join_office(self, office: str) -> None:
        """Join an office, and give its computers `_SETTLE` seconds to send their tools.

        Resources and prompts get a moment, and only on computers of this make, which certainly answer.
        """
        await self.connection.take_seat(office)
        self._on_seated(office)
        await self._members.settle([office], _SETTLE)
        await self._tools.settle(self.toolbox.seats(office), _SETTLE)
        await self.reading.registered.settle(self._ours & {*self.toolbox.seats(office)}, _SETTLE_READING)

    async def leave_office(self, office: str) -> None:
        self._members.drop(office)
        for seat in self.toolbox.seats(office):
            self._forget(seat)
        self._desktops.close(office)
        self.logs.leave(office)
        self.reading.leave(office)
        await self.connection.give_up_seat(office)

    async def call_tool(self, call: OutgoingCall, options: EmitOptions) -> CallToolResult:
        try:
            if options or self._listening.on_question:
                return await self._listening.call(call, options)
            return await self.ask.call_tool(call)
        except ToolNotFound as error:
            raise await self._with_hint(error, call) from None

    async def _with_hint(self, error: ToolNotFound, call: OutgoingCall) -> ToolNotFound:
        """The error with the names of tools that the caller may have meant, if the computer says which it has."""
        with suppress(SMCPError):
            tools: list[Any] = [*await self.ask.tools(call.computer, call.office)]
            known = [tool["name"] for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
            if call.tool not in known:
                hinted = ToolNotFound(f"{call.tool!r}. {name_hint(call.tool, known)}")
                hinted.details = error.details
                return hinted
        return error

    async def get_questions(self, computer: str, office: str | None) -> list[Question]:
        return questions_in(await self.ask.questions(computer, office), computer, office)

    async def _send_log_level(self, source: LogSource, level: mcp_events.LogLevel, seat: Mapping[str, str]) -> None:
        server = {} if source.mcp_server is None else {"mcp_server": source.mcp_server}
        await self.ask.ask(SET_LOG_LEVEL, source.computer, {"level": level, **server, **seat}, source.office)

    async def get_desktop(
        self, computer: str, size: int | None, window: str | None, office: str | None, *, keep: bool = True
    ) -> list[Desktop]:
        desktops = await self.ask.desktop(computer, size, window, office)
        for seat in self.toolbox.seats_of(computer, office)[:1] if keep else ():
            screen = Screen(seat, size, window)
            self._desktops.ask(screen)
            self._desktops.receive(screen, desktops)
        return desktops

    def latest_desktop(self, computer: str, office: str | None) -> list[Desktop] | None:
        return self._desktops.latest(self._seat(computer, office))

    def watch_desktop(
        self, computer: str, size: int | None, window: str | None, office: str | None
    ) -> AsyncGenerator[list[Desktop], None]:
        return self._desktops.watch(Screen(self._seat(computer, office), size, window), self._screens.request)

    # Notices and other events

    def _on_notice(self, event: str, data: dict[str, Any]) -> None:
        if self._sealed:
            if (opened := self._sealed.opened(event, data)) is None:
                return
            data = opened
        if tell := self._tells.get(event):
            tell(data)
            if event in _NOT_REPEATED:
                return
        reaction = self._reactions.get(event)
        if event == smcp.LEAVE_OFFICE_NOTIFICATION and data.get("lost") is True:
            reaction = self._on_lost
        if event == mcp_events.UPDATE_STATE_NOTIFICATION:
            for seat in self._seats_in(event, data):
                self._note_frozen(seat, is_frozen=data.get("frozen") is True)
        if reaction:
            for seat in self._seats_in(event, data):
                if event == smcp.ENTER_OFFICE_NOTIFICATION:
                    self._identify(seat, data)
                reaction(seat)
        self.listeners.dispatch("on_notice", event, data)

    def _seats_in(self, event: str, data: dict[str, Any]) -> list[Seat]:
        """The computers that a notice is about. Updates from other makes of Servers do not name the office."""
        computer, office = data.get("computer"), data.get("office_id")
        if not isinstance(computer, str):
            return []
        if event == smcp.ENTER_OFFICE_NOTIFICATION:
            return [Seat(office, computer)] if isinstance(office, str) and office in self.connection.seats else []
        return self.toolbox.seats_of(computer, office if isinstance(office, str) else None)

    def _on_enter(self, seat: Seat) -> None:
        self._returning.discard(seat)
        if self._sealed:
            self._sealed.device.forget(seat)
        is_new = self.toolbox.enter(seat)
        if is_new:
            if seat.computer in self._trusted and not self._is_trusted(seat):
                logger.warning("%s is not trusted: another client had this name before", seat)
            self._listening.on_enter(seat)
            self.logs.on_enter(seat)
            self.listeners.dispatch("on_computer_enter_office", _data_of(seat))
        self._tools.request(seat)
        self.reading.on_enter(seat, is_new=is_new)
        self._on_update_desktop(seat)

    def _on_leave(self, seat: Seat) -> None:
        self._forget(seat)
        self.listeners.dispatch("on_computer_leave_office", _data_of(seat))

    def _on_lost(self, seat: Seat) -> None:
        """A computer has lost its connection, and may return."""
        self._returning.discard(seat)
        self._identities.pop(seat, None)
        self.reading.forget(seat)
        self.toolbox.lose(seat)
        self._stop_following(seat)
        self.listeners.dispatch("on_computer_leave_office", _data_of(seat))

    def _on_update_config(self, seat: Seat) -> None:
        self._on_update_tools(seat)
        self.listeners.dispatch("on_computer_update_config", _data_of(seat))
        self.listeners.dispatch("on_computer_update_mcp_config", _data_of(seat))

    def _on_update_tools(self, seat: Seat) -> None:
        self._tools.request(seat)
        self.logs.on_change(seat)
        self.reading.on_change(seat)

    def _on_update_desktop(self, seat: Seat) -> None:
        for screen in self._desktops.screens(seat):
            self._screens.request(screen)

    def _note_frozen(self, seat: Seat, *, is_frozen: bool) -> None:
        """A computer was frozen, or released: then what was refused meanwhile is fetched again.

        One that its owner has released may still be frozen by an operator, which the answer for its tools says.
        """
        (self.frozen.add if is_frozen else self.frozen.discard)(seat)
        self.listeners.dispatch("on_computer_update_state", {**_data_of(seat), "frozen": is_frozen})
        if not is_frozen:
            self._on_update_tools(seat)
            self._on_update_desktop(seat)
            self.skills.on_update(seat)

    def _on_connection_lost(self) -> None:
        self._returning.lose(self.toolbox.seats())
        self.reading.on_connection_lost()
        self.listeners.dispatch("on_disconnected")

    def _on_seated(self, office: str) -> None:
        self._returning.expect(office, lambda: self._members.request(office))
        self._members.request(office)
        self._listening.on_seated(office)
        self.logs.on_seated(office)
        self.reading.on_seated(office)
        self.listeners.dispatch("on_office_joined", office)

    def _on_seat_lost(self, office: str, error: SMCPError) -> None:
        logger.warning("%s could not return to office %s: %s", self.connection.name, office, error)
        for seat in self.toolbox.seats(office):
            self._on_leave(seat)
        self.listeners.dispatch("on_office_lost", office, error)

    def _on_refused(self, error: SMCPError) -> None:
        for office in self.connection.seats:
            self._members.drop(office)
        for seat in self.toolbox.seats():
            self._on_leave(seat)
        self._desktops.close()
        self.listeners.dispatch("on_refused", error)

    def _on_desktop(self, screen: Screen, desktops: list[Desktop]) -> None:
        self.listeners.dispatch("on_desktop_updated", screen.seat.computer, desktops, screen.seat.office)

    def _on_log(self, data: dict[str, Any]) -> None:
        for seat in self._seats_in(mcp_events.TELL_LOG_NOTIFICATION, data)[:1]:
            if self.logs.at(seat):
                self.listeners.dispatch_if_free("on_log", seat.computer, data, seat.office)

    # What is kept current

    async def _fetch_members(self, office: str) -> None:
        def apply(members: list[smcp.SessionInfo]) -> None:
            self.connection.is_deduplicated = any(_is_deduplicated(each, self.connection.name) for each in members)
            computers = {Seat(office, each["name"]): each for each in members if _is_computer(each)}
            ours = {seat for seat in computers if computers[seat].get("dedup")}
            self._ours = {seat for seat in self._ours if seat.office != office} | ours
            self.frozen |= {seat for seat in computers if computers[seat].get("frozen")}
            self._apply_members(office, computers)

        await self.ask.members(office, then=apply)

    def _apply_members(self, office: str, computers: Mapping[Seat, Mapping[str, Any]]) -> None:
        """Apply the list of an office's computers, in the order in which they entered."""
        for seat in self.toolbox.seats(office):
            if seat not in computers and not self._returning.until(seat):
                self._on_lost(seat)
        for seat, each in computers.items():
            self._identify(seat, each)
            self._on_enter(seat)

    async def _fetch_tools(self, seat: Seat) -> None:
        try:
            tools = await self.ask.tools(seat.computer, seat.office)
        except Frozen:
            if seat not in self.frozen:
                self._note_frozen(seat, is_frozen=True)
            raise
        if seat in self.frozen:
            self._note_frozen(seat, is_frozen=False)
        self.toolbox.receive(seat, tools)
        self.listeners.dispatch("on_tools_received", seat.computer, tools, seat.office)

    async def _fetch_screen(self, screen: Screen) -> None:
        seat = screen.seat
        try:
            desktops = await self.ask.desktop(seat.computer, screen.size, screen.window, seat.office)
        except BadRequest as error:  # there will be none later
            self._desktops.fail(screen, error)
        else:
            self._desktops.receive(screen, desktops)

    def _expected_until(self, computer: object, office: object) -> float:
        return max(map(self._returning.until, self.toolbox.seats_of(computer, office)), default=0.0)

    def _identify(self, seat: Seat, data: Mapping[str, Any]) -> None:
        """Note whose seat it is. Another client under the name of a computer is another computer."""
        if isinstance(identity := data.get("seat"), str):
            if self._identities.get(seat, identity) != identity and seat in self.toolbox.seats(seat.office):
                self._on_leave(seat)
            self._identities[seat] = identity

    def _is_trusted(self, seat: Seat) -> bool:
        """True if the program trusts this name, and the client that had it first has it still (WIRE §4)."""
        identity, trusted = self._identities.get(seat), self._trusted.get(seat.computer)
        if trusted is None or identity is None:
            return trusted is not None
        return trusted.setdefault(seat.office, identity) == identity

    def _seat_of(self, computer: object, office: object) -> str | None:
        seats = self.toolbox.seats_of(computer, office)
        return self._identities.get(seats[0]) if len(seats) == 1 else None

    def _forget(self, seat: Seat) -> None:
        self._returning.discard(seat)
        self._identities.pop(seat, None)
        self.frozen.discard(seat)
        self.reading.forget(seat)
        self.toolbox.leave(seat)
        self._stop_following(seat)

    def _stop_following(self, seat: Seat) -> None:
        self._tools.drop(seat)
        self.skills.refreshes.drop(seat)
        for screen in self._desktops.screens(seat):
            self._screens.drop(screen)

    def _call(
        self, seat: Seat, tool: str, arguments: dict[str, Any], options: EmitOptions
    ) -> Coroutine[Any, Any, CallToolResult]:
        return self.call_tool(OutgoingCall(seat.computer, tool, arguments, office=seat.office), options)

    def _seat(self, computer: str, office: str | None) -> Seat:
        seats = self.toolbox.seats_of(computer, office)
        if len(seats) > 1:
            raise AmbiguousComputer(computer, offices=[seat.office for seat in seats])
        if not seats:
            raise ComputerNotFound(repr(computer), computer=computer)
        return seats[0]


def _is_computer(member: Any) -> bool:
    """Servers of other makes may send anything."""
    return isinstance(member, dict) and member.get("role") == "computer" and isinstance(member.get("name"), str)


def _is_deduplicated(member: Any, name: str) -> bool:
    """True for our own seat on a Server that deduplicates calls marked `sent_before`."""
    is_me = isinstance(member, dict) and (member.get("role"), member.get("name")) == ("agent", name)
    return is_me and member.get("dedup") is True


def _data_of(seat: Seat) -> dict[str, Any]:
    return {"office_id": seat.office, "computer": seat.computer}
