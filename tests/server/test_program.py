"""`a2c-smcp server`, as it is run: what it prints, how it ends, what it refuses, and what it never says."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import socketio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from a2c_smcp.cli.app import COMMANDS
from a2c_smcp.server.auth.api_keys import hash_key, new_key
from tests.conftest import TRANSPORTS
from tests.peer import PATIENCE, Peer, Wire
from tests.program import Running, run_program, start_program

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("A2C_")},
    "PYTHONUNBUFFERED": "1",
    "COLUMNS": "500",
    "NO_COLOR": "1",
    "TERM": "dumb",
}
STARTING = 60.0
"""A bound against hanging: a program may have to be started first, on a machine that is busy."""
ROOT = Path(__file__).parents[2]
SOON = 5.0
"""Well below the ten seconds that calls in flight are given."""


class Program:
    """A running program and everything it has said."""

    def __init__(self, process: Running) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        self.url = ""
        self._news = asyncio.Condition()
        self._ears = [
            asyncio.create_task(self._listen(process.stdout, self.out)),
            asyncio.create_task(self._listen(process.stderr, self.err)),
        ]

    async def says(self, words: str) -> str:
        """Waits for a line with these words."""

        def found() -> str | None:
            return next((line for line in (*self.out, *self.err) if words in line), None)

        async with asyncio.timeout(STARTING), self._news:
            await self._news.wait_for(lambda: found() is not None or all(ear.done() for ear in self._ears))
        line = found()
        assert line is not None, (words, self.out, self.err)
        return line

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ends(self, within: float = PATIENCE) -> int:
        """Its exit code."""
        async with asyncio.timeout(within):
            await asyncio.gather(*self._ears)
            return await self.process.wait()

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.ends()

    @property
    def said(self) -> str:
        return "\n".join((*self.out, *self.err))

    async def _listen(self, stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream
        while line := await stream.readline():
            async with self._news:
                lines.append(line.decode().rstrip("\n"))
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()


Starts = Callable[..., Awaitable[Program]]


@pytest.fixture
async def starts() -> AsyncIterator[Starts]:
    """Starts a Server on a free port and waits until it listens."""
    async with AsyncExitStack() as stack:

        async def start(*options: str | Path, port: int | None = 0, **variables: str) -> Program:
            where = () if port is None else ("--port", str(port))
            program = Program(await start_program("server", *where, *options, env=ENVIRONMENT | variables))
            stack.push_async_callback(program.kill)
            line = await program.says("listening on ")
            program.url = (json.loads(line)["message"] if line[0] == "{" else line).removeprefix("listening on ")
            return program

        yield start


@pytest.fixture
async def meets() -> AsyncIterator[Callable[..., Awaitable[Peer]]]:
    """Connects a client to a program."""
    async with AsyncExitStack() as stack:

        async def meet(program: Program, transport: str = "websocket", **options: Any) -> Peer:
            peer = await Peer.connect(program.url, transports=TRANSPORTS[transport], **options)
            stack.push_async_callback(peer.close)
            return peer

        yield meet


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session:
        yield session


async def is_shown_out(peer: Peer) -> None:
    async with asyncio.timeout(PATIENCE):
        while peer.client.connected:  # noqa: ASYNC110, the library offers nothing to wait for that is quick
            await asyncio.sleep(0.01)


async def status(http: aiohttp.ClientSession, url: str, **options: Any) -> int:
    async with http.get(url, **options) as response:
        await response.read()
        return response.status


def certificate(folder: Path, name: str, secrecy: KeySerializationEncryption | None = None) -> tuple[Path, Path]:
    """A self-signed certificate for this machine, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    cert_file, key_file = folder / f"{name}.pem", folder / f"{name}-key.pem"
    cert_file.write_bytes(cert.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secrecy or NoEncryption()))
    return cert_file, key_file


# Starting


@pytest.mark.covers("program")
async def test_it_prints_where_it_listens_and_healthz_answers(starts: Starts, http: aiohttp.ClientSession) -> None:
    program = await starts()
    assert program.out == [f"listening on {program.url}"]
    assert program.url.startswith("http://127.0.0.1:")
    for path in ("/healthz", "/readyz"):
        assert await status(http, program.url + path) == 200
    for path in ("/metrics", "/", "/docs"):
        assert await status(http, program.url + path) == 404
    assert "no authentication" in await program.says("every user of this machine")


