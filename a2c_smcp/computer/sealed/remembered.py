"""Sealed requests that were answered, so that a Server which sends one again changes nothing (WIRE §10).

A request is known by the agent's key, its address and its `req_id`, for as long as a key that it was sealed to is
accepted: an agent that was told of a new key has sealed it twice. They belong to the device, as its keys do: a computer
that leaves an office and comes back still knows them. One that comes again while it runs gets the same answer, and so
does one whose answer is kept. If the answer is no longer kept, a tool call goes on to the ordinary detection of
duplicates (`calls/in_flight.py`), which may still have it, and begins nothing; any other request is refused. The same
`req_id` with another content is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from a2c_smcp.computer.sealed.replies import ReplySeal
from a2c_smcp.devices.transcript import CallAddress
from a2c_smcp.errors import BadRequest, Outcome, RateLimited

__all__ = ["Remembered", "RequestKey", "SealedRequests"]

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
        for each in waiting:
            each(self.seal.answer(answer))


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
