"""Sessions of operators on several nodes: their ends, how long they may be idle, and restarts."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from a2c_smcp.console.operator.console import OperatorConsole, SignedSessions
from a2c_smcp.server import DefaultAuthenticationProvider
from a2c_smcp.server.admin.node_view import SessionSeen
from a2c_smcp.server.auth.api_keys import OperatorKeys
from a2c_smcp.server.http_requests import CONSOLE_PATH
from tests.cluster import serving_node
from tests.conftest import Hub
from tests.on_disk import content_of
from tests.stage.web import fetch
from tests.valkey import Valkey

ADMIN = "operator-0123456789"
IDLE, LONGEST = 100.0, 1000.0


@dataclass
class Nodes:
    """The nodes of a Server, of which some may be out of reach for the others, and their common clock."""

    now: float = 1_000_000.0
    known: list[SignedSessions] = field(default_factory=list)
    lost: list[SignedSessions] = field(default_factory=list)

    def start(self, key: str = ADMIN) -> SignedSessions:
        others = _Others(self)
        node = SignedSessions(OperatorKeys(key), others, idle=IDLE, longest=LONGEST, clock=lambda: self.now)
        others.node = node
        self.known.append(node)
        return node

    def restart(self, node: SignedSessions) -> SignedSessions:
        self.known.remove(node)
        return self.start()


@dataclass
class _Others:
    nodes: Nodes
    node: SignedSessions | None = None

    @property
    def _reached(self) -> list[SignedSessions]:
        if self.node in self.nodes.lost:
            return []
        return [each for each in self.nodes.known if each is not self.node and each not in self.nodes.lost]

    async def session_elsewhere(self, session: str) -> SessionSeen:
        seen = [each.seen(session) for each in self._reached]
        known = [each.idle for each in seen if each.idle is not None]
        return SessionSeen(any(each.is_ended for each in seen), min(known, default=None))

    async def end_session_elsewhere(self, session: str) -> None:
        for each in self._reached:
            each.end_here(session)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def north(nodes: Nodes) -> SignedSessions:
    return nodes.start()


@pytest.fixture
def south(nodes: Nodes) -> SignedSessions:
    return nodes.start()


async def test_a_session_is_accepted_on_every_node_and_signing_out_ends_it_on_all(
    nodes: Nodes, north: SignedSessions, south: SignedSessions
) -> None:
    secret = north.open()
    session = await south.find(secret)
    assert session
    told: list[str] = []
    (await north.find(secret)).on_end.append(lambda: told.append("ended"))  # type: ignore[union-attr]
    await south.sign_out(session)
    assert told == ["ended"]
    for node in (north, south, nodes.start(), nodes.restart(north), nodes.restart(south)):
        assert await node.find(secret) is None


async def test_a_node_out_of_reach_hears_of_the_end_at_its_next_check(
    nodes: Nodes, north: SignedSessions, south: SignedSessions
) -> None:
    secret = north.open()
    session = await south.find(secret)
    assert session
    nodes.lost = [north]
    await south.sign_out(session)
    assert await north.find(secret)
    nodes.lost = []
    nodes.now += 30
    assert await north.find(secret) is None


async def test_use_on_any_node_keeps_a_session_and_none_ends_it_everywhere(
    nodes: Nodes, north: SignedSessions, south: SignedSessions
) -> None:
    secret = north.open()
    assert await south.find(secret)
    for _ in range(4):
        nodes.now += IDLE - 1
        assert await south.find(secret)
    assert await north.find(secret), "it was in use on another node"
    nodes.now += IDLE
    assert await north.find(secret) is None
    assert await south.find(secret) is None
    assert await nodes.start().find(secret) is None


async def test_a_page_that_is_open_on_one_node_is_use_on_all(
    nodes: Nodes, north: SignedSessions, south: SignedSessions
) -> None:
    secret = north.open()
    session = await north.find(secret)
    assert session
    assert await south.find(secret)
    north.stream_began(session)
    nodes.now += 3 * IDLE
    assert await south.find(secret)
    assert await nodes.restart(south).find(secret)
    north.stream_ended(session)
    nodes.now += IDLE
    assert await north.find(secret) is None


async def test_no_session_outlasts_its_longest_time_on_any_node(nodes: Nodes, north: SignedSessions) -> None:
    secret = north.open()
    for _ in range(20):
        nodes.now += IDLE / 2
        found = await north.find(secret)
        assert (found is not None) == (nodes.now < 1_000_000 + LONGEST)
    assert await nodes.start().find(secret) is None


async def test_a_session_ends_with_the_last_node_that_knows_it(nodes: Nodes, north: SignedSessions) -> None:
    secret = north.open()
    south = nodes.start()
    assert await south.find(secret)
    north = nodes.restart(north)
    assert await north.find(secret), "another node knows it"
    north = nodes.restart(north)
    nodes.restart(south)
    assert await north.find(secret) is None


async def test_ends_are_kept_while_a_secret_could_open_the_session_again_and_not_without_bound(
    nodes: Nodes, north: SignedSessions
) -> None:
    for number in range(3000):
        north.end_here(f"session-{number}")
    assert len(north._ended) == 1000
    nodes.now += LONGEST
    north.end_here("another")
    assert [*north._ended] == ["another"]


@pytest.mark.parametrize("wrong", ["", "x", "a.b.c", "a.1.b", "....", "é.9999999999.x"])
async def test_a_secret_that_was_not_signed_with_the_admin_key_opens_nothing_and_asks_nobody(
    nodes: Nodes, north: SignedSessions, wrong: str
) -> None:
    foreign = nodes.start("another-key-0123456789")
    secret = north.open()
    assert await foreign.find(secret) is None
    assert await north.find(wrong) is None
    session, ends, key, signature = secret.split(".")
    assert await north.find(f"{session}.{int(ends) + 1}.{key}.{signature}") is None


class Operators:
    """Two real nodes with consoles, and requests to either."""

    def __init__(self, http: aiohttp.ClientSession, *nodes: Hub) -> None:
        self._http = http
        self.first, self.second = (node.url for node in nodes)
        for app in (node.app for node in nodes):
            app.mount(OperatorConsole(app.operations, app.admin_access), CONSOLE_PATH, has_cors=False)

    async def get(self, url: str, path: str, who: dict[str, str]) -> tuple[int, str]:
        answer = await self._http.get(f"{url}{path}", headers=who)
        return answer.status, await answer.text()

    async def post(self, url: str, path: str, who: dict[str, str], **form: str) -> aiohttp.ClientResponse:
        headers = {**who, "origin": url}
        return await self._http.post(f"{url}{CONSOLE_PATH}{path}", data=form, headers=headers, allow_redirects=False)

    async def sign_in(self) -> dict[str, str]:
        """The header of a new session on the first node."""
        answer = await self.post(self.first, "/sign-in", {}, key=ADMIN)
        header = {"x-a2c-session": (await answer.json())["secret"]}
        assert (await self.get(self.second, f"{CONSOLE_PATH}/", header))[0] == 200
        return header


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_text("{}")
    file.chmod(0o600)
    return file


@pytest.fixture
async def operators(valkey: Valkey, prefix: str, keys: Path) -> AsyncIterator[Operators]:
    async with AsyncExitStack() as stack:
        nodes = []
        for name in ("north", "south"):
            auth = DefaultAuthenticationProvider((), keys)
            node = serving_node(valkey.url, prefix, name, admin_key=ADMIN, auth=auth)
            nodes.append(await stack.enter_async_context(node))
        http = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
        yield Operators(http, *nodes)


async def test_a_new_key_is_shown_once_on_any_node_to_its_session_alone_and_loading_again_makes_none(
    operators: Operators, keys: Path
) -> None:
    own, another = await operators.sign_in(), await operators.sign_in()

    async def shown(url: str, address: str, who: dict[str, str]) -> list[str]:
        _, page = await operators.get(url, address, who)
        found: list[str] = re.findall(r'id="new-key-value">(a2c_[^<]+)<', page)
        assert bool(found) is not ("A new key is shown once, within a minute." in page)
        return found

    async def made(path: str, **form: str) -> str:
        answer = await operators.post(operators.first, path, own, **form)
        assert "a2c_" not in await answer.text()
        return str((await answer.json())["goes_to"])

    for url in (operators.first, operators.second):
        address = await made("/keys/create", principal="carol")
        assert await shown(url, address, another) == []
        [key] = await shown(url, address, own)
        for each in (operators.first, operators.second):
            assert await shown(each, address, own) == []
        assert key.encode() not in content_of(keys)
    before = content_of(keys)
    assert len(json.loads(before)) == 2
    address = await made("/keys/rotate", id=address.rpartition("=")[2])
    assert len(await shown(operators.first, address, own)) == 1
    after = content_of(keys)
    assert before != after
    assert await shown(operators.first, address, own) == []
    assert content_of(keys) == after


async def test_two_real_nodes_share_a_session_and_its_end(operators: Operators) -> None:
    own = await operators.sign_in()
    for url in (operators.first, operators.second):
        assert (await operators.get(url, f"{CONSOLE_PATH}/", own))[0] == 200
    assert (await operators.post(operators.second, "/sign-out", own)).status == 200
    for url in (operators.first, operators.second):
        assert (await operators.get(url, f"{CONSOLE_PATH}/", own))[0] == 401


@pytest.mark.covers("cors")
@pytest.mark.parametrize("origins", [("https://page.example",), ("*",)])
async def test_no_page_of_another_origin_reads_below_the_console_and_the_operators_interface(
    serve: Callable[..., Awaitable[Hub]], origins: tuple[str, ...]
) -> None:
    hub = await serve(admin_key=ADMIN, cors_origins=origins)
    app = hub.app
    app.mount(OperatorConsole(app.operations, app.admin_access), CONSOLE_PATH, has_cors=False)
    signed_in = await fetch(f"{hub.url}/console/sign-in", "POST", data={"key": ADMIN}, headers={"Origin": hub.url})
    secret = {"X-A2C-Session": signed_in.json["secret"], "Authorization": f"Bearer {ADMIN}"}
    assert (await fetch(f"{hub.url}/console/", headers=secret)).status == 200
    asking = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-a2c-session, authorization"}
    for path in (
        "/console",
        "/console/",
        "/console/keys",
        "/console/open",
        "/admin/api/keys",
        "/admin/api/events",
        "/admin",
    ):
        for origin in ("https://page.example", "https://any.example", "null"):
            for method, headers in (("OPTIONS", asking), ("HEAD", secret), ("POST", secret)):
                answer = await fetch(f"{hub.url}{path}", method, headers={"Origin": origin, **headers})
                assert not [name for name in answer.headers if name.lower().startswith("access-control")], path
                assert method != "OPTIONS" or not 200 <= answer.status < 300, path


async def test_a_browser_at_the_root_is_led_to_the_console(operators: Operators) -> None:
    browser = {"Accept": "text/html,*/*;q=0.8"}
    led = await operators._http.get(operators.first, headers=browser, allow_redirects=False)
    assert (led.status, led.headers["location"]) == (303, "/console/")
    status, page = await operators.get(operators.first, "/", browser)
    assert (status, "Admin key" in page) == (200, True)