@pytest.mark.covers("program", "auth-keys")
async def test_its_options_can_stand_in_the_environment(
    starts: Starts, meets: Any, http: aiohttp.ClientSession
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys = new_key(), new_key()
    program = await starts(
        port=None, A2C_SERVER_PORT=str(port), A2C_SERVER_API_KEY=" ".join(keys), A2C_SERVER_METRICS="true"
    )
    assert program.url == f"http://127.0.0.1:{port}"
    for key in keys:
        await meets(program, auth={"token": key})
    for wrong in (" ".join(keys), new_key()):
        with pytest.raises(socketio.exceptions.ConnectionError):
            await meets(program, auth={"token": wrong})
    async with http.get(f"{program.url}/metrics") as response:
        assert response.content_type == "text/plain"
        counts = await response.text()
    assert "a2c_connections 2\n" in counts
    assert 'a2c_refused_total{code="401",reason="not_authenticated"} 2\n' in counts


@pytest.mark.covers("exposure", "trusted-hosts")
async def test_without_keys_it_answers_to_the_names_of_this_machine_only(
    starts: Starts, http: aiohttp.ClientSession
) -> None:
    hello = "/socket.io/?EIO=4&transport=polling"
    program = await starts()
    assert await status(http, program.url + hello) == 200
    assert await status(http, program.url + hello, headers={"Host": "localhost:1"}) == 200
    assert await status(http, program.url + hello, headers={"Host": "evil.example"}) == 400


@pytest.mark.covers("exposure")
async def test_it_listens_on_all_addresses_without_a_key_only_if_told_to_and_warns(
    starts: Starts, http: aiohttp.ClientSession
) -> None:
    program = await starts("--host", "0.0.0.0", "--insecure")
    assert "EVERYONE" in await program.says("no authentication")
    url = program.url.replace("0.0.0.0", "127.0.0.1") + "/socket.io/?EIO=4&transport=polling"
    assert await status(http, url, headers={"Host": "hub.example"}) == 200


@pytest.mark.covers("exposure")
async def test_with_a_key_it_listens_on_all_addresses_without_a_warning(starts: Starts) -> None:
    program = await starts("--host", "0.0.0.0", "--api-key", new_key())
    program.signal(signal.SIGTERM)
    assert await program.ends() == 0
    assert "no authentication" not in program.said


@pytest.mark.covers("tls", "cors")
async def test_it_serves_tls(starts: Starts, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "cert")
    program = await starts("--tls-cert", cert, "--tls-key", key)
    assert program.url.startswith("https://")
    trust = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=cert))
    async with aiohttp.ClientSession(connector=trust, timeout=aiohttp.ClientTimeout(PATIENCE)) as session:
        assert await status(session, f"{program.url}/healthz") == 200
        at_home = {"Origin": program.url}
        hello = f"{program.url}/socket.io/?EIO=4&transport=polling"
        assert await status(session, hello, headers=at_home) == 200
        assert await status(session, hello, headers={"Origin": "https://evil.example"}) == 400
        for transports in TRANSPORTS.values():
            peer = Peer(socketio.AsyncClient(reconnection=False, http_session=session))
            await peer.client.connect(
                program.url, namespaces=["/smcp"], transports=transports, wait_timeout=PATIENCE, headers=at_home
            )
            await peer.join("computer", "laptop", "desk")
            await peer.close()
        with pytest.raises(aiohttp.ClientError):
            await status(session, f"{program.url.replace('https', 'http')}/healthz")
    program.signal(signal.SIGTERM)
    assert await program.ends() == 0
    assert "Traceback" not in program.said


# Stopping


async def in_conversation(program: Program, meets: Any) -> tuple[Peer, Peer, asyncio.Event, asyncio.Task[Any]]:
    """An agent whose call is being worked on by a computer that answers when the event is set."""
    computer, agent = await meets(program), await meets(program)
    await computer.join("computer", "laptop", "desk")
    await agent.join("agent", "planner", "desk")
    done = asyncio.Event()

    async def work(request: Any) -> Any:
        await done.wait()
        return {"content": [], "isError": False, "structuredContent": {"req": request["req_id"]}}

    computer.answers("client:tool_call", work)
    call = asyncio.create_task(agent.call_tool("laptop", timeout=60, req_id="r-1"))
    await computer.was_asked("client:tool_call")
    return agent, computer, done, call


