"""No sticky sessions: a request may come to any node, and is answered by the one that has its session."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from a2c_smcp.server import Settings, create_app
from a2c_smcp.server.directory.nodes import Pace
from a2c_smcp.server.directory.redis import RedisDirectory
from a2c_smcp.server.run import address_of, listen
from tests.cluster import STEADY, Front, serving_node
from tests.conftest import TRANSPORTS, Hub
from tests.directory.tls import certify
from tests.peer import PATIENCE, Peer
from tests.server.test_mounting import hosting
from tests.valkey import Valkey, running_valkey

RESULT = {"content": [{"type": "text", "text": "三 ☃"}], "isError": False}
NO_SUCH_SESSION = {"code": 400, "message": "Bad request: no such session"}
QUICK = Pace(lease=2.0, beat=0.2, margin=0.3, patience=0.5, retry=0.1, return_grace=1.0, linger=0.5)

Start = Callable[..., Awaitable[Hub]]


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with running_valkey() as valkey:
        yield valkey


@pytest.fixture
def prefix() -> str:
    """A place in the store that no other test knows."""
    return f"test-{uuid4().hex[:12]}:"


@pytest.fixture
async def start(valkey: Valkey, prefix: str) -> AsyncIterator[Start]:
    """Starts a node: `await start("n1", limits={…})`."""
    async with AsyncExitStack() as stack:

        async def start(name: str, **settings: Any) -> Hub:
            return await stack.enter_async_context(serving_node(valkey.url, prefix, name, **settings))

        yield start


@pytest.fixture
async def nodes(start: Start) -> list[Hub]:
    return [await start(name) for name in ("n1", "n2", "n3")]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as http:
        yield http


@pytest.fixture
async def register(valkey: Valkey, prefix: str) -> AsyncIterator[Callable[..., Awaitable[RedisDirectory]]]:
    """Takes a lease without serving: `await register("n9", "http://…")`."""
    async with AsyncExitStack() as stack:

        async def register(name: str, url: str) -> RedisDirectory:
            directory = RedisDirectory(valkey.url, node=name, node_url=url, prefix=prefix, pace=STEADY)
            await directory.start()
            stack.push_async_callback(directory.close)
            return directory

        yield register


class Session:
    """An Engine.IO session by hand, of which every request names the node that it goes to."""

    def __init__(self, http: aiohttp.ClientSession, sid: str) -> None:
        self.http = http
        self.sid = sid

    @classmethod
    async def open(cls, http: aiohttp.ClientSession, at: str) -> Session:
        """Opened and connected to `/smcp` at one node."""
        async with http.get(f"{at}/socket.io/?EIO=4&transport=polling") as response:
            session = cls(http, json.loads((await response.text())[1:])["sid"])
        assert await session.post(at, "40/smcp,") == (200, "OK")
        assert (await session.get(at))[1].startswith("40/smcp,")
        return session

    def address(self, at: str, transport: str = "polling") -> str:
        return f"{at}/socket.io/?EIO=4&transport={transport}&sid={self.sid}"

    async def get(self, at: str, **options: Any) -> tuple[int, str]:
        async with self.http.get(self.address(at), **options) as response:
            return response.status, await response.text()

    async def post(self, at: str, body: Any, **options: Any) -> tuple[int, str]:
        async with self.http.post(self.address(at), data=body, **options) as response:
            return response.status, await response.text()

    async def upgrade(self, at: str) -> aiohttp.ClientWebSocketResponse:
        socket = await self.http.ws_connect(self.address(at, "websocket"), max_msg_size=0)
        await socket.send_str("2probe")
        assert await socket.receive_str(timeout=PATIENCE) == "3probe"
        await socket.send_str("5")
        return socket


async def converse(agent: Peer, computer: Peer, office: str) -> None:
    """They meet, one calls the other, and they part."""
    await computer.join("computer", "laptop", office)
    await agent.join("agent", "planner", office)
    await computer.hears("notify:enter_office", agent="planner")
    computer.answers("client:tool_call", RESULT)
    for _ in range(3):
        assert await agent.call_tool("laptop") == RESULT
    assert await computer.ask("server:leave_office", {"office_id": office}) == (True, None)
    assert await agent.hears("notify:leave_office") == {"office_id": office, "computer": "laptop"}


async def echoes(socket: aiohttp.ClientWebSocketResponse, text: str = "") -> None:
    """An event is answered: here, with its refusal."""
    await socket.send_str(f'42/smcp,7["no:such_event",{json.dumps({"text": text})}]')
    while not (frame := await socket.receive_str(timeout=PATIENCE)).startswith("43/smcp,7["):
        pass
    assert json.loads(frame.partition(",7")[2])[0]["code"] == 400


@pytest.mark.covers("any-node")
@pytest.mark.parametrize("transport", ["polling", "upgrade"])
async def test_clients_work_together_though_each_request_goes_to_another_node(
    nodes: list[Hub], office: str, transport: str
) -> None:
    async with Front(nodes) as front, AsyncExitStack() as stack:
        peers = [await Peer.connect(front.url, transports=TRANSPORTS[transport]) for _ in range(2)]
        for peer in peers:
            stack.push_async_callback(peer.close)
        assert {peer.client.transport() for peer in peers} == {TRANSPORTS[transport][-1]}
        await converse(*peers, office)
        assert all(peer.sid.startswith("n1.") for peer in peers)
        assert len(front.asked) > 1


@pytest.mark.covers("any-node")
async def test_a_session_is_polled_at_whichever_node(nodes: list[Hub], http: aiohttp.ClientSession) -> None:
    session = await Session.open(http, nodes[0].url)
    assert session.sid.startswith("n1.")
    for hub in (*nodes, *nodes):
        assert await session.post(hub.url, '42/smcp,1["no:such_event",{}]') == (200, "OK")
        status, packet = await session.get(hub.url)
        assert (status, packet[:10]) == (200, "43/smcp,1[")
    assert await session.post(nodes[2].url, "1") == (200, "OK")
    for hub in nodes:
        assert await session.get(hub.url) == (400, json.dumps(NO_SUCH_SESSION, separators=(",", ":")))


@asynccontextmanager
async def mounted_node(store: str, prefix: str, name: str) -> AsyncIterator[str]:
    """A node in an application of somebody else, whose web server knows nothing of ours and starts nothing."""
    listener = listen("127.0.0.1", 0)
    url = f"http://{address_of(listener)}"
    app = create_app(Settings(directory=RedisDirectory(store, node=name, prefix=prefix, node_url=url, pace=STEADY)))
    listener.close()
    async with hosting(Starlette(routes=[Mount("/smcp", app)])) as url:
        yield f"{url}/smcp"
        await app.close()


@pytest.fixture(params=["served", "mounted"])
async def elsewhere(request: pytest.FixtureRequest, start: Start, valkey: Valkey, prefix: str) -> AsyncIterator[str]:
    """The address of another node, which our own web server or somebody else's serves."""
    if request.param == "served":
        yield (await start("n2")).url
        return
    async with mounted_node(valkey.url, prefix, "n2") as url:
        yield url


