"""The Server mounted in another ASGI application: requests and websockets through plain ASGI.

The web server underneath decides how large a frame may be, what a slow reader costs, and how much of a request is read
before the application is called. Everything above is the same as in the program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from types import coroutine
from typing import Any

import aiohttp

from a2c_smcp.engine.packets import Attachment, Json, Outgoing
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.server.cluster.proxy import ProxiedRequest, Proxy
from a2c_smcp.server.http_requests import (
    VERSION_HEADER,
    HttpRequest,
    HttpResponse,
    MountedRequest,
    RequestBody,
    refusal_response,
    unless_gone,
)
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.transport.admission import ArrivingBody, ArrivingBytes
from a2c_smcp.server.transport.session_channel import Application, SocketOwner
from a2c_smcp.web import Message, Receive, Scope, Send

_MESSAGES, _BYTES = 64, 64 * 1024
_CLOSED, _VERSION_REFUSED = 1000, 4900  # where a web server cannot answer a handshake with a body (PROTOCOL-0.4 §10)
_SCHEMES = {"ws": "http", "wss": "https"}


def _request(scope: Scope, body: RequestBody, *, is_upgrade: bool = False) -> HttpRequest:
    path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
    client = scope.get("client")
    return HttpRequest(
        scope.get("method", "GET"),
        path,
        scope["query_string"].decode("latin-1"),
        scope["headers"],
        str(_SCHEMES.get(scope["scheme"], scope["scheme"])),
        (client[0], client[1]) if client else None,
        body,
        is_upgrade,
    )


# Requests


async def serve_http(
    app: Application, limits: Limits, arriving: ArrivingBytes, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answers one request. A poll whose client goes away is cancelled."""
    body = ArrivingBody(receive, limits, arriving)
    request = _request(scope, body)
    if request.method == "GET" and not app.is_mounted(request.path):
        response = await unless_gone(app.respond(request), receive)
    else:
        response = await app.respond(request)
    if isinstance(response, MountedRequest):
        extensions = {**scope.get("extensions", {}), **response.scope["extensions"]}
        told = {name: response.scope[name] for name in ("client", "headers", "scheme")}
        scope = {**scope, **told, "extensions": extensions}
        await response.app(scope, receive, response.sending(send))
    elif response is not None:
        await _respond(send, response, "http.response")


async def _respond(send: Send, response: HttpResponse, kind: str) -> None:
    headers = [*response.headers, (b"content-length", b"%d" % len(response.body))]
    start: Message = {"type": f"{kind}.start", "status": response.status, "headers": headers}
    body: Message = {"type": f"{kind}.body", "body": response.body}
    await send(start)
    await send(body)


# Websockets


async def serve_websocket(
    app: Application, proxy: Proxy | None, limits: Limits, scope: Scope, receive: Receive, send: Send
) -> None:
    """Carries one websocket to its session, here or on another node."""
    await receive()  # that it wants to connect
    try:
        outcome = await app.upgrade(_request(scope, ArrivingBody(receive, limits), is_upgrade=True))
        if isinstance(outcome, ProxiedRequest) and proxy:
            await _exchange(await proxy.open(outcome), receive, send)
            return
    except SMCPError as error:
        outcome = refusal_response(error)
    if not isinstance(outcome, HttpResponse | ProxiedRequest):
        await AsgiWebSocket(outcome, send, limits.close_timeout).serve(receive)
    elif isinstance(outcome, HttpResponse) and "websocket.http.response" in scope.get("extensions", {}):
        await _respond(send, outcome, "websocket.http.response")
    else:
        is_version = isinstance(outcome, HttpResponse) and any(name == VERSION_HEADER for name, _ in outcome.headers)
        await send({"type": "websocket.close", "code": _VERSION_REFUSED if is_version else _CLOSED})


