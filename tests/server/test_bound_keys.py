"""Keys and tokens that are bound to a device: attacks with a stolen one, and clients that prove theirs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import socketio

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.connection import Connection
from a2c_smcp.devices.identity import Identity
from a2c_smcp.devices.proof import make_proof
from a2c_smcp.devices.proving import Prover
from a2c_smcp.endpoint import Credentials, Endpoint
from a2c_smcp.errors import ConfigError, NotAuthenticated
from a2c_smcp.server import (
    AuthenticationProvider,
    DefaultAuthenticationProvider,
    Principal,
    SMCPNamespace,
)
from a2c_smcp.server.auth.admission import checked_origin
from a2c_smcp.server.auth.api_keys import hash_key, new_key
from a2c_smcp.server.auth.jwt import JWTAuthenticationProvider
from a2c_smcp.server.run import address_of, listen
from tests.cluster import Front, serving_node
from tests.conftest import TRANSPORTS, Hub
from tests.peer import PATIENCE, Peer, Wire
from tests.valkey import running_valkey
from tests.waiting import until
from tests.web_server import by_uvicorn

DEVICE, OTHER = Identity.generate(), Identity.generate()
TOKEN, SECOND = new_key(), new_key()
SECRET = "correct horse battery staple correct horse battery staple"
HOUR = 3600

pytestmark = pytest.mark.covers("device-binding")


def keys_file(folder: Path, device: Identity = DEVICE) -> Path:
    path = folder / "keys.json"
    entry = {"principal": "laptop", "device": device.fingerprint}
    path.write_text(json.dumps({hash_key(TOKEN): entry, hash_key(SECOND): entry}))
    return path


class Session:
    """A websocket, and the sid that the Server gave to it."""

    def __init__(self, wire: Wire, url: str, sid: str) -> None:
        self.wire, self.url, self.sid = wire, url, sid

    def auth(self, identity: Identity = DEVICE, **changes: Any) -> dict[str, Any]:
        """The CONNECT of a device that may enter, with changes."""
        facts = {"origin": self.url, "sid": self.sid, "at": int(time.time()), "token": TOKEN} | changes
        return {"token": TOKEN, "device": make_proof(identity, **facts)}

    async def connect(self, auth: object) -> dict[str, Any] | None:
        """`None` if it is accepted, else the refusal."""
        await self.wire.send(f"40/smcp,{auth if isinstance(auth, str) else json.dumps(auth)}")
        answer = await self.wire.receive()
        assert answer.startswith(("40/smcp,", "44/smcp,")), answer
        return None if answer.startswith("40") else json.loads(answer.partition(",")[2])["data"]


@asynccontextmanager
async def session_at(url: str) -> AsyncIterator[Session]:
    async with aiohttp.ClientSession() as http:
        socket = await http.ws_connect(f"{url}/socket.io/?EIO=4&transport=websocket")
        opened = await socket.receive_str(timeout=PATIENCE)
        yield Session(Wire(http, socket), url, json.loads(opened[1:])["sid"])
        await socket.close()


@pytest.fixture
async def hub(serve: Any, tmp_path: Path) -> Hub:
    served: Hub = await serve(auth=DefaultAuthenticationProvider(keys_file=keys_file(tmp_path)))
    return served


def endpoint(url: str, prover: Prover | None, **more: Any) -> Endpoint:
    return Endpoint(url=url, credentials=lambda: Credentials.of_key(TOKEN), prover=prover, **more)


def given(identity: Identity = DEVICE, clock: Callable[[], float] = time.time) -> Prover:
    return Prover(lambda: identity, given=identity, clock=clock)


async def enter(dialled: Endpoint) -> None:
    async with Connection(dialled, lambda *_: None) as connection:
        assert not connection.lost.is_set()


# Attacks


async def test_the_device_enters(hub: Hub) -> None:
    async with session_at(hub.url) as session:
        assert await session.connect(session.auth()) is None


async def test_a_stolen_token_is_worth_nothing_without_the_device(hub: Hub) -> None:
    async with session_at(hub.url) as session:
        refusal = await session.connect({"token": TOKEN})
    assert refusal
    assert (refusal["code"], refusal["device"]) == (401, True)
    assert DEVICE.fingerprint not in json.dumps(refusal)


async def test_another_device_is_refused(hub: Hub) -> None:
    for forged in (
        lambda session: session.auth(OTHER),
        lambda session: session.auth(OTHER) | {"device": session.auth(OTHER)["device"] | {"key": key_of(DEVICE)}},
    ):
        async with session_at(hub.url) as session:
            assert (await session.connect(forged(session)) or {})["code"] == 401


def key_of(identity: Identity) -> str:
    return str(make_proof(identity, origin="", sid="", at=0, token="")["key"])


async def test_a_proof_cannot_be_replayed_in_another_session(hub: Hub) -> None:
    async with session_at(hub.url) as victim, session_at(hub.url) as thief:
        recorded = victim.auth()
        assert await victim.connect(recorded) is None
        assert (await thief.connect(recorded) or {})["code"] == 401


async def test_a_session_is_proved_once(hub: Hub) -> None:
    async with session_at(hub.url) as session:
        recorded = session.auth()
        assert await session.connect(recorded) is None
        await session.wire.send("41/smcp,")
        assert (await session.connect(recorded) or {})["code"] == 401
        assert (await session.connect(session.auth()) or {})["code"] == 401


async def test_a_proof_that_was_refused_uses_up_the_session(hub: Hub) -> None:
    async with session_at(hub.url) as session:
        assert (await session.connect(session.auth(OTHER)) or {})["code"] == 401
        assert (await session.connect(session.auth()) or {})["code"] == 401


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "https://hub.example.com",
        "http://127.0.0.1:80",
        "",
        "null",
    ],
)
async def test_a_proof_for_another_origin_is_refused(hub: Hub, origin: str) -> None:
    async with session_at(hub.url) as session:
        assert (await session.connect(session.auth(origin=origin)) or {})["code"] == 401


async def test_a_relay_gets_nothing_out_of_a_victim(hub: Hub) -> None:
    """It passes everything on, with the headers of the real Server: the victim has signed where it thinks it is."""
    async with relay_to(hub.url) as url:
        with pytest.raises(NotAuthenticated, match="another session, origin or token"):
            await enter(endpoint(url, given()))
    await enter(endpoint(hub.url, given()))


@asynccontextmanager
async def relay_to(url: str) -> AsyncIterator[str]:
    """A man in the middle who writes the headers that a Server might believe."""
    host, _, port = url.removeprefix("http://").rpartition(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        head = await reader.readuntil(b"\r\n\r\n")
        first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        kept = [field for field in fields if not field.lower().startswith(b"host:")]
        real = url.removeprefix("http://").encode()
        lies = [b"Host: " + real, b"X-Forwarded-Host: " + real, b"X-Forwarded-Proto: http", b"Origin: " + url.encode()]
        back.write(b"\r\n".join((first, *lies, *kept)) + b"\r\n\r\n")
        await asyncio.wait(
            [asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        back.close()
        writer.close()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_proof_is_for_one_token(hub: Hub) -> None:
    async with session_at(hub.url) as session:
        assert (await session.connect(session.auth() | {"token": SECOND}) or {})["code"] == 401
    async with session_at(hub.url) as session:
        assert await session.connect(session.auth(token=SECOND) | {"token": SECOND}) is None


@pytest.mark.parametrize("skew", [-HOUR, HOUR, -601, 601])
async def test_a_wrong_clock_is_refused_and_told_the_time(hub: Hub, skew: int) -> None:
    async with session_at(hub.url) as session:
        refusal = await session.connect(session.auth(at=int(time.time()) + skew))
    assert refusal
    assert refusal["code"] == 401
    assert abs(refusal["now"] - time.time()) < PATIENCE


@pytest.mark.parametrize("skew", [-590, 590])
async def test_clocks_may_differ_by_ten_minutes(hub: Hub, skew: int) -> None:
    async with session_at(hub.url) as session:
        assert await session.connect(session.auth(at=int(time.time()) + skew)) is None


async def test_the_time_is_told_only_to_the_device(hub: Hub) -> None:
    async with session_at(hub.url) as session:
        assert "now" not in (await session.connect(session.auth(OTHER, at=1)) or {"now": 0})


ODD: list[Any] = [
    None, True, 0, "", "proof", [], {}, [{}],
    {"key": 1}, {"at": 1}, {"sig": "x"},
    {"at": None}, {"at": "1790000000"}, {"at": 1.5}, {"at": True}, {"at": -1}, {"at": 2**70}, {"at": []},
    {"key": None}, {"key": ""}, {"key": "AAAA"}, {"key": []}, {"key": "é"}, {"key": "-_" * 22}, {"key": "A" * 10_000},
    {"sig": None}, {"sig": ""}, {"sig": "AAAA"}, {"sig": {}}, {"sig": "\ud800"}, {"more": 1},
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=repr)
async def test_malformed_proofs_are_refused(hub: Hub, odd: Any) -> None:
    async with session_at(hub.url) as session:
        auth = session.auth()
        is_change = isinstance(odd, dict) and len(odd) == 1
        auth["device"] = auth["device"] | odd if is_change and odd.keys() & {"key", "at", "sig", "more"} else odd
        assert (await session.connect(auth) or {})["code"] == 401
    assert hub.app.hub.connections.__len__() == 0


@pytest.mark.parametrize("field", ["key", "sig"])
async def test_truncated_proofs_are_refused(hub: Hub, field: str) -> None:
    async with session_at(hub.url) as session:
        auth = session.auth()
        auth["device"][field] = auth["device"][field][:-4]
        assert (await session.connect(auth) or {})["code"] == 401


async def test_a_truncated_connect_is_refused(hub: Hub) -> None:
    async with session_at(hub.url) as session:
        assert (await session.connect(json.dumps(session.auth())[:-2]) or {})["code"] == 401


async def test_a_missing_field_is_refused(hub: Hub) -> None:
    for field in ("key", "at", "sig"):
        async with session_at(hub.url) as session:
            auth = session.auth()
            del auth["device"][field]
            assert (await session.connect(auth) or {})["code"] == 401


async def test_a_bit_of_the_signature_cannot_be_changed(hub: Hub) -> None:
    async with session_at(hub.url) as session:
        auth = session.auth()
        sig = auth["device"]["sig"]
        auth["device"]["sig"] = ("B" if sig[0] == "A" else "A") + sig[1:]
        assert (await session.connect(auth) or {})["code"] == 401


# Where no proof is possible


async def test_a_bound_key_is_no_bearer_for_mcp_clients(starts: Any, tmp_path: Path) -> None:
    program = await starts("--mcp", "--keys-file", keys_file(tmp_path))
    async with aiohttp.ClientSession() as http:
        for key, status in ((TOKEN, 401), (new_key(), 401)):
            headers = {"Authorization": f"Bearer {key}", "Accept": "application/json, text/event-stream"}
            async with http.post(f"{program.url}/mcp/desk", json={}, headers=headers) as response:
                assert response.status == status
    await program.says(" device=")


async def test_a_bound_key_is_refused_under_python_socketio(tmp_path: Path) -> None:
    sio = socketio.AsyncServer(async_mode="asgi")
    namespace = SMCPNamespace(DefaultAuthenticationProvider(keys_file=keys_file(tmp_path)))
    sio.register_namespace(namespace)
    listener = listen("127.0.0.1", 0)
    url = f"http://{address_of(listener)}"
    async with by_uvicorn(socketio.ASGIApp(sio), listener, waits_for_clients=False), session_at(url) as session:
        assert (await session.connect(session.auth()) or {})["code"] == 401
    await namespace.close()


# Clients of ours and of others


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_devices_are_proved_over_every_transport(hub: Hub, transport: str) -> None:
    peer = Peer(socketio.AsyncClient(reconnection=False))

    def auth() -> dict[str, Any]:
        proof = make_proof(DEVICE, origin=url, sid=peer.client.eio.sid, at=int(time.time()), token=TOKEN)
        return {"token": TOKEN, "device": proof}

    url, options = hub.url, {"transports": TRANSPORTS[transport], "namespaces": ["/smcp"], "wait_timeout": PATIENCE}
    await peer.client.connect(url, auth=auth, **options)
    await peer.join("computer", "laptop", "desk")
    await peer.close()


async def test_through_a_balancer_that_spreads_requests_over_nodes(tmp_path: Path) -> None:
    with running_valkey() as valkey:
        provider = DefaultAuthenticationProvider(keys_file=keys_file(tmp_path))
        async with (
            serving_node(valkey.url, "bound:", "one", auth=provider) as one,
            serving_node(valkey.url, "bound:", "two", auth=provider) as two,
            Front([one, two]) as front,
        ):
            for each in (one, two):
                each.app.hub.admission.bound_keys.origins = (front.url,)
            for transport, transports in TRANSPORTS.items():
                peer = Peer(socketio.AsyncClient(reconnection=False))

                def auth(peer: Peer = peer) -> dict[str, Any]:
                    at, sid = int(time.time()), peer.client.eio.sid
                    return {"token": TOKEN, "device": make_proof(DEVICE, origin=front.url, sid=sid, at=at, token=TOKEN)}

                options = {"transports": transports, "namespaces": ["/smcp"], "wait_timeout": PATIENCE}
                await peer.client.connect(front.url, auth=auth, **options)
                await peer.join("computer", transport, "desk")
                await peer.close()


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
async def test_a_client_with_a_wrong_clock_uses_that_of_the_server(hub: Hub, skew: int) -> None:
    dialled = endpoint(hub.url, given(clock=lambda: time.time() + skew))
    await enter(dialled)
    await enter(dialled)
    assert hub.app.metrics.value("a2c_refused_total", code="401") == 1, "the second time it knows the clock"


async def test_a_client_tries_a_second_time_and_not_a_third(serve: Any) -> None:
    asked: list[object] = []

    class Late(AuthenticationProvider):
        async def authenticate(self, sio: Any, environ: Any, auth: object, headers: Mapping[str, str]) -> bool:
            asked.append(auth)
            raise NotAuthenticated("always", now=1)

    hub = await serve(auth=Late())
    with pytest.raises(NotAuthenticated):
        await enter(endpoint(hub.url, given()))
    assert len(asked) == 2


@pytest.mark.parametrize("now", [10**400, 1e300, -1, 2**53, "1", True, None])
async def test_a_time_that_cannot_be_is_not_learnt(serve: Any, now: object) -> None:
    class Odd(AuthenticationProvider):
        async def authenticate(self, sio: Any, environ: Any, auth: object, headers: Mapping[str, str]) -> bool:
            raise NotAuthenticated("always", now=now)

    hub = await serve(auth=Odd())
    with pytest.raises(NotAuthenticated):
        await enter(endpoint(hub.url, given()))
    assert hub.app.metrics.value("a2c_refused_total", code="401") == 1


async def test_a_client_signs_nothing_until_the_server_wants_it(hub: Hub, tmp_path: Path, office: str) -> None:
    """The first key of this machine is made then, and is not the one that the key is bound to."""
    made = IdentityFolder(tmp_path / "state")
    with pytest.raises(NotAuthenticated, match="bound to another device"):
        async with AsyncSMCPAgentClient("planner", url=hub.url, office=office, api_key=TOKEN, state_folder=made.folder):
            pass
    made.bind(tmp_path)
    hub.app.hub.reload()
    async with AsyncSMCPAgentClient("planner", url=hub.url, office=office, api_key=TOKEN, state_folder=made.folder):
        pass


class IdentityFolder:
    """The state folder of a client. The suite has no keyring."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def bind(self, keys: Path) -> None:
        from a2c_smcp.devices.storage import IdentityStore

        stored = IdentityStore("agent", self.folder, use_keyring=False).load()
        assert stored
        keys_file(keys, stored.identity)


