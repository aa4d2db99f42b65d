"""The Server inside of somebody else's application, and the namespace on somebody else's Socket.IO server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import socketio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from a2c_smcp.server import DefaultAuthenticationProvider, Limits, Settings, SMCPApp, SMCPNamespace, create_app
from a2c_smcp.server.freezes import Freeze
from tests.conftest import TRANSPORTS
from tests.peer import NAMESPACE, PATIENCE, Peer, Wire
from tests.stage.calls import RESULT, Gate, running_call, sessions
from tests.stage.frames import UPGRADE
from tests.stage.keys import write_keys
from tests.stage.lines import Line
from tests.stage.members import without_seat
from tests.stage.web import fetch
from tests.waiting import until
from tests.web_server import hosting

pytestmark = pytest.mark.covers("mounting")

Meets = Callable[..., Awaitable[Peer]]
AUTH = {"token": "key"}


@pytest.fixture
async def meets() -> AsyncIterator[Meets]:
    """Connects a client to `/smcp`, or to another namespace."""
    async with AsyncExitStack() as stack:

        async def meet(url: str, transport: str = "websocket", namespace: str = NAMESPACE, **options: Any) -> Peer:
            peer = Peer(socketio.AsyncClient(reconnection=False))
            stack.push_async_callback(peer.close)
            options |= {"transports": TRANSPORTS[transport], "wait_timeout": PATIENCE}
            await peer.client.connect(url, namespaces=[namespace], **options)
            return peer

        yield meet


async def hello(request: Request) -> JSONResponse:
    return JSONResponse({"hello": request.url.path})


async def page(url: str) -> tuple[int, Any]:
    found = await fetch(url)
    return found.status, found.json


async def converse(agent: Peer, computer: Peer) -> None:
    """The whole story: join, notice, call, list, refusals, leave."""
    await agent.join("agent", "planner", "desk")
    await computer.join("computer", "laptop", "desk")
    assert without_seat(await agent.hears("notify:enter_office")) == {"office_id": "desk", "computer": "laptop"}
    computer.answers("client:tool_call", RESULT)
    assert await agent.call_tool("laptop", params={"a": 1}) == RESULT
    assert [session["name"] for session in await sessions(agent)] == ["planner", "laptop"]
    await computer.ask("server:update_desktop", {"computer": "laptop"})
    assert await agent.hears("notify:update_desktop") == {"computer": "laptop", "office_id": "desk"}
    assert (await agent.call_tool("nobody"))["code"] == 404
    assert (await computer.call_tool("laptop"))["code"] == 403
    assert (await agent.ask("server:leave_office", {"office_id": "desk"})) == (True, None)
    assert without_seat(await computer.hears("notify:leave_office")) == {"office_id": "desk", "agent": "planner"}
    assert (await computer.ask("server:leave_office", {"office_id": "desk"})) == (True, None)


@asynccontextmanager
async def mounted(smcp: SMCPApp, where: str) -> AsyncIterator[str]:
    """The Server in an application that has a page of its own and forwards no lifespan."""
    app = Starlette(routes=[Route("/hello", hello), Route("/a2c-hello", hello), Mount(where, smcp)])
    async with hosting(app) as url:
        try:
            yield url
        finally:
            await smcp.drain()
            await smcp.close()


@pytest.mark.parametrize(("where", "prefix"), [("/", ""), ("/a2c", "/a2c"), ("/deep/er", "/deep/er")])
async def test_the_server_works_wherever_it_is_mounted(meets: Meets, where: str, prefix: str) -> None:
    async with mounted(create_app(Settings(metrics=True)), where) as url:
        for transport in TRANSPORTS:
            path = f"{prefix}/socket.io".lstrip("/")
            await converse(*[await meets(url, transport, socketio_path=path) for _ in range(2)])
        assert await page(f"{url}{prefix}/healthz") == (200, {"status": "ok"})
        assert await page(f"{url}{prefix}/readyz") == (200, {"status": "ready"})
        for path in ("/hello", "/a2c-hello"):
            assert await page(url + path) == (200, {"hello": path})


@pytest.mark.covers("limit-handshake")
async def test_connections_are_watched_without_a_lifespan(meets: Meets) -> None:
    limits = Limits(handshake_timeout=0.3)
    async with mounted(create_app(Settings(limits=limits)), "/a2c") as url:
        inside = await meets(url, socketio_path="a2c/socket.io")
        silent = await Wire.open(f"{url}/a2c")
        assert [await silent.receive() for _ in range(2)] == ["1", ""]
        await silent.close()
        await inside.join("computer", "laptop", "desk")


@pytest.mark.covers("version-http")
@pytest.mark.parametrize("transport", ["polling", "websocket"])
async def test_requests_that_are_refused_in_http_are_refused_when_mounted(transport: str) -> None:
    headers = UPGRADE if transport == "websocket" else {}
    async with mounted(create_app(Settings(require_version="0.4")), "/a2c") as url:
        response = await fetch(f"{url}/a2c/socket.io/?EIO=4&transport={transport}", headers=headers)
        assert (response.status, response.headers["x-a2c-error-code"]) == (400, "4008")
        assert response.json["code"] == 4008


@pytest.mark.covers("version-http")
@pytest.mark.parametrize(("version", "code"), [("0.5.0", 4900), ("nonsense", 1000)])
async def test_a_web_server_that_cannot_answer_a_handshake_closes_it_with_a_code(version: str, code: int) -> None:
    smcp, sent = create_app(), asyncio.Queue[Any]()

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            sent.put_nowait(message)
            await send(message)

        await smcp({**scope, "extensions": {}} if scope["type"] == "websocket" else scope, receive, note)

    async with hosting(watched) as url, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(f"{url}/socket.io/?EIO=4&transport=websocket&a2c_version={version}")
        async with asyncio.timeout(PATIENCE):
            while (message := await sent.get())["type"] != "websocket.close":
                pass
        assert message["code"] == code


async def test_a_lifespan_that_is_forwarded_ends_what_runs(meets: Meets) -> None:
    smcp = create_app()
    async with hosting(smcp) as url:
        peer = await meets(url)
        await peer.join("computer", "laptop", "desk")
        await peer.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if "SMCPApp" in repr(task)]


class Chat(socketio.AsyncNamespace):  # type: ignore[misc]  # untyped base
    """What the user's server is for in the first place."""

    async def on_greet(self, sid: str, name: str) -> str:
        await self.emit("greeted", name)
        return f"hello {name}"


