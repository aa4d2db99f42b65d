"""From the first byte to a seat: which clients are admitted, and how a refusal is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import socketio

from a2c_smcp.protocol.names import PROTOCOL_VERSION
from a2c_smcp.server import DefaultAuthenticationProvider, Limits, Principal, Settings, create_app
from a2c_smcp.server.auth.api_keys import new_key
from a2c_smcp.server.auth.jwt import JWTAuthenticationProvider
from a2c_smcp.server.run import address_of, listen, serving
from tests.conftest import TRANSPORTS, Hub
from tests.peer import PATIENCE, Peer, Wire
from tests.stage.calls import sessions
from tests.stage.frames import UPGRADE
from tests.stage.keys import Judged, write_keys
from tests.stage.polling import Poller
from tests.stage.tls import certificate
from tests.stage.web import Http, Response, fetch
from tests.waiting import until

pytestmark = pytest.mark.covers("auth-refused")

KEY = new_key()
SECRET = "correct horse battery staple correct horse battery staple"
CLOCKS = 0.05
"""By how much the clock of timers and the one on the wall may differ."""
DOORS: dict[str, dict[str, str]] = {"polling": {}, "websocket": UPGRADE}
PLACES: dict[str, dict[str, Any]] = {
    "auth": {"auth": {"token": KEY}},
    "authorization": {"headers": {"Authorization": f"Bearer {KEY}"}},
    "x-api-key": {"headers": {"x-api-key": KEY}},
    "access_token": {"headers": {"access_token": KEY}},
    "x-api-key beside a wrong token": {"auth": {"token": "stale"}, "headers": {"x-api-key": KEY}},
}
NO_KEYS: list[dict[str, Any]] = [
    {},
    {"auth": {"token": "wrong"}},
    {"auth": {"token": ""}},
    {"auth": {"key": KEY}},
    {"auth": {"token": KEY.upper()}},
    {"headers": {"Authorization": f"Basic {KEY}"}},
    {"headers": {"x-api-key": f"{KEY}x"}},
]
REFUSAL = {"message": "Not authenticated", "data": {"code": 401, "message": "Not authenticated"}}
MALFORMED = ["", "four", "0", "0.", ".4", "0.4.x/..", "-1.0", "0.4%0d%0aX-A:%20b", "0.4%00", "%ff", "0" * 5000]
HOSTS = {
    **dict.fromkeys(("localhost", "LOCALHOST:7000", "127.0.0.1:7000", "[::1]:7000"), True),
    **dict.fromkeys(("evil.example", "evil.example:7000", "localhost.evil.example", "[::2]", ""), False),
    **dict.fromkeys(("127.0.0.1.evil.example", "[::1].evil.example", "[::1", "[::1]:7000.evil.example"), False),
}

Opens = Callable[..., Awaitable[Wire]]


def admits(**principals: Principal) -> Judged:
    """Lets in who gives one of these words for a token, as its principal."""
    return by_token(lambda token: principals.get(token, False))


def by_token(judge: Callable[[Any], Any]) -> Judged:
    return Judged(lambda auth: judge(auth.get("token") if isinstance(auth, dict) else None))


def frame(event: str, data: object, ack: int) -> str:
    return f"42/smcp,{ack}{json.dumps([event, data])}"


async def join(wire: Wire, role: str, name: str, office: str) -> Any:
    """The arguments of the ack to a join."""
    return await wire.ask(frame("server:join_office", {"role": role, "name": name, "office_id": office}, 1), 1)


async def names_in(office: str, agent: Wire) -> list[str]:
    (room,) = await agent.ask(frame("server:list_room", {"agent": "planner", "req_id": "1", "office_id": office}, 2), 2)
    return [session["name"] for session in room["sessions"]]


async def is_accepted(wire: Wire, auth: str = "") -> None:
    await wire.send(f"40/smcp,{auth}")
    assert (await wire.receive()).startswith("40/smcp,")


async def refusal_of(wire: Wire, auth: str = "") -> Any:
    await wire.send(f"40/smcp,{auth}")
    head, _, refusal = (await wire.receive()).partition(",")
    assert head == "44/smcp"
    return json.loads(refusal)["data"]


async def is_served(wire: Wire) -> bool:
    """Whether anybody answers here: an event that does not exist is refused, by somebody who is there."""
    (answer,) = await wire.ask(frame("no:such_event", {}, 77), 77)
    return bool(answer["code"] == 400)


async def hears_the_end(wire: Wire) -> list[str]:
    """What comes until the connection has ended."""
    frames = []
    while text := await wire.receive():
        frames.append(text)
    return frames


@pytest.fixture
async def keyed(serve: Any) -> Hub:
    """A Server that knows one key."""
    hub: Hub = await serve(auth=DefaultAuthenticationProvider(KEY))
    return hub


@pytest.fixture
async def opens() -> AsyncIterator[Opens]:
    """Opens a hand-written connection: `await opens(hub)` up to CONNECT, `await opens(hub, auth)` through it."""
    async with AsyncExitStack() as stack:

        async def start(hub: Hub, *auth: Any, **options: Any) -> Wire:
            wire = await (Wire.connect(hub.url, *auth) if auth else Wire.open(hub.url, **options))
            stack.push_async_callback(wire.close)
            return wire

        yield start


async def knock(hub: Hub, door: str, query: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """The first HTTP request of a client."""
    address = f"{hub.url}/socket.io/?EIO=4&transport={door}{query}"
    return await fetch(address, headers={**DOORS[door], **(headers or {})})


# Credentials


@pytest.mark.covers("auth-credentials", "auth-keys")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_key_is_found_in_every_place_over_every_transport(keyed: Hub, connect: Any, transport: str) -> None:
    for place, credential in PLACES.items():
        peer = await connect(keyed, transport, **credential)
        await peer.join("computer", "laptop", f"office-{place}")


@pytest.mark.covers("auth-keys")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nobody_enters_without_the_key(keyed: Hub, transport: str) -> None:
    for presented in NO_KEYS:
        with pytest.raises(socketio.exceptions.ConnectionError, match="failed to connect: /smcp"):
            await Peer.connect(keyed.url, transports=TRANSPORTS[transport], **presented)
    assert keyed.app.metrics.value("a2c_refused_total", code="401") == len(NO_KEYS)


@pytest.mark.covers("auth-credentials")
async def test_the_field_of_the_auth_object_can_be_chosen(serve: Any, connect: Any) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(KEY, field="secret"))
    assert await connect(hub, auth={"secret": KEY})
    with pytest.raises(socketio.exceptions.ConnectionError):
        await connect(hub, auth={"token": KEY})


async def test_a_refused_handshake_is_a_connect_error_with_a_code(keyed: Hub, opens: Opens) -> None:
    wire = await opens(keyed)
    await wire.send('40/smcp,{"token":"wrong"}')
    assert json.loads((await wire.receive()).removeprefix("44/smcp,")) == REFUSAL


async def test_a_refused_handshake_sounds_the_same_over_polling(keyed: Hub, http: Http) -> None:
    poller = await Poller(http, keyed.url).begin()
    await poller.post("40/smcp,")
    assert json.loads((await poller.get())[1].removeprefix("44/smcp,")) == REFUSAL


async def test_after_a_refusal_the_same_connection_may_try_again(keyed: Hub, opens: Opens, office: str) -> None:
    wire = await opens(keyed)
    assert (await refusal_of(wire, '{"token":"wrong"}'))["code"] == 401
    await is_accepted(wire, f'{{"token":"{KEY}"}}')
    await wire.join("computer", "laptop", office)


@pytest.mark.parametrize("auth", ["[]", '"token"', "17", "null", '{"token":', '{"token":["x"]}', '{"token":{"a":1}}'])
async def test_an_odd_auth_object_is_refused_without_an_error(keyed: Hub, opens: Opens, auth: str) -> None:
    assert (await refusal_of(await opens(keyed), auth))["code"] == 401


# Before and without a CONNECT


@pytest.mark.covers("only-smcp")
@pytest.mark.parametrize("namespace", ["", "/,", "/admin,", "/smcp/,", "/SMCP,", "/smcp2,"])
async def test_no_other_namespace_can_be_connected_to(shared_hub: Hub, opens: Opens, namespace: str) -> None:
    wire = await opens(shared_hub)
    await wire.send(f"40{namespace}")
    refusal = await wire.receive()
    assert refusal.startswith("44")
    body = json.loads(refusal[refusal.index("{") :])
    assert body["data"]["code"] == 400
    assert body["message"] == body["data"]["message"]
    await is_accepted(wire)


@pytest.mark.covers("only-smcp")
async def test_an_event_in_another_namespace_does_nothing(shared_hub: Hub, opens: Opens) -> None:
    wire = await opens(shared_hub, None)
    for namespace in ("", "/admin,"):
        await wire.send(f'42{namespace}1["server:join_office",{{"role":"agent","name":"a","office_id":"o"}}]')
        await wire.send(f'42{namespace}2["connect",{{}}]')
    assert await is_served(wire)
    (answer,) = await wire.ask(frame("server:list_room", {"agent": "a", "req_id": "1", "office_id": "o"}, 3), 3)
    assert answer["code"] == 403


@pytest.mark.parametrize("is_refused_first", [False, True], ids=["before", "after a refusal"])
async def test_an_event_without_a_connect_does_nothing_and_harms_nobody(
    keyed: Hub, opens: Opens, office: str, is_refused_first: bool
) -> None:
    agent, stranger = await opens(keyed, {"token": KEY}), await opens(keyed)
    await agent.join("agent", "planner", office)
    if is_refused_first:
        assert (await refusal_of(stranger))["code"] == 401
    data = {"role": "computer", "name": "intruder", "office_id": office}
    await stranger.send(frame("server:join_office", data, 1))
    await stranger.send('452-/smcp,2["server:join_office",{"_placeholder":true,"num":0}]')
    await stranger.send("41/smcp,")
    await stranger.send('43/smcp,1[{"content":[]}]')
    await is_accepted(stranger, f'{{"token":"{KEY}"}}')  # and no ack comes before it
    assert await names_in(office, agent) == ["planner"]


@pytest.mark.covers("auth-fails-closed")
async def test_an_event_during_authentication_waits_for_nobody(serve: Any, opens: Opens, office: str) -> None:
    decided = asyncio.Event()

    async def judge(token: Any) -> Any:
        if token == "slow":
            await decided.wait()
        return token == "fast"

    hub = await serve(auth=by_token(judge))
    agent, stranger = await opens(hub, {"token": "fast"}), await opens(hub)
    await agent.join("agent", "planner", office)
    await stranger.send('40/smcp,{"token":"slow"}')
    await stranger.send(frame("server:join_office", {"role": "computer", "name": "x", "office_id": office}, 1))
    assert await is_served(agent)
    decided.set()
    assert (await stranger.receive()).startswith("44/smcp,")
    assert await names_in(office, agent) == ["planner"]


@pytest.mark.covers("only-smcp")
async def test_a_second_connect_is_refused_and_the_first_stays_as_it_was(serve: Any, opens: Opens, office: str) -> None:
    hub = await serve(auth=admits(one=Principal("one"), two=Principal("two", roles=frozenset({"agent"}))))
    wire = await opens(hub, {"token": "one"})
    await wire.join("computer", "laptop", office)
    assert (await refusal_of(wire, '{"token":"two"}'))["code"] == 400
    await wire.join("computer", "tablet", office)
    assert hub.app.metrics.value("a2c_connections") == 1


# For how long


@pytest.mark.covers("auth-expiry")
async def test_a_connection_ends_with_its_principal_and_leaves_its_seat(serve: Any, opens: Opens, office: str) -> None:
    ends = {"lasting": time.time() + 900}

    def judge(token: Any) -> Principal:
        return Principal(token, expires=ends.setdefault(token, time.time() + 1))

    hub = await serve(auth=by_token(judge))
    agent = await opens(hub, {"token": "lasting"})
    await agent.join("agent", "planner", office)
    computer = await opens(hub, {"token": "brief"})
    await computer.join("computer", "laptop", office, instance="0123456789abcdef")
    assert "notify:enter_office" in await agent.receive()
    assert await computer.receive() == "41/smcp,"
    assert time.time() > ends["brief"] - CLOCKS
    assert "notify:leave_office" in await agent.receive()  # at once: this seat is not to be resumed
    assert await is_served(agent)
    refusal = await refusal_of(computer, '{"token":"brief"}')
    assert refusal == {"code": 401, "message": "Not authenticated: the credential has expired"}


@pytest.mark.covers("auth-expiry", "auth-jwt")
async def test_a_connection_ends_with_its_token(serve: Any, opens: Opens, office: str) -> None:
    hub = await serve(auth=JWTAuthenticationProvider(algorithms="HS256", secret=SECRET, leeway=0))
    expires = int(time.time()) + 2
    wire = await opens(hub, {"token": jwt.encode({"sub": "alice", "exp": expires, "roles": "computer"}, SECRET)})
    await wire.join("computer", "laptop", office)
    assert await wire.receive() == "41/smcp,"
    assert time.time() > expires - CLOCKS


@pytest.mark.covers("auth-keys", "auth-expiry")
async def test_a_reload_disconnects_clients_whose_key_is_gone_and_keeps_the_others(
    serve: Any, opens: Opens, office: str, tmp_path: Path
) -> None:
    free, kept, revoked, changed, added = (new_key() for _ in range(5))
    keys = write_keys(tmp_path, {kept: "kept", revoked: "revoked", changed: "changed"})
    hub = await serve(auth=DefaultAuthenticationProvider(free, keys))
    stay = [await opens(hub, {"token": key}) for key in (free, kept)]
    go = [await opens(hub, {"token": key}) for key in (revoked, changed)]
    await stay[0].join("agent", "planner", office)
    await go[0].join("computer", "laptop", office)
    assert "notify:enter_office" in await stay[0].receive()

    write_keys(tmp_path, {kept: "kept", changed: {"principal": "changed", "offices": ["elsewhere"]}, added: "added"})
    await hub.app.reload()

    assert [await wire.receive() for wire in go] == ["41/smcp,", "41/smcp,"]
    assert "notify:leave_office" in await stay[0].receive()
    assert all([await is_served(wire) for wire in stay])
    assert (await refusal_of(go[0], f'{{"token":"{revoked}"}}'))["code"] == 401
    assert await opens(hub, {"token": added})


# As whom


@pytest.mark.covers("auth-scope")
@pytest.mark.parametrize(
    ("role", "name", "where"),
    [("agent", "lap-1", "team-a"), ("computer", "desk-1", "team-a"), ("computer", "lap-1", "board")],
    ids=["role", "name", "office"],
)
async def test_a_join_beyond_the_scope_is_refused(serve: Any, opens: Opens, role: str, name: str, where: str) -> None:
    alice = Principal("alice", frozenset({"team-*"}), frozenset({"computer"}), frozenset({"lap-*"}))
    wire = await opens(await serve(auth=admits(alice=alice)), {"token": "alice"})
    accepted, reason = await join(wire, role, name, where)
    assert (accepted, reason[:19]) == (False, "403 Not authorised:")
    await wire.join("computer", "lap-1", "team-a")


@pytest.mark.covers("auth-scope")
async def test_a_rename_or_a_move_beyond_the_scope_is_refused_and_changes_nothing(serve: Any, opens: Opens) -> None:
    alice = Principal("alice", names=frozenset({"lap-*"}), offices=frozenset({"team-a", "team-b"}))
    hub = await serve(auth=admits(alice=alice, bob=Principal("bob")))
    wire, agent = await opens(hub, {"token": "alice"}), await opens(hub, {"token": "bob"})
    await agent.join("agent", "planner", "team-a")
    await wire.join("computer", "lap-1", "team-a")
    for name, office in (("boss", "team-a"), ("lap-1", "board"), ("boss", "team-b")):
        accepted, reason = await join(wire, "computer", name, office)
        assert (accepted, reason[:19]) == (False, "403 Not authorised:")
    assert await names_in("team-a", agent) == ["planner", "lap-1"]
    await wire.join("computer", "lap-2", "team-a")
    assert await names_in("team-a", agent) == ["planner", "lap-2"]


@pytest.mark.covers("auth-scope", "auth-jwt")
async def test_the_claims_of_a_token_are_its_scope(serve: Any, opens: Opens) -> None:
    hub = await serve(auth=JWTAuthenticationProvider(algorithms="HS256", secret=SECRET))
    claims = {"sub": "alice", "exp": int(time.time()) + 600, "roles": ["agent"], "offices": ["desk"], "names": "a b"}
    wire = await opens(hub, {"token": jwt.encode(claims, SECRET)})
    for role, name, office in (("computer", "a", "desk"), ("agent", "c", "desk"), ("agent", "a", "board")):
        accepted, reason = await join(wire, role, name, office)
        assert (accepted, reason[:4]) == (False, "403 ")
    await wire.join("agent", "b", "desk")


# When the provider fails


@pytest.mark.covers("auth-fails-closed")
@pytest.mark.parametrize("failure", ["raises", "hangs", "answers nonsense"])
async def test_authentication_that_fails_admits_no_client_and_harms_none(
    serve: Any, opens: Opens, caplog: pytest.LogCaptureFixture, failure: str
) -> None:
    async def judge(token: Any) -> Any:
        if token == "good":
            return True
        if failure == "raises":
            raise RuntimeError(f"cannot look up {token}")
        if failure == "hangs":
            await asyncio.Event().wait()
        return "yes"

    hub = await serve(auth=by_token(judge), limits={"authentication_timeout": 0.2})
    inside = await opens(hub, {"token": "good"})
    refusal = await refusal_of(await opens(hub), '{"token":"canary-5f1c"}')
    assert refusal == {"code": 401, "message": "Not authenticated: authentication is not working"}
    assert await is_served(inside)
    assert "canary-5f1c" not in caplog.text
    assert await opens(hub, {"token": "good"})


@pytest.mark.covers("auth-fails-closed")
async def test_a_client_that_leaves_during_authentication_leaves_nothing_behind(serve: Any, opens: Opens) -> None:
    asked, decided = asyncio.Event(), asyncio.Event()

    async def judge(token: Any) -> Any:
        asked.set()
        await decided.wait()
        return True

    hub = await serve(auth=Judged(judge))
    wire = await opens(hub)
    await wire.send("40/smcp,")
    await asyncio.wait_for(asked.wait(), PATIENCE)
    await wire.close()
    decided.set()
    await until(lambda: hub.app.metrics.value("a2c_connects_total") == 1 and not len(hub.app.sessions))
    await until(lambda: not hub.app.metrics.value("a2c_connections"))


# Versions


@pytest.mark.covers("version")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("claimed", "shown"), [("", "0.1"), ("0.2", "0.2"), ("0.4.2", "0.4.2"), ("0.4.99", "0.4.99")])
async def test_the_version_of_a_client_is_shown_in_its_office(
    connect: Any, office: str, transport: str, claimed: str, shown: str
) -> None:
    agent = await connect(transport=transport, query=f"?a2c_version={claimed}" if claimed else "")
    await agent.join("agent", "planner", office)
    assert [session["a2c_version"] for session in await sessions(agent)] == [shown]


@pytest.mark.covers("version", "version-http")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("claimed", MALFORMED, ids=lambda claimed: repr(claimed[:16]))
async def test_a_malformed_version_is_refused_before_socket_io(shared_hub: Hub, door: str, claimed: str) -> None:
    response = await knock(shared_hub, door, f"&a2c_version={claimed}")
    assert (response.status, response.headers["content-type"]) == (400, "application/json")
    assert response.json["code"] == 400
    assert "0.4" in response.json["message"]


@pytest.mark.covers("version", "version-http")
@pytest.mark.parametrize("door", DOORS)
async def test_a_later_version_of_the_protocol_is_refused(shared_hub: Hub, door: str) -> None:
    for version in ("0.5", "1.0"):
        response = await knock(shared_hub, door, f"&a2c_version={version}")
        assert (response.status, response.headers["x-a2c-error-code"]) == (400, "4008")
        assert (response.json["code"], response.json["client_version"]) == (4008, version)


@pytest.mark.covers("version-http")
@pytest.mark.parametrize("door", DOORS)
async def test_a_pinned_version_refuses_all_others(serve: Any, door: str) -> None:
    hub = await serve(require_version="0.4")
    pinned = {"code": 4008, "server_version": PROTOCOL_VERSION, "min_supported": "0.4", "max_supported": "0.4"}
    versions = {"": "0.1", "&a2c_version=0.3.9": "0.3.9", "&a2c_version=0.41": "0.41", "&sid=": "0.1"}
    for query, version in versions.items():  # a blank session id is no way around it
        status, headers, text = await knock(hub, door, query)
        assert (status, headers["x-a2c-error-code"], headers["content-type"]) == (400, "4008", "application/json")
        answer = json.loads(text)
        assert answer.pop("message")
        assert answer == {**pinned, "client_version": version}


@pytest.mark.covers("version-http")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_pinned_version_takes_its_own(serve: Any, connect: Any, office: str, transport: str) -> None:
    hub = await serve(require_version="0.4")
    peer = await connect(hub, transport, query="?a2c_version=0.4.2")
    await peer.join("computer", "laptop", office)


# Web pages


@pytest.mark.covers("cors")
@pytest.mark.parametrize("door", DOORS)
async def test_a_page_from_elsewhere_is_refused_unless_it_is_allowed(serve: Any, door: str) -> None:
    page = {"Origin": "https://evil.example"}
    closed, open_ = await serve(), await serve(cors_origins=("https://app.example",))
    anybody = await serve(cors_origins=("*",))
    for hub in (closed, open_):
        status, headers, _ = await knock(hub, door, headers=page)
        assert status in (400, 403)
        assert "access-control-allow-origin" not in headers
    welcome = 101 if door == "websocket" else 200
    assert (await knock(open_, door, headers={"Origin": "https://app.example"})).status == welcome
    assert (await knock(anybody, door, headers=page)).status == welcome
    for hub in (closed, open_):
        assert (await knock(hub, door, headers={"Origin": hub.url})).status == welcome
        assert (await knock(hub, door)).status == welcome


@pytest.mark.covers("cors")
async def test_an_allowed_page_is_told_so_and_another_is_not(serve: Any) -> None:
    hub = await serve(cors_origins=("https://app.example",))
    url = f"{hub.url}/socket.io/?EIO=4&transport=polling"
    status, headers, _ = await fetch(url, "OPTIONS", headers={"Origin": "https://app.example"})
    assert (status, headers["access-control-allow-origin"]) == (200, "https://app.example")
    for origin in ("https://app.example.evil.example", "http://app.example", "null"):
        assert "access-control-allow-origin" not in (await fetch(url, "OPTIONS", headers={"Origin": origin})).headers


@pytest.mark.covers("cors")
async def test_where_any_page_is_allowed_none_may_use_what_its_browser_has_for_this_server(serve: Any) -> None:
    hub = await serve(cors_origins=("*", "https://app.example"))
    url, told = f"{hub.url}/socket.io/?EIO=4&transport=polling", {}
    for origin in ("https://app.example", "https://any.example", "null", hub.url):
        _, headers, _ = await fetch(url, "OPTIONS", headers={"Origin": origin})
        told[origin] = headers["access-control-allow-origin"], "access-control-allow-credentials" in headers
    assert told.pop("https://app.example") == ("https://app.example", True)
    assert told.pop(hub.url) == (hub.url, True)
    assert {*told.values()} == {("*", False)}


@pytest.mark.covers("cors")
@pytest.mark.parametrize("door", DOORS)
async def test_a_page_behind_a_proxy_counts_as_same_origin(serve: Any, door: str) -> None:
    proxy = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "hub.example"}
    hub = await serve()
    assert (await knock(hub, door, headers={"Origin": "https://hub.example", **proxy})).status in (101, 200)
    assert (await knock(hub, door, headers={"Origin": "https://evil.example", **proxy})).status in (400, 403)


@pytest.mark.covers("trusted-hosts")
@pytest.mark.parametrize("door", DOORS)
async def test_a_server_with_trusted_hosts_answers_to_those_names_only(serve: Any, door: str) -> None:
    hub = await serve(trusted_hosts=frozenset({"localhost", "127.0.0.1", "::1"}))
    for host, is_trusted in HOSTS.items():
        response = await knock(hub, door, headers={"Host": host})
        assert (response.status in (101, 200)) is is_trusted, host
        if not is_trusted:
            assert (response.status, response.json["code"]) == (400, 400)
            assert "API key" in response.json["message"]


@pytest.mark.covers("trusted-hosts")
@pytest.mark.parametrize("page", ["/metrics", "/readyz", "/healthz", "/nothing-here"])
async def test_pages_for_operators_are_not_shown_under_a_foreign_name_either(serve: Any, page: str) -> None:
    hub = await serve(trusted_hosts=frozenset(), metrics=True)
    for host, is_trusted in (("evil.example", False), ("192.0.2.7:7000", False), ("localhost:7000", True)):
        status, _, text = await fetch(f"{hub.url}{page}", headers={"Host": host})
        assert (status == 400) is not is_trusted, host
        assert ("foreign" in text or "loopback" in text) is not is_trusted


async def test_a_browser_at_the_root_is_shown_a_page_that_says_where_to_go(serve: Any) -> None:
    hub = await serve()
    status, headers, text = await fetch(hub.url, headers={"Accept": "text/html,*/*;q=0.8"})
    assert (status, headers["content-type"], "/console/" in text) == (200, "text/html; charset=utf-8", True)
    assert "default-src 'none'" in headers["content-security-policy"]
    for accept in ("*/*", "application/json"):
        answer = await fetch(hub.url, headers={"Accept": accept})
        assert (answer.status, json.loads(answer.text)["socket.io"]) == (200, "/socket.io/")


# In time


@asynccontextmanager
async def encrypted_server(folder: Path, **limits: Any) -> AsyncIterator[str]:
    """A Server that serves TLS, by its address."""
    cert, key = certificate(folder, "server")
    listener = listen("127.0.0.1", 0)
    async with serving(create_app(Settings(limits=Limits(**limits))), listener, tls_cert=cert, tls_key=key):
        yield address_of(listener)


async def is_closed(reader: asyncio.StreamReader, seconds: float = PATIENCE) -> None:
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), seconds) == b""


@pytest.mark.covers("limit-handshake")
async def test_a_peer_that_does_not_begin_its_tls_handshake_is_closed(tmp_path: Path) -> None:
    async with encrypted_server(tmp_path, handshake_timeout=0.3) as address:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        await is_closed(reader)
        writer.close()
        assert (await fetch(f"https://{address}/healthz", ssl=False)).status == 200


@pytest.mark.covers("strangers-connections")
async def test_peers_that_do_not_begin_their_tls_handshake_count_as_newcomers(tmp_path: Path) -> None:
    async with encrypted_server(tmp_path, newcomers_per_address=4) as address:
        silent = [await asyncio.open_connection(*address.split(":")) for _ in range(6)]
        for reader, _ in silent[:2]:
            await is_closed(reader, PATIENCE / 6)
        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.get(f"https://{address}/healthz", ssl=False) as response:
                    assert response.status == 200
        for _, writer in silent:
            writer.close()


@pytest.mark.covers("limit-handshake")
async def test_an_unfinished_handshake_is_closed_and_a_finished_one_is_not(serve: Any, opens: Opens) -> None:
    hub = await serve(limits={"handshake_timeout": 0.3}, auth=DefaultAuthenticationProvider(KEY))
    inside, departed = [await opens(hub, {"token": KEY}) for _ in range(2)]
    silent, refused = [await opens(hub) for _ in range(2)]
    await refused.send("40/smcp,")
    await departed.send("41/smcp,")
    assert await hears_the_end(silent) == ["1"]
    assert [text[:2] for text in await hears_the_end(refused)] == ["44", "1"]
    assert await hears_the_end(departed) == ["1"]
    assert await is_served(inside)


@pytest.mark.covers("limit-handshake")
async def test_an_unfinished_handshake_over_polling_is_closed(serve: Any, http: Http) -> None:
    poller = await Poller(http, (await serve(limits={"handshake_timeout": 0.3})).url).begin()
    assert await poller.get() == (200, "1")
    assert (await poller.get())[0] == 400


@pytest.mark.covers("limit-handshake")
async def test_a_connection_without_a_whole_request_is_closed(serve: Any, opens: Opens) -> None:
    hub = await serve(limits={"handshake_timeout": 0.3})
    inside = await opens(hub, None)
    host, port = hub.url.removeprefix("http://").split(":")

    async def is_closed_after(sent: bytes) -> bool:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        return True

    beginnings = (b"", b"GET /socket.io/?EIO=4", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ")
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    tried = [is_closed_after(sent) for sent in (*beginnings, *(whole + sent for sent in beginnings[1:]))]
    assert all(await asyncio.gather(*tried))
    assert await is_served(inside)
