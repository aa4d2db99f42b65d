"""No sticky sessions: a request may come to any node, and is answered by the one that has its session."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from a2c_smcp.server import Settings, create_app
from a2c_smcp.server.cluster.memory import Pace
from a2c_smcp.server.cluster.redis import RedisDirectory
from a2c_smcp.server.run import address_of, listen
from tests.cluster import STEADY, Front, serving_node
from tests.conftest import TRANSPORTS, Hub, Seat
from tests.peer import PATIENCE
from tests.stage.calls import both
from tests.stage.members import without_seat
from tests.stage.polling import Poller
from tests.stage.tls import certificate
from tests.stage.web import Http, fetch
from tests.valkey import Valkey, running_valkey
from tests.waiting import until, until_it_goes
from tests.web_server import hosting

NO_SUCH_SESSION = {"code": 400, "message": "Bad request: no such session"}
QUICK = Pace(lease=2.0, beat=0.2, margin=0.3, patience=0.5, retry=0.1, return_grace=1.0, linger=0.5)

Start = Callable[..., Awaitable[Hub]]
Register = Callable[..., Awaitable[RedisDirectory]]

pytestmark = pytest.mark.covers("any-node")


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
async def register(valkey: Valkey, prefix: str) -> AsyncIterator[Register]:
    """Takes a lease without serving: `await register("n9", "http://…")`."""
    async with AsyncExitStack() as stack:

        async def register(name: str, url: str) -> RedisDirectory:
            directory = RedisDirectory(valkey.url, node=name, node_url=url, prefix=prefix, pace=STEADY)
            await directory.start()
            stack.push_async_callback(directory.close)
            return directory

        yield register


async def echoes(socket: aiohttp.ClientWebSocketResponse, text: str = "") -> None:
    """An event is answered: here, with its refusal."""
    await socket.send_str(f'42/smcp,7["no:such_event",{json.dumps({"text": text})}]')
    while not (frame := await socket.receive_str(timeout=PATIENCE)).startswith("43/smcp,7["):
        pass
    assert json.loads(frame.partition(",7")[2])[0]["code"] == 400


@pytest.mark.parametrize("transport", ["polling", "upgrade"])
async def test_clients_work_together_though_each_request_goes_to_another_node(
    nodes: list[Hub], connect: Any, office: str, transport: str
) -> None:
    result = {"content": [{"type": "text", "text": "三 ☃"}], "isError": False}
    async with Front(nodes) as front:
        agent, computer = peers = await both(partial(connect, transport=transport), front, office)
        assert {peer.client.transport() for peer in peers} == {TRANSPORTS[transport][-1]}
        computer.answers("client:tool_call", result)
        for _ in range(3):
            assert await agent.call_tool("laptop") == result
        assert await computer.ask("server:leave_office", {"office_id": office}) == (True, None)
        assert without_seat(await agent.hears("notify:leave_office")) == {"office_id": office, "computer": "laptop"}
        assert all(peer.sid.startswith("n1.") for peer in peers)
        assert len(front.asked) > 1
        for peer in peers:
            await peer.close()


async def test_a_session_is_polled_at_whichever_node(nodes: list[Hub], http: Http) -> None:
    session = await Poller(http, nodes[0].url).open()
    assert session.sid.startswith("n1.")
    for hub in (*nodes, *nodes):
        assert await session.post('42/smcp,1["no:such_event",{}]', hub.url) == (200, "OK")
        status, packet = await session.get(hub.url)
        assert (status, packet[:10]) == (200, "43/smcp,1[")
    assert await session.post("1", nodes[2].url) == (200, "OK")
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


async def test_a_session_is_upgraded_at_another_node(start: Start, http: Http, elsewhere: str) -> None:
    session = await Poller(http, (await start("n1")).url).open()
    async with await session.upgrade(elsewhere) as socket:
        await echoes(socket)
        await echoes(socket, "x" * 3_000_000)
        await socket.send_str("1")
        assert (await socket.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 1000


async def test_nodes_reach_each_other_over_tls(
    start: Start, elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate(tmp_path, "cert")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    home = (await start("n1", tls=tmp_path)).url.replace("http:", "https:")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as http:
        session = await Poller(http, home).open()
        assert await session.post("3", elsewhere) == (200, "OK")
        async with await session.upgrade(elsewhere) as socket:
            await echoes(socket, "x" * 1_000_000)


async def test_the_node_of_a_session_notices_that_its_client_is_gone(
    start: Start, http: Http, elsewhere: str, seat: Seat, office: str
) -> None:
    home = await start("n1")
    watcher = await seat("agent", "planner", office, hub=home)
    join = f'42/smcp,1["server:join_office",{{"role":"computer","name":"%s","office_id":"{office}"}}]'
    upgraded, polling = [await Poller(http, home.url).open() for _ in range(2)]
    socket = await upgraded.upgrade(elsewhere)
    await socket.send_str(join % "upgraded")
    await watcher.hears("notify:enter_office", computer="upgraded")
    await polling.post(join % "polling", elsewhere)
    await watcher.hears("notify:enter_office", computer="polling")
    while not (await polling.get(elsewhere))[1].endswith("[true,null]"):
        pass

    waiting = asyncio.ensure_future(polling.get(elsewhere))
    await asyncio.wait([waiting], timeout=0.2)
    waiting.cancel()
    await watcher.hears("notify:leave_office", computer="polling")
    await socket.close(code=1001)
    await watcher.hears("notify:leave_office", computer="upgraded")


async def test_a_post_that_another_node_refuses_ends_its_session(start: Start, http: Http) -> None:
    home, elsewhere = await start("n1"), await start("n2", limits={"max_message": 50_000})
    for body, status in (("x", 400), ("4" + "x" * 100_000, 413)):
        session = await Poller(http, home.url).open()
        assert (await session.post(body, elsewhere.url))[0] == status
        assert (await session.get(home.url))[0] == 400


@pytest.mark.parametrize(
    "sid", ["n9.AAAA", "n1.AAAA", "127.0.0.1:80.AAAA", "http://x/.A", "@.A", ".", "é.A", "%0d%0a.A"]
)
async def test_an_invented_session_is_refused_at_once(nodes: list[Hub], http: Http, sid: str) -> None:
    session = Poller(http, nodes[1].url, sid)
    for status, text in (await session.get(nodes[1].url), await session.post("3", nodes[1].url)):
        assert (status, json.loads(text)) == (400, NO_SUCH_SESSION)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await http.ws_connect(session.url(transport="websocket"))
    assert refusal.value.status == 400


async def test_the_client_is_told_that_the_node_of_its_session_does_not_answer(
    start: Start, register: Register, http: Http
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
        session = Poller(http, hub.url, f"{name}.AAAA")
        for status, text in (await session.get(hub.url), await session.post("3", hub.url)):
            assert (status, json.loads(text)["code"]) == (503, 503)
            assert f"node '{name}'" in text
    for name, error in (("dying", aiohttp.ClientConnectionError), ("closed", aiohttp.WSServerHandshakeError)):
        with pytest.raises(error):
            await http.ws_connect(Poller(http, hub.url, f"{name}.AAAA").url(transport="websocket"))
    dying.close()


async def test_without_its_node_a_session_ends_at_others(start: Start, valkey: Valkey, prefix: str, http: Http) -> None:
    elsewhere = await start("n2")
    async with serving_node(valkey.url, prefix, "n1") as home:
        session = await Poller(http, home.url).open()
        socket = await (await Poller(http, home.url).open()).upgrade(elsewhere.url)
        waiting = asyncio.ensure_future(session.get(elsewhere.url))
        await echoes(socket)
    assert (await waiting)[0] == 200
    while (message := await socket.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.TEXT:
        pass
    assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    assert (await session.get(elsewhere.url))[0] in (400, 503)


async def test_when_the_node_in_between_is_gone_a_session_ends_where_it_is(
    start: Start, valkey: Valkey, prefix: str, http: Http
) -> None:
    home = await start("n1")
    sessions = [await Poller(http, home.url).open() for _ in range(3)]
    async with serving_node(valkey.url, prefix, "n2") as between:
        socket = await sessions[0].upgrade(between.url)
        await echoes(socket)
        waiting = asyncio.ensure_future(sessions[1].get(between.url))
        assert await sessions[2].post("3", between.url) == (200, "OK")
    while (await socket.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.TEXT:
        pass
    assert (await waiting)[0] == 503
    async with asyncio.timeout(PATIENCE):
        while [(await session.post("3", home.url))[0] for session in sessions] != [400, 400, 200]:
            pass


@pytest.mark.covers("limit-unread")
async def test_backpressure_of_a_slow_client_reaches_the_node_of_its_session(
    start: Start, http: Http, elsewhere: str, seat: Seat, office: str
) -> None:
    home = await start("n1", limits={"unread_bytes": 4_000_000, "write_timeout": 1.0})
    session = await Poller(http, home.url).open()
    socket = await session.upgrade(elsewhere)
    await socket.send_str(f'42/smcp,1["server:join_office",{{"role":"computer","name":"c","office_id":"{office}"}}]')
    while await socket.receive_str(timeout=PATIENCE) != "43/smcp,1[true,null]":
        pass
    agent = await seat("agent", "planner", office, hub=home)
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


@pytest.mark.covers("node-secret")
async def test_only_a_node_with_the_secret_speaks_for_a_client(
    start: Start, register: Register, http: Http, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hub, directory = await start("n1"), await register("n2", "http://127.0.0.1:9")
    secret = await directory.secret()
    for shown, address in ((secret, "192.0.2.7"), ("made up", "127.0.0.1"), ("", "127.0.0.1")):
        headers = {"x-a2c-node": shown, "x-a2c-client": "https 192.0.2.7 4711"}
        await Poller(http, hub.url).open(headers=headers)
        assert f"address='{address}'" in caplog.messages[-1]
    assert secret not in caplog.text


@pytest.mark.covers("node-secret")
async def test_a_request_that_was_passed_on_is_not_passed_again(start: Start, register: Register, http: Http) -> None:
    """A node that others reach under a third one's address: the request ends there."""
    hub = await start("n1")
    directory = await register("astray", hub.url)
    session = Poller(http, hub.url, "astray.AAAA")
    assert json.loads((await session.get(hub.url))[1]) == NO_SUCH_SESSION
    secret = {"x-a2c-node": await directory.secret()}
    other = await Poller(http, (await start("n2")).url).open()
    assert json.loads((await other.get(hub.url, headers=secret))[1]) == NO_SUCH_SESSION
    assert (await other.post("3", hub.url, headers={"x-a2c-node": "made up"}))[0] == 200


