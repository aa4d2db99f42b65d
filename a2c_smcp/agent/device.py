"""The identity of an agent, and what it knows of the devices of computers.

A computer is asked for its keys once (`client:get_device`), with a fresh nonce, and again when it says that it has new
ones (421). With `prefer`, the first identity of a computer is trusted and kept; afterwards it is never spoken to in
plain, whatever the Server says. With `require`, only identities that were given beforehand count.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from a2c_smcp.agent.desktops import DeviceOptions, Seat
from a2c_smcp.device_events import GET_DEVICE_EVENT
from a2c_smcp.devices.identity import Identity, IdentityStore, Voucher
from a2c_smcp.devices.known import SIGNED, KnownDevices, KnownPeer
from a2c_smcp.devices.statement import NONCE_SIZE, DeviceStatement, read_statement
from a2c_smcp.devices.transcript import encoded
from a2c_smcp.errors import BadRequest, ConfigError, DeviceMismatch, SealingRequired, SMCPError

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