class AsgiWebSocket:
    """A websocket through ASGI. A message is sent at once, in the task that has it, if the web server does not wait."""

    def __init__(self, channel: SocketOwner, send: Send, close_timeout: float) -> None:
        self.is_blocked = False
        self._channel = channel
        self._send = send
        self._close_timeout = close_timeout
        self._task = asyncio.current_task()
        self._writing: asyncio.Task[None] | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._unwritten = 0
        self._is_over = False

    async def serve(self, receive: Receive) -> None:
        """Serves until either side closes."""
        try:
            await self._send({"type": "websocket.accept"})
        except BaseException:
            self._channel.detach()
            raise
        self._channel.attach(self)
        try:
            messages = size = 0
            while not self._is_over and (message := await receive())["type"] == "websocket.receive":
                size += self._hear(message)
                messages += 1
                if messages >= _MESSAGES or size >= _BYTES:
                    messages = size = 0
                    await asyncio.sleep(0)  # other connections have their turn
        finally:
            self._is_over = True
            if self._writing:
                self._writing.cancel()
            if self._closing:
                self._closing.cancel()
            self._channel.ended(self)

    def _hear(self, message: Message) -> int:
        if (text := message.get("text")) is not None:
            data = text.encode(errors="surrogatepass")
            self._channel.heard(self, data)
        else:
            data = message["bytes"]
            self._channel.heard_binary(self, data)
        return len(data)

    # For its channel

    @property
    def unwritten(self) -> int:
        return self._unwritten

    def trust(self) -> None: ...

    def write(self, parts: Sequence[Json]) -> int:
        if not self._is_over:
            self._start(self._send({"type": "websocket.send", "text": str(b"".join(parts), "utf-8")}), parts)
        return sum(map(len, parts))

    def write_all(self, packets: Sequence[Outgoing]) -> int:
        contents = [packet if isinstance(packet, bytes) else packet.data for packet in packets]
        if not self._is_over:
            self._start(self._send_all(packets), contents)
        return sum(map(len, contents))

    def close(self, code: int = 1000) -> None:
        if not self._is_over:
            self._start(self._close(self._writing, code), ())
            self._is_over = True
            if self._task:
                self._closing = asyncio.get_running_loop().call_later(self._close_timeout, self._task.cancel)

    def abort(self) -> None:
        self._is_over = True
        for task in (self._task, self._writing):
            if task:
                task.cancel()

    # How it is written

    async def _send_all(self, packets: Sequence[Outgoing]) -> None:
        for packet in packets:
            if isinstance(packet, Attachment):
                await self._send({"type": "websocket.send", "bytes": packet.data})
            else:
                await self._send({"type": "websocket.send", "text": packet.decode()})

    async def _close(self, writing: asyncio.Task[None] | None, code: int) -> None:
        if writing:
            await asyncio.wait([writing])
        await self._send({"type": "websocket.close", "code": code})

    def _start(self, work: Awaitable[None], data: Sequence[Json]) -> None:
        """Writes at once if that does not wait. A write that has to wait blocks all later ones."""
        try:
            rest = _begin(work)
        except Exception:  # its peer is gone, and `receive` will report it
            self._is_over = True
            return
        if rest is not None:
            self.is_blocked, self._writing, self._unwritten = True, rest, sum(map(len, data))
            rest.add_done_callback(self._written)
            self._channel.blocked(self)

    def _written(self, task: asyncio.Task[None]) -> None:
        if task is self._writing:
            self.is_blocked, self._writing, self._unwritten = False, None, 0
        if not task.cancelled() and task.exception():
            self._is_over = True
        self._channel.unblocked(self)


async def _exchange(there: aiohttp.ClientWebSocketResponse, receive: Receive, send: Send) -> None:
    """Carries messages both ways until either side closes. Each is awaited until it is written."""
    await send({"type": "websocket.accept"})
    tasks = [asyncio.ensure_future(work) for work in (_to_node(there, receive), _from_node(there, send))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*tasks)
        await there.close()


async def _to_node(there: aiohttp.ClientWebSocketResponse, receive: Receive) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        if (text := message.get("text")) is not None:
            await there.send_str(text)
        else:
            await there.send_bytes(message["bytes"])
    await there.close(code=message.get("code") or 1000)


async def _from_node(there: aiohttp.ClientWebSocketResponse, send: Send) -> None:
    async for message in there:
        kind = "text" if message.type is aiohttp.WSMsgType.TEXT else "bytes"
        await send({"type": "websocket.send", kind: message.data})
    ending: Message = {"type": "websocket.close", "code": there.close_code or 1011}
    await send(ending)


def _begin(awaitable: Awaitable[None]) -> asyncio.Task[None] | None:
    """Runs an awaitable until it waits. Returns the task that does the rest, or `None` if it has ended."""
    work = awaitable if isinstance(awaitable, Coroutine) else _awaited(awaitable)
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_go_on(work, waits_for))


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable


async def _go_on(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _rest_of(work, waits_for)


@coroutine
def _rest_of(work: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Does what `await` does, from the second step on."""
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = work.throw(error)
            else:
                waits_for = work.send(value)
    except StopIteration:
        return
