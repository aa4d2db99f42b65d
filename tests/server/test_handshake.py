"""From the first byte to a seat: which clients are admitted, and how a refusal is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import socketio

from a2c_smcp.protocol.version import PROTOCOL_VERSION
from a2c_smcp.server import (
    AuthenticationProvider,
    DefaultAuthenticationProvider,
    Limits,
    Principal,
    Settings,
    create_app,
)
from a2c_smcp.server.auth.api_keys import hash_key, new_key
from a2c_smcp.server.auth.jwt import JWTAuthenticationProvider
from a2c_smcp.server.run import address_of, listen, serving
from tests.conftest import TRANSPORTS, Hub
from tests.peer import PATIENCE, Peer, Wire
from tests.server.test_program import certificate
from tests.waiting import until

KEY = new_key()
SECRET = "correct horse battery staple correct horse battery staple"
CLOCKS = 0.05
"""By how much the clock of timers and the one on the wall may differ."""
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
DOORS: dict[str, dict[str, str]] = {"polling": {}, "websocket": UPGRADE}
PLACES: dict[str, dict[str, Any]] = {
    "auth": {"auth": {"token": KEY}},
    "authorization": {"headers": {"Authorization": f"Bearer {KEY}"}},
    "x-api-key": {"headers": {"x-api-key": KEY}},
    "access_token": {"headers": {"access_token": KEY}},
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
ODD_AUTH = ["[]", '"token"', "17", "null", '{"token":', '{"token":["x"]}', '{"token":{"a":1}}']
MALFORMED = ["", "four", "0", "0.", ".4", "0.4.x/..", "-1.0", "0.4%0d%0aX-A:%20b", "0.4%00", "%ff", "0" * 5000]
HOSTS = {
    "localhost": True,
    "LOCALHOST:7000": True,
    "127.0.0.1:7000": True,
    "[::1]:7000": True,
    "evil.example": False,
    "evil.example:7000": False,
    "localhost.evil.example": False,
    "127.0.0.1.evil.example": False,
    "[::2]": False,
    "": False,
}

Opens = Callable[..., Awaitable[Wire]]
Knocks = Callable[..., Awaitable[tuple[int, Mapping[str, str], str]]]


class Says(AuthenticationProvider):
    """A provider that calls a function of the test's for each credential."""

    def __init__(self, judge: Callable[[Any], Awaitable[Any]]) -> None:
        self._judge = judge

    async def authenticate(self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]) -> Any:
        return await self._judge(auth.get("token") if isinstance(auth, dict) else None)


def admits(**principals: Principal) -> Says:
    """Lets in who gives one of these words for a token, as its principal."""

    async def judge(token: Any) -> Any:
        return principals.get(token, False)

    return Says(judge)


def frame(event: str, data: object, ack: int) -> str:
    return f"42/smcp,{ack}{json.dumps([event, data])}"


async def join(wire: Wire, role: str, name: str, office: str, **more: Any) -> Any:
    """The arguments of the ack to a join."""
    data = {"role": role, "name": name, "office_id": office, **more}
    return await wire.ask(frame("server:join_office", data, 1), 1)


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
async def opens() -> AsyncIterator[Opens]:
    """Opens a hand-written connection: `await opens(hub)` up to CONNECT, `await opens(hub, auth)` through it."""
    async with AsyncExitStack() as stack:

        async def start(hub: Hub, *auth: Any, **options: Any) -> Wire:
            wire = await (Wire.connect(hub.url, *auth) if auth else Wire.open(hub.url, **options))
            stack.push_async_callback(wire.close)
            return wire

        yield start