PATIENT = Settings(limits=Limits(handshake_timeout=600, ping_interval=600))
"""No session ends by itself."""


class ByHand:
    """What a web server does for an application, step by step."""

    def __init__(self, app: SMCPApp, kind: str, query: str) -> None:
        self.app = app
        self.sent: list[Any] = []
        self.comes: asyncio.Queue[Any] = asyncio.Queue()
        self.fails_with: Exception | None = None
        scheme = {"http": "http", "websocket": "ws"}[kind]
        self.scope = {"type": kind, "method": "GET", "scheme": scheme, "path": "/socket.io/", "headers": []}
        self.scope["query_string"] = f"EIO=4&{query}".encode()
        self.comes.put_nowait({"type": f"{kind}.{'request' if kind == 'http' else 'connect'}"})

    async def _send(self, message: Any) -> None:
        if self.fails_with:
            raise self.fails_with
        self.sent.append(message)

    async def serve(self) -> None:
        await self.app(self.scope, self.comes.get, self._send)


@pytest.mark.covers("transports")
async def test_a_poll_ends_with_the_task_that_serves_it() -> None:
    app = create_app(PATIENT)
    opening = ByHand(app, "http", "transport=polling")
    await opening.serve()
    sid = json.loads(opening.sent[1]["body"][1:])["sid"]
    polling = asyncio.create_task(ByHand(app, "http", f"transport=polling&sid={sid}").serve())
    await asyncio.sleep(0)
    polling.cancel()
    await asyncio.wait([polling])
    await until(lambda: not len(app.sessions))
    await app.close()


@pytest.mark.covers("transports")
async def test_a_websocket_whose_client_is_gone_before_it_is_accepted_leaves_no_session() -> None:
    app = create_app(PATIENT)
    early = ByHand(app, "websocket", "transport=websocket")
    early.fails_with = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        await early.serve()
    await until(lambda: not len(app.sessions))
    await app.close()


@pytest.mark.covers("transports")
async def test_a_task_of_a_closed_websocket_may_go_on() -> None:
    app = create_app(Settings(limits=replace(PATIENT.limits, close_timeout=0.05)))
    websocket = ByHand(app, "websocket", "transport=websocket")
    over = asyncio.Event()

    async def serve() -> None:
        await websocket.serve()
        await asyncio.wait_for(over.wait(), PATIENCE)

    serving = asyncio.create_task(serve())
    await until(lambda: len(app.sessions) == 1 and len(websocket.sent) > 1)
    for channel in app.sessions:
        channel.close()
    websocket.comes.put_nowait({"type": "websocket.disconnect", "code": 1000})
    asyncio.get_running_loop().call_later(0.2, over.set)
    await serving
    await app.close()


