"""Listings that come in pages, from servers that may never end them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from a2c_smcp.computer.mcp_clients.policy import Policy

__all__ = ["all_pages"]

logger = logging.getLogger(__name__)


async def all_pages(
    ask: Callable[[str | None], Awaitable[dict[str, Any]]], field: str, policy: Policy, name: str
) -> list[object]:
    """All items, or those of the pages that came in time. Raises `TimeoutError(field)` if not one did."""
    items: list[object] = []
    cursor: str | None = None
    seen: set[str] = set()
    with anyio.move_on_after(policy.listing_limit):
        for _ in range(policy.listing_pages):
            page = await ask(cursor)
            listed = page.get(field)
            items += listed if isinstance(listed, list) else []
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return items
            if cursor in seen:
                break
            seen.add(cursor)
    if cursor is None:
        raise TimeoutError(field)
    logger.warning("%s: its list of %s does not end; using the first %d", name, field, len(items))
    return items
