"""Observers: functions in the same process that receive what happens on a Server or a Computer.

Each program has one table of it, a subclass of `Observed` for each row: `server/observation/happened.py`,
`computer/observation.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from a2c_smcp.telemetry.metrics import Metrics

T = TypeVar("T")
Facts: TypeAlias = dict[str, Any]
"""A flat object for JSON: `event` says what happened."""

logger = logging.getLogger(__name__)


class Observed(msgspec.Struct, eq=False):
    """A row of what is observed. It has no secrets and no payloads: no credentials, sids, arguments or results."""

    def facts(self) -> Facts:
        """Return the facts for log lines, events and audit lines. Unknown facts are left out."""
        raise NotImplementedError

    def entry(self) -> Facts | None:
        """Return the line of the audit file; `None` if there is none."""
        return self.facts()

    def count(self, metrics: Metrics) -> None:
        """Count it in the metrics of its program."""


def known(event: str, /, **facts: object) -> Facts:
    """Return the facts of an event that are known. A call has its tool always, `None` if it cannot be read."""
    is_call = event == "call"
    return {
        "event": event,
        **{name: fact for name, fact in facts.items() if fact is not None or (is_call and name == "tool")},
    }


class Observers(Generic[T]):
    """Calls observers in the order in which they were added. The failure of one is only logged.

    `is_watched`: true if one of them wants what happens often, such as every call.
    """

    def __init__(self) -> None:
        self.is_watched = False
        self._seldom: tuple[Callable[[T], None], ...] = ()
        self._often: tuple[Callable[[T], None], ...] = ()

    def add(self, observer: Callable[[T], None], *, often: bool = False) -> None:
        """Adds an observer, until it is removed; with `often` also for what happens often."""
        self._seldom = (*self._seldom, observer)
        if often:
            self._often = (*self._often, observer)
            self.is_watched = True

    def remove(self, observer: Callable[[T], None]) -> None:
        self._seldom = tuple(each for each in self._seldom if each != observer)
        self._often = tuple(each for each in self._often if each != observer)
        self.is_watched = bool(self._often)

    def report(self, happened: T) -> None:
        """Call all observers: this does not happen often."""
        for observer in self._seldom:
            tell(observer, happened)

    def report_often(self, happened: T) -> None:
        """Call the observers that want what happens often. Call it only while `is_watched`."""
        for observer in self._often:
            tell(observer, happened)


def tell(observer: Callable[[T], None], happened: T) -> None:
    """Calls an observer. If it fails, the exception is logged."""
    try:
        observer(happened)
    except Exception:
        logger.exception("an observer failed")
