"""Listings that come in pages, from servers that may never end them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio

from a2c_smcp.mcp_host.limits import Policy

__all__ = ["Collector", "all_pages"]

logger = logging.getLogger(__name__)


class Collector(Protocol):
    """What is made of the items, page by page, so that nothing else of a page is kept."""

    def take(self, listed: list[object]) -> bool:
        """Whether more are wanted."""
        ...

    def __len__(self) -> int: ...


async def all_pages(
    ask: Callable[[str | None], Awaitable[dict[str, Any]]], field: str, collector: Collector, policy: Policy, name: str
) -> None:
    """All pages, or those that came in time. Raises `TimeoutError(field)` if not one did."""
    cursor: str | None = None
    seen: set[str] = set()
    with anyio.move_on_after(policy.listing_limit):
        for _ in range(policy.listing_pages):
            page = await ask(cursor)
            listed = page.get(field)
            if not collector.take(listed if isinstance(listed, list) else []):
                return
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return
            if cursor in seen:
                break
            seen.add(cursor)
    if cursor is None:
        raise TimeoutError(field)
    logger.warning("%s: its list of %s does not end; using the first %d", name, field, len(collector))
