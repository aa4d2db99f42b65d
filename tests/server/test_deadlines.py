"""Deadlines in buckets: each item expires in time, also if another one fails."""

from __future__ import annotations

import asyncio

import pytest

from a2c_smcp.server.calls.call import Deadlines
from tests.peer import PATIENCE

pytestmark = pytest.mark.covers("calls-one-hurts-no-other")


async def test_items_expire_in_order_and_never_early_unless_they_were_discarded() -> None:
    clock = asyncio.get_running_loop().time
    expired: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
    deadlines: Deadlines[str] = Deadlines(lambda item: expired.put_nowait((item, clock())))
    due = {"late": clock() + 0.9, "discarded": clock() + 0.6, "soon": clock() + 0.05, "then": clock() + 0.4}
    numbers = {item: deadlines.add(item, until) for item, until in due.items()}
    deadlines.discard("discarded", numbers["discarded"])
    async with asyncio.timeout(PATIENCE):
        told = [await expired.get() for _ in range(3)]
    assert [item for item, _ in told] == ["soon", "then", "late"]
    assert all(at >= due[item] for item, at in told)
    assert len(deadlines) == 0


async def test_an_item_that_fails_to_expire_does_not_keep_others_from_it() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    clock = asyncio.get_running_loop().time
    expired: asyncio.Queue[str] = asyncio.Queue()

    def expire(item: str) -> None:
        if item == "broken":
            raise ValueError
        expired.put_nowait(item)

    deadlines: Deadlines[str] = Deadlines(expire)
    async with asyncio.timeout(PATIENCE):
        deadlines.add("broken", clock() + 0.01)
        deadlines.add("sound", clock() + 0.01)
        assert await expired.get() == "sound"
        deadlines.add("later", clock() + 0.01)
        assert await expired.get() == "later"
