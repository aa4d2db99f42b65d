"""Sends an agent's requests sealed, opens what computers answer and tell, and checks signatures.

**Requests.** A request is put into `client:sealed` with a secret of its own, under which the computer seals the answer
and everything that it tells about this request. A request that is sent again is sent as the same bytes. If the computer
has new keys (421), it is sealed anew, with the same secret, so that the computer recognises it.

**Answers** are opened before any later notice is handled. What comes back unsealed is the Server's word: errors of
codes that Servers make are raised as such and marked (`details.verified` is false); anything else raises
`DeviceMismatch`.

**Notices.** `_replies` has the secrets of requests in flight, and those of subscriptions and log levels, which
computers go on telling about, for as long as these may last. A notice must open under the secret of its request, and
its number must be higher than the last one, also after the computer was restarted: a Server that repeats, reorders or
invents notices achieves nothing but losses. In plain, only computers that do not seal tell anything.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from a2c_smcp import mcp_events
from a2c_smcp.agent.connection import AgentConnection
from a2c_smcp.agent.retries import AGENT_MARGIN, Resend
from a2c_smcp.agent.sealed.checking import Checking, servers_word
from a2c_smcp.agent.sealed.device import AgentDevice, Ask, load_device
from a2c_smcp.agent.types import DeviceOptions, Seat
from a2c_smcp.device_events import SEALED_EVENT
from a2c_smcp.devices import signing
from a2c_smcp.devices.identity import Voucher
from a2c_smcp.devices.sealing import ANSWER, new_reply, open_reply, seal_request
from a2c_smcp.devices.statement import DeviceStatement, vouchers_to_wire
from a2c_smcp.devices.transcript import CallAddress, encoded
from a2c_smcp.errors import BadRequest, DeviceMismatch, NotCarried, SealedToUnknownKey, SMCPError
from a2c_smcp.protocol import codec

__all__ = ["DeviceRequests", "device_requests"]

logger = logging.getLogger(__name__)

_STANDING = frozenset((mcp_events.SUBSCRIBE_RESOURCE_EVENT, mcp_events.SET_LOG_LEVEL_EVENT))
_STANDING_TIME = 1200.0  # seconds; what a computer goes on telling lapses after 900 unless it is asked for again
_MOST_RENEWALS = 2
_FURTHER = 5.0  # seconds that an agent waits longer than the Server for requests without a timeout

Send = Callable[..., Any]
"""`AgentConnection.ask`."""


async def device_requests(
    options: DeviceOptions, connection: AgentConnection, seat_of: Callable[[str, str | None], Seat]
) -> DeviceRequests:
    """Read the keys of the agent. Raises `ConfigError`."""
    device = await load_device(connection.name, options)
    return DeviceRequests(device, connection.name, connection.ask, seat_of)


@dataclass(slots=True, eq=False)
class _Reply:
    """What is needed to open what a computer sends about one request."""

    secret: bytes
    address: CallAddress
    until: float = math.inf
    seq: int = 0

    def opened_answer(self, answer: Any) -> Any:
        """What was sealed, or an error that the Server has made. Raises `DeviceMismatch` or `NotCarried`."""
        if isinstance(answer, dict) and "sealed" in answer:
            try:
                return codec.loads_exactly(open_reply(self.secret, self.address, ANSWER, 0, answer["sealed"]))
            except DeviceMismatch as error:
                error.outcome = "unknown"
                raise
        if answer is None:
            raise NotCarried(SEALED_EVENT)
        return servers_word(answer)


class DeviceRequests:
    """Stands between an agent's requests and its connection. `seat_of` finds the office of a computer, or raises."""

    def __init__(self, device: AgentDevice, name: str, send: Send, seat_of: Callable[[str, str | None], Seat]) -> None:
        self.device = device
        self._name = name
        self._send = send
        self._seat_of = seat_of
        self._replies: dict[str, _Reply] = {}

    async def ask(
        self,
        event: str,
        request: Mapping[str, Any],
        seconds: float,
        *,
        then: Callable[[Any], Any] | None = None,
        resend: Resend = Resend.ALWAYS,
    ) -> Any:
        """As `AgentConnection.ask`. Raises also `DeviceMismatch` and `SealingRequired`."""
        loop, device = asyncio.get_running_loop(), self.device
        deadline = loop.time() + seconds
        seat = self._seat_of(request["computer"], request.get("office_id"))
        statement = None
        if device.e2e != "off":
            statement = device.keys(seat) or await self._statement(seat, seconds)
        address = CallAddress(seat.office, self._name, seat.computer, request["req_id"])
        checking = Checking(device, seat, address, event, request, then) if device.verifies else None
        if checking:
            loop.call_soon(checking.prepare)  # while the computer works
        read = checking.check if checking else then
        try:
            if statement is None:
                plain = {**request, "office_id": seat.office}
                answer = await self._send(event, plain, seconds, then=read, resend=resend)
            else:
                sealing = _Sealing(seat, event, request, statement, new_reply(), deadline, resend)
                answer = await self._sealed(sealing, address, read)
            return await checking.finish(answer) if checking and checking.is_open else answer
        except DeviceMismatch as error:
            return await self._of_successor(error, checking, seat, deadline - loop.time())

    async def _of_successor(self, error: DeviceMismatch, checking: Checking | None, seat: Seat, seconds: float) -> Any:
        """The answer that was signed by a new key, if the computer shows that its known key vouches for it.

        Raises the error otherwise.
        """
        is_vouched_for = False
        if checking and checking.of_new_key is not None:
            with suppress(SMCPError):
                is_vouched_for = await self.device.succeeds(seat, self._asking(seconds))
        if checking is None or not is_vouched_for:
            raise error
        return await checking.finish(checking.of_new_key)

    def _asking(self, seconds: float) -> Ask:
        async def ask(event: str, seat: Seat, data: Mapping[str, Any]) -> Any:
            about = {"agent": self._name, "req_id": encoded(new_reply())[:32], "computer": seat.computer}
            return await self._send(event, {**about, "office_id": seat.office, **data}, seconds)

        return ask

    async def _statement(self, seat: Seat, seconds: float) -> DeviceStatement | None:
        return await self.device.of(seat, self._asking(seconds))

    async def _sealed(self, sealing: _Sealing, address: CallAddress, then: Callable[[Any], Any] | None) -> Any:
        timeout, reply = sealing.timeout, _Reply(sealing.secret, address)
        body, read = sealing.body(timeout, self.device.was), _joined(reply.opened_answer, then)
        self._replies[address.req_id] = reply
        clock, renewals = asyncio.get_running_loop().time, 0
        try:
            while True:
                statement = sealing.statement
                work = self.device.identity, address, statement.kem, statement.identity, body
                is_small = len(body) <= signing.LARGE
                sealed = seal_request(*work) if is_small else await asyncio.to_thread(seal_request, *work)
                outer = {**sealing.outer(timeout, address), "kid": statement.kid, "sealed": sealed}
                try:
                    return await self._send(
                        SEALED_EVENT, outer, sealing.deadline - clock(), then=read, resend=sealing.resend
                    )
                except SealedToUnknownKey as error:
                    if renewals == _MOST_RENEWALS:
                        raise
                    renewals += 1
                    sealing.statement = self.device.renewed(sealing.seat, error, sealed)
        finally:
            self._let_go(sealing.event, reply)

    def _let_go(self, event: str, reply: _Reply) -> None:
        now = asyncio.get_running_loop().time()
        if event in _STANDING:
            reply.until = now + _STANDING_TIME
        else:
            self._replies.pop(reply.address.req_id, None)
        for req_id in [req_id for req_id, each in self._replies.items() if each.until < now]:
            del self._replies[req_id]

    # What computers tell

    def opened(self, event: str, data: dict[str, Any]) -> dict[str, Any] | None:
        """What a notice says; `None` if it is not to be believed."""
        if "sealed" not in data:
            return data if self._may_be_plain(event, data) else None
        reply = self._replies.get(str(data.get("req_id")))
        seq = data.get("seq")
        if reply is None or type(seq) is not int or seq <= reply.seq:
            logger.debug("%s is ignored: it is about no request of this agent, or an old one", event)
            return None
        try:
            told = codec.loads_exactly(open_reply(reply.secret, reply.address, event, seq, data["sealed"]))
        except (DeviceMismatch, BadRequest) as error:
            logger.warning("%s is ignored: %s", event, error)
            return None
        reply.seq = seq
        about = {"agent": self._name, "computer": reply.address.computer, "office_id": reply.address.office}
        return {**told, **about} if isinstance(told, dict) else None

    def _may_be_plain(self, event: str, data: Mapping[str, Any]) -> bool:
        """Whether a notice that is not sealed may be true. A Server can write any names, or none, into it."""
        if not event.startswith("notify:tell_") or self.device.e2e == "off":
            return True
        computer, office, req_id = data.get("computer"), data.get("office_id"), data.get("req_id")
        is_of_sealed = isinstance(req_id, str) and req_id in self._replies
        is_addressed = isinstance(computer, str) and isinstance(office, str)
        if is_of_sealed or not is_addressed or self.device.seals_to(Seat(str(office), str(computer))):
            logger.warning("%s of %s is ignored: it is not sealed", event, computer)
            return False
        return True