async def test_an_unbound_key_makes_no_identity(serve: Any, tmp_path: Path, office: str) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(TOKEN))
    async with AsyncSMCPAgentClient("planner", url=hub.url, office=office, api_key=TOKEN, state_folder=tmp_path / "s"):
        pass
    assert not (tmp_path / "s").exists()


async def test_a_computer_and_an_agent_prove_the_identities_that_they_are_given(
    hub: Hub, tmp_path: Path, office: str
) -> None:
    computer = Computer("laptop", identity=DEVICE, state_folder=tmp_path / "state")

    @computer.tool(auto_apply=True)
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    running = asyncio.create_task(computer.run(hub.url, office=office, api_key=TOKEN))
    try:
        async with AsyncSMCPAgentClient(
            "planner", url=hub.url, office=office, api_key=SECOND, identity=DEVICE
        ) as agent:
            await until(lambda: agent.computers == [f"{office}/laptop"])
            result = await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, timeout=30)
            assert not result.is_error
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_key_in_a_header_is_proved_as_well(hub: Hub) -> None:
    credentials = Credentials(headers={"X-API-Key": TOKEN})
    await enter(Endpoint(url=hub.url, credentials=lambda: credentials, prover=given()))
    bearer = Credentials(headers={"Authorization": f"Bearer {TOKEN}"})
    await enter(Endpoint(url=hub.url, credentials=lambda: bearer, prover=given()))