@pytest.mark.covers("program-shutdown")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order(starts: Starts, number: int) -> None:
    program = await starts()
    program.signal(number)
    assert await program.ends(SOON) == 0
    assert "Traceback" not in program.said
    assert "stopping" in program.said


@pytest.mark.covers("program-shutdown")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_idle_clients_do_not_delay_the_shutdown(starts: Starts, meets: Any, number: int) -> None:
    program = await starts()
    for transport in TRANSPORTS:
        peer = await meets(program, transport)
        await peer.join("computer", transport, "desk")
    program.signal(number)
    assert await program.ends(SOON) == 0
    assert "Traceback" not in program.said


@pytest.mark.covers("program-shutdown")
async def test_a_call_in_flight_is_answered_before_it_ends_and_nobody_new_comes_in(
    starts: Starts, meets: Any, http: aiohttp.ClientSession
) -> None:
    program = await starts()
    agent, _, done, call = await in_conversation(program, meets)
    assert await status(http, f"{program.url}/readyz") == 200
    program.signal(signal.SIGTERM)
    await program.says("stopping")
    # On a connection that is already there; a new one is not even accepted.
    assert await status(http, f"{program.url}/readyz") == 503
    assert await status(http, f"{program.url}/socket.io/?EIO=4&transport=polling") == 503
    with pytest.raises(aiohttp.ClientConnectorError):
        async with aiohttp.request("GET", f"{program.url}/readyz"):
            pass
    assert (await agent.call_tool("laptop"))["code"] == 503
    assert not call.done()
    done.set()
    assert (await call)["structuredContent"] == {"req": "r-1"}
    assert await program.ends(SOON) == 0
    assert "Traceback" not in program.said


@pytest.mark.covers("program-shutdown")
async def test_a_second_signal_ends_it_at_once(starts: Starts, meets: Any) -> None:
    program = await starts()
    *_, call = await in_conversation(program, meets)
    program.signal(signal.SIGTERM)
    await program.says("stopping")
    before = time.monotonic()
    program.signal(signal.SIGTERM)
    assert await program.ends(SOON) == 1
    assert time.monotonic() - before < SOON
    assert "Traceback" not in program.said
    call.cancel()


@pytest.mark.covers("program-shutdown")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_call_that_never_ends_is_answered_when_the_time_is_up(
    serve: Any, connect: Any, http: aiohttp.ClientSession, transport: str
) -> None:
    hub = await serve(limits={"drain_timeout": 0.3})
    computer, agent = await connect(hub), await connect(hub, transport)
    await computer.join("computer", "laptop", "desk")
    await agent.join("agent", "planner", "desk")
    computer.answers("client:tool_call", lambda _: asyncio.Event().wait())
    call = asyncio.create_task(agent.call_tool("laptop", timeout=60))
    await computer.was_asked("client:tool_call")
    await hub.app.drain()
    answer = await call
    assert (answer["code"], answer["isError"]) == (503, True)
    async with http.get(f"{hub.url}/socket.io/?EIO=4&transport=polling") as response:
        assert (response.status, (await response.json())["code"]) == (503, 503)
    await is_shown_out(agent)
    await is_shown_out(computer)


# Keys


@pytest.mark.covers("auth-keys", "program")
async def test_a_hangup_reads_the_keys_again(starts: Starts, meets: Any, tmp_path: Path) -> None:
    old, new, file = new_key(), new_key(), tmp_path / "keys.json"
    file.write_text(json.dumps({hash_key(old): {"principal": "alice"}}))
    program = await starts("--keys-file", file)
    alice = await meets(program, auth={"token": old})
    with pytest.raises(socketio.exceptions.ConnectionError):
        await meets(program, auth={"token": new})
    file.write_text(json.dumps({hash_key(new): {"principal": "bob"}}))
    program.signal(signal.SIGHUP)
    await is_shown_out(alice)
    await meets(program, auth={"token": new})
    file.write_text("{")
    program.signal(signal.SIGHUP)
    await program.says("the earlier ones stay")
    await meets(program, auth={"token": new})


# A client's variables


