"""ASGI applications that the Server serves below path prefixes of its own, and the lifespan of each."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from a2c_smcp.errors import Unavailable
from a2c_smcp.http.asgi import ASGIApp, Message, Scope, Send
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.server.http_requests import Headers, HttpRequest

__all__ = ["EXTENSION", "Lifespan", "MountedRequest", "Mounts", "scope_of", "with_headers"]

EXTENSION = "a2c"
"""The extension of ASGI that mounted applications are given. Its `trust` is called for an authenticated request."""

logger = logging.getLogger(__name__)

_ASGI = {"version": "3.0", "spec_version": "2.3"}  # from 2.4 on, writing to a client that is gone would have to fail
_ENDS_WITHIN = 5.0


class MountedRequest(NamedTuple):
    """A request that a mounted application answers. `headers` are added to its response."""

    app: ASGIApp
    scope: Scope
    headers: Headers

    def sending(self, send: Send) -> Send:
        return with_headers(send, self.headers) if self.headers else send


def with_headers(send: Send, headers: Headers) -> Send:
    """`send`, with these headers in each response."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return send_with_headers


class Mounts:
    """The applications by prefix. They are started with the Server, or with the first request."""

    def __init__(self) -> None:
        self._apps: dict[str, ASGIApp] = {}
        self._lifespans: dict[ASGIApp, Lifespan] = {}
        self._starting: asyncio.Task[None] | None = None

    def add(self, prefixes: tuple[str, ...], app: ASGIApp) -> None:
        """Serves an application at these paths, such as `/mcp`, and below."""
        self._apps.update(dict.fromkeys(prefixes, app))
        self._lifespans[app] = Lifespan(app)

    def find(self, path: str) -> ASGIApp | None:
        for prefix, app in self._apps.items():
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                return app
        return None

    async def start(self) -> None:
        """Starts the applications, once. Raises `Unavailable`."""
        if not self._apps:
            return
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def stop(self) -> None:
        """Ends the applications. Responses that they have begun may end before."""
        if self._starting:
            await cancel_and_wait(self._starting)
            await asyncio.gather(*(lifespan.stop() for lifespan in self._lifespans.values()))

    async def _start(self) -> None:
        for lifespan in self._lifespans.values():
            await lifespan.start()


class Lifespan:
    """Runs the lifespan of an ASGI application, in a task of its own. An application need not have one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._events: asyncio.Queue[str] = asyncio.Queue()
        self._answer: asyncio.Future[Message] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises `Unavailable` if the application says that it cannot start."""
        self._task = asyncio.create_task(self._run())
        answer = await self._ask("lifespan.startup")
        if answer and answer["type"].endswith(".failed"):
            raise Unavailable(f"an application of this server did not start: {answer.get('message', '')}")

    async def stop(self) -> None:
        """Returns when the application has ended. One that takes too long is cancelled."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(_ENDS_WITHIN):
                await self._ask("lifespan.shutdown")
                await asyncio.wait([self._task])
        except TimeoutError:
            logger.warning("an application of this server does not end, and is cancelled")
        finally:
            await cancel_and_wait(self._task)

    async def _ask(self, event: str) -> Message | None:
        """The application's answer to an event, or `None` if it ends without one."""
        assert self._task
        self._answer = asyncio.get_running_loop().create_future()
        self._events.put_nowait(event)
        either: list[asyncio.Future[Any]] = [self._answer, self._task]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return self._answer.result() if self._answer.done() else None

    async def _run(self) -> None:
        try:
            await self._app({"type": "lifespan", "asgi": _ASGI, "state": {}}, self._receive, self._send)
        except Exception:
            logger.debug("an application has no lifespan, or its lifespan failed", exc_info=True)

    async def _receive(self) -> Message:
        return {"type": await self._events.get()}

    async def _send(self, message: Message) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_result(message)


def scope_of(request: HttpRequest) -> Scope:
    """A request as an ASGI application sees it."""
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path or "/",
        "root_path": "",
        "query_string": request.query.encode("latin-1"),
        "headers": list(request.headers),
        "client": request.client,
    }
