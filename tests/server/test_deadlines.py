"""Deadlines in groups: each is met, whatever becomes of the others."""

from __future__ import annotations

import asyncio

import pytest

from a2c_smcp.server.deadlines import Deadlines
from tests.peer import PATIENCE

pytestmark = pytest.mark.covers("calls-one-hurts-no-other")


async def test_what_expires_is_told_in_order_and_what_was_discarded_is_not() -> None:
    expired: asyncio.Queue[str] = asyncio.Queue()
    deadlines: Deadlines[str] = Deadlines(lambda item, seconds: expired.put_nowait(item))
    for item in ("a", "b", "c"):
        deadlines.add(item, 0.05)
    deadlines.discard("b", 0.05)
    deadlines.add("first", 0.01)
    async with asyncio.timeout(PATIENCE):
        assert [await expired.get() for _ in range(3)] == ["first", "a", "c"]


async def test_one_that_fails_keeps_no_other_from_expiring() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    expired: asyncio.Queue[str] = asyncio.Queue()

    def expire(item: str, seconds: float) -> None:
        if item == "broken":
            raise ValueError
        expired.put_nowait(item)

    deadlines: Deadlines[str] = Deadlines(expire)
    async with asyncio.timeout(PATIENCE):
        deadlines.add("broken", 0.01)
        deadlines.add("sound", 0.01)
        assert await expired.get() == "sound"
        deadlines.add("later", 0.01)
        assert await expired.get() == "later"
