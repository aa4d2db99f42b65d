"""Sealed requests that were answered, so that a Server which sends one again changes nothing (WIRE §10).

A request is known by the agent's key and its `req_id`, for as long as the key that it was sealed to is accepted. One
that comes again while it runs gets the same answer, and so does one whose answer is kept. If the answer is no longer
kept, a tool call goes on to the ordinary detection of duplicates (`calls/in_flight.py`), which has the journal; any
other request is refused. The same `req_id` with another content is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from a2c_smcp.computer.sealed.replies import ReplySeal
from a2c_smcp.errors import BadRequest, RateLimited

__all__ = ["Remembered", "RequestKey", "SealedRequests"]

_MOST = 100_000
_MOST_BYTES = 16 * 1024 * 1024


class RequestKey(NamedTuple):
    device: str
    req_id: str


class Remembered:
    """One request. `answer` is the text of its answer, from its end until it is forgotten.

    `waiting` are called with the sealed answer: one for each time that the request came while it ran.
    """

    __slots__ = ("answer", "digest", "is_over", "kid", "seal", "waiting")

    def __init__(self, digest: bytes, kid: str, seal: ReplySeal) -> None:
        self.digest = digest
        self.kid = kid
        self.seal = seal
        self.waiting: list[Callable[[dict[str, Any]], None]] = []
        self.answer: bytes | None = None
        self.is_over = False

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

    def find(self, key: RequestKey, digest: bytes) -> Remembered | None:
        """Raises `BadRequest` if the `req_id` was used for another request."""
        found = self._all.get(key)
        if found and found.digest != digest:
            raise BadRequest("req_id: was used for another request", field="req_id")
        return found

    def begin(self, key: RequestKey, request: Remembered) -> None:
        """Raises `RateLimited` if there are too many."""
        if len(self._all) >= self._most:
            raise RateLimited("too many sealed requests are remembered, try again in an hour")
        self._all[key] = request

    def keep(self, key: RequestKey, answer: bytes) -> None:
        """The request has ended with this answer."""
        request = self._all.get(key)
        if request is None:
            return
        request.is_over, request.answer = True, answer
        self._kept[key] = request
        self._kept_bytes += len(answer)
        while self._kept_bytes > self._most_bytes:
            self._drop_answer(next(iter(self._kept)))

    def give_up(self, key: RequestKey) -> None:
        """The request ended without an answer. It may come again."""
        self._all.pop(key, None)

    def forget_answers(self) -> None:
        for key in list(self._kept):
            self._drop_answer(key)

    def forget_key(self, kid: str) -> None:
        """This sealing key is no longer accepted, so what was sealed to it cannot come again."""
        for key in [key for key, request in self._all.items() if request.kid == kid and request.is_over]:
            if key in self._kept:
                self._drop_answer(key)
            del self._all[key]

    def _drop_answer(self, key: RequestKey) -> None:
        request = self._kept.pop(key)
        self._kept_bytes -= len(request.answer or b"")
        request.answer = None
