"""How fast computers can join, and what an idle one costs: `python -m benchmarks.connections --connections 2000`.

The Server is a process of its own. Its clients are bare websockets, ten to an office, so that it is the Server that is
measured and not a client library. CPU and memory are read from /proc and left out where there is none.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvloop

from benchmarks.processes import PATIENCE, hub
from benchmarks.table import Row, options, per, report

PER_OFFICE = 10
AT_ONCE = 100
WARM_UP = 50
SETTLE = 1.0
BOUND = 300.0


class Computer:
    """A bare websocket that joins an office and then only answers pings."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def join(cls, session: aiohttp.ClientSession, url: str, number: int) -> Computer:
        socket = await session.ws_connect(f"{url}/socket.io/?EIO=4&transport=websocket", compress=0)
        computer = cls(socket)
        await computer._expect("0{")
        await socket.send_str("40/smcp,")
        await computer._expect("40/smcp,")
        data = {"role": "computer", "name": f"computer-{number}", "office_id": f"office-{number // PER_OFFICE}"}
        await socket.send_str(f"42/smcp,1{json.dumps(['server:join_office', data])}")
        await computer._expect("43/smcp,1[true,null]")
        computer._listening = asyncio.create_task(computer._listen())
        return computer

    async def close(self) -> None:
        if self._listening:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._socket.close()

    async def _expect(self, beginning: str) -> None:
        """Waits for a frame; notices of others who join may come first."""
        while True:
            frame = await self._socket.receive_str(timeout=PATIENCE)
            if frame.startswith(beginning):
                return
            if frame == "2":
                await self._socket.send_str("3")
            elif not frame.startswith('42/smcp,["notify:'):
                raise RuntimeError(f"expected {beginning}, got {frame[:200]}")

    async def _listen(self) -> None:
        async for message in self._socket:
            if message.data == "2":
                await self._socket.send_str("3")


@asynccontextmanager
async def crowd(url: str, size: int) -> AsyncIterator[float]:
    """Lets computers join, many at once, and yields how long that took."""
    turn = asyncio.Semaphore(AT_ONCE)
    computers: list[Computer] = []

    async def one(number: int) -> None:
        async with turn:
            computers.append(await Computer.join(session, url, number))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        try:
            start = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(size):
                    group.create_task(one(number))
            yield time.perf_counter() - start
        finally:
            await asyncio.gather(*(computer.close() for computer in computers))


async def measure(size: int) -> Row:
    async with asyncio.timeout(BOUND), hub() as (url, server):
        async with crowd(url, WARM_UP):
            pass
        await asyncio.sleep(SETTLE)
        rss, cpu = server.rss, server.cpu
        async with crowd(url, size) as seconds:
            busy = server.cpu_since(cpu)
            await asyncio.sleep(SETTLE)
            crowded = server.rss
        return {
            "connections": size,
            "seconds until all have joined": per(seconds, 1),
            "joins per second": per(size, seconds),
            "server CPU ms per join": per(busy, size, 1e-3),
            "server MiB before": per(rss, 1, 2**20),
            "and after": per(crowded, 1, 2**20),
            "KiB per idle connection": None if rss is None or crowded is None else per(crowded - rss, size, 1024),
        }


def allow_files(wanted: int) -> None:
    """Raises the limit on open files, for this process and the Server that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            sys.exit(f"{wanted} open files are needed and {hard} allowed: give fewer --connections")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def repeated(size: int, rounds: int) -> list[Row]:
    return [await measure(size) for _ in range(rounds)]


def main() -> None:
    parser = options("How fast computers can join a Server, and what an idle one costs.", rounds=1)
    parser.add_argument("--connections", type=int, default=500, metavar="N", help="how many computers (default 500)")
    chosen = parser.parse_args()
    if chosen.connections < 1:
        parser.error("--connections must be 1 or more")
    allow_files(chosen.connections + 200)
    report(uvloop.run(repeated(chosen.connections, chosen.rounds)), chosen)


if __name__ == "__main__":
    main()
