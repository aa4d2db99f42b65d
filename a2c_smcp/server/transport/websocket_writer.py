"""Turns of the event loop: each connection has a share of one, and what it writes may leave together at the end."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

__all__ = ["Turns"]

logger = logging.getLogger(__name__)


class LateWriter(Protocol):
    """A websocket that has gathered packets."""

    def write_late(self) -> None:
        """Writes them."""

    def abort(self) -> None: ...


class Turns:
    """Numbers the turns of the event loop in which something was heard or written, and ends each with late writes."""

    __slots__ = ("_is_counted", "_late", "_number")

    def __init__(self) -> None:
        self._number = 0
        self._is_counted = False
        self._late: list[LateWriter] = []

    def current(self) -> int:
        if not self._is_counted:
            self._is_counted = True
            asyncio.get_running_loop().call_soon(self._next)
        return self._number

    def write_at_end(self, socket: LateWriter) -> None:
        self.current()
        self._late.append(socket)

    def _next(self) -> None:
        self._number += 1
        self._is_counted = False
        late, self._late = self._late, []
        for socket in late:
            try:
                socket.write_late()
            except Exception:
                logger.exception("writing to a websocket failed")
                socket.abort()
