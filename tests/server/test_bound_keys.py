"""Keys and tokens that are bound to a device: attacks with a stolen one, and clients that prove theirs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
import socketio

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.connection import Connection
from a2c_smcp.devices.identity import Identity, IdentityStore, make_proof
from a2c_smcp.devices.proving import Prover
from a2c_smcp.endpoint import Credentials, Endpoint
from a2c_smcp.errors import ConfigError, NotAuthenticated
from a2c_smcp.server import DefaultAuthenticationProvider, Principal, SMCPNamespace
from a2c_smcp.server.auth.api_keys import hash_key, new_key
from a2c_smcp.server.auth.authentication import checked_origin
from a2c_smcp.server.auth.jwt import JWTAuthenticationProvider
from a2c_smcp.server.run import address_of, listen
from tests.balancer import Balancer, exchange
from tests.cluster import Front, serving_node
from tests.conftest import TRANSPORTS, Hub
from tests.peer import PATIENCE, Peer
from tests.stage.bound_keys import DEVICE, OTHER, SECOND, TOKEN, Session, code_at, keys_file, session_at
from tests.stage.keys import Judged, write_keys
from tests.stage.mcp_clients import ask
from tests.stage.worker import Worker
from tests.valkey import running_valkey
from tests.waiting import until
from tests.web_server import by_uvicorn

SECRET = "correct horse battery staple correct horse battery staple"
HOUR = 3600

pytestmark = pytest.mark.covers("device-binding")


@pytest.fixture
async def hub(serve: Any, tmp_path: Path) -> Hub:
    served: Hub = await serve(auth=DefaultAuthenticationProvider(keys_file=keys_file(tmp_path)))
    return served


@pytest.fixture
async def session(hub: Hub) -> AsyncIterator[Session]:
    async with session_at(hub.url) as session:
        yield session


def endpoint(url: str, prover: Prover | None, **more: Any) -> Endpoint:
    return Endpoint(url=url, credentials=lambda: Credentials.of_key(TOKEN), prover=prover, **more)


def given(identity: Identity = DEVICE, clock: Callable[[], float] = time.time) -> Prover:
    return Prover(lambda: identity, given=identity, clock=clock)


async def enter(dialled: Endpoint) -> None:
    async with Connection(dialled, lambda *_: None) as connection:
        assert not connection.lost.is_set()


# Attacks


async def test_a_stolen_token_is_worth_nothing_without_the_device(session: Session) -> None:
    refusal = await session.connect({"token": TOKEN})
    assert refusal
    assert (refusal["code"], refusal["device"]) == (401, True)
    assert DEVICE.fingerprint not in json.dumps(refusal)


def changed(session: Session, **fields: Any) -> dict[str, Any]:
    """The proof of the device, with other fields; `None` takes one out."""
    auth = session.auth()
    proof = auth["device"] | {name: make(auth["device"].get(name, "")) for name, make in fields.items()}
    return auth | {"device": {name: value for name, value in proof.items() if value is not GONE}}


GONE = object()
KEY_OF_DEVICE = make_proof(DEVICE, origin="", sid="", at=0, token="")["key"]
ORIGINS = ["http://127.0.0.1", "http://127.0.0.1:1", "https://hub.example.com", "http://127.0.0.1:80", "", "null"]
NO_PROOFS: list[Any] = [None, True, 0, "", "proof", [], {}, [{}], {"key": 1}, {"at": 1}, {"sig": "x"}]
ODD_FIELDS: list[tuple[str, Any]] = [
    ("at", None), ("at", "1790000000"), ("at", 1.5), ("at", True), ("at", -1), ("at", 2**70), ("at", []), ("at", 1),
    ("more", 1), ("key", 1), ("key", None), ("key", ""), ("key", "AAAA"), ("key", []), ("key", "é"), ("key", "-_" * 22),
    ("key", "A" * 10_000), ("sig", "x"), ("sig", None), ("sig", ""), ("sig", "AAAA"), ("sig", {}), ("sig", "\ud800"),
]  # fmt: skip
FORGED: dict[str, Callable[[Session], object]] = {
    "of another device": lambda it: it.auth(OTHER),
    "of another device under the key of the device": lambda it: {
        "token": TOKEN, "device": it.auth(OTHER)["device"] | {"key": KEY_OF_DEVICE}
    },
    **{f"for the origin {origin!r}": partial(Session.auth, origin=origin) for origin in ORIGINS},
    "for another token": lambda it: it.auth() | {"token": SECOND},
    **{f"{proof!r}": lambda it, proof=proof: it.auth() | {"device": proof} for proof in NO_PROOFS},
    **{f"with {name} {odd!r}": partial(changed, **{name: lambda _, odd=odd: odd}) for name, odd in ODD_FIELDS},
    **{f"without {name}": partial(changed, **{name: lambda _: GONE}) for name in ("key", "at", "sig")},
    **{f"with a truncated {name}": partial(changed, **{name: lambda text: text[:-4]}) for name in ("key", "sig")},
    "with a changed bit": partial(changed, sig=lambda sig: ("B" if sig[0] == "A" else "A") + sig[1:]),
    "in half a CONNECT": lambda it: json.dumps(it.auth())[:-2],
}  # fmt: skip


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
async def test_a_proof_that_is_not_of_the_device_for_this_session_is_refused(
    hub: Hub, session: Session, forge: Callable[[Session], object]
) -> None:
    assert await session.code(forge(session)) == 401
    assert len(hub.app.hub.connections) == 0


PLACES: dict[str, Callable[[str], dict[str, str]]] = {
    "token": lambda key: {},
    "authorization": lambda key: {"authorization": f"Bearer {key}"},
    "x-api-key": lambda key: {"x-api-key": key},
    "access_token": lambda key: {"access_token": key},
}
CLAIMS: dict[str, Any] = {
    "nothing": {},
    "a yes": {"device": True},
    "a claim": {"device": {"key": DEVICE.fingerprint, "verified": True, "proved": True}},
    "a fingerprint": {"device": DEVICE.fingerprint},
    "an identity": {"principal": "laptop", "device": {"jkt": DEVICE.fingerprint}, "cnf": {"jkt": DEVICE.fingerprint}},
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
@pytest.mark.parametrize("bound", PLACES)
@pytest.mark.parametrize("free", PLACES)
async def test_a_key_beside_a_bound_one_skips_no_proof(
    serve: Any, tmp_path: Path, office: str, free: str, bound: str, claim: dict[str, Any]
) -> None:
    """Either the bound key is refused, or the client is admitted by the other one, and has only its rights."""
    path, other = tmp_path / "keys.json", new_key()
    entries = {
        hash_key(TOKEN): {"principal": "laptop", "names": ["laptop"], "device": DEVICE.fingerprint},
        hash_key(other): {"principal": "guest", "names": ["guest"]},
    }
    path.write_text(json.dumps(entries))
    hub = await serve(auth=DefaultAuthenticationProvider(keys_file=path))
    headers = PLACES[bound](TOKEN) | (PLACES[free](other) if free != bound else {})
    auth = {**claim, **({"token": TOKEN} if bound == "token" else {"token": other} if free == "token" else {})}
    async with session_at(hub.url, **headers) as session:
        proof = make_proof(OTHER, origin=hub.url, sid=session.sid, at=int(time.time()), token=TOKEN)
        refusal = await session.connect({"device": proof, **auth})
        if refusal:
            assert refusal["code"] == 401
            return
        request = json.dumps({"role": "computer", "name": "laptop", "office_id": office})
        ok, why = await session.wire.ask(f'42/smcp,1["server:join_office",{request}]', 1)
        assert (ok, why[:3]) == (False, "403")


async def test_a_proof_cannot_be_replayed_in_another_session(hub: Hub, session: Session) -> None:
    recorded = session.auth()
    assert await session.code(recorded) is None
    assert await code_at(hub.url, lambda thief: recorded) == 401


async def test_a_session_is_proved_once(session: Session) -> None:
    recorded = session.auth()
    assert await session.code(recorded) is None
    await session.wire.send("41/smcp,")
    assert [await session.code(auth) for auth in (recorded, session.auth())] == [401, 401]


async def test_a_proof_that_was_refused_uses_up_the_session(session: Session) -> None:
    assert [await session.code(auth) for auth in (session.auth(OTHER), session.auth())] == [401, 401]


async def test_a_relay_gets_nothing_out_of_a_victim(hub: Hub) -> None:
    """It passes everything on, with the headers of the real Server: the victim has signed where it thinks it is."""
    async with Relay(hub.url) as relay:
        with pytest.raises(NotAuthenticated, match="another session, origin or token"):
            await enter(endpoint(relay.url, given()))
    await enter(endpoint(hub.url, given()))


class Relay(Balancer):
    """A man in the middle who writes the headers that a Server might believe."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._real = url.removeprefix("http://")

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._real.split(":"))
        first, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n").split("\r\n")
        kept = [field for field in fields if not field.lower().startswith("host:")]
        lies = [f"Host: {self._real}", f"X-Forwarded-Host: {self._real}", "X-Forwarded-Proto: http"]
        back.write("\r\n".join([first, *lies, f"Origin: http://{self._real}", *kept, "", ""]).encode())
        await exchange((reader, back), (there, writer))


