"""Progress of a call as tells to its agent: ten a second at the most, the last one before the answer."""

from __future__ import annotations

import asyncio
from typing import Any

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.tells.tells import Tells

__all__ = ["ProgressTells"]

_PAUSE = 0.1  # seconds between two tells of one call


class ProgressTells:
    """The progress of one call. A report that comes too soon waits; a newer one replaces it."""

    def __init__(self, tells: Tells, caller: Caller, req_id: str) -> None:
        self._tells = tells
        self._caller = caller
        self._req_id = req_id
        self._waiting: dict[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        told = {"req_id": self._req_id, "progress": progress, "total": total, "message": message}
        self._waiting = {key: value for key, value in told.items() if value is not None}
        if self._timer is None:
            self._send()

    def end(self) -> None:
        """Tell what waits. The answer of the call follows."""
        if self._timer is not None:
            self._timer.cancel()
        self._tell()

    def _send(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._send) if self._waiting else None
        self._tell()

    def _tell(self) -> None:
        told, self._waiting = self._waiting, None
        if told is not None:
            self._tells.tell(self._caller, "progress", told)
