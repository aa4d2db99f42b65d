"""An event that came in: decode it, ask the protocol, carry it out, answer it.

Events of one connection are handled in the order in which they came, because there is one queue. An event that can be
handled without waiting, which nearly all are, is handled inside `receive`. One that has to wait (a join, anything
that asks a shared store) makes the connection's `inbox`: later events stay in it, and one task handles it and them,
one after the other, until the inbox is empty and gone. A call in flight is not waiting: its event was handled when it
was passed on, and its answer is sent whenever it comes. One exception: while a tell of a computer waits in the inbox,
acks that come behind it wait there, too, so that the agent hears the tell first.

The end of a connection is the last entry of that queue: what a client sent before it disconnected is carried out first.
From the moment it is gone nothing is written to it any more.

Errors become acks in `Connection.reply` (by `refusal_ack`, which knows their shapes), and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from a2c_smcp.engine.events import Ack, Event, Faulty
from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import RateLimited, SMCPError, Unavailable
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol import names
from a2c_smcp.protocol.codec import decode
from a2c_smcp.protocol.events import EVENTS, OLDER_FIELDS, Action, EventSpec, lookup
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.auth.authentication import (
    Admission,
    AuthenticationProvider,
    CredentialUses,
    Handshake,
    Principal,
    no_sid,
    read_auth,
)
from a2c_smcp.server.calls.relay import Relay
from a2c_smcp.server.cluster.memory import Directory, MemoryDirectory, as_shared, new_sid, node_of
from a2c_smcp.server.connections import AdmittedRequest, Channel, Connection, Connections, End
from a2c_smcp.server.envelope import (
    Closing,
    Outcome,
    Refused,
    fault_of,
    fields_of,
    name_in,
    read_answer,
    read_payload,
    size_of,
    spec_of,
)
from a2c_smcp.server.freezes import Freezes
from a2c_smcp.server.handlers import Handlers, ReceivedEvent, Steps
from a2c_smcp.server.notices import Notices
from a2c_smcp.server.observation.happened import (
    ClientConnected,
    ClientGone,
    EventRefused,
    HandshakeRefused,
    Observation,
)
from a2c_smcp.server.routing_fields import NAMES, read_request, read_to_record
from a2c_smcp.server.seating import Seating
from a2c_smcp.server.settings import Limits
from a2c_smcp.telemetry.metrics import Metrics, count_refusal, server_metrics

logger = logging.getLogger(__name__)

_BRACKET = ord("]")
_OLDER_FIELDS = frozenset(OLDER_FIELDS.values())
_MOST_HELD = 1024
_NAMED = {row.name: row for row in EVENTS} | {row.older: row for row in EVENTS if row.older}
_REQUESTS = {b'["%s",{' % name.encode(): (name, row) for name, row in _NAMED.items() if row.action is Action.FORWARD}
"""Requests to computers by their first bytes. Other events are read in full, with the same result."""


class _Held(NamedTuple):
    """An event whose handler waits."""

    came: Event
    event: EventSpec
    steps: Steps
    waits_for: Awaitable[object]


class Hub:
    """Handles the events of all connections. Transports call `connect`, `receive`, `acked` and `disconnected`, in this
    order; the hub answers by writing to a connection's channel."""

    def __init__(
        self,
        auth: AuthenticationProvider,
        *,
        directory: Directory | None = None,
        limits: Limits | None = None,
        require_version: str | None = None,
        legacy_notices: bool = False,
        metrics: Metrics | None = None,
        origins: Iterable[str] = (),
        freezes_file: Path | None = None,
    ) -> None:
        self.auth = auth
        self.limits = limits or Limits()
        self.metrics = metrics or server_metrics()
        self.observation = Observation()
        self.admission = Admission(auth, self.refuse_handshake, self.limits.authentication_timeout, origins)
        self.uses = CredentialUses()
        self.background = OwnedTasks()
        self.connections = Connections(self.metrics)
        self.directory = directory or MemoryDirectory()
        self.visits: set[AdmittedRequest] = set()
        self._require_version = require_version
        self._nodes = as_shared(self.directory)
        self._notices = Notices(
            self.connections,
            self.background,
            self.limits,
            self._nodes.announce if self._nodes else None,
            older_to_all=legacy_notices,
        )
        self.freezes = Freezes(self._nodes, freezes_file, self.background)
        self.metrics.watch("a2c_frozen", self.freezes.by_scope.__len__)
        self._relay = Relay(
            self.directory,
            self.connections,
            self.background,
            self.metrics,
            self.limits,
            self._nodes,
            self.observation,
            self.freezes,
        )
        self.calls = self._relay.calls
        self._seating = Seating(
            self.directory,
            self.connections,
            self._relay,
            self._notices,
            self.background,
            self.limits,
            self.metrics,
            self.dismiss,
            self.observation,
            self.withhold,
            self.freezes,
        )
        self.directory.listener = self._seating
        self._handlers = Handlers(
            self.directory,
            self._relay,
            self._notices,
            self._seating,
            self.limits,
            self.observation,
            self.freezes,
            is_shared=self._nodes is not None,
        )

    # For transports

    async def connect(
        self,
        channel: Channel,
        handshake: Handshake,
        auth: Json,
        *,
        sid: str | None = None,
        proving: Callable[[], str | None] = no_sid,
    ) -> Connection:
        """Authenticates a CONNECT. Raises `SMCPError`, which becomes a CONNECT_ERROR.

        `proving` returns the Engine.IO sid that the proof of a device has to name, if there is one.
        """
        with self.admission.refusing(handshake):
            if self.calls.is_closing:
                raise Closing
            spoken = names.accept(handshake.version, self._require_version)
        principal = await self.admission.admit(handshake, read_auth(auth), proving)
        self.uses.note(principal.credential)
        sid = sid or new_sid(self._nodes.node if self._nodes else None)
        connection = self.connections.add(sid, principal, spoken, channel, handshake.client)
        connection.renew(principal, self.dismiss)
        self.observation.report(ClientConnected(connection))
        return connection

    async def admit(self, handshake: Handshake) -> Principal:
        """Authenticates a request that is no part of a connection. Raises `NotAuthenticated`."""
        principal = await self.admission.admit(handshake)
        self.uses.note(principal.credential)
        return principal

    @contextmanager
    def visit(self, principal: Principal, end: Callable[[], None]) -> Iterator[None]:
        """Encloses a request that is no part of a connection. `end` is called if its sender is no longer admitted."""
        visit = AdmittedRequest(principal, end)
        visit.renew(principal, lambda visit: visit.end())
        self.visits.add(visit)
        try:
            yield
        finally:
            self.uses.note(principal.credential)
            self.visits.discard(visit)
            visit.stop_expiry()

    def refuse_handshake(self, address: str | None, error: SMCPError, principal: Principal | None = None) -> None:
        """Counts and reports that a client was not let in."""
        count_refusal(self.metrics, error)
        who = (principal.id, principal.device) if principal else (None, None)
        self.observation.report(HandshakeRefused(address, error, *who))

    def receive(self, connection: Connection, event: Event | Faulty) -> None:
        """Handles an event, or puts it behind one that waits. It does not raise."""
        if connection.inbox is not None:
            self._hold(connection, event)
        elif held := self._begin(connection, event):
            connection.inbox = deque()
            connection.held_in_order = int(held.event.action is Action.TELL)
            self.background.spawn(self._work(connection, held))

    def acked(self, connection: Connection, ack: Ack | Faulty) -> None:
        """Handles the answer to a call. Unknown ack ids are ignored. It does not raise."""
        if not (connection.held_in_order and self._hold_ack(connection, ack)):
            self._settle(connection, ack)

    def _settle(self, connection: Connection, ack: Ack | Faulty) -> None:
        call = connection.pending.pop(ack.id, None)  # type: ignore[arg-type]  # no id, no call
        if call is None:
            return
        try:
            if isinstance(ack, Ack):
                outcome: Outcome = read_answer(ack.body, ack.attachments)
            else:
                outcome = Refused(fault_of(ack))
        except SMCPError as error:
            outcome = Refused(error)
        try:
            self.calls.answered(call, connection, outcome)
        except Exception:
            logger.exception("an answer was not passed on")

    def disconnected(self, connection: Connection, *, is_clean: bool, reason: str | None = None) -> None:
        """The connection has ended, cleanly by a Socket.IO DISCONNECT or otherwise. A second end is ignored."""
        if connection.is_gone:
            return
        self.observation.settle()  # what has ended is recorded with its connection
        self.uses.note(connection.principal.credential)
        self.connections.remove(connection)
        self.calls.disconnected(connection.sid)
        self._seating.lose(connection)
        end = End(is_clean or connection.is_over, reason)
        if connection.inbox is not None:
            connection.inbox.append(end)
        else:
            connection.inbox = deque((end,))
            self.background.spawn(self._work(connection))

    # For operators

    def dismiss(self, connection: Connection) -> None:
        """Ends a connection, and releases its seats for good."""
        connection.is_over = True
        connection.channel.dismiss()
        self.disconnected(connection, is_clean=True, reason="dismissed")

    def reload(self) -> None:
        """Reads the credentials again, and ends what they no longer admit."""
        self.auth.reload()
        self.recheck()

    def recheck(self) -> None:
        """Disconnects clients that are no longer admitted, and ends their requests."""
        for visit in list(self.visits):
            if renewed := self.auth.current(visit.principal):
                visit.renew(renewed, lambda visit: visit.end())
            else:
                visit.end()
        for connection in self.connections:
            if renewed := self.auth.current(connection.principal):
                connection.renew(renewed, self.dismiss)
            else:
                self.dismiss(connection)

    def withhold(self, credentials: Collection[str]) -> None:
        """Refuses keys that were revoked, and cannot be taken out of their file."""
        for credential in credentials:
            self.auth.withhold(credential)
        if credentials:
            self.reload()

    async def keep_withheld(self, credential: str) -> None:
        """Lets nodes that begin later know such a key, if they share a store that answers."""
        if self._nodes:
            with suppress(Unavailable):
                await self._nodes.withhold(credential)

    # For agents that any node may be asked for

    async def agent_elsewhere(self, owner: str, name: str, office_id: str) -> Member | None:
        """The agent of this principal and name in an office, if its connection is on another node."""
        office = self.directory.cached_office(office_id) or await self.directory.office(office_id)
        agent = office.agent
        if self._nodes is None or agent is None or (agent.owner, agent.name) != (owner, name):
            return None
        return agent if node_of(agent.sid) not in (None, self._nodes.node) else None

    async def is_gone(self, node: str) -> bool:
        """True if no process is this node, whatever is left of its lease. Raises `Unavailable`."""
        return self._nodes is not None and bool(await self._nodes.absent({node}))

    async def release(self, agent: Member) -> None:
        """Free the seat of an agent whose node is gone."""
        await self._seating.release(agent)

    def is_engaged(self, connection: Connection) -> bool:
        """True if a connection has calls in flight, or events that wait."""
        return connection.inbox is not None or self.calls.is_engaged(connection.sid)

    async def drain(self) -> None:
        """Takes no new connections and calls, and returns when none is in flight. If cancelled, it refuses the rest."""
        try:
            await self.calls.drain()
        finally:
            self.end_calls()

    def end_calls(self) -> None:
        """Takes no new calls, and refuses those in flight."""
        self.calls.is_closing = True
        for call in list(self.calls.by_connection.running()):
            self.calls.finish(call, call.refused(Closing()))

    async def close(self) -> None:
        self._seating.close()
        self._notices.close()
        await self.background.close()
        await self.directory.close()

    # The order of events

    def _hold(self, connection: Connection, event: Event | Faulty) -> None:
        assert connection.inbox is not None
        size = size_of(event)
        if len(connection.inbox) < _MOST_HELD and connection.inbox_bytes + size <= self.limits.in_flight_bytes:
            connection.inbox.append(event)
            connection.inbox_bytes += size
            connection.held_in_order += _is_tell(event)
        else:
            error = RateLimited("an earlier event of this connection waits, try again later")
            spec = spec_of(event)
            self._report_refused(connection, event, spec, error)
            connection.reply(event.id, spec, Refused(error))

    def _hold_ack(self, connection: Connection, ack: Ack | Faulty) -> bool:
        """Puts an ack behind tells that came before it. If it does not fit, it is better early than lost."""
        size = size_of(ack)
        if connection.inbox is None or connection.inbox_bytes + size > self.limits.in_flight_bytes:
            return False
        connection.inbox.append(ack)
        connection.inbox_bytes += size
        connection.held_in_order += 1
        return True

    async def _work(self, connection: Connection, held: _Held | None = None) -> None:
        """Handles an event that waits, and those behind it."""
        if held:
            await self._finish(connection, held)
            connection.held_in_order -= held.event.action is Action.TELL
        while connection.inbox:
            event = connection.inbox.popleft()
            if isinstance(event, End):
                await self._end(connection, event)
                continue
            connection.inbox_bytes -= size_of(event)
            if isinstance(event, Ack) or (isinstance(event, Faulty) and event.is_ack):
                connection.held_in_order -= 1
                self._settle(connection, event)
                continue
            if held := self._begin(connection, event):
                await self._finish(connection, held)
            connection.held_in_order -= _is_tell(event)
            await asyncio.sleep(0)  # other connections have their turn: a directory in memory never waits
        connection.inbox = None

    def _begin(self, connection: Connection, came: Event | Faulty) -> _Held | None:
        """Handles an event up to where it has to wait."""
        event: EventSpec | None = None
        number = came.id
        try:
            if isinstance(came, Faulty):
                event = spec_of(came)
                raise fault_of(came)
            body = came.body
            if isinstance(body, bytes) and not came.attachments:
                start = body.find(b'"', 2) + 2
                known = _REQUESTS.get(body[: start + 1])
                if known is not None and body[-1] == _BRACKET:
                    name, event = known
                    if self._relay_known(connection, name, body[start:-1], number):
                        return None
            name = name_in(body)
            event = lookup(name)
            envelope = read_payload(body, came.attachments)
            fields = envelope.fields
            decode(event, fields, NAMES)
            if name != event.name or not _OLDER_FIELDS.isdisjoint(fields):
                connection.speaks_older_names = True
            steps = self._handlers.begin(ReceivedEvent(connection, name, event, envelope, number))
            waits_for = next(steps)
        except StopIteration as end:
            self._answer(connection, number, event, end.value)
        except SMCPError as error:
            self._refuse(connection, came, event, error)
        except Exception:
            self._fail(connection, came, event)
        else:
            return _Held(came, event, steps, waits_for)
        return None

    def _relay_known(self, connection: Connection, name: str, body: bytes, number: int | None) -> bool:
        """Passes on a request whose route is cached. Returns `False` if there is none, or the request is unusual."""
        request = read_to_record(body) if self.observation.follows_requests else read_request(body)
        if request is None:
            return False
        route = connection.routes.find(name, request, self.directory.cached_office)
        return route is not None and self._relay.begin_known(route, request, body, connection, number)

    async def _finish(self, connection: Connection, held: _Held) -> None:
        """Handles the rest of an event that has to wait."""
        came, event, steps, waits_for = held
        try:
            while True:
                try:
                    result = await waits_for
                except Exception as error:
                    waits_for = steps.throw(error)
                else:
                    waits_for = steps.send(result)
        except StopIteration as end:
            self._answer(connection, came.id, event, end.value)
        except SMCPError as error:
            self._refuse(connection, came, event, error)
        except Exception:
            self._fail(connection, came, event)

    def _answer(
        self, connection: Connection, number: int | None, event: EventSpec | None, answer: Outcome | None
    ) -> None:
        if answer is not None:
            connection.reply_to_join(number, event, answer)

    def _refuse(self, connection: Connection, came: Event | Faulty, event: EventSpec | None, error: SMCPError) -> None:
        if event is not None and event.is_call and isinstance(error, Unavailable) and "outcome" not in error.details:
            error.outcome = "not_run"  # no call was begun
        self._report_refused(connection, came, event, error)
        connection.reply_to_join(came.id, event, Refused(error))

    def _fail(self, connection: Connection, came: Event | Faulty, event: EventSpec | None) -> None:
        """Logs the exception that is being handled, and answers with an internal error."""
        logger.exception("%s failed", event.name if event else "an event")
        self._refuse(connection, came, event, SMCPError())

    def _report_refused(
        self, connection: Connection, came: Event | Faulty, event: EventSpec | None, error: SMCPError
    ) -> None:
        """Report a refused event; other than a join only if observers follow them: a client can send any number."""
        is_join = event is not None and event.action is Action.JOIN
        if is_join or self.observation.follows_requests:
            size = came.size if isinstance(came, Faulty) else size_of(came)
            refused = EventRefused(connection, event, error, fields_of(came), size)
            (self.observation.report if is_join else self.observation.report_refused)(refused)

    async def _end(self, connection: Connection, end: End) -> None:
        try:
            await self._seating.disconnected(connection, is_clean=end.is_clean)
        except Unavailable:
            pass  # the seats are released when their time is over
        except Exception:
            logger.exception("the seats of a connection that has ended were not released")
        self.observation.report(ClientGone(connection, end.reason))


def _is_tell(event: Event | Faulty) -> bool:
    spec = spec_of(event)
    return spec is not None and spec.action is Action.TELL
