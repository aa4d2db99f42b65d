"""HTTP requests before a session hears of them: what a request is, which ones are refused, and how that is answered.

This is the same for every web server that carries them, the program's own and others that it is mounted in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qs

from a2c_smcp.errors import BadRequest, SMCPError, TooLarge, Unavailable, VersionMismatch
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.protocol import names
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.web import ASGIApp, Message, Receive, Scope, Send, host_name, is_loopback, until_disconnect

logger = logging.getLogger(__name__)

Headers = Sequence[tuple[bytes, bytes]]
Result = TypeVar("Result")

MAX_UNAUTHENTICATED = 64 * 1024
"""Bytes of a body that are read from a client before it is authenticated (WIRE §6)."""

VERSION_HEADER = b"x-a2c-error-code"
"""The header of a refusal of the protocol version with its code, 4008 (WIRE §1)."""

NO_SUCH_PAGE = "this server has /socket.io/, /healthz and /readyz"
"""The interface between nodes answers other clients with this, too: it does not reveal itself."""

CONSOLE_PATH = "/console"
"""The path of the operator's console, if it is mounted."""

_FOR_OPERATORS = (f"{CONSOLE_PATH}/", "/admin/", "/healthz/", "/readyz/", "/metrics/")
CREDENTIALS = (b"authorization", b"x-api-key", b"access_token")
"""The headers that hold a key or a token."""

_MAX_HEAD = 32 * 1024  # a session keeps its headers; web servers that this is mounted in may accept more


class HttpResponse(NamedTuple):
    """`headers` have no content-length: the web server adds it."""

    status: int
    headers: Headers
    body: bytes


FRONT_PAGE = HttpResponse(
    200,
    (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    ),
    b"""<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>A2C Server</title>
<h1>A2C Server</h1><p>Agents and computers meet here: they connect with <code>a2c-smcp</code>.
<p>Started with <code>--console</code>, it has pages for its operator at <code>/console/</code>.
""",
)
"""The page at `/` of a Server without a console."""


