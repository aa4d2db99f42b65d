"""The keys of a computer: its identity, the keys that agents seal requests to, and the agents that it knows.

Sealing keys are in memory only. A new one is made at the start and every twelve hours. The one before is accepted for
as long as the longest call may take, so that no call in flight is refused. Requests are remembered for as long as their
key is accepted. If they become too many, the keys end earlier, and agents seal to the new one (421).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from a2c_smcp.device_events import Sealing
from a2c_smcp.devices.identity import Identity, IdentityStore, KnownDevices, KnownPeer, Voucher
from a2c_smcp.devices.signing import ANSWER, ReplyKey, SealingKey, reply_key, seal_reply, state
from a2c_smcp.devices.transcript import CallAddress
from a2c_smcp.errors import BadRequest, Outcome, RateLimited, SealedToUnknownKey, SealingRequired
from a2c_smcp.protocol.codec import MAX_TIMEOUT, Encoded, dumps

# What goes back to the agent of a sealed request: its answer and its notices, under a secret of the request.


class ReplySeal:
    """Seals for the agent that sent one request. Notices are numbered, so that an agent notices an old one.

    The numbers begin at the time in milliseconds: they rise across a restart, after which the agent sends the request
    again with the same secret.
    """

    __slots__ = ("_address", "_prepared", "_reply", "_seq")

    def __init__(self, reply: bytes, address: CallAddress) -> None:
        self._reply = reply
        self._address = address
        self._seq = int(time.time() * 1000)
        self._prepared: tuple[ReplyKey, str] | None = None

    def prepare(self) -> None:
        """Do now what an answer needs beside its text."""
        if self._prepared is None:
            self._prepared = self._new_answer()

    def answer(self, text: bytes) -> Encoded:
        """The answer, which was `written`, as it is sent. Each has a key of its own."""
        (key, beginning), self._prepared = self._prepared or self._new_answer(), None
        sealed = key.seal(text)
        return Encoded({"req_id": self._address.req_id, "sealed": sealed}, f'{beginning}"{sealed}"}}')

    def _new_answer(self) -> tuple[ReplyKey, str]:
        """A key that was not used yet, and how the answer begins."""
        key = reply_key(self._reply, self._address, ANSWER, 0)
        return key, f'{{"req_id":{dumps(self._address.req_id)},"sealed":'

    def notice(self, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of a notice, apart from who is told by whom."""
        self._seq += 1
        sealed = seal_reply(self._reply, self._address, name, self._seq, written(data))
        return {"req_id": self._address.req_id, "seq": self._seq, "sealed": sealed}


class OpenedData(dict[str, Any]):
    """The data of a request that was sealed, with the fingerprint of the agent's device, and the seal for replies.

    `is_repeated`: it was answered before.
    """

    __slots__ = ("device", "is_repeated", "seal")

    def __init__(self, data: Mapping[str, Any], device: str, seal: ReplySeal, *, is_repeated: bool) -> None:
        super().__init__(data)
        self.is_repeated = is_repeated
        self.device = device
        self.seal = seal


def written(value: Mapping[str, Any]) -> bytes:
    """The JSON that is sealed."""
    text = value.text if isinstance(value, Encoded) else dumps(dict(value))
    return text.encode(errors="surrogatepass")


# Sealed requests that were answered, so that a Server which sends one again changes nothing (WIRE §10).
#
# A request is known by the agent's key, its address and its `req_id`, for as long as a key that it was sealed to is
# accepted: an agent that was told of a new key has sealed it twice. They belong to the device, as its keys do: a
# computer that leaves an office and comes back still knows them. One that comes again while it runs gets the same
# answer, and so does one whose answer is kept. If the answer is no longer kept, a tool call goes on to the ordinary
# detection of duplicates (`calls/in_flight.py`), which may still have it, and begins nothing; any other request is
# refused. The same `req_id` with another content is refused.

_MOST = 100_000
_MOST_BYTES = 16 * 1024 * 1024


class RequestKey(NamedTuple):
    device: str
    address: CallAddress