@asynccontextmanager
async def own_server(namespace: SMCPNamespace | None = None) -> AsyncIterator[str]:
    """A Socket.IO server of the user's own that carries our namespace beside theirs, and a page."""
    namespace = namespace or SMCPNamespace(DefaultAuthenticationProvider("key"))
    sio = socketio.AsyncServer(async_mode="asgi")
    sio.register_namespace(namespace)
    sio.register_namespace(Chat("/chat"))
    app = socketio.ASGIApp(sio, other_asgi_app=Starlette(routes=[Route("/hello", hello)]))
    async with hosting(app) as url:
        try:
            yield url
        finally:
            await sio.shutdown()
            await namespace.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_namespace_works_on_a_users_own_server(meets: Meets, transport: str) -> None:
    async with own_server() as url:
        await converse(*[await meets(url, transport, auth=AUTH) for _ in range(2)])
        assert await page(f"{url}/hello") == (200, {"hello": "/hello"})


@pytest.mark.covers("auth-refused")
async def test_the_namespace_refuses_clients_without_a_key_on_a_users_own_server(meets: Meets) -> None:
    async with own_server(SMCPNamespace(DefaultAuthenticationProvider("key"), require_version="0.4")) as url:
        refusals: list[Any] = []
        for query, auth in (("?a2c_version=0.4", {"token": "no"}), ("?a2c_version=0.3", {"token": "key"})):
            client = socketio.AsyncClient(reconnection=False)
            client.on("connect_error", refusals.append, namespace=NAMESPACE)
            with pytest.raises(socketio.exceptions.ConnectionError):
                await client.connect(url + query, namespaces=[NAMESPACE], auth=auth, wait_timeout=PATIENCE)
        assert [refusal["data"]["code"] for refusal in refusals] == [401, 4008]
        assert await meets(f"{url}?a2c_version=0.4.2", auth={"token": "key"})


@pytest.mark.covers("freeze")
async def test_the_namespace_lets_nothing_through_to_what_is_frozen(meets: Meets) -> None:
    namespace = SMCPNamespace(DefaultAuthenticationProvider("key"))
    async with own_server(namespace) as url:
        agent, computer = [await meets(url, auth=AUTH) for _ in range(2)]
        await agent.join("agent", "planner", "desk")
        await computer.join("computer", "laptop", "desk")
        call = await running_call(agent, computer, Gate(), timeout=60)
        await namespace.hub.freezes.freeze(Freeze("desk", reason="an incident"))
        assert (await call)["code"] == 499
        await computer.hears("notify:tool_call_cancel")
        assert (await agent.call_tool("laptop"))["code"] == 423


NO_EVENTS: list[tuple[Any, ...]] = [
    ("no:such_event", {}), ("connect", {}), ("disconnect", "x"), ("notify:enter_office", {}),
    ("client:tool_call",), ("client:tool_call", {}, {}), ("client:tool_call", "text"), ("client:tool_call", b"bytes"),
    ("server:update_config", {"computer": 3}), ("server:list_room", None),
]  # fmt: skip


async def test_the_namespace_always_answers_on_a_users_own_server(meets: Meets, office: str) -> None:
    async with own_server() as url:
        peer = await meets(url, auth=AUTH)
        for event, *data in NO_EVENTS:
            answer = await peer.ask(event, *data)
            assert (answer["code"], answer["error"]["code"]) == (400, 400), event
        accepted, reason = await peer.ask("server:join_office", {"role": "robot", "name": "a", "office_id": office})
        assert (accepted, reason[:3]) == (False, "400")
        await peer.join("computer", "laptop", office)


@pytest.mark.covers("ack-arguments", "calls-cancel", "calls-resume")
async def test_the_namespace_carries_what_calls_carry_on_a_users_own_server(meets: Meets) -> None:
    async with own_server() as url:
        agent, computer = [await meets(url, auth=AUTH) for _ in range(2)]
        await agent.join("agent", "planner", "desk")
        await computer.join("computer", "laptop", "desk", instance="an-instance-of-mine")
        computer.answers("client:put_blob", lambda data: {"got": data["blob"][::-1], "n": data["n"]})
        answer = await agent.request("client:put_blob", "laptop", blob=b"ab", n=10**30)
        assert answer == {"got": b"ba", "n": 10**30}
        computer.answers("client:several", (1, None, "x"))
        assert await agent.request("client:several", "laptop") == (1, None, "x")
        call = await running_call(agent, computer, Gate(), req_id="r1", timeout=30)
        back = await meets(url, auth=AUTH)
        back.answers("client:tool_call", RESULT)
        await back.join("computer", "laptop", "desk", instance="an-instance-of-mine")
        assert await call == RESULT
        back.answers("client:tool_call", Gate())
        call = asyncio.create_task(agent.call_tool("laptop", req_id="r2", timeout=30))
        await back.was_asked("client:tool_call", times=2)
        assert await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r2"}) is None
        assert (await call)["code"] == 499


