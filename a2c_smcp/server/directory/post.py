"""Messages from node to node: each has an inbox, a channel of the shared store."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

__all__ = ["Post"]


class Post(Protocol):
    """What is posted, announced and committed by one node is heard by another in that order."""

    node: str

    @property
    def is_settling(self) -> bool:
        """Whether the store was out of reach a moment ago, so that other nodes may not be back yet."""

    def check(self) -> None:
        """Raises `Unavailable` if nothing can be posted now."""

    def post(self, node: str, message: bytes, answered: Callable[[Any], None]) -> None:
        """`answered` is told how many listen, none if that node is gone, or given an exception."""

    async def absent(self, nodes: Collection[str]) -> set[str]:
        """Those of the nodes whose inbox nobody reads."""