class Remembered:
    """One request. `kids` are the keys that it was sealed to, and that are accepted.

    `outcome` is known from its end on: "unknown" if it ended without an answer. `answer` is the text of its answer,
    until that is forgotten. `waiting` are called with the sealed answer: one for each time that the request came while
    it ran.
    """

    __slots__ = ("answer", "digest", "kids", "outcome", "seal", "waiting")

    def __init__(self, digest: bytes, kid: str, seal: ReplySeal) -> None:
        self.digest = digest
        self.kids = {kid}
        self.seal = seal
        self.waiting: list[Callable[[dict[str, Any]], None]] = []
        self.answer: bytes | None = None
        self.outcome: Outcome | None = None

    def end(self, answer: bytes) -> None:
        """Give the answer to all that wait for it, sealed afresh for each."""
        waiting, self.waiting = self.waiting, []
        for then in waiting:
            then(self.seal.answer(answer))


class SealedRequests:
    """All that is remembered, bounded in number and bytes."""

    def __init__(self, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._all: dict[RequestKey, Remembered] = {}
        self._kept: OrderedDict[RequestKey, Remembered] = OrderedDict()
        self._kept_bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._all) >= self._most

    def find(self, key: RequestKey, digest: bytes, kid: str) -> Remembered | None:
        """The request, which has come sealed to this key. Raises `BadRequest` if its `req_id` was used for another."""
        found = self._all.get(key)
        if found is None:
            return None
        if found.digest != digest:
            raise BadRequest("req_id: was used for another request", field="req_id")
        found.kids.add(kid)
        return found

    def begin(self, key: RequestKey, request: Remembered) -> None:
        """Raises `RateLimited` if there are too many."""
        if self.is_full:
            raise RateLimited("too many sealed requests are running")
        self._all[key] = request

    def keep(self, key: RequestKey, answer: bytes) -> None:
        """The request has ended with this answer."""
        request = self._all.get(key)
        if request is None:
            return
        if not request.kids:
            del self._all[key]
            return
        request.outcome, request.answer = "done", answer
        self._kept[key] = request
        self._kept_bytes += len(answer)
        while self._kept_bytes > self._most_bytes:
            self._drop_answer(next(iter(self._kept)))

    def give_up(self, key: RequestKey) -> None:
        """The request ended without an answer, because the computer has left the office."""
        request = self._all.get(key)
        if request is None or request.outcome:
            return
        request.waiting, request.outcome = [], "unknown"
        if not request.kids:
            del self._all[key]

    def forget_answers(self, office: str) -> None:
        for key in [key for key in self._kept if key.address.office == office]:
            self._drop_answer(key)

    def forget_key(self, kid: str) -> None:
        """This sealing key is no longer accepted, so what was sealed to it cannot come again."""
        for key, request in list(self._all.items()):
            request.kids.discard(kid)
            if request.kids or not request.outcome:
                continue
            if key in self._kept:
                self._drop_answer(key)
            del self._all[key]

    def _drop_answer(self, key: RequestKey) -> None:
        request = self._kept.pop(key)
        self._kept_bytes -= len(request.answer or b"")
        request.answer = None


_RENEWAL = 12 * 3600.0  # seconds after which a new sealing key is made
_MARGIN = 60.0  # seconds that the key before is accepted beyond the longest call


async def load_device(e2e: Sealing, sign: bool, folder: Path | None, identity: Identity | None) -> ComputerDevice:
    """Read the identity of this computer, or make it on first use. Raises `ConfigError`.

    It takes a thread: a keyring may be asking its owner.
    """
    if identity is not None:
        return ComputerDevice(identity, (), KnownDevices(folder), e2e, signs=sign)
    stored = await asyncio.to_thread(IdentityStore("computer", folder).load_or_make)
    return ComputerDevice(stored.identity, stored.was, KnownDevices(folder), e2e, signs=sign)


@dataclass(eq=False)
class ComputerDevice:
    """The keys of a computer, and the agents that it serves. With `signs`, its answers are signed.

    `requests` are those that were sealed to its keys.
    """

    identity: Identity
    _was: Sequence[Voucher]
    _known: KnownDevices
    e2e: Sealing
    signs: bool

    def __post_init__(self) -> None:
        self.requests = SealedRequests()
        self._key, self._made = SealingKey.generate(), time.monotonic()
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
        now = time.monotonic()
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
        self._key, self._made = SealingKey.generate(), time.monotonic()
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