@dataclass(slots=True, eq=False)
class _Sealing:
    """One request that is sealed."""

    seat: Seat
    event: str
    request: Mapping[str, Any]
    statement: DeviceStatement
    secret: bytes
    deadline: float
    resend: Resend

    @property
    def timeout(self) -> int:
        """Whole seconds. A request without a timeout has the rest of its time, less what others wait longer."""
        told = self.request.get("timeout")
        if type(told) is int:
            return told
        left = self.deadline - asyncio.get_running_loop().time()
        return max(1, math.floor(left - _FURTHER - AGENT_MARGIN / 2))

    def body(self, timeout: int, was: Sequence[Voucher]) -> bytes:
        data = {field: value for field, value in self.request.items() if field not in _OUTSIDE}
        content = {"event": self.event, "data": data, "timeout": timeout, "reply": encoded(self.secret)}
        if was:
            content["was"] = vouchers_to_wire(was)
        return codec.dumps(content).encode(errors="surrogatepass")

    def outer(self, timeout: int, address: CallAddress) -> dict[str, Any]:
        office, agent, computer, req_id = address
        outer = {"agent": agent, "computer": computer, "office_id": office, "req_id": req_id, "timeout": timeout}
        if self.request.get("extend") is True:
            outer["extend"] = True
        if trace := self.request.get("_meta", {}).get("traceparent"):  # the Server sees this only of the sealed `_meta`
            outer["_meta"] = {"traceparent": trace}
        return outer


_OUTSIDE = frozenset(("agent", "computer", "office_id", "req_id"))


def _joined(first: Callable[[Any], Any] | None, second: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if first is None or second is None:
        return first or second
    return lambda answer: second(first(answer))