async def test_each_token_has_proofs_of_its_own(session: Session) -> None:
    assert await session.code(session.auth(token=SECOND) | {"token": SECOND}) is None


@pytest.mark.parametrize("skew", [-HOUR, HOUR, -601, 601])
async def test_a_wrong_clock_is_refused_and_told_the_time(session: Session, skew: int) -> None:
    refusal = await session.connect(session.auth(at=int(time.time()) + skew))
    assert refusal
    assert refusal["code"] == 401
    assert abs(refusal["now"] - time.time()) < PATIENCE


@pytest.mark.parametrize("skew", [-590, 590])
async def test_clocks_may_differ_by_ten_minutes(session: Session, skew: int) -> None:
    assert await session.code(session.auth(at=int(time.time()) + skew)) is None


async def test_the_time_is_told_only_to_the_device(session: Session) -> None:
    assert "now" not in (await session.connect(session.auth(OTHER, at=1)) or {"now": 0})


# Where no proof is possible


async def test_a_bound_key_is_no_bearer_for_mcp_clients(starts: Any, tmp_path: Path) -> None:
    program = await starts("--mcp", "--keys-file", keys_file(tmp_path))
    assert [(await ask(program.url, key))[0] for key in (TOKEN, new_key())] == [403, 403]
    await program.says(" device=")


