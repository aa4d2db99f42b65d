"""Every secret is a random string, everything that leaves the process is searched, and none is found."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import shlex
import signal
import sys
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from aiohttp import web

from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted
from tests.computer.recorded import Recorder
from tests.computer.servers.parrot import Parrot
from tests.peer import Peer
from tests.program import Running, start_program
from tests.stage.owners import SteadyOwner
from tests.waiting import until

SERVERS = Path(__file__).with_name("servers")
PARROT = SERVERS / "parrot.py"
PRINTS = "import sys; print(sys.argv[1][::-1])"
PLAIN = f"no secret: {secrets.token_hex(8)}"
"""Given to a server beside the secrets: where it is found, they could have been."""
HANDSHAKE = re.compile(r"40/smcp,\{[^{}]*\}")
"""The one message with the computer's own key for the Server."""


class Canaries:
    """One secret for each way in which a server is given one."""

    def __init__(self) -> None:
        self.password, self.environ, self.kept, self.output, self.typed, self.variable, self.argument, self.inline = (
            f"{secrets.token_hex(8)}/+&= ä{secrets.token_hex(4)}"[:-1] for _ in range(8)
        )
        self.header = secrets.token_urlsafe(16)
        self.user, self.query = f"{secrets.token_hex(8)}", f"{secrets.token_hex(8)}+/="
        self.key = secrets.token_urlsafe(24)
        lines = "\n".join(secrets.token_hex(32) for _ in range(3))
        self.private_key = f"-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----"
        self.word = secrets.choice(("sunflower", "marmalade", "pineapple")) + secrets.choice("abcdefgh") * 2

    @property
    def all(self) -> dict[str, str]:
        return vars(self)

    @property
    def local(self) -> set[str]:
        """Those of the server that is a process."""
        names = ("password", "environ", "kept", "output", "variable", "argument", "private_key", "word")
        return {self.all[name] for name in names}

    @property
    def remote(self) -> set[str]:
        """Those of the servers that are reached over HTTP."""
        return {self.header, self.user, self.query}

    def found_in(self, text: str) -> list[str]:
        """The names of those that can be read in a text. JSON in it may be escaped, more than once."""
        plain = re.sub(r"\\+(?=[\"\\/])", "", text)
        unescaped = re.sub(r"\\+u00e4|\\+xe4", "ä", plain)
        return [name for name, each in self.all.items() if any(form in unescaped for form in forms(each))]


def forms(secret: str) -> set[str]:
    if "\n" in secret:
        return {line for line in secret.split("\n") if "-----" not in line}
    raw = secret.encode()
    encoded = {b64encode(raw).decode().rstrip("="), urlsafe_b64encode(raw).decode().rstrip("=")}
    return {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), *encoded}


def configuration(canaries: Canaries, folder: Path, url: str) -> dict[str, Any]:
    """Three servers that repeat what they were given, and one whose errors do."""
    printing = [sys.executable, "-c", PRINTS, canaries.output[::-1]]
    flags = ["--token", canaries.argument, f"--api-key={canaries.inline}"]
    variables = {name: f"${{input:{name}}}" for name in ("password", "environ", "kept", "output")}
    literals = {"CANARY_TOKEN": canaries.variable, "CANARY_PEM": canaries.private_key}
    literals["CANARY_PASSWORD_LITERAL"] = canaries.word
    parrot = {
        "command": sys.executable,
        "args": [str(PARROT), str(folder / "received.json"), PLAIN, *flags],
        "env": {**literals, **{f"CANARY_{name.upper()}": value for name, value in variables.items()}},
    }
    address = url.replace("//", f"//me:{canaries.user}@") + "/{}?key=" + quote_plus(canaries.query)
    remote = {"headers": {"X-Secret": canaries.header}}
    allowed = {"default_tool_meta": {"auto_apply": True}}
    about = {"type": "promptString", "description": "p", "password": True}
    return {
        "inputs": [
            {**about, "id": "password", "default": canaries.typed},
            {**about, "id": "environ"},
            {**about, "id": "kept", "password": False},
            {"type": "command", "id": "output", "description": "o", "command": shlex.join(printing)},
        ],
        "servers": {
            "parrot": {"type": "stdio", "server_parameters": parrot, **allowed},
            "speaks": {"type": "streamable", "server_parameters": {**remote, "url": address.format("mcp")}, **allowed},
            "blames": {"type": "streamable", "server_parameters": {**remote, "url": address.format("blame")}},
            "asks": {"type": "stdio", "server_parameters": {**parrot, "args": [str(PARROT), "/dev/null"]}},
        },
    }


