"""The set-up of the other examples: a Server in this process, with computers in one of its offices.

In production they are separate: `a2c-smcp server` runs on one machine, and each computer runs `computer.run(url, …)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from a2c_smcp.computer import Computer
from a2c_smcp.server import create_app
from a2c_smcp.server.run import address_of, listen, serving

OFFICE = "desk"


@asynccontextmanager
async def office_of(*computers: Computer) -> AsyncIterator[str]:
    """Run a Server with these computers in one office. Yields the URL of the Server."""
    listener = listen("127.0.0.1", 0)
    url = f"http://{address_of(listener)}"
    async with serving(create_app(), listener):
        working = [await _put_to_work(computer, url) for computer in computers]
        try:
            yield url
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)


async def _put_to_work(computer: Computer, url: str) -> asyncio.Task[None]:
    joined = asyncio.Event()
    task = asyncio.create_task(computer.run(url, office=OFFICE, on_connection=lambda _: joined.set()))
    await joined.wait()
    return task
