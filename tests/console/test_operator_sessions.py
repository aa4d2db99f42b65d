"""Sessions of operators on several nodes: their ends, how long they may be idle, and restarts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from a2c_smcp.console.operator.console import CONSOLE_PATH, OperatorConsole
from a2c_smcp.console.operator.signed_sessions import SignedSessions
from a2c_smcp.server import DefaultAuthenticationProvider
from a2c_smcp.server.admin.rows import SessionSeen
from tests.cluster import serving_node
from tests.conftest import Hub
from tests.valkey import running_valkey

ADMIN = "operator-0123456789"
IDLE, LONGEST = 100.0, 1000.0


@dataclass
class Nodes:
    """The nodes of a Server, of which some may be out of reach for the others, and their common clock."""

    now: float = 1_000_000.0
    known: list[SignedSessions] = field(default_factory=list)
    lost: list[SignedSessions] = field(default_factory=list)

    def start(self, key: str = ADMIN) -> SignedSessions:
        node = SignedSessions(key, _Others(self), idle=IDLE, longest=LONGEST, clock=lambda: self.now)
        node._others.node = node  # type: ignore[attr-defined]
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


async def test_a_session_is_accepted_on_every_node_and_signing_out_ends_it_on_all() -> None:
    nodes = Nodes()
    north, south = nodes.start(), nodes.start()
    cookie = north.open()
    session = await south.find(cookie)
    assert session
    assert session.token == (await north.find(cookie)).token  # type: ignore[union-attr]
    told: list[str] = []
    (await north.find(cookie)).on_end.append(lambda: told.append("ended"))  # type: ignore[union-attr]
    await south.sign_out(session)
    assert told == ["ended"]
    for node in (north, south, nodes.start(), nodes.restart(north), nodes.restart(south)):
        assert await node.find(cookie) is None


async def test_a_node_out_of_reach_hears_of_the_end_at_its_next_check() -> None:
    nodes = Nodes()
    north, south = nodes.start(), nodes.start()
    cookie = north.open()
    session = await south.find(cookie)
    assert session
    nodes.lost = [north]
    await south.sign_out(session)
    assert await north.find(cookie)
    nodes.lost = []
    nodes.now += 30
    assert await north.find(cookie) is None


async def test_use_on_any_node_keeps_a_session_and_none_ends_it_everywhere() -> None:
    nodes = Nodes()
    north, south = nodes.start(), nodes.start()
    cookie = north.open()
    assert await south.find(cookie)
    for _ in range(4):
        nodes.now += IDLE - 1
        assert await south.find(cookie)
    assert await north.find(cookie), "it was in use on another node"
    nodes.now += IDLE
    assert await north.find(cookie) is None
    assert await south.find(cookie) is None
    assert await nodes.start().find(cookie) is None


async def test_a_page_that_is_open_on_one_node_is_use_on_all() -> None:
    nodes = Nodes()
    north, south = nodes.start(), nodes.start()
    cookie = north.open()
    session = await north.find(cookie)
    assert session
    assert await south.find(cookie)
    north.stream_began(session)
    nodes.now += 3 * IDLE
    assert await south.find(cookie)
    assert await nodes.restart(south).find(cookie)
    north.stream_ended(session)
    nodes.now += IDLE
    assert await north.find(cookie) is None


async def test_no_session_outlasts_its_longest_time_on_any_node() -> None:
    nodes = Nodes()
    north = nodes.start()
    cookie = north.open()
    for _ in range(20):
        nodes.now += IDLE / 2
        found = await north.find(cookie)
        assert (found is not None) == (nodes.now < 1_000_000 + LONGEST)
    assert await nodes.start().find(cookie) is None


async def test_a_session_ends_with_the_last_node_that_knows_it() -> None:
    nodes = Nodes()
    north = nodes.start()
    cookie = north.open()
    south = nodes.start()
    assert await south.find(cookie)
    north = nodes.restart(north)
    assert await north.find(cookie), "another node knows it"
    north = nodes.restart(north)
    nodes.restart(south)
    assert await north.find(cookie) is None


async def test_ends_are_kept_while_a_cookie_could_open_the_session_again_and_not_without_bound() -> None:
    nodes = Nodes()
    north = nodes.start()
    for number in range(3000):
        north.end_here(f"session-{number}")
    assert len(north._ended) == 1000
    nodes.now += LONGEST
    north.end_here("another")
    assert [*north._ended] == ["another"]


@pytest.mark.parametrize("wrong", ["", "x", "a.b.c", "a.1.b", "....", "é.9999999999.x"])
async def test_a_cookie_that_was_not_signed_with_the_admin_key_opens_nothing_and_asks_nobody(wrong: str) -> None:
    nodes = Nodes()
    north, foreign = nodes.start(), nodes.start("another-key-0123456789")
    cookie = north.open()
    assert await foreign.find(cookie) is None
    assert await north.find(wrong) is None
    session, ends, signature = cookie.split(".")
    assert await north.find(f"{session}.{int(ends) + 1}.{signature}") is None


def with_console(node: Hub) -> str:
    app = node.app
    app.mount(OperatorConsole(app.operations, app.admin_access, ADMIN), CONSOLE_PATH)
    return f"{node.url}{CONSOLE_PATH}"


async def signed_in(http: aiohttp.ClientSession, console: str, origin: str) -> tuple[dict[str, str], str]:
    """The cookie of a new session, and its token."""
    sent = {"data": {"key": ADMIN}, "headers": {"origin": origin}}
    answer = await http.post(f"{console}/sign-in", **sent, allow_redirects=False)  # type: ignore[arg-type]
    cookie = {"cookie": f"a2c_operator={answer.cookies['a2c_operator'].value}"}
    page = await (await http.get(f"{console}/", headers=cookie)).text()
    return cookie, re.search(r'name="token" value="([^"]+)"', page)[1]  # type: ignore[index]


async def test_a_new_key_is_shown_once_on_any_node_to_its_session_alone_and_loading_again_makes_none(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.json"
    file.write_text("{}")
    file.chmod(0o600)
    auth = [DefaultAuthenticationProvider((), file) for _ in range(2)]
    with running_valkey() as valkey:
        async with (
            serving_node(valkey.url, "t:", "north", admin_key=ADMIN, auth=auth[0]) as north,
            serving_node(valkey.url, "t:", "south", admin_key=ADMIN, auth=auth[1]) as south,
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
        ):
            consoles = with_console(north), with_console(south)
            cookie, token = await signed_in(http, consoles[0], north.url)
            another, _ = await signed_in(http, consoles[0], north.url)

            async def shown(console: str, address: str, who: dict[str, str]) -> list[str]:
                page = await (await http.get(console.removesuffix(CONSOLE_PATH) + address, headers=who)).text()
                keys: list[str] = re.findall(r'id="new-key-value">(a2c_[^<]+)<', page)
                assert bool(keys) is not ("A new key is shown once, within a minute." in page)
                return keys

            async def made(path: str, **form: str) -> str:
                headers = {**cookie, "origin": north.url}
                answer = await http.post(
                    f"{consoles[0]}{path}", data={"token": token, **form}, headers=headers, allow_redirects=False
                )
                assert answer.status == 303
                assert "a2c_" not in answer.headers["location"] + await answer.text()
                return answer.headers["location"]

            for console in consoles:
                address = await made("/keys/create", principal="carol")
                assert await shown(console, address, another) == []
                [key] = await shown(console, address, cookie)
                for each in consoles:
                    assert await shown(each, address, cookie) == []
                assert key not in file.read_text()
            assert len(json.loads(file.read_text())) == 2
            before = file.read_text()
            address = await made("/keys/rotate", id=address.rpartition("=")[2])
            assert len(await shown(consoles[0], address, cookie)) == 1
            after = file.read_text()
            assert before != after
            assert await shown(consoles[0], address, cookie) == []
            assert file.read_text() == after


async def test_two_real_nodes_share_a_session_and_its_end() -> None:
    with running_valkey() as valkey:
        async with (
            serving_node(valkey.url, "t:", "north", admin_key=ADMIN) as north,
            serving_node(valkey.url, "t:", "south", admin_key=ADMIN) as south,
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
        ):
            one, other = with_console(north), with_console(south)
            signed_in = await http.post(
                f"{one}/sign-in", data={"key": ADMIN}, headers={"origin": north.url}, allow_redirects=False
            )
            cookie = {"cookie": f"a2c_operator={signed_in.cookies['a2c_operator'].value}"}
            page = await http.get(f"{other}/", headers=cookie)
            assert page.status == 200
            token = re.search(r'name="token" value="([^"]+)"', await page.text())[1]  # type: ignore[index]
            assert (await http.get(f"{one}/session", headers=cookie)).status == 204
            left = await http.post(
                f"{other}/sign-out",
                data={"token": token},
                headers={**cookie, "origin": south.url},
                allow_redirects=False,
            )
            assert left.status == 303
            for place in (one, other):
                assert (await http.get(f"{place}/session", headers=cookie)).status == 401
