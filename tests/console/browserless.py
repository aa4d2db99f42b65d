"""Requests to a console as a browser sends them, without a browser and a socket; and a receiver of webhooks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from a2c_smcp.web import ASGIApp

PATIENCE = 20.0


@dataclass
class Answered:
    status: int
    headers: list[tuple[str, str]]
    body: str

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")


@dataclass
class Visitor:
    """Keeps cookies, as a browser does, and the secret of its session, as the script of our pages does."""

    app: ASGIApp
    host: str = "127.0.0.1:7200"
    cookies: dict[str, str] = field(default_factory=dict)
    secret: str = ""

    async def get(self, path: str, **headers: str | None) -> Answered:
        return await self.ask("GET", path, b"", headers)

    async def post(self, path: str, form: Mapping[str, Any], **headers: str) -> Answered:
        sent = {"origin": f"http://{self.host}", **headers}
        return await self.ask("POST", path, urlencode(form, doseq=True).encode(), sent)

    async def act(self, path: str, **form: Any) -> Answered:
        """Send a form, and keep the secret that the answer may have."""
        answered = await self.post(path, form)
        if answered.header("content-type") == "application/json":
            self.secret = json.loads(answered.body).get("secret", self.secret)
        return answered

    async def open(self, link: str, prefix: str = "") -> Answered:
        """Use a link, given as its address."""
        return await self.act(f"{prefix}/open", link=link.partition("link=")[2])

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str | None] = MappingProxyType({})
    ) -> Answered:
        sent: list[Any] = []
        received = [{"type": "http.request", "body": body}]

        async def receive() -> Any:
            return received.pop() if received else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        async with asyncio.timeout(PATIENCE):
            await self.app(self.scope(method, path, headers), receive, send)
        found = [(key.decode(), value.decode()) for key, value in sent[0]["headers"]]
        for key, value in found:
            if key == "set-cookie":
                name, _, rest = value.partition("=")
                self.cookies[name] = rest.partition(";")[0]
        return Answered(sent[0]["status"], found, b"".join(each.get("body", b"") for each in sent[1:]).decode())

    def scope(self, method: str, path: str, headers: Mapping[str, str | None]) -> dict[str, Any]:
        path, _, query = path.partition("?")
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items() if value)
        own = {"host": self.host, "x-a2c-session": self.secret, **({"cookie": cookies} if cookies else {})}
        all_headers = {name: value for name, value in {**own, **headers}.items() if value is not None}
        return {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "scheme": "http",
            "headers": [(key.encode(), value.encode()) for key, value in all_headers.items()],
        }

    @asynccontextmanager
    async def stream(self, page: str = "/") -> AsyncIterator[asyncio.Queue[str]]:
        """The events of a live page, until the block ends."""
        events: asyncio.Queue[str] = asyncio.Queue()
        gone = asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                events.put_nowait(str(message["status"]))
            elif text := message.get("body", b"").decode():
                events.put_nowait(text)

        running = asyncio.create_task(
            self.app(self.scope("GET", f"/live?{urlencode({'page': page})}", {}), receive, send)  # type: ignore[arg-type]
        )
        try:
            yield events
        finally:
            gone.set()
            async with asyncio.timeout(PATIENCE):
                await running


async def next_event(events: asyncio.Queue[str], having: str = "") -> str:
    """The next event with this text in it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if having in (event := await events.get()):
                return event


@asynccontextmanager
async def received(receive: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """The URL of a receiver of webhooks on this machine."""
    app = web.Application()
    app.router.add_post("/hook", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    await runner.cleanup()