@pytest.mark.covers("tell-routing", "tell-order", "tell-refused", "calls-extend")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_namespace_carries_tells_of_computers_in_order_with_answers(meets: Meets, transport: str) -> None:
    async with own_server() as url:
        agent, computer = [await meets(url, transport, auth=AUTH) for _ in range(2)]
        await agent.join("agent", "planner", "desk")
        await computer.join("computer", "laptop", "desk")

        async def report(call: Any) -> Any:
            for step in range(3):  # without waiting for an ack: the answer follows at once
                told = {"agent": "planner", "req_id": call["req_id"], "progress": step}
                await computer.client.emit("server:tell_progress", told, namespace=NAMESPACE)
            return RESULT

        computer.answers("client:tool_call", report)
        for turn in range(20):
            heard = len(agent.heard)
            assert await agent.call_tool("laptop", req_id=f"r{turn}", extend=True) == RESULT
            told = [(event, data["req_id"], data["progress"]) for event, data in agent.heard[heard:] if "tell" in event]
            assert told == [("notify:tell_progress", f"r{turn}", step) for step in range(3)]
        assert await computer.ask("server:tell_x", {"agent": "planner"}) == {"delivered": True}
        assert (await computer.ask("server:tell_x", {"agent": "stranger"}))["code"] == 404
        assert (await agent.ask("server:tell_x", {"agent": "planner"}))["code"] == 403


@pytest.mark.covers("auth-expiry")
async def test_the_namespace_disconnects_clients_that_a_reload_no_longer_admits(meets: Meets, tmp_path: Path) -> None:
    keys = write_keys(tmp_path, {"key": "alice"})
    namespace = SMCPNamespace(DefaultAuthenticationProvider(keys_file=keys))
    async with own_server(namespace) as url:
        agent, ended = await meets(url, auth=AUTH), asyncio.Event()
        agent.client.on("disconnect", lambda *_: ended.set(), namespace=NAMESPACE)
        await agent.join("agent", "planner", "desk")
        keys.write_text("{}", "utf-8")
        await namespace.reload()
        await asyncio.wait_for(ended.wait(), PATIENCE)
        assert len(namespace.hub.connections) == 0


async def test_other_namespaces_of_a_users_own_server_keep_working(meets: Meets) -> None:
    async with own_server() as url:
        both = socketio.AsyncClient(reconnection=False)
        greeted: asyncio.Queue[str] = asyncio.Queue()
        both.on("greeted", greeted.put, namespace="/chat")
        await both.connect(url, namespaces=["/chat", NAMESPACE], auth=AUTH, wait_timeout=PATIENCE)
        stranger = await meets(url, namespace="/chat")
        join = {"role": "computer", "name": "laptop", "office_id": "desk"}
        assert await both.call("server:join_office", join, namespace=NAMESPACE, timeout=PATIENCE) == (True, None)
        for client in (both, stranger.client):
            assert await client.call("greet", "you", namespace="/chat", timeout=PATIENCE) == "hello you"
            assert await asyncio.wait_for(greeted.get(), PATIENCE) == "you"
        await stranger.client.emit("server:join_office", join, namespace="/chat")
        assert await stranger.client.call("greet", "me", namespace="/chat", timeout=PATIENCE) == "hello me"
        agent = await meets(url, auth=AUTH)
        await agent.join("agent", "planner", "desk")
        assert [session["name"] for session in await sessions(agent)] == ["planner", "laptop"]
        await both.disconnect()
        assert without_seat(await agent.hears("notify:leave_office")) == {"office_id": "desk", "computer": "laptop"}


@pytest.mark.covers("strangers-held")
async def test_a_session_with_endless_headers_is_refused() -> None:
    async with hosting(create_app(Settings())) as url:
        for size, status in ((20_000, 200), (50_000, 413)):
            found = await fetch(f"{url}/socket.io/?EIO=4&transport=polling", headers={"x-long": "x" * size})
            assert found.status == status


@pytest.mark.covers("slow-bodies")
async def test_bodies_that_are_on_their_way_are_limited_there_too() -> None:
    async with hosting(create_app(Settings(limits=Limits(arriving_bytes=100_000)))) as url:
        host, port = url.removeprefix("http://").split(":")
        line, slow, other = [Line(*await asyncio.open_connection(host, port)) for _ in range(3)]
        await line.open()
        head = f"POST {line.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
        slow.writer.write(head.encode() + b"x" * 150_000)
        assert (await slow.answer())[0] == 429
        await other.open()
        for each in (line, slow, other):
            await each.end()
