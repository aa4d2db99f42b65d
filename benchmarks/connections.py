"""How fast computers can join, and what an idle one costs: `python benchmarks/connections.py --connections 2000`.

The Server is a process of its own. Its clients are bare websockets, ten to an office, so that it is the Server that is
measured and not a client library. CPU and memory are read from /proc and left out where there is none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import uvloop

PROGRAM = Path(sys.executable).with_name("a2c-smcp")
PER_OFFICE = 10
AT_ONCE = 100
WARM_UP = 50
SETTLE = 1.0
PATIENCE = 15.0
BOUND = 300.0


class Server:
    """A Server in a process of its own."""

    def __init__(self, pid: int, url: str) -> None:
        self.url = url
        self._folder = Path(f"/proc/{pid}")

    @property
    def rss(self) -> int | None:
        """Resident bytes."""
        status = self._read("status")
        return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:")), None)

    @property
    def cpu(self) -> float | None:
        """Seconds of CPU so far."""
        stat = self._read("stat")
        if not stat:
            return None
        fields = stat[0].rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _read(self, name: str) -> list[str]:
        try:
            return (self._folder / name).read_text().splitlines()
        except OSError:
            return []


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    """Starts a Server on a free port, and stops it in any case."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "server", "--port", "0", "--log-level", "error", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode().strip()
        if not line.startswith("listening on "):
            sys.exit("the Server did not start")
        yield Server(process.pid, line.removeprefix("listening on "))
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), PATIENCE)
        except TimeoutError:
            process.kill()
            await process.wait()


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


async def measure(size: int) -> dict[str, float | int | str | None]:
    async with asyncio.timeout(BOUND), server() as hub:
        async with crowd(hub.url, WARM_UP):
            pass
        await asyncio.sleep(SETTLE)
        rss, cpu = hub.rss, hub.cpu
        async with crowd(hub.url, size) as seconds:
            busy = None if cpu is None or hub.cpu is None else hub.cpu - cpu
            await asyncio.sleep(SETTLE)
            crowded = hub.rss
        return {
            "connections": size,
            "seconds": round(seconds, 3),
            "joins_per_second": round(size / seconds, 1),
            "server_cpu_ms_per_join": None if busy is None else round(busy / size * 1000, 3),
            "rss_before_mib": None if rss is None else round(rss / 2**20, 1),
            "rss_after_mib": None if crowded is None else round(crowded / 2**20, 1),
            "kib_per_connection": None if rss is None or crowded is None else round((crowded - rss) / size / 1024, 1),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
        }


TITLES = {
    "connections": "connections",
    "seconds": "seconds until all have joined",
    "joins_per_second": "joins per second",
    "server_cpu_ms_per_join": "server CPU per join (ms)",
    "rss_before_mib": "server memory before (MiB)",
    "rss_after_mib": "server memory with all of them idle (MiB)",
    "kib_per_connection": "memory per idle connection (KiB)",
    "python": "Python",
    "cpus": "CPUs",
}


def allow_files(wanted: int) -> None:
    """Raises the limit on open files, for this process and the Server that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            sys.exit(f"{wanted} open files are needed and {hard} allowed: give fewer --connections")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast computers can join a Server, and what an idle one costs.")
    parser.add_argument("--connections", type=int, default=500, metavar="N", help="how many computers (default 500)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for a program to read")
    options = parser.parse_args()
    if options.connections < 1:
        parser.error("--connections must be 1 or more")
    allow_files(options.connections + 200)
    found = uvloop.run(measure(options.connections))
    if options.json:
        print(json.dumps(found))
        return
    for name, title in TITLES.items():
        print(f"{title:<44}{'not measured' if found[name] is None else found[name]:>12}")


if __name__ == "__main__":
    main()