async def test_a_bound_key_is_refused_under_python_socketio(tmp_path: Path) -> None:
    sio = socketio.AsyncServer(async_mode="asgi")
    namespace = SMCPNamespace(DefaultAuthenticationProvider(keys_file=keys_file(tmp_path)))
    sio.register_namespace(namespace)
    listener = listen("127.0.0.1", 0)
    async with by_uvicorn(socketio.ASGIApp(sio), listener, waits_for_clients=False):
        assert await code_at(f"http://{address_of(listener)}", Session.auth) == 401
    await namespace.close()


# Clients of ours and of others


async def enter_with_a_proof(url: str, transport: str) -> None:
    """A python-socketio client, which says the origin of this URL."""
    peer = Peer(socketio.AsyncClient(reconnection=False))

    def auth() -> dict[str, Any]:
        proof = make_proof(DEVICE, origin=url, sid=peer.client.eio.sid, at=int(time.time()), token=TOKEN)
        return {"token": TOKEN, "device": proof}

    options = {"transports": TRANSPORTS[transport], "namespaces": ["/smcp"], "wait_timeout": PATIENCE}
    await peer.client.connect(url, auth=auth, **options)
    await peer.join("computer", transport, "desk")
    await peer.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_devices_are_proved_over_every_transport(hub: Hub, transport: str) -> None:
    await enter_with_a_proof(hub.url, transport)


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
            for transport in TRANSPORTS:
                await enter_with_a_proof(front.url, transport)


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
async def test_a_client_with_a_wrong_clock_uses_that_of_the_server(hub: Hub, skew: int) -> None:
    dialled = endpoint(hub.url, given(clock=lambda: time.time() + skew))
    await enter(dialled)
    await enter(dialled)
    assert hub.app.metrics.value("a2c_refused_total", code="401") == 1, "the second time it knows the clock"


@pytest.mark.parametrize(
    ("now", "attempts"), [(1, 2), *((odd, 1) for odd in (10**400, 1e300, -1, 2**53, "1", True, None))], ids=repr
)
async def test_a_client_that_is_told_a_time_that_can_be_tries_once_more(serve: Any, now: object, attempts: int) -> None:
    def judge(auth: object) -> bool:
        raise NotAuthenticated("always", now=now)

    hub = await serve(auth=Judged(judge))
    with pytest.raises(NotAuthenticated):
        await enter(endpoint(hub.url, given()))
    assert hub.app.metrics.value("a2c_refused_total", code="401") == attempts


async def test_a_client_signs_nothing_until_the_server_wants_it(hub: Hub, tmp_path: Path, office: str) -> None:
    """The first key of this machine is made then, and is not the one that the key is bound to."""
    options: dict[str, Any] = {"url": hub.url, "office": office, "api_key": TOKEN, "state_folder": tmp_path / "state"}
    with pytest.raises(NotAuthenticated, match="bound to another device"):
        async with AsyncSMCPAgentClient("planner", **options):
            pass
    stored = IdentityStore("agent", tmp_path / "state", use_keyring=False).load()
    assert stored
    keys_file(tmp_path, stored.identity)
    hub.app.hub.reload()
    async with AsyncSMCPAgentClient("planner", **options):
        pass


async def test_an_unbound_key_makes_no_identity(serve: Any, tmp_path: Path, office: str) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(TOKEN))
    async with AsyncSMCPAgentClient("planner", url=hub.url, office=office, api_key=TOKEN, state_folder=tmp_path / "s"):
        pass
    assert not (tmp_path / "s").exists()


