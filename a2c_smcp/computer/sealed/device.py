"""The keys of a computer: its identity, the keys that agents seal requests to, and the agents that it knows.

Sealing keys are in memory only. A new one is made at the start and every twelve hours. The one before is accepted for
as long as the longest call may take, so that no call in flight is refused. Requests are remembered for as long as their
key is accepted. If they become too many, the keys end earlier, and agents seal to the new one (421).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from a2c_smcp.computer.sealed.remembered import SealedRequests
from a2c_smcp.device_events import Sealing
from a2c_smcp.devices.identity import Identity, Voucher
from a2c_smcp.devices.known import KnownDevices, KnownPeer
from a2c_smcp.devices.sealing import SealingKey
from a2c_smcp.devices.statement import state
from a2c_smcp.devices.storage import IdentityStore
from a2c_smcp.errors import SealedToUnknownKey, SealingRequired
from a2c_smcp.protocol.codec import MAX_TIMEOUT

__all__ = ["ComputerDevice", "load_device"]

_RENEWAL = 12 * 3600.0  # seconds after which a new sealing key is made
_MARGIN = 60.0  # seconds that the key before is accepted beyond the longest call


async def load_device(e2e: Sealing, sign: bool, folder: Path | None, identity: Identity | None) -> ComputerDevice:
    """Read the identity of this computer, or make it on first use. Raises `ConfigError`.

    It takes a thread: a keyring may be asking its owner.
    """
    if identity is not None:
        return ComputerDevice(identity, (), KnownDevices(folder), e2e, sign=sign)
    stored = await asyncio.to_thread(IdentityStore("computer", folder).load_or_make)
    return ComputerDevice(stored.identity, stored.was, KnownDevices(folder), e2e, sign=sign)


class ComputerDevice:
    """What a computer proves itself with, and which agents it serves. `signs`: whether its answers are signed.

    `requests` are those that were sealed to its keys.
    """

    def __init__(
        self,
        identity: Identity,
        was: Sequence[Voucher],
        known: KnownDevices,
        e2e: Sealing,
        *,
        sign: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.e2e = e2e
        self.signs = sign
        self.requests = SealedRequests()
        self._was = was
        self._known = known
        self._clock = clock
        self._key, self._made = SealingKey.generate(), clock()
        self._before: tuple[SealingKey, float] | None = None

    # Keys

    def statement(self, nonce: bytes, office: str, agent: str, computer: str) -> dict[str, Any]:
        """The answer to `client:get_device`."""
        self._renew()
        names = {"office": office, "agent": agent, "computer": computer}
        return state(self.identity, self._key, nonce=nonce, **names, e2e=self.e2e, was=self._was)

    def key(self, kid: str) -> SealingKey | None:
        """The sealing key of this name, if it is still accepted."""
        self._renew()
        if kid == self._key.kid:
            return self._key
        return self._before[0] if self._before and kid == self._before[0].kid else None

    def unknown_key(self, sealed: str, office: str, agent: str, computer: str) -> SealedToUnknownKey:
        """The refusal of a request that was sealed to another key. It has the present one, signed for this request."""
        nonce = hashlib.sha256(sealed.encode(errors="surrogatepass")).digest()
        return SealedToUnknownKey(device=self.statement(nonce, office, agent, computer))

    def _renew(self) -> None:
        now = self._clock()
        if now >= self._made + _RENEWAL:
            self._before = self._key, now + MAX_TIMEOUT + _MARGIN
            self._key, self._made = SealingKey.generate(), now
        if self._before and now >= self._before[1]:
            dropped, self._before = self._before[0], None
            self.requests.forget_key(dropped.kid)

    def make_room(self) -> None:
        """Accept only a new key, if too many requests are remembered: none of them can come again then."""
        if not self.requests.is_full:
            return
        dropped = [self._key, *([self._before[0]] if self._before else [])]
        self._before = None
        self._key, self._made = SealingKey.generate(), self._clock()
        for key in dropped:
            self.requests.forget_key(key.kid)

    # Agents

    def admit_sealed(self, agent: KnownPeer, public: bytes, was: Sequence[Voucher]) -> None:
        """Accept a sealed request of this agent. Raises `DeviceMismatch` if it is not the known one."""
        self._known.check(agent, public, was, first_use=self.e2e == "prefer", given=self.e2e == "require")

    def admit_plain(self, agent: KnownPeer) -> None:
        """Accept a request that is not sealed. Raises `SealingRequired`."""
        if self.e2e == "require":
            raise SealingRequired(
                "this computer takes sealed requests only: use --e2e prefer or --e2e require in the agent"
            )
        if self.e2e == "prefer" and self._known.get(agent):
            raise SealingRequired(
                f"{agent} is known by its device, and has to seal its requests. "
                f"If it no longer does, run on the computer: a2c-smcp device forget {agent.options}"
            )
