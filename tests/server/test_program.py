"""`a2c-smcp server`, as it is run: what it prints, how it ends, what it refuses, and what it never says."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import socketio
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption

from a2c_smcp.cli.app import COMMANDS
from a2c_smcp.server.auth.api_keys import new_key
from tests.conftest import TRANSPORTS
from tests.peer import PATIENCE, Peer, Wire
from tests.ports import free_port
from tests.program import run_program
from tests.stage.calls import RESULT, Gate, both, running_call
from tests.stage.keys import write_keys
from tests.stage.metrics import scrape
from tests.stage.program import ENVIRONMENT, SOON, Program, Starts
from tests.stage.tls import certificate
from tests.stage.web import fetch
from tests.waiting import until

pytestmark = pytest.mark.covers("program")

ROOT = Path(__file__).parents[2]


HELLO = "/socket.io/?EIO=4&transport=polling"


async def is_shown_out(peer: Peer) -> None:
    await until(lambda: not peer.client.connected)


async def status(url: str, **options: Any) -> int:
    return (await fetch(url, **options)).status


async def ends_quietly(program: Program, code: int = 0, within: float = SOON) -> None:
    assert await program.ends(within) == code
    assert "Traceback" not in program.said


# Starting


async def test_it_prints_where_it_listens_and_healthz_answers(program: Program) -> None:
    assert program.out == [f"listening on {program.url}"]
    assert program.url.startswith("http://127.0.0.1:")
    for path, code in {"/healthz": 200, "/readyz": 200, "/metrics": 404, "/": 200, "/docs": 404}.items():
        assert (path, await status(program.url + path)) == (path, code)
    assert "no authentication" in await program.says("every user of this machine")


@pytest.mark.covers("auth-keys")
async def test_its_options_can_stand_in_the_environment(starts: Starts, meets: Any) -> None:
    port, keys = free_port(), [new_key(), new_key()]
    options = {"PORT": str(port), "API_KEY": " ".join(keys), "METRICS": "true"}
    program = await starts(port=None, **{f"A2C_SERVER_{name}": value for name, value in options.items()})
    assert program.url == f"http://127.0.0.1:{port}"
    for key in keys:
        await meets(program, auth={"token": key})
    for wrong in (" ".join(keys), new_key()):
        with pytest.raises(socketio.exceptions.ConnectionError):
            await meets(program, auth={"token": wrong})
    samples = await scrape(program.url)
    assert samples["a2c_connections"] == 2
    assert samples['a2c_refused_total{code="401",reason="not_authenticated"}'] == 2


@pytest.mark.covers("exposure", "trusted-hosts")
async def test_without_keys_it_answers_to_the_names_of_this_machine_only(program: Program) -> None:
    assert await status(program.url + HELLO) == 200
    assert await status(program.url + HELLO, headers={"Host": "localhost:1"}) == 200
    assert await status(program.url + HELLO, headers={"Host": "evil.example"}) == 400


@pytest.mark.covers("exposure")
async def test_it_listens_on_all_addresses_without_a_key_only_if_told_to_and_warns(starts: Starts) -> None:
    program = await starts("--host", "0.0.0.0", "--insecure")
    assert "EVERYONE" in await program.says("no authentication")
    assert await status(program.url.replace("0.0.0.0", "127.0.0.1") + HELLO, headers={"Host": "hub.example"}) == 200


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
    trust, at_home = ssl.create_default_context(cafile=cert), {"Origin": program.url}
    assert await status(f"{program.url}/healthz", ssl=trust) == 200
    assert await status(program.url + HELLO, ssl=trust, headers=at_home) == 200
    assert await status(program.url + HELLO, ssl=trust, headers={"Origin": "https://evil.example"}) == 400
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
        for transports in TRANSPORTS.values():
            peer = Peer(socketio.AsyncClient(reconnection=False, http_session=session))
            options = {"transports": transports, "wait_timeout": PATIENCE, "headers": at_home}
            await peer.client.connect(program.url, namespaces=["/smcp"], **options)
            await peer.join("computer", "laptop", "desk")
            await peer.close()
    with pytest.raises(aiohttp.ClientError):
        await status(f"{program.url.replace('https', 'http')}/healthz")
    program.signal(signal.SIGTERM)
    await ends_quietly(program, within=PATIENCE)


# Stopping


async def in_conversation(program: Program, meets: Any) -> tuple[Peer, Gate, asyncio.Task[Any]]:
    """An agent whose call is being worked on by a computer that answers when the gate is open."""
    agent, computer = await both(meets, program, "desk")
    gate = Gate()
    return agent, gate, await running_call(agent, computer, gate, timeout=60)


@pytest.mark.covers("program-shutdown")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("transports", [[], TRANSPORTS], ids=["alone", "with idle clients"])
async def test_a_signal_ends_it_in_order(program: Program, meets: Any, number: int, transports: list[str]) -> None:
    for transport in transports:
        peer = await meets(program, transport)
        await peer.join("computer", transport, "desk")
    program.signal(number)
    await ends_quietly(program)
    assert "stopping" in program.said


@pytest.mark.covers("program-shutdown")
async def test_a_stop_lets_calls_in_flight_finish_and_nobody_new_in(program: Program, meets: Any, dials: Any) -> None:
    agent, done, call = await in_conversation(program, meets)
    line = await dials(program)
    assert (await line.ask("GET /readyz HTTP/1.1\nHost: localhost\n\n"))[0] == 200
    program.signal(signal.SIGTERM)
    await program.says("stopping")
    # On a connection that is already there; a new one is not even accepted.
    for path in ("/readyz", HELLO):
        assert (await line.ask(f"GET {path} HTTP/1.1\nHost: localhost\n\n"))[0] == 503
    with pytest.raises(aiohttp.ClientConnectorError):
        await status(f"{program.url}/readyz")
    assert (await agent.call_tool("laptop"))["code"] == 503
    assert not call.done()
    done.open()
    assert await call == RESULT
    await ends_quietly(program)


@pytest.mark.covers("program-shutdown")
async def test_a_second_signal_ends_it_at_once(program: Program, meets: Any) -> None:
    *_, call = await in_conversation(program, meets)
    program.signal(signal.SIGTERM)
    await program.says("stopping")
    before = time.monotonic()
    program.signal(signal.SIGTERM)
    await ends_quietly(program, 1)
    assert time.monotonic() - before < SOON
    call.cancel()


@pytest.mark.covers("program-shutdown")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_call_that_never_ends_is_answered_when_the_time_is_up(serve: Any, seat: Any, transport: str) -> None:
    hub = await serve(limits={"drain_timeout": 0.3})
    computer = await seat("computer", "laptop", "desk", hub=hub)
    agent = await seat("agent", "planner", "desk", hub=hub, transport=transport)
    call = await running_call(agent, computer, Gate(), timeout=60)
    await hub.app.drain()
    answer = await call
    assert (answer["code"], answer["isError"]) == (503, True)
    refused = await fetch(hub.url + HELLO)
    assert (refused.status, refused.json["code"]) == (503, 503)
    await is_shown_out(agent)
    await is_shown_out(computer)


# Keys


@pytest.mark.covers("auth-keys")
async def test_a_hangup_reads_the_keys_again(starts: Starts, meets: Any, tmp_path: Path) -> None:
    old, new = new_key(), new_key()
    file = write_keys(tmp_path, {old: "alice"})
    program = await starts("--keys-file", file)
    alice = await meets(program, auth={"token": old})
    with pytest.raises(socketio.exceptions.ConnectionError):
        await meets(program, auth={"token": new})
    write_keys(tmp_path, {new: "bob"})
    program.signal(signal.SIGHUP)
    await is_shown_out(alice)
    assert "INFO" in await program.says(f"{file}: read again, 1 key added, 1 removed")
    bob = await meets(program, auth={"token": new})
    file.write_text("{")
    program.signal(signal.SIGHUP)
    await program.says("the earlier ones stay")
    await meets(program, auth={"token": new})
    await bob.join("computer", "laptop", "desk")
    assert "ERROR" in await program.says("the earlier ones stay")
    write_keys(tmp_path, {new: "bob"})
    program.signal(signal.SIGHUP)
    await program.says(f"{file}: read again, nothing changed")


async def test_a_hangup_of_a_server_without_a_keys_file_says_that_there_is_none(starts: Starts) -> None:
    program = await starts()
    program.signal(signal.SIGHUP)
    await program.says("there is no file of keys that could be read again")


# A client's variables


@pytest.mark.covers("program-variables")
async def test_a_clients_key_in_the_environment_is_not_the_servers(starts: Starts, meets: Any, tmp_path: Path) -> None:
    theirs, ours = new_key(), new_key()
    program = await starts("--keys-file", write_keys(tmp_path, {ours: "alice"}), A2C_API_KEY=theirs, A2C_METRICS="1")
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


async def test_it_warns_where_others_could_listen_in(starts: Starts, tmp_path: Path) -> None:
    everywhere = ("--host", "0.0.0.0", "--api-key", new_key())
    plain = await starts(*everywhere)
    assert "nothing is encrypted: 0.0.0.0 can be reached from other machines" in await plain.says("encrypted")
    cert, key = certificate(tmp_path, "server")
    assert "encrypted" not in (await starts(*everywhere, "--tls-cert", cert, "--tls-key", key)).said
    assert "encrypted" not in (await starts("--api-key", new_key())).said


# Logs


async def test_everything_is_json_and_the_documented_filter_reads_it(starts: Starts, meets: Any) -> None:
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
    options: dict[str, Any] = {"input": "\n".join(lines), "capture_output": True, "text": True, "timeout": 30}
    return subprocess.run(command, check=True, **options).stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (("--log-json", "--tls-cert", "nothing.pem"), {}, "--tls-cert and --tls-key go together"),
        (("--log-json", "--port", "99999"), {}, "--port: must be at most 65535."),
        (("--prot", "7000", "--log-json"), {}, "No such option: --prot"),
        (("--port", "many"), {"A2C_SERVER_LOG_JSON": "1"}, "--port: "),
    ],
)
def test_why_it_does_not_start_is_json_too(words: tuple[str, ...], variables: dict[str, str], message: str) -> None:
    ended = run_program("server", *words, env={**ENVIRONMENT, **variables})
    assert ended.returncode == 2
    (line,) = map(json.loads, ended.stderr.splitlines())
    assert (line["level"], line["message"][: len(message)]) == ("error", message)


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
        assert await status(f"{program.url}/socket.io/?{query}") == 400

    computer, agent = [await meets(program, auth={"token": right}) for _ in range(2)]
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
    await ends_quietly(program, within=PATIENCE)
    assert "joined office='desk' role='agent' name='planner'" in program.said
    assert "refused code=401" in program.said
    assert "canary" not in program.said
    assert not [word for word in (*sids, *right.split("."), *forged.split(".")) if word in program.said]


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
        keys = {"other_key": other[1], "locked_cert": locked[0], "locked_key": locked[1]}
        places = {"folder": folder, "cert": good[0], "key": good[1], **keys, "taken": taken.getsockname()[1]}
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
@pytest.mark.parametrize(("line", "code"), [*((line, 2) for line in REFUSED), *((line, 1) for line in FAILED)])
def test_what_cannot_be_done_is_refused_with_advice(outcomes: Outcomes, line: str, code: int) -> None:
    ended = outcomes[line].result()
    assert (ended.returncode, ended.stdout) == (code, "")
    assert not [words for words in (REFUSED | FAILED)[line] if words not in ended.stderr], ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("line", HELPFUL)
def test_help_is_there_and_shows_examples(outcomes: Outcomes, line: str) -> None:
    ended = outcomes[line].result()
    assert (ended.returncode, ended.stderr) == (0, "")
    if line.endswith(" --help"):
        assert "Example" in ended.stdout
        assert f"a2c-smcp {line.removesuffix(' --help')}" in ended.stdout