@pytest.mark.parametrize(
    ("url", "may_sign"),
    [
        ("http://127.0.0.1:7000", True),
        ("http://127.8.9.1", True),
        ("ws://localhost:7000", True),
        ("http://[::1]:7000", True),
        ("https://hub.example.com", True),
        ("wss://hub.example.com", True),
        ("http://hub.example.com", False),
        ("ws://10.0.0.1", False),
        ("http://127.evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://0.0.0.0:7000", False),
    ],
)
async def test_nothing_is_signed_in_plain_to_another_machine(url: str, may_sign: bool) -> None:
    auth = await endpoint(url, given()).connect_auth(Credentials.of_key(TOKEN), "sid")
    assert auth is not None
    assert ("device" in auth) is may_sign
    refusal = NotAuthenticated("bound", device=True)
    if not may_sign:
        with pytest.raises(NotAuthenticated, match="https"):
            endpoint(url, given()).retries_after(refusal)


async def test_nothing_is_signed_in_plain_through_a_proxy() -> None:
    dialled = endpoint("http://127.0.0.1:7000", given(), proxy="http://proxy.example:3128")
    assert "device" not in (await dialled.connect_auth(Credentials.of_key(TOKEN), "sid") or {})


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://Hub.Example.COM", "https://hub.example.com"),
        ("https://hub.example.com:443", "https://hub.example.com"),
        ("https://hub.example.com:8443/", "https://hub.example.com:8443"),
        ("http://127.0.0.1:7000", "http://127.0.0.1:7000"),
        ("http://[::1]:7000", "http://[::1]:7000"),
    ],
)
def test_origins_are_compared_in_one_spelling(text: str, origin: str) -> None:
    assert checked_origin(text) == origin
    assert Endpoint(url=text).origin == origin


