"""Requests of MCP clients on several nodes: the node whose agent is in an office answers for its principal.

The directory says which node that is, so there is no second record that could differ from it. Whoever joins first has
the seat; all others are refused, look again, and pass their requests on. If the node of the seat is gone, its seat is
freed at once, and the next request takes it.

A request that was certainly not run is tried again here, and so is one that changes nothing. A call that may have run
is answered with the outcome `unknown`, and never repeated. The id of a session names its node: a client whose node is
gone is told to begin a new one (404).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from hmac import digest
from time import monotonic
from typing import Any, NamedTuple

from a2c_smcp.bridge.serving.calls import CALL_LOST, failed_result
from a2c_smcp.bridge.serving.plain_calls import again
from a2c_smcp.errors import NotFound, OfficeHasAgent
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.cluster.memory import node_of
from a2c_smcp.server.cluster.proxy import Declined, Lost, Proxy
from a2c_smcp.server.http_requests import unless_gone
from a2c_smcp.server.hub import Hub
from a2c_smcp.server.transport.admission import ArrivingBody, ArrivingBytes
from a2c_smcp.web import Message, Receive, Scope, Send, header

SESSION = b"mcp-session-id"

_HANDED_OVER_WITHIN = 12.0
"""Seconds for a seat to pass to this node. A lost node keeps one until its lease ends, a draining one for a grace."""
_PAUSE = 0.05
_NO_SESSION = "there is no such session, begin a new one"
_UNAVAILABLE = 503


class Occupant(NamedTuple):
    """Whose seat it is: the principal, the office, and the name that the agent has there."""

    principal: str
    office: str
    name: str


@dataclass(frozen=True, slots=True)
class _Relayable:
    """A request whose body was read: it can be sent several times. `named` is the other node that its session names."""

    scope: Scope
    body: bytes
    receive: Receive
    send: Send
    occupant: Occupant
    named: str | None

    @property
    def is_of_session(self) -> bool:
        return bool(header(self.scope, SESSION))

    def node(self, agent: Member | None) -> str | None:
        """The other node that has to answer, if one has: that of the session, or that of this agent."""
        if self.is_of_session:
            return self.named
        return node_of(agent.sid) if agent else None

    @property
    def whole(self) -> Message:
        return {"type": "http.request", "body": self.body, "more_body": False}


class SeatsElsewhere:
    """The seats on other nodes, for the requests of one node."""

    def __init__(self, hub: Hub, proxy: Proxy) -> None:
        self._hub, self._proxy = hub, proxy
        self._arriving = ArrivingBytes(hub.limits.arriving_bytes)

    async def state_key(self, occupant: Occupant) -> bytes:
        """The key of what clients of this occupant give back, the same on all nodes. Raises `Unavailable`."""
        return digest(await self._proxy.secret(), "\0".join(("mcp state", *occupant)).encode(), sha256)

    def is_named_in(self, scope: Scope) -> bool:
        """True if the session of a request is on another node."""
        return self._node_named_in(scope) is not None

    def as_own(self, scope: Scope, send: Send) -> tuple[Scope, Send]:
        """A request for this node, and its answer, with ids of sessions that name their node for the client only."""
        prefix = f"{self._proxy.node}.".encode()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                fields = [(name, prefix + value if name == SESSION else value) for name, value in message["headers"]]
                message = {**message, "headers": fields}
            await send(message)

        if header(scope, SESSION):
            fields = [
                (name, value.removeprefix(prefix) if name == SESSION else value) for name, value in scope["headers"]
            ]
            scope = {**scope, "headers": fields}
        return scope, send_named

    async def serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        occupant: Occupant,
        answer: Callable[[Receive], Awaitable[None]],
    ) -> None:
        """Have a request answered by the node that has the seat, or `answer` it here. Raises `SMCPError`."""
        body = b""
        if scope["method"] == "POST":
            arriving = ArrivingBody(receive, self._hub.limits, self._arriving)
            arriving.trust(occupant.principal)
            body = await arriving.read(self._hub.limits.max_message)
        request = _Relayable(scope, body, receive, send, occupant, self._node_named_in(scope))
        late = monotonic() + _HANDED_OVER_WITHIN
        while not await self._answered(request, answer, is_late=monotonic() > late):  # noqa: ASYNC110, others free it
            await asyncio.sleep(_PAUSE)

    async def _answered(
        self, request: _Relayable, answer: Callable[[Receive], Awaitable[None]], *, is_late: bool
    ) -> bool:
        """True if the request is answered, false if the seat has to be looked for again. Raises `SMCPError`."""
        agent = await self._agent(request.occupant)
        node = request.node(agent)
        try:
            if node is None:
                await answer(again(request.whole, request.receive))
            else:
                await self._pass_on(node, request)
        except OfficeHasAgent:
            if is_late or await self._agent(request.occupant) is None:
                raise
            if request.is_of_session:
                raise NotFound(_NO_SESSION) from None
            return False
        except Declined as declined:
            return await self._told_declined(request, agent, declined, is_late=is_late)
        except Lost as lost:
            return await _told_lost(lost, request) or await self._after_loss(request, node or "", lost, is_late=is_late)
        return True

    async def _pass_on(self, node: str, request: _Relayable) -> None:
        """Raises `Lost` or `Declined`."""
        self._hub.metrics.count("a2c_passed_on_total")
        headers = [field for field in request.scope["headers"] if field[0] != b"origin"]
        relayed = self._proxy.relay(node, {**request.scope, "headers": headers}, request.body, request.send)
        await unless_gone(relayed, request.receive)

    async def _told_declined(
        self, request: _Relayable, agent: Member | None, declined: Declined, *, is_late: bool
    ) -> bool:
        """Pass the refusal of a node on, unless the seat is on another one by now, or will be soon."""
        status, headers, body = declined.response
        now = None if request.is_of_session else await self._agent(request.occupant)
        has_moved = not request.is_of_session and (now and now.sid) != (agent and agent.sid)
        if not is_late and (has_moved or (status == _UNAVAILABLE and not request.is_of_session)):
            return False
        await request.send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await request.send({"type": "http.response.body", "body": body})
        return True

    async def _after_loss(self, request: _Relayable, node: str, lost: Lost, *, is_late: bool) -> bool:
        """Free the seat of a node that is gone. Raises the loss, or `NotFound` for a session that has gone with it.

        An answer that has begun is not completed, and its connection is cut: that is how HTTP says it.
        """
        if lost.may_go_on_with:
            return True
        agent, is_gone = await self._agent(request.occupant), await self._hub.is_gone(node)
        if is_gone and agent and node_of(agent.sid) == node:
            await self._hub.release(agent)
        if is_gone and request.is_of_session:
            raise NotFound(_NO_SESSION)
        if is_late or request.is_of_session:
            raise lost
        return False

    async def _agent(self, occupant: Occupant) -> Member | None:
        """The agent of an occupant, if it is on another node."""
        return await self._hub.agent_elsewhere(occupant.principal, occupant.name, occupant.office)

    def _node_named_in(self, scope: Scope) -> str | None:
        node = node_of(header(scope, SESSION))
        return node if node != self._proxy.node else None


async def _told_lost(lost: Lost, request: _Relayable) -> bool:
    """Answer a call that may have run; false if the request is none, or the answer cannot be completed."""
    if lost.outcome != "unknown" or lost.may_go_on_with == "nothing":
        return False
    try:
        sent: Any = json.loads(request.body)
    except ValueError:
        return False
    if not isinstance(sent, dict) or sent.get("method") != "tools/call":
        return False
    result = failed_result(CALL_LOST, Lost(outcome="unknown"))
    result |= {} if request.is_of_session else {"resultType": "complete"}
    answer = json.dumps({"jsonrpc": "2.0", "id": sent.get("id"), "result": result}).encode()
    if lost.may_go_on_with == "event":
        answer = b"event: message\r\ndata: " + answer + b"\r\n\r\n"
    else:
        head = [(b"content-type", b"application/json")]
        await request.send({"type": "http.response.start", "status": 200, "headers": head})
    await request.send({"type": "http.response.body", "body": answer})
    return True
