"""Answers that are kept for as long as their MCP server allows (`ttlMs`), unless the computer announces a change.

Each is kept as JSON: its size is known, and a caller that changes what it was given changes nothing here. What may be
out of date is dropped rather than compared: a notice drops all that it may be about. An answer to a request that was
sent before the last drop may be older than the change, and is not kept (`generation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, NamedTuple

from a2c_smcp.agent.reading.answers import MCPResult, ttl_of
from a2c_smcp.agent.types import Seat
from a2c_smcp.protocol.codec import dumps, loads_exactly

__all__ = ["AnswerCache", "CacheKey"]

MAX_ENTRIES = 256
MAX_BYTES = 16 * 1024 * 1024
MAX_ENTRY_BYTES = 4 * 1024 * 1024
MAX_TTL = 24 * 3600.0  # seconds


class CacheKey(NamedTuple):
    """A request. Without an office, it was sent to the computer of this name in any office.

    `asks` is what the MCP server was told about questions, as JSON: what it answers may depend on that.
    """

    office: str | None
    computer: str
    event: str
    mcp_server: str | None
    uri: str | None = None
    asks: str = "{}"

    def is_at(self, seat: Seat) -> bool:
        return self.computer == seat.computer and self.office in (None, seat.office)


class _CachedAnswer(NamedTuple):
    until: float
    json: bytes


class AnswerCache:
    """Bounded in number and bytes; of too many, those that were asked for least recently go first."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.generation = 0
        self._clock = clock
        self._kept: dict[CacheKey, _CachedAnswer] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: CacheKey) -> MCPResult | None:
        """The kept answer. Its `ttlMs` is what is left of it."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        left = int((kept.until - self._clock()) * 1000)
        if left <= 0:
            self._remove(key)
            return None
        self._kept[key] = self._kept.pop(key)
        answer: MCPResult = loads_exactly(kept.json)
        return answer | {"ttlMs": left}

    def put(self, key: CacheKey, answer: MCPResult, generation: int) -> None:
        """Keep an answer, if it may be kept. `generation` is the one in which the request was sent."""
        ttl = min(ttl_of(answer) / 1000, MAX_TTL)
        if ttl <= 0 or generation != self.generation or _least_size(answer) > MAX_ENTRY_BYTES:
            return
        json = dumps(answer).encode()
        if len(json) > MAX_ENTRY_BYTES:
            return
        self._remove(key)
        self._kept[key] = _CachedAnswer(self._clock() + ttl, json)
        self._size += len(json)
        while len(self._kept) > MAX_ENTRIES or self._size > MAX_BYTES:
            self._remove(next(iter(self._kept)))

    def drop(self, is_outdated: Callable[[CacheKey], bool] = lambda key: True) -> None:
        """Drop these answers, or all."""
        self.generation += 1
        for key in [key for key in self._kept if is_outdated(key)]:
            self._remove(key)

    def _remove(self, key: CacheKey) -> None:
        if kept := self._kept.pop(key, None):
            self._size -= len(kept.json)


def _least_size(answer: Mapping[str, Any]) -> int:
    """The size of its contents. To write a file of 100 MB as JSON only to count it would take too long."""
    contents = answer.get("contents")
    parts = contents if isinstance(contents, list) else ()
    values = (part.get(field) for part in parts for field in ("text", "blob"))
    return sum(len(value) for value in values if isinstance(value, str))
