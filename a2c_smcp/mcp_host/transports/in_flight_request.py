"""One request that an MCP server has not answered yet: its outcome, its deadline, and how it is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from a2c_smcp.errors import CallTimeout, SMCPError

__all__ = ["InFlightRequest", "OnProgress"]

logger = logging.getLogger(__name__)

OnProgress = Callable[[float, float | None, str | None], None]


class InFlightRequest:
    """The caller awaits `outcome` and then calls `close`; the sender learns of that by `on_close`.

    `timeout` counts from the last progress of the server, `cap` from now. When either is over, the outcome is
    `CallTimeout`.
    """

    def __init__(self, what: str, timeout: float, cap: float, on_progress: OnProgress | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.is_closed = False
        self._cancel: Callable[[], object] | None = None
        self._what = what
        self._timeout = timeout
        self._latest_end = self._loop.time() + cap
        self._on_progress = on_progress
        self._steps = 0
        self._timer = self._arm()

    def finish(self, result: dict[str, Any]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(result)

    def fail(self, error: SMCPError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def close(self) -> None:
        """The caller waits no longer: cancel the work that still goes on, at the server too."""
        self.is_closed = True
        self._timer.cancel()
        if self._cancel is not None:
            self._cancel()

    def on_close(self, cancel: Callable[[], object] | None) -> None:
        """Set the function that `close` calls."""
        self._cancel = cancel

    def progressed(self, progress: object, total: object, message: object) -> None:
        """Handle a progress notification: the timeout begins again, the cap stays."""
        if not isinstance(progress, int | float) or self.outcome.done():
            return
        self._steps = -1
        self.heard()
        self._report(
            float(progress),
            float(total) if isinstance(total, int | float) else None,
            message if isinstance(message, str) else None,
        )

    def heard(self, message: str | None = None) -> None:
        """Handle a sign of life: the timeout begins again. A message is reported, unless there is true progress."""
        if self.outcome.done() or self.is_closed:
            return
        self._timer.cancel()
        self._timer = self._arm()
        if message is not None and self._steps >= 0:
            self._steps += 1
            self._report(self._steps, None, message)

    def resumed(self) -> InFlightRequest:
        """Return one for what else has to be done for the same caller: the timeout begins again, the cap stays."""
        return InFlightRequest(self._what, self._timeout, self._latest_end - self._loop.time(), self._on_progress)

    def _report(self, progress: float, total: float | None, message: str | None) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress, total, message)
        except Exception:
            logger.exception("a progress callback failed")

    def _arm(self) -> asyncio.TimerHandle:
        return self._loop.call_at(min(self._loop.time() + self._timeout, self._latest_end), self._expire)

    def _expire(self) -> None:
        self.fail(CallTimeout(f"{self._what} took longer than {round(self._timeout, 1) or self._timeout:g} s"))