class RequestBody(Protocol):
    """The body of a request. The web server does not wait for a body that is not read."""

    async def read(self, limit: int) -> bytes:
        """All of it. Raises `TooLarge`, `CallTimeout` or `BadRequest`."""

    def trust(self, owner: str = "") -> None:
        """Its sender is authenticated: it has more time, and does not count as a newcomer.

        What arrives of the bodies of one `owner` is limited.
        """


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Names of headers are in lower case. `path` ends without a slash."""

    method: str
    path: str
    query: str
    headers: Headers
    scheme: str
    client: tuple[str, int] | None
    body: RequestBody
    is_upgrade: bool = False

    @property
    def may_use_reserve(self) -> bool:
        """True if it is answered also when descriptors run out: pages of operators, and polls of sessions there are."""
        is_poll = self.path == "/socket.io" and not self.is_upgrade and self.parameter("sid") is not None
        return is_poll or f"{self.path}/".startswith(_FOR_OPERATORS)

    def header(self, name: bytes) -> str:
        """The first value, or an empty string."""
        return next((value.decode("latin-1") for field, value in self.headers if field == name), "")

    def parameter(self, name: str, *, blank: bool = False) -> str | None:
        """A value of the query. Engine.IO takes a blank one as absent."""
        return next(iter(parse_qs(self.query, keep_blank_values=blank).get(name, ())), None)


def text_response(status: int, body: bytes, headers: Headers = ()) -> HttpResponse:
    return HttpResponse(status, ((b"content-type", b"text/plain; charset=UTF-8"), *headers), body)


def json_response(status: int, body: Mapping[str, object], headers: Headers = ()) -> HttpResponse:
    return HttpResponse(status, ((b"content-type", b"application/json"), *headers), dumps(body).encode())


def refusal_response(error: SMCPError) -> HttpResponse:
    """An error before there is a session: HTTP, with the error as its body (WIRE §1)."""
    status = 400 if isinstance(error, BadRequest) else error.code
    headers = ((VERSION_HEADER, b"%d" % error.code),) if isinstance(error, VersionMismatch) else ()
    return json_response(status, {"code": error.code, "message": error.message, **error.details}, headers)


# Checks


def check_host(request: HttpRequest, trusted: frozenset[str] | None) -> None:
    """Refuses requests to a foreign host name: a web page can point its own name at this machine (DNS rebinding)."""
    if trusted is None:
        return
    host = request.header(b"host")
    if (name := host_name(host)) not in trusted and not is_loopback(name):
        raise BadRequest(
            f"a server without authentication is not to be reached as {(name or host)[:128]!r}, "
            "use its loopback address or give it an API key"
        )


def check_credentials(request: HttpRequest) -> None:
    """Refuses a credential that comes twice: one part of a program would read the first one, another part the last."""
    names = [name for name, _ in request.headers if name in CREDENTIALS]
    if twice := {name.decode() for name in names if names.count(name) > 1}:
        raise BadRequest(f"the header {min(twice)} comes more than once")


def check_new_session(request: HttpRequest, required_version: str | None, *, is_draining: bool) -> None:
    """Refuses a new session while the Server shuts down, or if it speaks another protocol or version."""
    if is_draining:
        raise Unavailable("the server is shutting down")
    check_credentials(request)
    if sum(len(name) + len(value) for name, value in request.headers) > _MAX_HEAD:
        raise TooLarge(f"at most {_MAX_HEAD} bytes of headers are kept", limit=_MAX_HEAD)
    if request.parameter("EIO") != "4":
        raise BadRequest("EIO: this server speaks Engine.IO 4, that is Socket.IO 3 or later")
    if request.parameter("transport") == "websocket" and not request.is_upgrade:
        raise BadRequest("transport: a websocket begins with an upgrade")
    names.accept(request.parameter("a2c_version", blank=True), required_version)


def check_origin(request: HttpRequest, allowed: frozenset[str]) -> Headers:
    """The CORS headers of the response to a web page. Raises `BadRequest`.

    A page may ask if its origin is allowed, or if it comes from this Server. With `*`, none may use what its browser
    has for this Server, such as cookies or a client certificate.
    """
    if not (origin := request.header(b"origin")):
        return ()
    scheme = _first(request, b"x-forwarded-proto") or request.scheme
    hosts = (_first(request, name) for name in (b"host", b"x-forwarded-host"))
    headers = [(b"vary", b"origin"), (b"access-control-allow-origin", origin.encode("latin-1"))]
    if origin in allowed or origin in {f"{scheme}://{host}" for host in hosts if host}:
        headers.append((b"access-control-allow-credentials", b"true"))
    elif "*" in allowed:
        headers = [(b"access-control-allow-origin", b"*")]
    else:
        raise BadRequest("this server does not serve pages of this origin")
    if request.method == "OPTIONS":
        headers.append((b"access-control-allow-methods", b"OPTIONS, GET, POST, DELETE"))
        if wanted := request.header(b"access-control-request-headers"):
            headers.append((b"access-control-allow-headers", wanted.encode("latin-1")))
    return headers


def _first(request: HttpRequest, name: bytes) -> str:
    """The first of several values in a header: that of the proxy nearest to the client."""
    return request.header(name).partition(",")[0].strip()


# ASGI applications that the Server serves below path prefixes of its own, and the lifespan of each.

EXTENSION = "a2c"
"""The extension of ASGI that mounted applications are given. Its `trust` is called for an authenticated request."""


def is_from_node(scope: Scope) -> bool:
    """True for a request for a mounted application that another node sends, or has passed on."""
    return bool(scope.get("extensions", {}).get(EXTENSION, {}).get("is_from_node"))


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


async def unless_gone(work: Coroutine[Any, Any, Result], receive: Receive) -> Result | None:
    """Return the result of work for a request; `None` if its client goes away, which cancels the work."""
    tasks = working, _ = asyncio.ensure_future(work), asyncio.ensure_future(until_disconnect(receive))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await cancel_and_wait(*tasks)


class Mounts:
    """The applications by prefix. They are started with the Server, or with the first request."""

    def __init__(self) -> None:
        self._apps: dict[str, ASGIApp] = {}
        self._closed: set[ASGIApp] = set()
        self._lifespans: dict[ASGIApp, Lifespan] = {}
        self._starting: asyncio.Task[None] | None = None

    def add(self, prefixes: tuple[str, ...], app: ASGIApp, *, has_cors: bool) -> None:
        """Serves an application at these paths, such as `/mcp`, and below."""
        self._apps.update(dict.fromkeys(prefixes, app))
        if not has_cors:
            self._closed.add(app)
        self._lifespans[app] = Lifespan(app)

    def find(self, path: str) -> ASGIApp | None:
        for prefix, app in self._apps.items():
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                return app
        return None

    def has_cors(self, app: ASGIApp) -> bool:
        """True if pages of allowed origins may read its responses."""
        return app not in self._closed

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