@pytest.fixture
async def knocks() -> AsyncIterator[Knocks]:
    """The first HTTP request of a client, and the whole response."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session:

        async def knock(
            hub: Hub, door: str, query: str = "", headers: Mapping[str, str] | None = None
        ) -> tuple[int, Mapping[str, str], str]:
            url = f"{hub.url}/socket.io/?EIO=4&transport={door}{query}"
            async with session.get(url, headers={**DOORS[door], **(headers or {})}) as response:
                return response.status, response.headers, "" if response.status == 101 else await response.text()

        yield knock


async def poll(session: aiohttp.ClientSession, url: str, packet: str | None = None) -> str:
    """One request of a polling client: fetches packets, or delivers one."""
    method, data = ("POST", packet) if packet else ("GET", None)
    async with session.request(method, url, data=data) as response:
        assert response.status == 200, await response.text()
        return await response.text()


async def polling_session(session: aiohttp.ClientSession, hub: Hub, query: str = "") -> str:
    """Opens a session over polling and returns its address."""
    url = f"{hub.url}/socket.io/?EIO=4&transport=polling{query}"
    return f"{url}&sid={json.loads((await poll(session, url))[1:])['sid']}"


# Credentials


@pytest.mark.covers("auth-credentials", "auth-keys")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_key_is_found_in_every_place_over_every_transport(serve: Any, connect: Any, transport: str) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(KEY))
    for place, credential in PLACES.items():
        peer = await connect(hub, transport, **credential)
        await peer.join("computer", "laptop", f"office-{place}")


@pytest.mark.covers("auth-refused", "auth-keys")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nobody_enters_without_the_key(serve: Any, transport: str) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(KEY))
    for presented in NO_KEYS:
        with pytest.raises(socketio.exceptions.ConnectionError, match="failed to connect: /smcp"):
            await Peer.connect(hub.url, transports=TRANSPORTS[transport], **presented)
    assert hub.app.metrics.value("a2c_refused_total", code="401") == len(NO_KEYS)


@pytest.mark.covers("auth-credentials")
async def test_a_wrong_key_in_one_place_does_not_hide_the_right_one_in_another(serve: Any, connect: Any) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(KEY))
    assert await connect(hub, auth={"token": "stale"}, headers={"x-api-key": KEY})


@pytest.mark.covers("auth-credentials")
async def test_the_field_of_the_auth_object_can_be_chosen(serve: Any, connect: Any) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(KEY, field="secret"))
    assert await connect(hub, auth={"secret": KEY})
    with pytest.raises(socketio.exceptions.ConnectionError):
        await connect(hub, auth={"token": KEY})


@pytest.mark.covers("auth-refused")
async def test_a_refused_handshake_is_a_connect_error_with_a_code(serve: Any, opens: Opens) -> None:
    wire = await opens(await serve(auth=DefaultAuthenticationProvider(KEY)))
    await wire.send('40/smcp,{"token":"wrong"}')
    head, _, refusal = (await wire.receive()).partition(",")
    assert head == "44/smcp"
    assert json.loads(refusal) == {
        "message": "Not authenticated",
        "data": {"code": 401, "message": "Not authenticated"},
    }


@pytest.mark.covers("auth-refused")
async def test_a_refused_handshake_sounds_the_same_over_polling(serve: Any) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(KEY))
    async with aiohttp.ClientSession() as session:
        url = await polling_session(session, hub)
        await poll(session, url, "40/smcp,")
        head, _, refusal = (await poll(session, url)).partition(",")
    assert head == "44/smcp"
    assert json.loads(refusal)["data"]["code"] == 401


@pytest.mark.covers("auth-refused")
async def test_after_a_refusal_the_same_connection_may_try_again(serve: Any, opens: Opens, office: str) -> None:
    wire = await opens(await serve(auth=DefaultAuthenticationProvider(KEY)))
    await wire.send('40/smcp,{"token":"wrong"}')
    assert (await wire.receive()).startswith("44/smcp,")
    await wire.send(f'40/smcp,{{"token":"{KEY}"}}')
    assert (await wire.receive()).startswith("40/smcp,")
    assert await join(wire, "computer", "laptop", office) == [True, None]


@pytest.mark.covers("auth-refused")
async def test_an_odd_auth_object_is_refused_without_an_error(serve: Any, opens: Opens) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(KEY))
    for auth in ODD_AUTH:
        wire = await opens(hub)
        await wire.send(f"40/smcp,{auth}")
        assert json.loads((await wire.receive()).removeprefix("44/smcp,"))["data"]["code"] == 401, auth


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
    await wire.send("40/smcp,")
    assert (await wire.receive()).startswith("40/smcp,")


@pytest.mark.covers("only-smcp")
async def test_an_event_in_another_namespace_does_nothing(shared_hub: Hub, opens: Opens) -> None:
    wire = await opens(shared_hub, None)
    for namespace in ("", "/admin,"):
        await wire.send(f'42{namespace}1["server:join_office",{{"role":"agent","name":"a","office_id":"o"}}]')
        await wire.send(f'42{namespace}2["connect",{{}}]')
    assert await is_served(wire)
    (answer,) = await wire.ask(frame("server:list_room", {"agent": "a", "req_id": "1", "office_id": "o"}, 3), 3)
    assert answer["code"] == 403


@pytest.mark.covers("auth-refused")
@pytest.mark.parametrize("is_refused_first", [False, True], ids=["before", "after a refusal"])
async def test_an_event_without_a_connect_does_nothing_and_harms_nobody(
    serve: Any, opens: Opens, office: str, is_refused_first: bool
) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(KEY))
    agent, stranger = await opens(hub, {"token": KEY}), await opens(hub)
    assert await join(agent, "agent", "planner", office) == [True, None]
    if is_refused_first:
        await stranger.send("40/smcp,")
        assert (await stranger.receive()).startswith("44/smcp,")
    data = {"role": "computer", "name": "intruder", "office_id": office}
    await stranger.send(frame("server:join_office", data, 1))
    await stranger.send('452-/smcp,2["server:join_office",{"_placeholder":true,"num":0}]')
    await stranger.send("41/smcp,")
    await stranger.send('43/smcp,1[{"content":[]}]')
    await stranger.send(f'40/smcp,{{"token":"{KEY}"}}')
    assert (await stranger.receive()).startswith("40/smcp,")  # and no ack before it
    (room,) = await agent.ask(frame("server:list_room", {"agent": "planner", "req_id": "1", "office_id": office}, 2), 2)
    assert [session["name"] for session in room["sessions"]] == ["planner"]


@pytest.mark.covers("auth-refused", "auth-fails-closed")
async def test_an_event_during_authentication_waits_for_nobody(serve: Any, opens: Opens, office: str) -> None:
    decided = asyncio.Event()

    async def judge(token: Any) -> Any:
        if token == "slow":
            await decided.wait()
        return token == "fast"

    hub = await serve(auth=Says(judge))
    agent, stranger = await opens(hub, {"token": "fast"}), await opens(hub)
    assert await join(agent, "agent", "planner", office) == [True, None]
    await stranger.send('40/smcp,{"token":"slow"}')
    await stranger.send(frame("server:join_office", {"role": "computer", "name": "x", "office_id": office}, 1))
    assert await is_served(agent)
    decided.set()
    assert (await stranger.receive()).startswith("44/smcp,")
    (room,) = await agent.ask(frame("server:list_room", {"agent": "planner", "req_id": "1", "office_id": office}, 2), 2)
    assert [session["name"] for session in room["sessions"]] == ["planner"]


@pytest.mark.covers("only-smcp")
async def test_a_second_connect_is_refused_and_the_first_stays_as_it_was(serve: Any, opens: Opens, office: str) -> None:
    hub = await serve(auth=admits(one=Principal("one"), two=Principal("two", roles=frozenset({"agent"}))))
    wire = await opens(hub, {"token": "one"})
    assert await join(wire, "computer", "laptop", office) == [True, None]
    await wire.send('40/smcp,{"token":"two"}')
    refusal = json.loads((await wire.receive()).removeprefix("44/smcp,"))
    assert refusal["data"]["code"] == 400
    assert await join(wire, "computer", "tablet", office) == [True, None]
    assert hub.app.metrics.value("a2c_connections") == 1


# For how long


@pytest.mark.covers("auth-expiry")
async def test_a_connection_ends_with_its_principal_and_gives_up_its_seat(
    serve: Any, opens: Opens, office: str
) -> None:
    ends = {"lasting": time.time() + 900}

    async def judge(token: Any) -> Any:
        return Principal(token, expires=ends.setdefault(token, time.time() + 1))

    hub = await serve(auth=Says(judge))
    agent = await opens(hub, {"token": "lasting"})
    assert await join(agent, "agent", "planner", office) == [True, None]
    computer = await opens(hub, {"token": "brief"})
    assert await join(computer, "computer", "laptop", office, instance="0123456789abcdef") == [True, None]
    assert "notify:enter_office" in await agent.receive()
    assert await computer.receive() == "41/smcp,"
    assert time.time() > ends["brief"] - CLOCKS
    assert "notify:leave_office" in await agent.receive()  # at once: this seat is not to be resumed
    assert await is_served(agent)
    await computer.send('40/smcp,{"token":"brief"}')
    refusal = json.loads((await computer.receive()).removeprefix("44/smcp,"))
    assert refusal["data"] == {"code": 401, "message": "Not authenticated: the credential has expired"}


@pytest.mark.covers("auth-expiry", "auth-jwt")
async def test_a_connection_ends_with_its_token(serve: Any, opens: Opens, office: str) -> None:
    hub = await serve(auth=JWTAuthenticationProvider(algorithms="HS256", secret=SECRET, leeway=0))
    expires = int(time.time()) + 2
    token = jwt.encode({"sub": "alice", "exp": expires, "roles": "computer"}, SECRET)
    wire = await opens(hub, {"token": token})
    assert await join(wire, "computer", "laptop", office) == [True, None]
    assert await wire.receive() == "41/smcp,"
    assert time.time() > expires - CLOCKS


@pytest.mark.covers("auth-keys", "auth-expiry")
async def test_a_reload_disconnects_clients_whose_key_is_gone_and_keeps_the_others(
    serve: Any, opens: Opens, office: str, tmp_path: Path
) -> None:
    free, kept, revoked, changed, added = (new_key() for _ in range(5))
    entries: dict[str, dict[str, Any]] = {
        hash_key(kept): {"principal": "kept"},
        hash_key(revoked): {"principal": "revoked"},
        hash_key(changed): {"principal": "changed"},
    }
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(entries))
    hub = await serve(auth=DefaultAuthenticationProvider(free, keys))
    stay = [await opens(hub, {"token": key}) for key in (free, kept)]
    go = [await opens(hub, {"token": key}) for key in (revoked, changed)]
    assert await join(stay[0], "agent", "planner", office) == [True, None]
    assert await join(go[0], "computer", "laptop", office) == [True, None]
    assert "notify:enter_office" in await stay[0].receive()

    del entries[hash_key(revoked)]
    entries[hash_key(changed)] = {"principal": "changed", "offices": ["elsewhere"]}
    entries[hash_key(added)] = {"principal": "added"}
    keys.write_text(json.dumps(entries))
    await hub.app.reload()

    assert [await wire.receive() for wire in go] == ["41/smcp,", "41/smcp,"]
    assert "notify:leave_office" in await stay[0].receive()
    assert all([await is_served(wire) for wire in stay])
    await go[0].send(f'40/smcp,{{"token":"{revoked}"}}')
    assert (await go[0].receive()).startswith("44/smcp,")
    assert await opens(hub, {"token": added})


@pytest.mark.covers("auth-keys", "auth-fails-closed")
async def test_a_reload_of_a_broken_file_changes_nothing(serve: Any, opens: Opens, tmp_path: Path) -> None:
    key, keys = new_key(), tmp_path / "keys.json"
    keys.write_text(json.dumps({hash_key(key): {"principal": "alice"}}))
    hub = await serve(auth=DefaultAuthenticationProvider((), keys))
    wire = await opens(hub, {"token": key})
    keys.write_text("{")
    await hub.app.reload()
    assert await is_served(wire)
    assert await opens(hub, {"token": key})


# As whom


@pytest.mark.covers("auth-scope")
@pytest.mark.parametrize(
    ("role", "name", "where"),
    [("agent", "lap-1", "team-a"), ("computer", "desk-1", "team-a"), ("computer", "lap-1", "board")],
    ids=["role", "name", "office"],
)
async def test_a_join_beyond_what_a_principal_may_is_refused(
    serve: Any, opens: Opens, role: str, name: str, where: str
) -> None:
    scope: dict[str, Any] = {
        "roles": frozenset({"computer"}),
        "names": frozenset({"lap-*"}),
        "offices": frozenset({"team-*"}),
    }
    hub = await serve(auth=admits(alice=Principal("alice", **scope)))
    wire = await opens(hub, {"token": "alice"})
    accepted, reason = await join(wire, role, name, where)
    assert (accepted, reason[:19]) == (False, "403 Not authorised:")
    assert await join(wire, "computer", "lap-1", "team-a") == [True, None]


@pytest.mark.covers("auth-scope")
async def test_a_rename_or_a_move_beyond_what_a_principal_may_is_refused_and_changes_nothing(
    serve: Any, opens: Opens
) -> None:
    alice = Principal("alice", names=frozenset({"lap-*"}), offices=frozenset({"team-a", "team-b"}))
    hub = await serve(auth=admits(alice=alice, bob=Principal("bob")))
    wire, agent = await opens(hub, {"token": "alice"}), await opens(hub, {"token": "bob"})
    assert await join(agent, "agent", "planner", "team-a") == [True, None]
    assert await join(wire, "computer", "lap-1", "team-a") == [True, None]
    for name, office in (("boss", "team-a"), ("lap-1", "board"), ("boss", "team-b")):
        accepted, reason = await join(wire, "computer", name, office)
        assert (accepted, reason[:19]) == (False, "403 Not authorised:")
    request = {"agent": "planner", "req_id": "1", "office_id": "team-a"}
    (room,) = await agent.ask(frame("server:list_room", request, 2), 2)
    assert [session["name"] for session in room["sessions"]] == ["planner", "lap-1"]
    assert await join(wire, "computer", "lap-2", "team-a") == [True, None]
    (room,) = await agent.ask(frame("server:list_room", request, 3), 3)
    assert [session["name"] for session in room["sessions"]] == ["planner", "lap-2"]


@pytest.mark.covers("auth-scope", "auth-jwt")
async def test_the_claims_of_a_token_are_its_scope(serve: Any, opens: Opens) -> None:
    hub = await serve(auth=JWTAuthenticationProvider(algorithms="HS256", secret=SECRET))
    claims = {"sub": "alice", "exp": int(time.time()) + 600, "roles": ["agent"], "offices": ["desk"], "names": "a b"}
    wire = await opens(hub, {"token": jwt.encode(claims, SECRET)})
    for role, name, office in (("computer", "a", "desk"), ("agent", "c", "desk"), ("agent", "a", "board")):
        accepted, reason = await join(wire, role, name, office)
        assert (accepted, reason[:4]) == (False, "403 ")
    assert await join(wire, "agent", "b", "desk") == [True, None]


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

    hub = await serve(auth=Says(judge), limits={"authentication_timeout": 0.2})
    inside, wire = await opens(hub, {"token": "good"}), await opens(hub)
    await wire.send('40/smcp,{"token":"canary-5f1c"}')
    refusal = json.loads((await wire.receive()).removeprefix("44/smcp,"))
    assert refusal["data"] == {"code": 401, "message": "Not authenticated: authentication is not working"}
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

    hub = await serve(auth=Says(judge))
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
    room = await agent.ask("server:list_room", {"agent": "planner", "req_id": "1", "office_id": office})
    assert [session["a2c_version"] for session in room["sessions"]] == [shown]


@pytest.mark.covers("version", "version-http")
@pytest.mark.parametrize("door", DOORS)
async def test_a_malformed_version_is_refused_before_socket_io(shared_hub: Hub, knocks: Knocks, door: str) -> None:
    for claimed in MALFORMED:
        status, headers, body = await knocks(shared_hub, door, f"&a2c_version={claimed}")
        assert (status, headers["content-type"]) == (400, "application/json"), claimed
        assert json.loads(body)["code"] == 400
        assert "0.4" in json.loads(body)["message"]


@pytest.mark.covers("version", "version-http")
@pytest.mark.parametrize("door", DOORS)
async def test_a_later_version_of_the_protocol_is_refused(shared_hub: Hub, knocks: Knocks, door: str) -> None:
    for version in ("0.5", "1.0"):
        status, headers, body = await knocks(shared_hub, door, f"&a2c_version={version}")
        assert (status, headers["x-a2c-error-code"]) == (400, "4008")
        answer = json.loads(body)
        assert (answer["code"], answer["client_version"]) == (4008, version)


@pytest.mark.covers("version-http")
@pytest.mark.parametrize("door", DOORS)
async def test_a_pinned_version_refuses_all_others(serve: Any, knocks: Knocks, door: str) -> None:
    hub = await serve(require_version="0.4")
    for query, version in (("", "0.1"), ("&a2c_version=0.3.9", "0.3.9"), ("&a2c_version=0.41", "0.41")):
        status, headers, body = await knocks(hub, door, query)
        assert (status, headers["x-a2c-error-code"]) == (400, "4008")
        assert headers["content-type"] == "application/json"
        answer = json.loads(body)
        assert answer.pop("message")
        assert answer == {
            "code": 4008,
            "server_version": PROTOCOL_VERSION,
            "client_version": version,
            "min_supported": "0.4",
            "max_supported": "0.4",
        }


@pytest.mark.covers("version-http")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_pinned_version_takes_its_own(serve: Any, connect: Any, office: str, transport: str) -> None:
    hub = await serve(require_version="0.4")
    peer = await connect(hub, transport, query="?a2c_version=0.4.2")
    await peer.join("computer", "laptop", office)


@pytest.mark.covers("version-http")
@pytest.mark.parametrize("door", DOORS)
async def test_a_blank_session_id_does_not_bypass_the_version_check(serve: Any, knocks: Knocks, door: str) -> None:
    status, headers, _ = await knocks(await serve(require_version="0.4"), door, "&sid=")
    assert (status, headers["x-a2c-error-code"]) == (400, "4008")


# Web pages


@pytest.mark.covers("cors")
@pytest.mark.parametrize("door", DOORS)
async def test_a_page_from_elsewhere_is_refused_unless_it_is_allowed(serve: Any, knocks: Knocks, door: str) -> None:
    page = {"Origin": "https://evil.example"}
    closed, open_ = await serve(), await serve(cors_origins=("https://app.example",))
    anybody = await serve(cors_origins=("*",))
    for hub in (closed, open_):
        status, headers, _ = await knocks(hub, door, headers=page)
        assert status in (400, 403)
        assert "access-control-allow-origin" not in headers
    welcome = 101 if door == "websocket" else 200
    assert (await knocks(open_, door, headers={"Origin": "https://app.example"}))[0] == welcome
    assert (await knocks(anybody, door, headers=page))[0] == welcome
    for hub in (closed, open_):
        assert (await knocks(hub, door, headers={"Origin": hub.url}))[0] == welcome
        assert (await knocks(hub, door))[0] == welcome


@pytest.mark.covers("cors")
async def test_an_allowed_page_is_told_so_and_another_is_not(serve: Any) -> None:
    hub = await serve(cors_origins=("https://app.example",))
    url = f"{hub.url}/socket.io/?EIO=4&transport=polling"
    async with aiohttp.ClientSession() as session:
        async with session.options(url, headers={"Origin": "https://app.example"}) as response:
            assert response.status == 200
            assert response.headers["access-control-allow-origin"] == "https://app.example"
        for origin in ("https://app.example.evil.example", "http://app.example", "null"):
            async with session.options(url, headers={"Origin": origin}) as response:
                assert "access-control-allow-origin" not in response.headers


@pytest.mark.covers("cors")
@pytest.mark.parametrize("door", DOORS)
async def test_a_page_behind_a_proxy_counts_as_same_origin(serve: Any, knocks: Knocks, door: str) -> None:
    proxy = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "hub.example"}
    hub = await serve()
    status, *_ = await knocks(hub, door, headers={"Origin": "https://hub.example", **proxy})
    assert status in (101, 200)
    status, *_ = await knocks(hub, door, headers={"Origin": "https://evil.example", **proxy})
    assert status in (400, 403)


@pytest.mark.covers("trusted-hosts")
@pytest.mark.parametrize("door", DOORS)
async def test_a_server_with_trusted_hosts_answers_to_those_names_only(serve: Any, knocks: Knocks, door: str) -> None:
    hub = await serve(trusted_hosts=frozenset({"localhost", "127.0.0.1", "::1"}))
    for host, is_trusted in HOSTS.items():
        status, _, body = await knocks(hub, door, headers={"Host": host})
        assert (status in (101, 200)) is is_trusted, host
        if not is_trusted:
            assert (status, json.loads(body)["code"]) == (400, 400)
            assert "API key" in json.loads(body)["message"]


@pytest.mark.covers("trusted-hosts")
@pytest.mark.parametrize("page", ["/metrics", "/readyz", "/healthz", "/nothing-here"])
async def test_pages_for_operators_are_not_shown_under_a_foreign_name_either(serve: Any, page: str) -> None:
    hub = await serve(trusted_hosts=frozenset(), metrics=True)
    async with aiohttp.ClientSession() as session:
        for host, is_trusted in (("evil.example", False), ("192.0.2.7:7000", False), ("localhost:7000", True)):
            async with session.get(f"{hub.url}{page}", headers={"Host": host}) as response:
                assert (response.status == 400) is not is_trusted, host
                assert ("foreign" in await response.text() or "loopback" in await response.text()) is not is_trusted


# In time


@pytest.mark.covers("limit-handshake")
async def test_a_peer_that_does_not_begin_its_tls_handshake_is_closed(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    app = create_app(Settings(limits=Limits(handshake_timeout=0.3)))
    listener = listen("127.0.0.1", 0)
    async with serving(app, listener, tls_cert=cert, tls_key=key):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
        url = f"https://{address_of(listener)}/healthz"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as response:
            assert response.status == 200


@pytest.mark.covers("strangers-connections")
async def test_peers_that_do_not_begin_their_tls_handshake_count_as_newcomers(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    app = create_app(Settings(limits=Limits(newcomers_per_address=4)))
    listener = listen("127.0.0.1", 0)
    async with serving(app, listener, tls_cert=cert, tls_key=key):
        silent = [await asyncio.open_connection(*listener.getsockname()) for _ in range(6)]
        for reader, _ in silent[:2]:
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE / 6) == b""
        url = f"https://{address_of(listener)}/healthz"
        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.get(url, ssl=False) as response:
                    assert response.status == 200
        for _, writer in silent:
            writer.close()


@pytest.mark.covers("limit-handshake")
async def test_an_unfinished_handshake_is_closed_and_a_finished_one_is_not(serve: Any, opens: Opens) -> None:
    hub = await serve(limits={"handshake_timeout": 0.3}, auth=DefaultAuthenticationProvider(KEY))
    inside, silent, refused, departed = (
        await opens(hub, {"token": KEY}),
        await opens(hub),
        await opens(hub),
        await opens(hub, {"token": KEY}),
    )
    await refused.send("40/smcp,")
    await departed.send("41/smcp,")
    assert await hears_the_end(silent) == ["1"]
    assert [text[:2] for text in await hears_the_end(refused)] == ["44", "1"]
    assert await hears_the_end(departed) == ["1"]
    assert await is_served(inside)


@pytest.mark.covers("limit-handshake")
async def test_an_unfinished_handshake_over_polling_is_closed(serve: Any) -> None:
    hub = await serve(limits={"handshake_timeout": 0.3})
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session:
        url = await polling_session(session, hub)
        assert await poll(session, url) == "1"
        async with session.get(url) as response:
            assert response.status == 400


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
