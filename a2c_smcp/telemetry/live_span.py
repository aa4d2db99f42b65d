"""A span that has begun, as those see it whose work it shows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeAlias

__all__ = ["LiveSpan", "Times"]

Times: TypeAlias = tuple[int, int]
"""When a span begins and ends, in nanoseconds since 1970."""


class LiveSpan(AbstractContextManager["LiveSpan"]):
    """A span that is current until the block ends. This class itself is the one that does nothing."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def set(self, name: str, value: str | int | bool) -> None:
        """Sets an attribute."""

    def fail(self, error_type: str) -> None:
        """The span is one of a failure, of this kind."""

    def inject(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """`_meta` with the context of this span."""
        return meta
