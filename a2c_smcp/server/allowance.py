"""How many bytes one connection may have told to others: what is broadcast is written once for each who hears it."""

from __future__ import annotations

from a2c_smcp.errors import RateLimited, TooLarge

__all__ = ["Allowance"]

_MIB = 1024 * 1024
_FREE = 4 * 1024
"""Notices up to this size, in bytes, which nearly all are, are limited by their number only."""


class Allowance:
    """A budget in bytes that is refilled by a quarter of itself each second."""

    __slots__ = ("_left", "_most", "_since")

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = float(most)
        self._since = 0.0

    def spend(self, size: int, copies: int, now: float) -> None:
        """Raises `TooLarge` for what could never be told to so many, `RateLimited` for what cannot be told now."""
        cost = size * copies
        if size <= _FREE:
            return
        if cost > self._most:
            what = f"{size} bytes for {copies} members, at most {self._most // _MIB} MiB are told in all"
            raise TooLarge(what, size=size, limit=self._most // copies)
        self._left = min(self._most, self._left + (now - self._since) * self._most / 4)
        self._since = now
        if cost > self._left:
            raise RateLimited("too many large notices, try again later")
        self._left -= cost