@pytest.mark.covers("program-variables")
async def test_the_server_does_not_take_a_clients_key_from_the_environment(
    starts: Starts, meets: Any, tmp_path: Path
) -> None:
    theirs, ours, file = new_key(), new_key(), tmp_path / "keys.json"
    file.write_text(json.dumps({hash_key(ours): {"principal": "alice"}}))
    program = await starts("--keys-file", file, A2C_API_KEY=theirs, A2C_METRICS="1")
    line = await program.says("not used by the Server: ")
    assert "A2C_API_KEY, A2C_METRICS;" in line
    assert "write A2C_SERVER_API_KEY, A2C_SERVER_METRICS if they are meant" in line
    assert theirs not in program.said
    await meets(program, auth={"token": ours})
    with pytest.raises(socketio.exceptions.ConnectionError):
        await meets(program, auth={"token": theirs})


@pytest.mark.covers("program-variables")
def test_a_clients_key_does_not_let_it_listen_beyond_this_machine() -> None:
    ended = run_program("server", "--host", "0.0.0.0", "--port", "0", env=ENVIRONMENT | {"A2C_API_KEY": new_key()})
    assert ended.returncode == 2
    assert "no key would be needed" in ended.stderr


@pytest.mark.covers("program-variables")
async def test_a_server_beside_clients_with_variables_of_their_own_does_not_complain(starts: Starts) -> None:
    program = await starts(A2C_SERVER_API_KEY=new_key(), A2C_API_KEY=new_key(), A2C_URL="http://127.0.0.1:7000")
    assert program.err == []


@pytest.mark.covers("program")
async def test_it_warns_where_others_could_listen_in(starts: Starts, tmp_path: Path) -> None:
    everywhere = ("--host", "0.0.0.0", "--api-key", new_key())
    plain = await starts(*everywhere)
    assert "nothing is encrypted: 0.0.0.0 can be reached from other machines" in await plain.says("encrypted")
    cert, key = certificate(tmp_path, "server")
    assert "encrypted" not in (await starts(*everywhere, "--tls-cert", cert, "--tls-key", key)).said
    assert "encrypted" not in (await starts("--api-key", new_key())).said


# Logs


@pytest.mark.covers("program")
async def test_everything_is_json_from_the_first_line_and_the_documented_filter_reads_it(
    starts: Starts, meets: Any
) -> None:
    program = await starts("--log-json", "--log-level", "debug", "--host", "0.0.0.0", "--insecure", A2C_PORT="7000")
    program.url = program.url.replace("0.0.0.0", "127.0.0.1")
    peer = await meets(program)
    await peer.join("computer", 'lap"top\\ 機器', "desk")
    await peer.close()
    await program.says("disconnected")
    program.signal(signal.SIGTERM)
    assert await program.ends() == 0
    lines = [json.loads(line) for line in (*program.out, *program.err)]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    said = [line["message"] for line in lines]
    for words in ("listening on ", "A2C_PORT", "no authentication", "encrypted", "joined", "stopping"):
        assert any(words in message for message in said), words
    shown = [line.split()[1] for line in filtered([*program.out, *program.err])]
    assert shown == ["connected", "joined", "left", "disconnected"]


def filtered(lines: list[str]) -> list[str]:
    """Through the filter of the guide; where there is no jq, what it means."""
    documented = re.search(r"-o cat \| (jq .*)", (ROOT / "docs/guides/production.md").read_text("utf-8"))
    assert documented
    command = shlex.split(documented[1])
    assert command[-1] == 'select(.logger == "a2c_smcp.audit") | .time + " " + .message'
    if not shutil.which(command[0]):
        found = [line for line in map(json.loads, lines) if line["logger"] == "a2c_smcp.audit"]
        return [f"{line['time']} {line['message']}" for line in found]
    said = "\n".join(lines)
    return subprocess.run(
        command, input=said, capture_output=True, text=True, check=True, timeout=30
    ).stdout.splitlines()


@pytest.mark.covers("program")
def test_the_reason_why_it_did_not_start_is_json_too() -> None:
    ended = run_program("server", "--log-json", "--tls-cert", "nothing.pem", env=ENVIRONMENT)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert json.loads(line)["level"] == "error"
    assert json.loads(line)["message"].startswith("--tls-cert and --tls-key go together")