async def test_computers_and_agents_prove_the_identities_they_are_given(hub: Hub, tmp_path: Path, office: str) -> None:
    worker = Worker(identity=DEVICE, state_folder=tmp_path / "state")
    running = asyncio.create_task(worker.computer.run(hub.url, office=office, api_key=TOKEN))
    try:
        options: dict[str, Any] = {"url": hub.url, "office": office, "api_key": SECOND, "identity": DEVICE}
        async with AsyncSMCPAgentClient("planner", **options) as agent:
            await until(lambda: agent.computers == [f"{office}/laptop"])
            result = await agent.emit_tool_call("laptop", "work", {"seconds": 0}, timeout=30)
            assert not result.is_error
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(("header", "value"), [("X-API-Key", TOKEN), ("Authorization", f"Bearer {TOKEN}")])
async def test_a_key_in_a_header_is_proved_as_well(hub: Hub, header: str, value: str) -> None:
    credentials = Credentials(headers={header: value})
    await enter(Endpoint(url=hub.url, credentials=lambda: credentials, prover=given()))


@pytest.mark.parametrize(
    ("url", "may_sign"),
    [
        *((url, True) for url in ("http://127.0.0.1:7000", "http://127.8.9.1", "http://[::1]:7000")),
        *((url, True) for url in ("ws://localhost:7000", "https://hub.example.com", "wss://hub.example.com")),
        *((url, False) for url in ("http://hub.example.com", "ws://10.0.0.1", "http://127.evil.example")),
        *((url, False) for url in ("http://localhost.evil.example", "http://0.0.0.0:7000")),
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
    assert await code_at(hub.url, partial(Session.auth, origin="https://hub.example.com")) is None
    assert await code_at(hub.url, Session.auth) == 401


# Keys files, tokens, providers


@pytest.mark.parametrize("device", ["", "x", "x" * 44, 1, None, ["x" * 43], "é" * 43])
def test_a_keys_file_with_an_odd_device_is_refused(tmp_path: Path, device: object) -> None:
    path = write_keys(tmp_path, {TOKEN: {"principal": "laptop", "device": device}})
    with pytest.raises(ValueError, match="device: must be the fingerprint"):
        DefaultAuthenticationProvider(keys_file=path)


async def test_a_reload_sends_away_a_device_that_is_no_longer_the_bound_one(hub: Hub, tmp_path: Path) -> None:
    async with session_at(hub.url) as session:
        assert await session.code(session.auth()) is None
        keys_file(tmp_path, OTHER)
        hub.app.hub.reload()
        assert (await session.wire.receive()).startswith("41/smcp")
    assert await code_at(hub.url, Session.auth) == 401
    assert await code_at(hub.url, lambda it: it.auth(OTHER)) is None


def token(**claims: object) -> str:
    return jwt.encode({"sub": "alice", "exp": int(time.time()) + 600, **claims}, SECRET, "HS256")


async def test_a_token_with_cnf_is_bound_to_its_device(serve: Any) -> None:
    hub = await serve(auth=JWTAuthenticationProvider(secret=SECRET, algorithms="HS256"))
    bound = token(cnf={"jkt": DEVICE.fingerprint})
    assert await code_at(hub.url, lambda it: it.auth(token=bound) | {"token": bound}) is None
    assert await code_at(hub.url, lambda it: it.auth(OTHER, token=bound) | {"token": bound}) == 401
    assert await code_at(hub.url, lambda _: {"token": token()}) is None
    async with session_at(hub.url) as session:
        assert (await session.connect({"token": bound}) or {})["device"] is True


@pytest.mark.parametrize(
    "cnf", [None, "x", [], {}, {"jkt": 1}, {"jkt": "short"}, {"x5t#S256": "x"}, {"jkt": DEVICE.fingerprint, "jwk": {}}]
)
async def test_a_token_that_is_bound_in_another_way_is_refused(serve: Any, cnf: object) -> None:
    hub = await serve(auth=JWTAuthenticationProvider(secret=SECRET, algorithms="HS256"))
    bound = token(cnf=cnf)
    assert await code_at(hub.url, lambda it: it.auth(token=bound) | {"token": bound}) == 401


async def test_a_provider_of_ones_own_may_bind_its_principals(serve: Any) -> None:
    hub = await serve(auth=Judged(lambda _: Principal("alice", device=DEVICE.fingerprint)))
    assert await code_at(hub.url, Session.auth) is None
    assert await code_at(hub.url, lambda it: it.auth(OTHER)) == 401


def test_neither_token_nor_digest_is_in_the_repr_of_a_principal(tmp_path: Path) -> None:
    provider = DefaultAuthenticationProvider(keys_file=keys_file(tmp_path))
    digest = hashlib.sha256(TOKEN.encode()).digest()
    shown = repr(list(provider._holders.values()))
    assert repr(digest) not in shown
    assert TOKEN not in shown
