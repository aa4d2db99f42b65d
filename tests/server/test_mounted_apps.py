"""Applications that the Server serves below its own paths: streamed responses, and what a peer may make it hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_network
from typing import Any

import aiohttp
import pytest

from a2c_smcp.errors import NotAuthenticated, Unavailable
from a2c_smcp.server import DefaultAuthenticationProvider, Limits, Settings, create_app
from a2c_smcp.server.run import address_of, listen, serving
from tests.conftest import Hub
from tests.peer import PATIENCE
from tests.stage.calls import both
from tests.stage.lines import Line
from tests.stage.web import fetch
from tests.waiting import until
from tests.web_server import by_uvicorn

pytestmark = pytest.mark.covers("mounted-apps")

KEY = "correct-horse-battery-staple"
PART = b"x" * 8192
GET = "GET /app/{} HTTP/1.1\nHost: x\n\n"

Dials = Callable[..., Awaitable[Line]]
Scope = dict[str, Any]


class Application:
    """Does what a path says. It authenticates requests below `/app/private`."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.written = 0
        self.release = asyncio.Event()
        self.gone = asyncio.Event()
        self.authenticate: Callable[[Scope], Awaitable[Any]]

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
            return
        try:
            if "/private/" in scope["path"]:
                await self.authenticate(scope)
        except NotAuthenticated:
            await answer(send, 401, b"who are you?")
            return
        await getattr(self, scope["path"].rpartition("/")[2])(scope, receive, send)

    async def lifespan(self, receive: Any, send: Any) -> None:
        for _ in range(2):
            event = (await receive())["type"]
            self.events.append(event)
            await send({"type": f"{event}.complete"})
            self.release.set()

    async def echo(self, scope: Scope, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        told = {
            "method": scope["method"], "path": scope["path"], "client": scope["client"][0], "size": len(body),
            "query": scope["query_string"].decode(), "headers": {n.decode(): v.decode() for n, v in scope["headers"]},
        }  # fmt: skip
        await answer(send, 200, json.dumps(told).encode(), (b"content-type", b"application/json"))

    async def stream(self, scope: Scope, receive: Any, send: Any) -> None:
        """Three parts; the last one waits."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for part in (b"one", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await self.release.wait()
        await send({"type": "http.response.body", "body": b"three"})

    async def silent(self, scope: Scope, receive: Any, send: Any) -> None:
        """A head, and nothing else until its peer is gone."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        self.gone.set()

    async def endless(self, scope: Scope, receive: Any, send: Any) -> None:
        """Parts until its peer is gone."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": PART, "more_body": True})
            self.written += len(PART)
        self.gone.set()

    async def collect(self, scope: Scope, receive: Any, send: Any) -> None:
        self.events.append("collecting")
        assert (await receive())["type"] == "http.disconnect"
        self.gone.set()

    async def unread(self, scope: Scope, receive: Any, send: Any) -> None:
        await answer(send, 403, b"no")

    async def failing(self, scope: Scope, receive: Any, send: Any) -> None:
        raise RuntimeError("a secret")

    async def breaking(self, scope: Scope, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        raise RuntimeError("a secret")

    async def nothing(self, scope: Scope, receive: Any, send: Any) -> None:
        await answer(send, 204, b"")


async def answer(send: Any, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def app() -> Application:
    return Application()


@pytest.fixture
async def served(app: Application) -> AsyncIterator[Callable[..., Any]]:
    """Starts a Server with the application at `/app`."""
    async with AsyncExitStack() as stack:

        async def start(*, by: Any = serving, limits: dict[str, Any] | None = None, **settings: Any) -> Hub:
            return await stack.enter_async_context(hosting(app, by, limits or {}, settings))

        yield start


@asynccontextmanager
async def hosting(app: Application, by: Any, limits: dict[str, Any], settings: dict[str, Any]) -> AsyncIterator[Hub]:
    server, listener = create_app(Settings(limits=Limits(**limits), **settings)), listen("127.0.0.1", 0)
    app.authenticate = server.authenticate
    server.mount(app, "/app", "/.well-known/app")
    async with by(server, listener):
        yield Hub([server], [address_of(listener)])


async def chunks(line: Line) -> AsyncIterator[bytes]:
    """The parts of a body in chunks, as they come."""
    while size := int(await line.reader.readline(), 16):
        yield await line.reader.readexactly(size)
        await line.reader.readexactly(2)
    await line.reader.readexactly(2)


HOSTINGS = pytest.mark.parametrize("by", [serving, by_uvicorn], ids=["program", "uvicorn"])


# Requests and responses


@HOSTINGS
async def test_an_application_is_asked_below_its_path_only(served: Any, connect: Any, by: Any) -> None:
    hub = await served(by=by)
    status, _, text = await fetch(f"{hub.url}/app/a/echo?x=1", "POST", data=b"hello", headers={"X-Y": "z"})
    told = json.loads(text)
    assert told.pop("headers")["x-y"] == "z"
    wanted = {"method": "POST", "path": "/app/a/echo", "client": "127.0.0.1", "size": 5, "query": "x=1"}
    assert (status, told) == (200, wanted)
    for path, code in {"/.well-known/app/echo": 200, "/healthz": 200, "/application": 404, "/ap": 404}.items():
        assert (path, (await fetch(hub.url + path)).status) == (path, code)
    await both(connect, hub, "desk")


@HOSTINGS
async def test_parts_arrive_as_they_are_sent(app: Application, served: Any, by: Any) -> None:
    hub = await served(by=by)
    app.release.clear()
    async with aiohttp.ClientSession(hub.url) as http, http.get("/app/stream") as response:
        assert response.headers["content-type"] == "text/event-stream"
        read = b""
        async with asyncio.timeout(PATIENCE):
            while read != b"onetwo":
                read += await response.content.readany()
            app.release.set()
            assert await response.content.read() == b"three"


@HOSTINGS
async def test_a_head_arrives_before_the_first_part(app: Application, served: Any, by: Any) -> None:
    hub = await served(by=by)
    async with aiohttp.ClientSession(hub.url) as http, asyncio.timeout(PATIENCE), http.get("/app/silent") as response:
        assert response.status == 200
    await asyncio.wait_for(app.gone.wait(), PATIENCE)


@HOSTINGS
async def test_an_application_starts_and_ends_with_the_server(app: Application, by: Any) -> None:
    async with hosting(app, by, {}, {}):
        assert app.events == ["lifespan.startup"]
    assert app.events == ["lifespan.startup", "lifespan.shutdown"]


async def test_an_application_that_cannot_start_keeps_the_server_from_starting() -> None:
    async def failing(scope: Scope, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no disk"})

    server, listener = create_app(), listen("127.0.0.1", 0)
    server.mount(failing, "/app")
    with pytest.raises(Unavailable, match="did not start: no disk"):
        async with serving(server, listener):
            pass
    listener.close()


async def test_a_connection_serves_one_request_after_the_other(served: Any, dials: Dials) -> None:
    line = await dials(await served())
    for _ in range(2):
        status, headers, body = await line.ask("POST /app/echo HTTP/1.1\nHost: x\nContent-Length: 2\n\nhi")
        assert (status, json.loads(body)["size"], headers["content-length"]) == (200, 2, str(len(body)))
        assert (await line.ask(GET.format("stream")))[1]["transfer-encoding"] == "chunked"
        assert [part async for part in chunks(line)] == [b"one", b"two", b"three"]
        assert (await line.ask(GET.format("nothing")))[0] == 204
        assert (await line.ask("GET /healthz HTTP/1.1\nHost: x\n\n"))[0] == 200


async def test_requests_at_once_are_answered_in_order(app: Application, served: Any, dials: Dials) -> None:
    line = await dials(await served())
    app.release.clear()
    line.writer.write("".join(GET.format(path) for path in ("stream", "echo", "unread")).replace("\n", "\r\n").encode())
    assert (await line.answer())[0] == 200
    parts = chunks(line)
    assert [await anext(parts), await anext(parts)] == [b"one", b"two"]
    app.release.set()
    assert [part async for part in parts] == [b"three"]
    assert [(await line.answer())[0] for _ in range(2)] == [200, 403]


async def test_a_head_request_has_no_body_and_older_clients_no_chunks(served: Any, dials: Dials) -> None:
    line = await dials(await served())
    for path in ("stream", "echo"):
        assert (await line.ask(f"HEAD /app/{path} HTTP/1.1\nHost: x\n\n"))[0] == 200
    assert json.loads((await line.ask("OPTIONS /app/echo HTTP/1.1\nHost: x\n\n"))[2])["method"] == "OPTIONS"
    line = await dials(await served())
    status, headers, _ = await line.ask("GET /app/stream HTTP/1.0\n\n")
    assert (status, headers["connection"]) == (200, "close")
    assert "transfer-encoding" not in headers
    assert await asyncio.wait_for(line.reader.read(), PATIENCE) == b"onetwothree"


async def test_a_failed_application_is_a_bare_500(served: Any, dials: Dials, caplog: pytest.LogCaptureFixture) -> None:
    line = await dials(await served())
    status, _, body = await line.ask(GET.format("failing"))
    assert (status, json.loads(body)) == (500, {"code": 500, "message": "Internal error"})
    assert "RuntimeError: a secret" in caplog.text
    assert (await line.ask(GET.format("breaking")))[0] == 200
    parts = chunks(line)
    assert await anext(parts) == b"one"
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):  # a body without its end
        await anext(parts)


# Clients that go away, read slowly, or send too much


@HOSTINGS
async def test_an_application_is_told_that_its_client_is_gone(app: Application, served: Any, by: Any) -> None:
    hub = await served(by=by)
    host, port = hub.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(GET.format("silent").replace("\n", "\r\n").encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await asyncio.wait_for(app.gone.wait(), PATIENCE)


async def test_a_client_that_goes_away_in_its_body_is_an_end_and_no_error(
    app: Application, served: Any, dials: Dials, caplog: pytest.LogCaptureFixture
) -> None:
    line = await dials(await served())
    line.writer.write(b"POST /app/collect HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
    await until(lambda: app.events[-1] == "collecting")
    line.writer.close()
    await asyncio.wait_for(app.gone.wait(), PATIENCE)
    assert not caplog.records


async def test_bytes_that_are_not_http_end_a_stream_unanswered(app: Application, served: Any, dials: Dials) -> None:
    line = await dials(await served())
    app.release.clear()
    assert (await line.ask(GET.format("stream")))[0] == 200
    line.writer.write(b"nonsense\r\n\r\n")
    with suppress(ConnectionError):
        assert b"400" not in await asyncio.wait_for(line.reader.read(), PATIENCE)


async def test_a_slow_reader_makes_the_application_wait_and_is_cut(app: Application, served: Any, dials: Dials) -> None:
    hub = await served(limits={"write_timeout": 1.0})
    line = await dials(hub)
    line.writer.transport.pause_reading()
    line.writer.write(GET.format("endless").replace("\n", "\r\n").encode())
    neighbour = await dials(hub)
    while not app.gone.is_set():
        assert (await neighbour.ask("GET /healthz HTTP/1.1\nHost: x\n\n"))[0] == 200
        await asyncio.sleep(0.01)
    assert app.written < 64 * 1024 * 1024  # what the sockets of both ends hold, not what a second would give


async def test_a_reader_that_pauses_gets_everything(app: Application, served: Any, dials: Dials) -> None:
    line = await dials(await served())
    line.writer.write(GET.format("endless").replace("\n", "\r\n").encode())
    assert (await line.answer())[0] == 200
    parts = chunks(line)
    async with asyncio.timeout(PATIENCE):
        for _ in range(3):
            line.writer.transport.pause_reading()
            before = -1
            while before != app.written:  # until it waits
                before = app.written
                await asyncio.sleep(0.05)
            line.writer.transport.resume_reading()
            for _ in range(128):
                assert await anext(parts) == PART


@pytest.mark.covers("strangers-requests")
async def test_a_body_is_read_up_to_the_limit_of_a_message(served: Any, dials: Dials) -> None:
    hub = await served(limits={"max_message": 2_000_000})
    post = "POST /app/private/echo HTTP/1.1\nHost: x\nContent-Length: {}\n\n"
    line = await dials(hub)
    for size in (60_000, 70_000, 2_000_000):
        assert json.loads((await line.ask(post.format(size) + "y" * size))[2])["size"] == size
    status, _, body = await line.ask(post.format(2_000_001) + "y" * 2_000_001)
    assert (status, json.loads(body)["code"]) == (413, 413)


@pytest.mark.covers("strangers-held")
async def test_little_is_read_of_a_client_that_is_not_authenticated(served: Any, dials: Dials) -> None:
    hub = await served()
    for path, size, status in (("echo", 64 * 1024, 200), ("echo", 64 * 1024 + 1, 413), ("unread", 10_000_000, 403)):
        line = await dials(hub)
        line.writer.write(f"POST /app/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        line.writer.write(b"y" * min(size, 200_000))
        assert (await line.answer())[0] == status


@pytest.mark.covers("strangers-requests")
async def test_half_a_request_has_a_deadline(served: Any, dials: Dials) -> None:
    hub = await served(limits={"handshake_timeout": 0.3})
    half = await dials(hub)
    half.writer.write(b"POST /app/echo HTTP/1.1\r\nHost:")
    assert await half.is_over()
    body = await dials(hub)
    assert (await body.ask("POST /app/echo HTTP/1.1\nHost: x\nContent-Length: 10\n\nhal"))[0] == 408
    assert await body.is_over()


@pytest.mark.covers("strangers-requests")
async def test_an_authenticated_body_has_more_time(served: Any, dials: Dials) -> None:
    hub = await served(limits={"handshake_timeout": 0.3}, auth=DefaultAuthenticationProvider(KEY))
    line = await dials(hub)
    head = f"POST /app/private/echo HTTP/1.1\nHost: x\nAuthorization: Bearer {KEY}\nContent-Length: 4\n\n"
    line.writer.write(head.replace("\n", "\r\n").encode() + b"ha")
    await asyncio.sleep(1.0)  # the time that would be too long
    line.writer.write(b"lf")
    assert json.loads((await line.answer())[2])["size"] == 4


@pytest.mark.covers("strangers-connections")
async def test_newcomers_are_limited_and_streams_of_others_stay(app: Application, served: Any, dials: Dials) -> None:
    hub = await served(limits={"newcomers_per_address": 4, "newcomers": 100}, auth=DefaultAuthenticationProvider(KEY))
    app.release.clear()
    inside = await dials(hub)
    head = f"GET /app/private/stream HTTP/1.1\nHost: x\nAuthorization: Bearer {KEY}\n\n"
    assert (await inside.ask(head))[0] == 200
    outside = [await dials(hub) for _ in range(6)]
    assert await outside[0].is_over()
    assert (await outside[-1].ask("GET /app/private/stream HTTP/1.1\nHost: x\n\n"))[0] == 401
    app.release.set()
    assert [part async for part in chunks(inside)] == [b"one", b"two", b"three"]


@pytest.mark.covers("strangers-keys")
async def test_many_wrong_keys_are_answered_later_and_a_right_one_at_once(served: Any) -> None:
    hub = await served(auth=DefaultAuthenticationProvider(KEY))
    clock = asyncio.get_running_loop().time

    async def ask(key: str) -> int:
        return (await fetch(f"{hub.url}/app/private/echo", headers={"Authorization": f"Bearer {key}"})).status

    assert [await ask("wrong") for _ in range(10)] == [401] * 10
    begun = clock()
    assert await ask("wrong") == 401
    assert clock() - begun >= 1.0
    assert await ask(KEY) == 200


@pytest.mark.covers("strangers-proxy")
async def test_behind_a_trusted_proxy_the_client_is_the_one_that_it_names(served: Any) -> None:
    headers = {"X-Forwarded-For": "198.51.100.7"}
    for proxies, client in (((), "127.0.0.1"), ((ip_network("127.0.0.0/8"),), "198.51.100.7")):
        hub = await served(trusted_proxies=proxies)
        assert (await fetch(f"{hub.url}/app/echo", headers=headers)).json["client"] == client


@pytest.mark.covers("cors")
@HOSTINGS
async def test_host_names_and_origins_are_checked_as_elsewhere(served: Any, by: Any) -> None:
    hub = await served(by=by, cors_origins=("https://page.example",), trusted_hosts=frozenset())
    asking = {"Origin": "https://page.example", "Access-Control-Request-Method": "DELETE"}
    for foreign in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        assert (await fetch(f"{hub.url}/app/echo", headers=foreign)).status == 400
    status, headers, _ = await fetch(f"{hub.url}/app/echo", headers={"Origin": "https://page.example"})
    assert (status, headers["access-control-allow-origin"]) == (200, "https://page.example")
    status, headers, _ = await fetch(f"{hub.url}/app/echo", "OPTIONS", headers=asking)
    assert (status, "DELETE" in headers["access-control-allow-methods"]) == (200, True)


# The end


async def test_a_stream_ends_with_the_server(app: Application, dials: Dials) -> None:
    app.release.clear()
    async with hosting(app, serving, {}, {}) as hub:
        line, kept = await dials(hub), await dials(hub)
        assert (await line.ask(GET.format("stream")))[0] == 200
        assert (await kept.ask(GET.format("silent")))[0] == 200
    parts = [part async for part in chunks(line)]  # the lifespan released it
    assert parts == [b"one", b"two", b"three"]
    assert await line.is_over()
    with suppress(ConnectionError):
        await kept.is_over()
    await until(app.gone.is_set)


async def test_a_server_that_drains_takes_no_new_requests_for_an_application(served: Any, dials: Dials) -> None:
    hub = await served()
    line = await dials(hub)
    await hub.app.drain()
    assert (await line.ask(GET.format("echo")))[0] == 503