@pytest.mark.covers("program")
@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (("--log-json", "--port", "99999"), {}, "--port: must be at most 65535."),
        (("--prot", "7000", "--log-json"), {}, "No such option: --prot"),
        (("--port", "many"), {"A2C_SERVER_LOG_JSON": "1"}, "--port: "),
    ],
)
def test_options_that_cannot_be_read_are_said_in_json_too(
    words: tuple[str, ...], variables: dict[str, str], message: str
) -> None:
    ended = run_program("server", *words, env={**ENVIRONMENT, **variables})
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert json.loads(line)["message"].startswith(message)


def canary() -> str:
    return f"canary{secrets.token_hex(12)}"


@pytest.mark.covers("no-secrets-in-logs")
@pytest.mark.parametrize("method", ["keys", "tokens"])
async def test_no_credential_and_no_payload_is_ever_logged(starts: Starts, meets: Any, method: str) -> None:
    right, secret, instance, payload, result, wrong = (canary() for _ in range(6))
    claims = {"sub": "alice", "exp": int(time.time()) + 60}
    if method == "keys":
        program = await starts("--log-level", "debug", "--api-key", right)
    else:
        program = await starts("--log-level", "debug", A2C_SERVER_JWT_SECRET=secret * 2)
        right = jwt.encode(claims, secret * 2)
    forged = jwt.encode(claims, canary() * 2)
    for presented in (
        {"auth": {"token": wrong}},
        {"auth": {"token": forged}},
        {"auth": {"token": {"x": wrong}}},
        {"headers": {"Authorization": f"Bearer {wrong}"}},
        {"headers": {"x-api-key": wrong, "access_token": wrong}},
        {"query": f"?token={wrong}&a2c_version=0.2"},
    ):
        with pytest.raises(socketio.exceptions.ConnectionError):
            await meets(program, **presented)
    for query in (f"a2c_version={wrong}", f"EIO=3&transport={wrong}", f"EIO=4&transport=polling&sid={wrong}"):
        async with aiohttp.request("GET", f"{program.url}/socket.io/?{query}") as response:
            assert response.status == 400

    computer, agent = await meets(program, auth={"token": right}), await meets(program, auth={"token": right})
    await computer.join("computer", "laptop", "desk", instance=instance)
    await agent.join("agent", "planner", "desk", note=payload)
    computer.answers("client:tool_call", {"content": [{"type": "text", "text": result}]})
    assert (await agent.call_tool("laptop", params={"x": payload}))["content"][0]["text"] == result
    await computer.ask("server:update_config", {"computer": "laptop", "note": payload})
    await agent.hears("notify:update_config", note=payload)
    assert (await agent.ask("server:leave_office", {"office_id": 3, "note": payload}))[0] is False
    assert (await agent.ask("no:such_event", payload))["code"] == 400
    assert (await agent.call_tool("laptop", params=payload))["code"] == 400
    assert (await agent.call_tool("laptop", params={"x": payload * 200_000}))["code"] == 413

    wire = await Wire.connect(program.url, {"token": right})
    for frame in (
        f'42/smcp,1["client:tool_call",{{"x":"{payload}',
        f'42/smcp,2{{"{payload}":1}}',
        f'451-/smcp,3["{payload}"]',
    ):
        await wire.send(frame)
    await wire.send(payload)
    while await wire.receive():
        pass
    await wire.close()

    sids = [agent.sid, computer.sid]
    program.signal(signal.SIGTERM)
    assert await program.ends() == 0
    assert "joined office='desk' role='agent' name='planner'" in program.said
    assert "refused code=401" in program.said
    assert "canary" not in program.said
    assert not [word for word in (*sids, *right.split("."), *forged.split(".")) if word in program.said]
    assert "Traceback" not in program.said


# What it refuses


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs every command line below, some at a time, and knows how each has ended."""
    folder = tmp_path_factory.mktemp("program")
    good, other = (certificate(folder, name) for name in ("good", "other"))
    locked = certificate(folder, "locked", BestAvailableEncryption(b"a passphrase"))
    (folder / "keys.json").write_text('{"a2c_not_hashed": {"principal": "alice"}}')
    (folder / "text.pem").write_text("this is not a certificate")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = {
            "folder": folder,
            "cert": good[0],
            "key": good[1],
            "other_key": other[1],
            "locked_cert": locked[0],
            "locked_key": locked[1],
            "taken": taken.getsockname()[1],
        }
        with ThreadPoolExecutor(4) as pool:
            yield {line: pool.submit(run, line.format(**places).split()) for line in (*REFUSED, *FAILED, *HELPFUL)}


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command line that is not expected to go on for long. `''` stands for an empty argument."""
    arguments = ["" if word == "''" else word for word in arguments]
    return run_program(*arguments, env=ENVIRONMENT)