@pytest.mark.parametrize(
    "text", ["", "hub.example.com", "http://hub.example.com", "https://a/b", "https://u:p@a", "https://a?b", "ftp://a"]
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        checked_origin(text)


async def test_a_server_behind_a_name_has_that_origin_only(serve: Any, tmp_path: Path) -> None:
    provider = DefaultAuthenticationProvider(keys_file=keys_file(tmp_path))
    hub = await serve(auth=provider, origins=("https://hub.example.com",))
    async with session_at(hub.url) as session:
        assert await session.connect(session.auth(origin="https://hub.example.com")) is None
    async with session_at(hub.url) as session:
        assert (await session.connect(session.auth()) or {})["code"] == 401


# Keys files, tokens, providers


@pytest.mark.parametrize("device", ["", "x", "x" * 44, 1, None, ["x" * 43], "é" * 43])
def test_a_keys_file_with_an_odd_device_is_refused(tmp_path: Path, device: object) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({hash_key(TOKEN): {"principal": "laptop", "device": device}}))
    with pytest.raises(ValueError, match="device: must be the fingerprint"):
        DefaultAuthenticationProvider(keys_file=path)


async def test_a_reload_sends_away_a_device_that_is_no_longer_the_bound_one(hub: Hub, tmp_path: Path) -> None:
    async with session_at(hub.url) as session:
        assert await session.connect(session.auth()) is None
        keys_file(tmp_path, OTHER)
        hub.app.hub.reload()
        assert (await session.wire.receive()).startswith("41/smcp")
    for identity, is_refused in ((DEVICE, True), (OTHER, False)):
        async with session_at(hub.url) as session:
            assert (await session.connect(session.auth(identity)) is not None) is is_refused