@asynccontextmanager
async def tactless_server() -> AsyncIterator[tuple[str, list[set[str]]]]:
    """An HTTP server that answers with what it was asked with: as an MCP server at /mcp, with an error at /blame."""
    seen: list[set[str]] = []

    def received(request: web.Request) -> list[str]:
        basic = b64decode(request.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        found = [request.headers.get("X-Secret", ""), request.query.get("key", ""), basic.partition(":")[2]]
        seen.append(set(found))
        return found

    async def blame(request: web.Request) -> web.Response:
        return web.Response(status=500, text=f"{Parrot(received(request)).told}\n{request.path_qs}")

    async def speak(request: web.Request) -> web.Response:
        message, parrot = await request.json(), Parrot(received(request), "http")
        if "id" not in message:
            return web.Response(status=202)
        reply = parrot.answer(message["method"], message.get("params") or {})
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **reply})

    app = web.Application()
    app.router.add_route("*", "/blame", blame)
    app.router.add_post("/mcp", speak)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


class Everything(logging.Handler):
    """Keeps what any logger says, with its attributes."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("uvicorn"):  # of the Server, to which the agent of the test tells them
            self.lines += [self.format(record), repr(vars(record))]


@pytest.mark.covers("secrets-masked", "secrets-logs", "secrets-config", "inputs-sources")
async def test_no_secret_leaves_the_computer_and_each_reaches_its_server(
    shared_hub: Any, agent: Peer, office: str, tmp_path: Path
) -> None:
    canaries, states, logs = Canaries(), list[Any](), Everything()

    owner = SteadyOwner("no")
    told: dict[str, Any] = {"on_state": lambda *change: states.append(change), "approve_command": lambda *_: True}
    computer = Computer("laptop", approve=owner, prompt=lambda definition: canaries.all[definition.id], **told)
    root, before, recorder = logging.getLogger(), logging.getLogger().level, Recorder(shared_hub.url)
    root.addHandler(logs)
    root.setLevel(logging.DEBUG)
    try:
        async with tactless_server() as (url, seen), recorder.open() as hub:
            config = configuration(canaries, tmp_path, url)
            config["inputs"][2]["password"] = True  # what is not in the keyring here
            computer.define_inputs(config["inputs"])
            for name, server in config["servers"].items():
                computer.add_server({"name": name, **server})
            async with hosted(computer, hub, office, tmp_path / "state", api_key=canaries.key) as said:
                await until(lambda: computer.status()["blames"].reason)
                left = await provoke(agent, canaries)
                left += [said, states, owner.asked, [request.arguments for request in owner.asked]]
                left += [computer.status(), computer.history, computer.inputs.list(), computer]
    finally:
        root.removeHandler(logs)
        root.setLevel(before)
    assert owner.asked
    check_received(canaries, tmp_path, seen)
    check_sent(canaries, recorder)
    for each in left:
        assert canaries.found_in(json.dumps(each, default=repr, ensure_ascii=False)) == [], type(each)
        assert canaries.found_in(repr(each)) == []
    for line in logs.lines:
        assert canaries.found_in(line) == [], line[:40]


@pytest.mark.covers("secrets-logs", "secrets-masked", "secrets-config", "inputs-sources")
async def test_the_program_tells_no_secret(shared_hub: Any, agent: Peer, office: str, tmp_path: Path) -> None:
    canaries, recorder = Canaries(), Recorder(shared_hub.url)
    async with tactless_server() as (url, seen), recorder.open() as hub:
        program = await started(canaries, tmp_path, configuration(canaries, tmp_path, url), hub, office)
        try:
            await agent.hears("notify:enter_office", computer="laptop")
            left = await provoke(agent, canaries)
            program.send_signal(signal.SIGTERM)
            printed = (await program.communicate())[0].decode()
        finally:
            if program.returncode is None:
                program.kill()
    check_received(canaries, tmp_path, seen)
    check_sent(canaries, recorder)
    for words in ("joined", "parrot: ready", "speaks: ready", "blames: backoff", "it exited with code 3: ***"):
        assert words in printed
    assert canaries.found_in(printed) == []
    assert canaries.found_in(json.dumps(left, ensure_ascii=False)) == []
    for path in (tmp_path / "state").rglob("*"):
        assert path.is_dir() or canaries.found_in(path.read_text("utf-8")) == []


async def started(canaries: Canaries, folder: Path, config: dict[str, Any], url: str, office: str) -> Running:
    """The program, with a value from each source: a file, the environment, a keyring and a command."""
    (folder / "servers.json").write_text(json.dumps(config), "utf-8")
    (folder / "inputs.json").write_text(json.dumps({"password": canaries.password}), "utf-8")
    (folder / "keyring.json").write_text(json.dumps({"a2c-smcp/kept": canaries.kept}), "utf-8")
    keyring = {"PYTHON_KEYRING_BACKEND": "paper_keyring.PaperKeyring", "PAPER_KEYRING": str(folder / "keyring.json")}
    places = {"XDG_STATE_HOME": str(folder / "state"), "PATH": "", "PYTHONPATH": str(SERVERS)}
    return await start_program(
        *("computer", "--name", "laptop", "--office", office, "--url", url, "--api-key", canaries.key),
        *("--config", str(folder / "servers.json"), "--inputs", str(folder / "inputs.json")),
        *("--yes", "--no-input", "--log-level", "debug"),
        env={**places, "A2C_INPUT_ENVIRON": canaries.environ, **keyring},
        stderr=asyncio.subprocess.STDOUT,
    )


async def provoke(agent: Peer, canaries: Canaries) -> list[Any]:
    """Everything an agent can get to see, with the servers doing their worst."""

    everything = {name: each for name, each in canaries.all.items() if name != "word"}  # masked of its own server only
    left = await tools(agent)
    names = owners(left[-1])

    async def call(server: str, tool: str, **params: Any) -> Any:
        return await agent.call_tool("laptop", names.get((server, tool), tool), timeout=10, params=params)

    left += [await agent.request(f"client:get_{what}", "laptop") for what in ("config", "desktop")]
    assert "***" in repr(left[-2])
    assert "${input:password}" in repr(left[-2])
    assert sum("***" in window for window in left[-1]["desktops"]) == 3
    for server in ("parrot", "speaks"):
        told = await call(server, "tell", **everything)
        assert "***" in told["content"][0]["text"]
        assert "***@" in told["content"][1]["uri"]
        assert "***" in told["structuredContent"]["blob"]
        left += [told, await call(server, "refuse")]
        left += await read(agent, server)
    assert PLAIN in repr(left)
    left += [await call("asks", "tell", **everything), await call("asks", "nothing", **everything)]
    left.append(await call("parrot", "crash"))
    left.append(await call("parrot", "tell"))
    left += await tools(agent)
    return [*left, await agent.heard_until_now()]


READS: list[tuple[str, dict[str, Any], str]] = [
    ("get_resources", {}, "resources"),
    ("get_resource_templates", {}, "resource_templates"),
    ("read_resource", {"uri": "window://parrot/any"}, "contents"),
    ("get_prompts", {}, "prompts"),
    ("get_prompt", {"name": "say"}, "messages"),
    ("get_prompt", {"name": "nothing"}, "error"),
    ("complete", {"ref": {"type": "ref/prompt", "name": "say"}, "argument": {"name": "a", "value": ""}}, "completion"),
]


async def read(agent: Peer, server: str) -> list[Any]:
    """What a server offers to be read, each with something masked."""
    about = await agent.request("client:get_servers", "laptop")
    assert "***" in next(each["instructions"] for each in about["servers"] if each["name"] == server)
    answers = [await agent.request(f"client:{event}", "laptop", mcp_server=server, **more) for event, more, _ in READS]
    for answer, (event, _, field) in zip(answers, READS, strict=True):
        assert "***" in repr(answer[field]), event
    return [about, *answers]


async def tools(agent: Peer) -> list[Any]:
    """What agents are told of tools until all are there."""
    told = []
    async with asyncio.timeout(30):
        while True:
            told.append(await agent.request("client:get_tools", "laptop"))
            if {("parrot", "tell"), ("speaks", "tell"), ("asks", "tell")} <= owners(told[-1]).keys():
                return told
            await asyncio.sleep(0.05)


def owners(told: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Under which name each tool of each server is listed: who comes first has the plain one."""
    return {(tool["bundle_id"], tool["name"].rpartition("__")[2]): tool["name"] for tool in told["tools"]}


def check_received(canaries: Canaries, folder: Path, seen: list[set[str]]) -> None:
    received = json.loads((folder / "received.json").read_text("utf-8"))
    assert canaries.local | {PLAIN, f"--api-key={canaries.inline}"} <= set(received)
    assert all(each == canaries.remote for each in seen)
    assert len(seen) > 1


def check_sent(canaries: Canaries, recorder: Recorder) -> None:
    """What went over the wire to the Server, as bytes."""
    sent = "\n".join(recorder.sent)
    assert canaries.key in "".join(HANDSHAKE.findall(sent))
    rest = HANDSHAKE.sub("", sent)
    assert all(known in rest for known in (PLAIN, "server:join_office", "***", "${input:password}", "tell"))
    assert canaries.found_in(rest) == []