@pytest.mark.covers("any-node")
async def test_a_session_is_upgraded_through_another_node(
    start: Start, http: aiohttp.ClientSession, elsewhere: str
) -> None:
    session = await Session.open(http, (await start("n1")).url)
    async with await session.upgrade(elsewhere) as socket:
        await echoes(socket)
        await echoes(socket, "x" * 3_000_000)
        await socket.send_str("1")
        assert (await socket.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 1000


@pytest.mark.covers("any-node")
async def test_nodes_reach_each_other_over_tls(
    start: Start, elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certify(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    home = (await start("n1", tls=tmp_path)).url.replace("http:", "https:")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as http:
        session = await Session.open(http, home)
        assert await session.post(elsewhere, "3") == (200, "OK")
        async with await session.upgrade(elsewhere) as socket:
            await echoes(socket, "x" * 1_000_000)


@pytest.mark.covers("any-node")
async def test_the_node_of_a_session_notices_that_its_client_is_gone(
    start: Start, http: aiohttp.ClientSession, elsewhere: str, office: str
) -> None:
    home = await start("n1")
    watcher = await Peer.connect(home.url, transports=["websocket"])
    await watcher.join("agent", "planner", office)
    join = f'42/smcp,1["server:join_office",{{"role":"computer","name":"%s","office_id":"{office}"}}]'
    upgraded, polling = [await Session.open(http, home.url) for _ in range(2)]
    socket = await upgraded.upgrade(elsewhere)
    await socket.send_str(join % "upgraded")
    await watcher.hears("notify:enter_office", computer="upgraded")
    await polling.post(elsewhere, join % "polling")
    await watcher.hears("notify:enter_office", computer="polling")
    while not (await polling.get(elsewhere))[1].endswith("[true,null]"):
        pass

    waiting = asyncio.ensure_future(polling.get(elsewhere))
    await asyncio.wait([waiting], timeout=0.2)
    waiting.cancel()
    await watcher.hears("notify:leave_office", computer="polling")
    await socket.close(code=1001)
    await watcher.hears("notify:leave_office", computer="upgraded")
    await watcher.close()


@pytest.mark.covers("any-node")
async def test_a_post_that_another_node_refuses_ends_its_session(start: Start, http: aiohttp.ClientSession) -> None:
    home, elsewhere = await start("n1"), await start("n2", limits={"max_message": 50_000})
    for body, status in (("x", 400), ("4" + "x" * 100_000, 413)):
        session = await Session.open(http, home.url)
        assert (await session.post(elsewhere.url, body))[0] == status
        assert (await session.get(home.url))[0] == 400


@pytest.mark.covers("any-node")
@pytest.mark.parametrize(
    "sid", ["n9.AAAA", "n1.AAAA", "127.0.0.1:80.AAAA", "http://x/.A", "@.A", ".", "é.A", "%0d%0a.A"]
)
async def test_an_invented_session_id_is_refused_at_once(
    nodes: list[Hub], http: aiohttp.ClientSession, sid: str
) -> None:
    session = Session(http, sid)
    for status, text in (await session.get(nodes[1].url), await session.post(nodes[1].url, "3")):
        assert (status, json.loads(text)) == (400, NO_SUCH_SESSION)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await http.ws_connect(session.address(nodes[1].url, "websocket"))
    assert refusal.value.status == 400


@pytest.mark.covers("any-node")
async def test_the_client_is_told_that_the_node_of_its_session_does_not_answer(
    start: Start, register: Callable[..., Awaitable[Any]], http: aiohttp.ClientSession
) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As one that is killed in the middle of a request."""
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    hub = await start("n1")
    dying = await asyncio.start_server(die, "127.0.0.1", 0)
    closed = listen("127.0.0.1", 0)
    await register("dying", "http://{}:{}".format(*dying.sockets[0].getsockname()))
    await register("closed", f"http://{address_of(closed)}")
    await register("nowhere", "")
    closed.close()
    for name in ("dying", "closed", "nowhere"):
        session = Session(http, f"{name}.AAAA")
        for status, text in (await session.get(hub.url), await session.post(hub.url, "3")):
            assert (status, json.loads(text)["code"]) == (503, 503)
            assert f"node '{name}'" in text
    for name, error in (("dying", aiohttp.ClientConnectionError), ("closed", aiohttp.WSServerHandshakeError)):
        with pytest.raises(error):
            await http.ws_connect(Session(http, f"{name}.AAAA").address(hub.url, "websocket"))
    dying.close()


@pytest.mark.covers("any-node")
async def test_when_its_node_is_gone_a_session_ends_at_the_others(
    start: Start, valkey: Valkey, prefix: str, http: aiohttp.ClientSession
) -> None:
    elsewhere = await start("n2")
    async with serving_node(valkey.url, prefix, "n1") as home:
        session = await Session.open(http, home.url)
        socket = await (await Session.open(http, home.url)).upgrade(elsewhere.url)
        waiting = asyncio.ensure_future(session.get(elsewhere.url))
        await echoes(socket)
    assert (await waiting)[0] == 200
    while (message := await socket.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.TEXT:
        pass
    assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    assert (await session.get(elsewhere.url))[0] in (400, 503)


@pytest.mark.covers("any-node")
async def test_when_the_node_in_between_is_gone_a_session_ends_where_it_is(
    start: Start, valkey: Valkey, prefix: str, http: aiohttp.ClientSession
) -> None:
    home = await start("n1")
    sessions = [await Session.open(http, home.url) for _ in range(3)]
    async with serving_node(valkey.url, prefix, "n2") as between:
        socket = await sessions[0].upgrade(between.url)
        await echoes(socket)
        waiting = asyncio.ensure_future(sessions[1].get(between.url))
        assert await sessions[2].post(between.url, "3") == (200, "OK")
    while (await socket.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.TEXT:
        pass
    assert (await waiting)[0] == 503
    async with asyncio.timeout(PATIENCE):
        while [(await session.post(home.url, "3"))[0] for session in sessions] != [400, 400, 200]:
            pass


@pytest.mark.covers("any-node", "limit-unread")
async def test_backpressure_of_a_slow_client_reaches_the_node_of_its_session(
    start: Start, http: aiohttp.ClientSession, elsewhere: str, office: str
) -> None:
    home = await start("n1", limits={"unread_bytes": 4_000_000, "write_timeout": 1.0})
    session = await Session.open(http, home.url)
    socket = await session.upgrade(elsewhere)
    await socket.send_str(f'42/smcp,1["server:join_office",{{"role":"computer","name":"c","office_id":"{office}"}}]')
    while await socket.receive_str(timeout=PATIENCE) != "43/smcp,1[true,null]":
        pass
    agent = await Peer.connect(home.url, transports=["websocket"])
    await agent.join("agent", "planner", office)
    transport = socket._response.connection.transport
    transport.pause_reading()

    text, codes = "x" * 1_000_000, set()
    async with asyncio.timeout(3 * PATIENCE):
        while 404 not in codes:  # until then the networks' own buffers take some, and what does not fit is refused
            calls = (agent.call_tool("c", params={"text": text}, timeout=1) for _ in range(20))
            codes |= {answer["code"] for answer in await asyncio.gather(*calls)}
    assert codes <= {404, 408, 429}
    await agent.hears("notify:leave_office", computer="c")
    transport.abort()
    await agent.close()


@pytest.mark.covers("node-secret")
async def test_only_a_node_with_the_secret_speaks_for_a_client(
    start: Start, register: Callable[..., Awaitable[Any]], http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hub, directory = await start("n1"), await register("n2", "http://127.0.0.1:9")
    secret = await directory.secret()
    for shown, address in ((secret, "192.0.2.7"), ("made up", "127.0.0.1"), ("", "127.0.0.1")):
        headers = {"x-a2c-node": shown, "x-a2c-client": "https 192.0.2.7 4711"}
        async with http.get(f"{hub.url}/socket.io/?EIO=4&transport=polling", headers=headers) as response:
            session = Session(http, json.loads((await response.text())[1:])["sid"])
        await session.post(hub.url, "40/smcp,")
        assert (await session.get(hub.url))[1].startswith("40/smcp,")
        assert f"address='{address}'" in caplog.messages[-1]
    assert secret not in caplog.text


@pytest.mark.covers("node-secret")
async def test_a_request_that_was_passed_on_is_not_passed_on_again(
    start: Start, register: Callable[..., Awaitable[Any]], http: aiohttp.ClientSession
) -> None:
    """A node that others reach under a third one's address: the request ends there."""
    hub = await start("n1")
    directory = await register("astray", hub.url)
    session = Session(http, "astray.AAAA")
    assert json.loads((await session.get(hub.url))[1]) == NO_SUCH_SESSION
    secret = {"x-a2c-node": await directory.secret()}
    other = await Session.open(http, (await start("n2")).url)
    assert json.loads((await other.get(hub.url, headers=secret))[1]) == NO_SUCH_SESSION
    assert (await other.post(hub.url, "3", headers={"x-a2c-node": "made up"}))[0] == 200


@pytest.mark.covers("any-node", "cors", "trusted-hosts")
async def test_the_node_of_a_session_decides_as_if_it_were_asked_directly(
    start: Start, http: aiohttp.ClientSession
) -> None:
    allowed = {"cors_origins": ("https://page.example",), "trusted_hosts": frozenset({"hub.example"})}
    home, elsewhere = await start("n1", **allowed), await start("n2", trusted_hosts=None)
    answers = []
    for hub in (home, elsewhere):
        for headers in (
            {"origin": "https://page.example", "host": "hub.example"},
            {"origin": "https://other.example", "host": "hub.example"},
            {"host": "evil.example"},
        ):
            session = await Session.open(http, home.url)
            async with http.options(session.address(hub.url), headers=headers) as response:
                origin = response.headers.get("access-control-allow-origin")
                answers.append((response.status, origin, await response.read()))
    assert answers[:3] == answers[3:]
    assert [answer[:2] for answer in answers[:3]] == [(200, "https://page.example"), (400, None), (400, None)]


@pytest.mark.covers("any-node")
async def test_readiness_names_the_node_and_says_when_the_store_is_gone(http: aiohttp.ClientSession) -> None:
    async def readiness(url: str) -> tuple[int, Any]:
        async with http.get(f"{url}/readyz") as response:
            return response.status, await response.json()

    async def becomes(url: str, *wanted: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while await readiness(url) != wanted:
                pass

    with running_valkey() as valkey:
        async with serving_node(valkey.url, "a2c:", "n1", pace=QUICK) as hub:
            assert await readiness(hub.url) == (200, {"status": "ready", "node": "n1"})
            valkey.kill()
            await becomes(hub.url, 503, {"status": "degraded", "node": "n1"})
            valkey.start()
            await becomes(hub.url, 200, {"status": "ready", "node": "n1"})


@pytest.mark.covers("any-node")
async def test_a_server_whose_store_is_out_of_reach_does_not_start_but_may_later(prefix: str) -> None:
    with running_valkey() as valkey:
        valkey.kill()
        directory = RedisDirectory(valkey.url, node="n1", prefix=prefix, pace=QUICK)
        app = create_app(Settings(directory=directory))
        async with hosting(Starlette(routes=[Mount("/smcp", app)])) as url, aiohttp.ClientSession() as http:
            address = f"{url}/smcp/socket.io/?EIO=4&transport=polling"
            async with http.get(address) as response:
                assert (response.status, (await response.json())["code"]) == (503, 503)
            valkey.start()
            async with http.get(address) as response:
                assert (response.status, (await response.text())[:9]) == (200, '0{"sid":"')
            await app.close()