def token(**claims: object) -> str:
    return jwt.encode({"sub": "alice", "exp": int(time.time()) + 600, **claims}, SECRET, "HS256")


async def test_a_token_with_cnf_is_bound_to_its_device(serve: Any) -> None:
    hub = await serve(auth=JWTAuthenticationProvider(secret=SECRET, algorithms="HS256"))
    bound = token(cnf={"jkt": DEVICE.fingerprint})
    for identity, is_refused in ((DEVICE, False), (OTHER, True)):
        async with session_at(hub.url) as session:
            auth = session.auth(identity, token=bound) | {"token": bound}
            assert (await session.connect(auth) is not None) is is_refused
    async with session_at(hub.url) as session:
        assert (await session.connect({"token": bound}) or {})["device"] is True
    async with session_at(hub.url) as session:
        assert await session.connect({"token": token()}) is None


@pytest.mark.parametrize(
    "cnf", [None, "x", [], {}, {"jkt": 1}, {"jkt": "short"}, {"x5t#S256": "x"}, {"jkt": DEVICE.fingerprint, "jwk": {}}]
)
async def test_a_token_that_is_bound_in_another_way_is_refused(serve: Any, cnf: object) -> None:
    hub = await serve(auth=JWTAuthenticationProvider(secret=SECRET, algorithms="HS256"))
    async with session_at(hub.url) as session:
        auth = session.auth(token=token(cnf=cnf)) | {"token": token(cnf=cnf)}
        assert (await session.connect(auth) or {})["code"] == 401


async def test_a_provider_of_ones_own_may_bind_its_principals(serve: Any) -> None:
    class Own(AuthenticationProvider):
        async def authenticate(self, sio: Any, environ: Any, auth: Any, headers: Mapping[str, str]) -> Principal:
            return Principal("alice", device=DEVICE.fingerprint)

    hub = await serve(auth=Own())
    async with session_at(hub.url) as session:
        assert await session.connect(session.auth()) is None
    async with session_at(hub.url) as session:
        assert (await session.connect(session.auth(OTHER)) or {})["code"] == 401


def test_neither_token_nor_digest_is_in_the_repr_of_a_principal(tmp_path: Path) -> None:
    provider = DefaultAuthenticationProvider(keys_file=keys_file(tmp_path))
    digest = hashlib.sha256(TOKEN.encode()).digest()
    shown = repr(list(provider._holders.values()))
    assert repr(digest) not in shown
    assert TOKEN not in shown