Outcomes = dict[str, "Future[subprocess.CompletedProcess[str]]"]

REFUSED = {
    "server --host 0.0.0.0": ("--insecure", "--api-key"),
    "server --host ::": ("--insecure",),
    "server --host hub.example": ("--insecure",),
    "server --keys-file {folder}/nowhere.json": ("nowhere.json", "cannot be read"),
    "server --keys-file {folder}/keys.json": ("keys.json", "a2c-smcp key"),
    "server --keys-file {folder}": ("cannot be read",),
    "server --api-key ''": ("empty",),
    f"server --api-key {'x' * 15}": ("fewer than 16 characters", "a2c_"),
    "server --tls-cert {cert}": ("--tls-key", "go together"),
    "server --tls-key {key}": ("--tls-cert", "go together"),
    "server --tls-cert {cert} --tls-key {folder}/nowhere.pem": ("nowhere.pem", "cannot be read"),
    "server --tls-cert {folder}/text.pem --tls-key {key}": ("text.pem", "PEM"),
    "server --tls-cert {cert} --tls-key {other_key}": ("other-key.pem", "its private key"),
    "server --tls-cert {locked_cert} --tls-key {locked_key}": ("locked-key.pem", "passphrase"),
    "server --jwt-secret secret-secret-secret-secret-secret --api-key x": ("not both",),
    "server --jwt-secret short": ("openssl rand",),
    "server --jwt-key-file {key}": ("algorithms", "RS256"),
    "server --jwt-key-file {key} --jwt-algorithm HS256": ("HS256", "RS256"),
    "server --jwt-key-file {key} --jwt-algorithm ES256": ("openssl pkey",),
    "server --jwt-key-file {key} --jwt-jwks-file {key} --jwt-algorithm ES256": ("exactly one",),
    "server --jwt-algorithm RS256": ("--jwt-key-file",),
    "server --jwt-issuer https://id.example": ("--jwt-key-file",),
    "server --require-version four": ("0.4",),
    "server --require-version 1.0": ("0.4",),
    "server --port 70000": ("--port", "65535"),
    "server --port seven": ("--port",),
    "server --max-message 1": ("--max-message",),
    "server --log-level loud": ("--log-level", "debug"),
    "server --no-such-option": ("--no-such-option",),
    "frobnicate": ("frobnicate",),
}
FAILED = {
    "server --port {taken}": ("in use", "--port"),
    "server --host nowhere.invalid --api-key 0123456789abcdef": ("nowhere.invalid", "--host"),
    "server --host 203.0.113.1 --api-key 0123456789abcdef": ("203.0.113.1", "--host"),
}
HELPFUL = ["--help", "--version", *(f"{name} --help" for name in COMMANDS)]


@pytest.mark.covers("program-errors", "exposure")
@pytest.mark.parametrize("line", REFUSED)
def test_options_that_contradict_each_other_are_refused_with_advice(outcomes: Outcomes, line: str) -> None:
    ended = outcomes[line].result()
    assert ended.returncode == 2, ended
    assert not [words for words in REFUSED[line] if words not in ended.stderr], ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.covers("program-errors")
@pytest.mark.parametrize("line", FAILED)
def test_an_address_that_cannot_be_had_is_said_with_advice(outcomes: Outcomes, line: str) -> None:
    ended = outcomes[line].result()
    assert ended.returncode == 1, ended
    assert not [words for words in FAILED[line] if words not in ended.stderr], ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.covers("program")
@pytest.mark.parametrize("line", HELPFUL)
def test_help_is_there_and_shows_examples(outcomes: Outcomes, line: str) -> None:
    ended = outcomes[line].result()
    assert (ended.returncode, ended.stderr) == (0, "")
    if line.endswith(" --help"):
        assert "Example" in ended.stdout
        assert f"a2c-smcp {line.removesuffix(' --help')}" in ended.stdout
