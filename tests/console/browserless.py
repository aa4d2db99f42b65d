"""Requests to a console as a browser sends them, without a browser and without a socket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from a2c_smcp.http.asgi import ASGIApp

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
    """Keeps cookies, as a browser does."""

    app: ASGIApp
    host: str = "127.0.0.1:7200"
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> Answered:
        return await self.ask("GET", path, b"", headers)

    async def post(self, path: str, form: Mapping[str, Any], **headers: str) -> Answered:
        sent = {"origin": f"http://{self.host}", **headers}
        return await self.ask("POST", path, urlencode(form, doseq=True).encode(), sent)

    async def token(self, path: str = "/") -> str:
        page = await self.get(path)
        return re.search(r'name="token" value="([^"]+)"', page.body)[1]  # type: ignore[index]

    async def act(self, path: str, page: str = "/", **form: Any) -> Answered:
        """Send a form as the script of a page does."""
        token = await self.token(page)
        return await self.post(path, {"token": token, "back": page, **form}, **{"x-a2c-console": "1"})

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})
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

    def scope(self, method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
        path, _, query = path.partition("?")
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items() if value)
        all_headers = {"host": self.host, **({"cookie": cookies} if cookies else {}), **headers}
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