@pytest.mark.covers("cors", "trusted-hosts")
async def test_the_node_of_a_session_decides_as_if_asked_directly(start: Start, http: Http) -> None:
    allowed = {"cors_origins": ("https://page.example",), "trusted_hosts": frozenset({"hub.example"})}
    home, elsewhere = await start("n1", **allowed), await start("n2", trusted_hosts=None)
    answers = []
    for hub in (home, elsewhere):
        for headers in (
            {"origin": "https://page.example", "host": "hub.example"},
            {"origin": "https://other.example", "host": "hub.example"},
            {"host": "evil.example"},
        ):
            session = await Poller(http, home.url).open()
            status, told, text = await fetch(session.url(hub.url), "OPTIONS", headers=headers)
            answers.append((status, told.get("access-control-allow-origin"), text))
    assert answers[:3] == answers[3:]
    assert [answer[:2] for answer in answers[:3]] == [(200, "https://page.example"), (400, None), (400, None)]


async def test_readiness_names_the_node_and_says_when_the_store_is_gone() -> None:
    with running_valkey() as valkey:
        async with serving_node(valkey.url, "a2c:", "n1", pace=QUICK) as hub:

            async def becomes(code: int, status: str) -> None:
                found = await fetch(f"{hub.url}/readyz")
                assert (found.status, found.json) == (code, {"status": status, "node": "n1"})

            await becomes(200, "ready")
            valkey.kill()
            await until_it_goes(lambda: becomes(503, "degraded"))
            valkey.start()
            await until_it_goes(lambda: becomes(200, "ready"))


async def test_a_mounted_server_whose_store_is_out_of_reach_is_not_ready_and_joins_it_later(prefix: str) -> None:
    with running_valkey() as valkey:
        valkey.kill()
        directory = RedisDirectory(valkey.url, node="n1", prefix=prefix, pace=QUICK)
        app = create_app(Settings(directory=directory))
        async with hosting(Starlette(routes=[Mount("/smcp", app)])) as url:
            address = f"{url}/smcp/socket.io/?EIO=4&transport=polling"
            assert (await fetch(address)).status == 200
            assert not directory.is_ready
            valkey.start()
            await until(lambda: directory.is_ready)
            opened = await fetch(address)
            assert (opened.status, opened.text[:9]) == (200, '0{"sid":"')
            await app.close()
