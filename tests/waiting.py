"""Waiting for what nobody announces, with a bound against hanging."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from a2c_smcp.errors import SMCPError

__all__ = ["until", "until_it_goes"]


async def until(is_so: Callable[[], object], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110, there is nothing else to wait for
            await asyncio.sleep(0.01)


async def until_it_goes(attempt: Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    """Again and again, as a client would, until it is no longer refused."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await attempt()
            except (AssertionError, SMCPError):
                await asyncio.sleep(0.01)
