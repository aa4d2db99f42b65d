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
import hashlib
import logging
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from a2c_smcp.agent.connection import AgentConnection
from a2c_smcp.agent.desktops import DeviceOptions, Seat
from a2c_smcp.agent.retries import AGENT_MARGIN, Resend
from a2c_smcp.device_events import GET_DEVICE_EVENT, SEALED_EVENT
from a2c_smcp.devices import signing as signing
from a2c_smcp.devices.identity import SIGNED, Identity, IdentityStore, KnownDevices, KnownPeer, Voucher
from a2c_smcp.devices.signing import (
    ANSWER,
    NONCE_SIZE,
    DeviceStatement,
    new_reply,
    open_reply,
    read_statement,
    seal_request,
    vouchers_to_wire,
)
from a2c_smcp.devices.transcript import CallAddress, encoded
from a2c_smcp.errors import (
    BadRequest,
    ConfigError,
    DeviceMismatch,
    NotCarried,
    SealedToUnknownKey,
    SealingRequired,
    SMCPError,
)
from a2c_smcp.protocol import codec
from a2c_smcp.protocol.operations import OPERATIONS

logger = logging.getLogger(__name__)

# The identity of an agent, and what it knows of the devices of computers.
#
# A computer is asked for its keys once (`client:get_device`), with a fresh nonce, and again when it says that it has
# new ones (421). With `prefer`, the first identity of a computer is trusted and kept; afterwards it is never spoken to
# in plain, whatever the Server says. With `require`, only identities that were given beforehand count.

Ask = Callable[[str, Seat, Mapping[str, Any]], Awaitable[Any]]
"""Sends an event in plain to the computer in a seat, and returns the answer; `None` if it or the Server knows none."""


async def load_device(name: str, options: DeviceOptions) -> AgentDevice:
    """Read the identity of this agent, or make it on first use. Raises `ConfigError`."""
    known = KnownDevices(options.folder)
    if options.identity is not None:
        return AgentDevice(name, options, options.identity, (), known)
    stored = await asyncio.to_thread(IdentityStore("agent", options.folder).load_or_make)
    return AgentDevice(name, options, stored.identity, stored.was, known)


class AgentDevice:
    """The identity of an agent, and the devices that it speaks to."""

    def __init__(
        self, name: str, options: DeviceOptions, identity: Identity, was: Sequence[Voucher], known: KnownDevices
    ) -> None:
        self.identity, self.was = identity, was
        self.e2e, self.verifies = options.e2e, options.verify
        self._name, self._origin = name, options.origin
        self._known = known
        self._statements: dict[Seat, DeviceStatement | None] = {}
        self._asking: dict[Seat, asyncio.Lock] = {}

    def forget(self, seat: Seat) -> None:
        """A computer has entered, or left: one that has no keys may have some now."""
        if self._statements.get(seat) is None:
            self._statements.pop(seat, None)

    def seals_to(self, seat: Seat) -> bool:
        """True if everything from this computer has to be sealed."""
        if self.e2e == "require" or self.keys(seat) is not None:
            return True
        return self.e2e == "prefer" and seat not in self._statements and self._is_known_to_seal(seat)

    def _is_known_to_seal(self, seat: Seat) -> bool:
        try:
            known = self._known.get(self.peer(seat))
        except ConfigError:  # nothing is known to be plain
            return True
        return known is not None and known.how != SIGNED

    def keys(self, seat: Seat) -> DeviceStatement | None:
        """The keys to seal to, if this computer was asked for them and has some."""
        return self._statements.get(seat)

    async def of(self, seat: Seat, ask: Ask) -> DeviceStatement | None:
        """The keys to seal to. `None` if requests to this computer go in plain.

        Raises `DeviceMismatch` for another device than the known one, `SealingRequired` if plain is not allowed.
        """
        if seat in self._statements:
            return self._statements[seat]
        async with self._asking.setdefault(seat, asyncio.Lock()):
            if seat not in self._statements:
                self._statements[seat] = await self._asked(seat, ask)
        return self._statements[seat]

    async def _asked(self, seat: Seat, ask: Ask) -> DeviceStatement | None:
        nonce = os.urandom(NONCE_SIZE)
        try:
            answer = await ask(GET_DEVICE_EVENT, seat, {"nonce": encoded(nonce)})
        except BadRequest:  # it does not know this event
            answer = None
        statement = self._read(seat, answer, nonce) if isinstance(answer, Mapping) else None
        if statement is None or statement.e2e == "off":
            self._check_plain(seat, statement)
            return None
        self._check(seat, statement)
        return statement

    def renewed(self, seat: Seat, error: SMCPError, sealed: str) -> DeviceStatement:
        """The new keys of a computer that did not hold the one that a request was sealed to (421)."""
        told = error.details.get("device")
        nonce = hashlib.sha256(sealed.encode()).digest()
        if not isinstance(told, Mapping):
            raise DeviceMismatch("a computer is said to have new keys, and does not show them")
        statement = self._read(seat, told, nonce)
        self._check(seat, statement)
        self._statements[seat] = statement
        return statement

    def check_signer(self, seat: Seat, public: bytes) -> None:
        """Accept the key that has signed an answer. Raises `DeviceMismatch`."""
        first_use, given = self.e2e != "require", self.e2e == "require"
        self._known.check(self.peer(seat), public, first_use=first_use, given=given, signed=True)

    async def succeeds(self, seat: Seat, ask: Ask) -> bool:
        """True if a computer that signs with a new key shows that the known one vouches for it. Raises `SMCPError`."""
        nonce = os.urandom(NONCE_SIZE)
        answer = await ask(GET_DEVICE_EVENT, seat, {"nonce": encoded(nonce)})
        if not isinstance(answer, Mapping):
            return False
        statement = self._read(seat, answer, nonce)
        given = self.e2e == "require"
        self._known.check(self.peer(seat), statement.identity, statement.was, given=given, signed=True)
        return True

    def peer(self, seat: Seat) -> KnownPeer:
        return KnownPeer(self._origin, seat.office, "computer", seat.computer)

    def _read(self, seat: Seat, answer: Mapping[str, Any], nonce: bytes) -> DeviceStatement:
        return read_statement(answer, nonce=nonce, office=seat.office, agent=self._name, computer=seat.computer)

    def _check(self, seat: Seat, statement: DeviceStatement) -> None:
        first_use, given = self.e2e == "prefer", self.e2e == "require"
        self._known.check(self.peer(seat), statement.identity, statement.was, first_use=first_use, given=given)

    def _check_plain(self, seat: Seat, statement: DeviceStatement | None) -> None:
        """Raises unless requests to this computer may go in plain. `statement` is what it says itself, if that came."""
        if self.e2e == "require":
            raise SealingRequired(
                f"computer {seat.computer!r} does not seal: start it with --e2e prefer or --e2e require"
            )
        known = self._known.get(self.peer(seat))
        if known and known.how == SIGNED and statement:
            self._known.check(self.peer(seat), statement.identity, statement.was, signed=True)
        elif known:
            raise DeviceMismatch(
                f"computer {seat.computer!r} is known by its device, and now does not seal: the Server may be hiding "
                f"its keys. If it no longer seals, run: a2c-smcp device forget {self.peer(seat).options}"
            )


