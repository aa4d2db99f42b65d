"""What a browser does at the operator's console, over HTTP: sign in, load pages with their files, follow streams."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlencode

import aiohttp

from benchmarks.load import Refused
from benchmarks.processes import PATIENCE

__all__ = ["Browser", "Loaded", "Stream", "signed_in"]

LARGEST_EVENT = 2**22
FILES = re.compile(r'(?:href|src)="(/console/static/[^"]+)"')
LIVE = re.compile(r'data-live-url="([^"]+)"')


@dataclass(frozen=True, slots=True)
class Loaded:
    """Seconds until a page was there with its style, script and icon, and how much all that is in bytes."""

    seconds: float
    size: int


class Stream:
    """The regions of a page that is open, as they come."""

    def __init__(self) -> None:
        self._awaited: list[tuple[str, str, asyncio.Future[float]]] = []

    def shows(self, region: str, text: str) -> asyncio.Future[float]:
        """When a region that comes from now on has this text, as `time.perf_counter` has it."""
        found: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._awaited.append((region, text, found))
        return found

    def hear(self, event: bytes) -> None:
        kind, _, data = event.decode().strip().partition("\ndata: ")
        if kind != "event: regions":
            return
        regions, now = json.loads(data), time.perf_counter()
        for awaited in list(self._awaited):
            region, text, found = awaited
            if text in regions.get(region, ""):
                self._awaited.remove(awaited)
                found.set_result(now)


class Browser:
    """A session of an operator at the console of a Server."""

    def __init__(self, url: str, secret: str) -> None:
        self.url, self.secret = url, secret

    async def load(self, path: str) -> Loaded:
        """Loads a page as a browser does that has kept nothing: new connections, files at once, then the page."""
        start = time.perf_counter()
        async with self._session() as session:
            async with asyncio.timeout(PATIENCE), aiohttp.request("GET", f"{self.url}/console{path}") as navigation:
                first = await navigation.text()
            found = dict.fromkeys(FILES.findall(first))
            files = await asyncio.gather(*(self._get(session, each) for each in found))
            page = await self._get(session, f"/console{path}")
        return Loaded(time.perf_counter() - start, sum(map(len, [first, *files, page])))

    @asynccontextmanager
    async def open(self, path: str) -> AsyncIterator[Stream]:
        """A page that stays open, once its first regions have come."""
        async with self._session() as session:
            live = LIVE.search(await self._get(session, f"/console{path}"))
            if not live:
                raise Refused(f"{path} has no stream")
            async with session.get(self.url + live[1].replace("&amp;", "&")) as response:
                stream = Stream()
                first = await asyncio.wait_for(response.content.readuntil(b"\n\n"), PATIENCE)
                if not first.startswith(b"event: regions"):
                    raise Refused(f"the stream of {path} begins with {first[:80]!r}")
                reading = asyncio.create_task(_read(response.content, stream))
                try:
                    yield stream
                    if reading.done():
                        raise Refused(f"the stream of {path} has ended: {reading.exception()}")
                finally:
                    reading.cancel()
                    await asyncio.wait([reading])

    def _session(self) -> aiohttp.ClientSession:
        wait = aiohttp.ClientTimeout(total=None, connect=PATIENCE)
        headers = {"X-A2C-Session": self.secret}
        return aiohttp.ClientSession(headers=headers, timeout=wait, read_bufsize=LARGEST_EVENT)

    async def _get(self, session: aiohttp.ClientSession, path: str) -> str:
        async with asyncio.timeout(PATIENCE), session.get(self.url + path) as response:
            response.raise_for_status()
            return await response.text()


async def signed_in(url: str, admin_key: str) -> Browser:
    """Sends the form of the first page."""
    sent, headers = urlencode({"key": admin_key}), {"Origin": url, "Content-Type": "application/x-www-form-urlencoded"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/console/sign-in", data=sent, headers=headers) as response,
    ):
        secret = (await response.json(content_type=None) or {}).get("secret")
    if not secret:
        raise Refused(f"the console did not let the operator in: {response.status}")
    return Browser(url, secret)


async def _read(content: aiohttp.StreamReader, stream: Stream) -> None:
    while event := await content.readuntil(b"\n\n"):
        stream.hear(event)
