"""The state behind the owner's pages: the computer, pending requests, and calls that run or have ended."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from a2c_smcp.computer.calls.incoming import CallClock
from a2c_smcp.computer.calls.journal import Key
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.watch import ConfigurationChanges
from a2c_smcp.computer.consent.approval import PendingApprovals, PendingQuestions
from a2c_smcp.computer.types import AttributedCall, Update
from a2c_smcp.console.app import Changes
from a2c_smcp.console.html import Html
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.mcp_events import CallEnd, CallState
from a2c_smcp.mcp_host.status import State

_KEPT = 100
"""Calls that are shown after they have ended. The computer keeps as many, so their arguments are kept once."""


@dataclass(eq=False)
class WatchedCall:
    """A call. Times are in seconds since the epoch; `ended` is `None` while it runs.

    `seconds` is how long the tool ran, without the time that people took; `None` if it did not run. Until it has ended,
    it has been in its `state` for the time since `since`, in all.
    """

    number: int
    record: AttributedCall
    began: float = field(default_factory=time.time)
    ended: float | None = None
    state: CallState | CallEnd = "queued"
    since: float = field(default_factory=time.time)
    seconds: float | None = None
    waited: float = 0.0
    progress: float | None = None
    total: float | None = None
    message: str = ""
    shown: dict[str, Html] = field(default_factory=dict)
    """Its arguments as they are shown, by language: they do not change."""


@dataclass(eq=False)
class SignInUnderWay:
    """A sign-in that was begun on a page. `url` is the page of the provider."""

    url: str = ""


class OwnerState:
    """`connection` is how the computer is connected to its office, in words. `office` is the one it is in."""

    def __init__(
        self,
        computer: Computer,
        approvals: PendingApprovals,
        questions: PendingQuestions,
        files: ConfigurationChanges,
    ) -> None:
        self.computer, self.approvals, self.questions, self.files = computer, approvals, questions, files
        self.changes = Changes()
        self.office = ""
        self.connection = ""
        self.sign_ins: dict[str, SignInUnderWay] = {}
        self.tasks = OwnedTasks()
        self._calls: deque[WatchedCall] = deque(maxlen=_KEPT)
        self._running: dict[Key, WatchedCall] = {}
        self._count = 0

    def follow(self) -> None:
        """Subscribe to the changes of everything that pages show."""
        changed = self.changes.changed
        for pending in (self.approvals, self.questions):
            pending.on_added.append(lambda _: changed("requests"))
            pending.on_removed.append(lambda _: changed("requests", "grants"))
        self.computer.owner.watch_calls(self)
        self.computer.agents.on_update(self._on_update)
        self.computer.owner.server_logs.on_added = lambda server: changed("logs")

    def _on_update(self, update: Update) -> None:
        kind = update if isinstance(update, str) else update.kind
        self.changes.changed(*{"tool_list": ("tools", "servers"), "config": ("servers",)}.get(kind, (kind,)))

    def on_state(self, name: str, state: State, reason: str) -> None:
        """The state of a server has changed."""
        self.changes.changed("servers", "tools", "desktop")

    def on_connection(self, what: str) -> None:
        """The connection to the Server has changed."""
        self.connection = what
        self.changes.changed("servers")

    # Calls: a `CallWatch`

    @property
    def running(self) -> list[WatchedCall]:
        """Calls that have not ended, the newest first."""
        return [*reversed(self._running.values())]

    @property
    def calls(self) -> list[WatchedCall]:
        """Running calls, then those that have ended, the newest first."""
        return [*self.running, *self.past]

    @property
    def past(self) -> list[WatchedCall]:
        """The last calls that have ended, the newest first."""
        return [call for call in reversed(self._calls) if call.ended is not None]

    def began(self, call: Key, record: AttributedCall) -> None:
        self._count += 1
        self._running[call] = WatchedCall(self._count, record)
        self._calls.append(self._running[call])
        self.changes.changed("calls")

    def progressed(self, call: Key, progress: float, total: float | None, message: str | None) -> None:
        if known := self._running.get(call):
            known.progress, known.total, known.message = progress, total, message or ""
            self.changes.changed("calls")

    def changed(self, call: Key, clock: CallClock) -> None:
        if known := self._running.get(call):
            known.state, known.since = clock.state, time.time() - clock.before
            self.changes.changed("calls")

    def ended(self, call: Key, end: CallEnd, clock: CallClock) -> None:
        if known := self._running.pop(call, None):
            known.ended, known.seconds, known.waited = time.time(), clock.ran, clock.waited
            known.state = end
            self.changes.changed("calls", "servers")
