"""How often a computer may tell agents something (WIRE §9)."""

from __future__ import annotations

from collections import Counter, deque
from typing import TypeAlias

from a2c_smcp.mcp_events import TELL_LOG_EVENT
from a2c_smcp.server.settings import Limits

__all__ = ["TellPace"]

Kind: TypeAlias = tuple[str, str | None]
"""The event, and the `req_id` of the call that it is about. All logs are of one kind."""


class TellPace:
    """What one connection has told in the last second.

    Kinds are counted apart, so that a question is not lost because its call has just reported progress. What is not
    admitted does not count. It remembers at most `limits.tells_per_second` entries, whatever a client sends.
    """

    __slots__ = ("_counts", "_limits", "_recent")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._recent: deque[tuple[float, Kind]] = deque()
        self._counts: Counter[Kind] = Counter()

    def admits(self, event: str, req_id: str | None, now: float) -> bool:
        """Whether one more may be told now. If so, it is counted."""
        self._forget_until(now - 1)
        limits = self._limits
        if event == TELL_LOG_EVENT:
            req_id, most = None, limits.logs_per_second
        else:
            most = limits.tells_per_second if req_id is None else limits.tells_per_call
        kind = event, req_id
        if len(self._recent) >= limits.tells_per_second or self._counts[kind] >= most:
            return False
        self._recent.append((now, kind))
        self._counts[kind] += 1
        return True

    def _forget_until(self, past: float) -> None:
        recent, counts = self._recent, self._counts
        while recent and recent[0][0] <= past:
            _, kind = recent.popleft()
            counts[kind] -= 1
            if not counts[kind]:
                del counts[kind]
