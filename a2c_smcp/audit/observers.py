"""Functions in the same process that are told what happens on a Server or a Computer.

Each has its own closed set of things that happen: `server/observation/`, `computer/observation.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Observers", "tell"]

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Observers(Generic[T]):
    """Tells observers what happens, in the order in which they were added. One that fails is logged, and no more.

    `is_watched`: whether one of them wants to be told of what happens often, as every call does.
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
        """Tells all observers what does not happen often."""
        for observer in self._seldom:
            tell(observer, happened)

    def report_often(self, happened: T) -> None:
        """Tells the observers that want to know of it. Call it only while `is_watched`."""
        for observer in self._often:
            tell(observer, happened)


def tell(observer: Callable[[T], None], happened: T) -> None:
    """Calls an observer. If it fails, the exception is logged."""
    try:
        observer(happened)
    except Exception:
        logger.exception("an observer failed")