# Checks who has signed the answer to a request (WIRE §10).

_SERVER_CODES = frozenset((400, 403, 404, 408, 410, 413, 421, 423, 426, 429, 499, 500, 503))


@dataclass(slots=True, eq=False)
class Checking:
    """Checks the signature of the answer to one request, and only then gives its content to `then`.

    A large answer is checked beside the event loop, unless `then` has to see it before any later event. `is_open`:
    whether checking is left to `finish`. `of_new_key`: the answer, if its signature is right and its key is not the one
    by which the computer is known.
    """

    _device: AgentDevice
    _seat: Seat
    _address: CallAddress
    _event: str
    _request: Mapping[str, Any]
    _then: Callable[[Any], Any] | None
    _signed_for: bytes | None = None
    is_open: bool = True
    of_new_key: Any = None

    def prepare(self) -> None:
        """Digest the parameters, which the answer is signed for. Those that are not JSON were not sent either."""
        with suppress(TypeError, ValueError, RecursionError):
            self._signed_for = self._digest()

    def _digest(self) -> bytes:
        params = signing.digest(signing.parameters(self._event, self._request))
        return signing.signed_for(self._address, self._event, params)

    def check(self, answer: Any) -> Any:
        """The signed content of the answer, or a large answer as it came. Raises `DeviceMismatch`."""
        try:
            content = self._content(answer, quickly=self._then is None)
        except signing.TakesLong:
            if SMCPError.from_wire(answer) is None:
                return answer
            content = self._content(answer)
        self.is_open = False
        return self._read(content)

    async def finish(self, answer: Any) -> Any:
        content = await asyncio.to_thread(self._content, answer)
        if error := SMCPError.from_wire(content):
            raise error
        return self._read(content)

    def _read(self, content: Any) -> Any:
        return self._then(content) if self._then else content

    def _content(self, answer: Any, *, quickly: bool = False) -> Any:
        if not isinstance(answer, dict):
            about = f"an answer is not signed: start computer {self._seat.computer!r} with --sign"
            raise DeviceMismatch(about, outcome="unknown")
        try:
            found = signing.checked(self._signed_for or self._digest(), answer, quickly=quickly)
            if found is None:
                return servers_word(answer)
            self._check_signer(found.key, answer)
        except DeviceMismatch as error:
            error.outcome = "unknown"
            raise
        return found.answer

    def _check_signer(self, key: bytes, answer: dict[str, Any]) -> None:
        try:
            self._device.check_signer(self._seat, key)
        except DeviceMismatch as error:
            if "known" in error.details:
                self.of_new_key = answer
            raise


def servers_word(answer: Any) -> Any:
    """An answer that only a Server can have made: an error of a code that Servers make, marked as not verified.

    Raises `DeviceMismatch` for anything else.
    """
    error = SMCPError.from_wire(answer)
    if error is None or error.code not in _SERVER_CODES:
        raise DeviceMismatch(
            "an answer is not sealed or signed by the computer: the Server has changed it, or made it up",
            outcome="unknown",
        )
    return {**error.to_wire(verified=False)}


_STANDING = frozenset(row.event for row in OPERATIONS if row.is_standing)
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
    """The secret that opens a computer's messages about one request."""

    secret: bytes
    address: CallAddress
    until: float = math.inf
    seq: int = 0

    def opened_answer(self, answer: Any) -> Any:
        """The opened answer, or an error that the Server has made. Raises `DeviceMismatch` or `NotCarried`."""
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
            statement = device.keys(seat) or await device.of(seat, self._asking(seconds))
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
            now = asyncio.get_running_loop().time()
            if sealing.event in _STANDING:
                reply.until = now + _STANDING_TIME
            else:
                self._replies.pop(reply.address.req_id, None)
            for req_id in [req_id for req_id, each in self._replies.items() if each.until < now]:
                del self._replies[req_id]

    # What computers tell

    def opened(self, event: str, data: dict[str, Any]) -> dict[str, Any] | None:
        """The opened data of a notice; `None` if it must not be trusted."""
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
        """True if a notice that is not sealed may be genuine. A Server can write any names, or none, into it."""
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
