"""One request that an MCP server has not answered yet: its outcome, its deadline, and how it is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from a2c_smcp.errors import CallTimeout, SMCPError

logger = logging.getLogger(__name__)

OnProgress = Callable[[float, float | None, str | None], None]


class PendingRequest:
    """The caller awaits `outcome` and then calls `close`; the sender learns of that by `on_close`.

    `timeout` counts from the last progress of the server, `cap` from now. When either is over, the outcome is
    `CallTimeout`. While the server waits for the answer to a question, it has `patience` seconds in place of `timeout`.
    """

    def __init__(
        self,
        what: str,
        timeout: float,
        cap: float,
        on_progress: OnProgress | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.is_closed = False
        self._cancel: Callable[[], object] | None = None
        self._what = what
        self._timeout = timeout
        self._patience = timeout if patience is None else patience
        self._latest_end = self._loop.time() + cap
        self._on_progress = on_progress
        self._steps = 0
        self._timer = self._arm(timeout)

    def finish(self, result: dict[str, Any]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(result)

    def fail(self, error: SMCPError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def close(self) -> None:
        """End the caller's wait: cancel the work that still goes on, at the server too."""
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
        self._restart_timer(self._timeout)
        if message is not None and self._steps >= 0:
            self._steps += 1
            self._report(self._steps, None, message)

    def waits_for_answer(self) -> None:
        """Handle a question of the server."""
        if not self.outcome.done() and not self.is_closed:
            self._restart_timer(self._patience)

    def resumed(self) -> PendingRequest:
        """Return one for further work for the same caller: the timeout begins again, the cap stays."""
        cap = self._latest_end - self._loop.time()
        return PendingRequest(self._what, self._timeout, cap, self._on_progress, patience=self._patience)

    def _report(self, progress: float, total: float | None, message: str | None) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress, total, message)
        except Exception:
            logger.exception("a progress callback failed")

    def _restart_timer(self, seconds: float) -> None:
        self._timer.cancel()
        self._timer = self._arm(seconds)

    def _arm(self, seconds: float) -> asyncio.TimerHandle:
        def expire() -> None:
            self.fail(CallTimeout(f"{self._what} took longer than {round(seconds, 1) or seconds:g} s"))

        return self._loop.call_at(min(self._loop.time() + seconds, self._latest_end), expire)
