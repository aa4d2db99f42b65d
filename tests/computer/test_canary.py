"""Every secret is a random string, everything that leaves the process is searched, and none is found."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
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

from a2c_smcp.computer.approval import Request
from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted, ready, until
from tests.peer import Peer

PARROT = Path(__file__).with_name("servers") / "parrot.py"
SCRIPT = Path(sys.executable).with_name("a2c-smcp")
PRINTS = "import sys; print(sys.argv[1][::-1])"


class Canaries:
    """One secret for each way in which a server is given one."""

    def __init__(self) -> None:
        self.password, self.variable, self.argument, self.header, self.output, self.typed = (
            f"{secrets.token_hex(8)}/+&= ä{secrets.token_hex(4)}"[:-1] for _ in range(6)
        )
        self.header = secrets.token_urlsafe(16)
        self.user, self.query = f"{secrets.token_hex(8)}", f"{secrets.token_hex(8)}+/="
        self.key = secrets.token_urlsafe(24)

    @property
    def all(self) -> dict[str, str]:
        return vars(self)

    def found_in(self, text: str) -> list[str]:
        """The names of those that can be read in a text. JSON in it may be escaped, more than once."""
        plain = re.sub(r"\\+(?=[\"\\/])", "", text)
        unescaped = re.sub(r"\\+u00e4|\\+xe4", "ä", plain)
        return [name for name, each in self.all.items() if any(form in unescaped for form in forms(each))]


def forms(secret: str) -> set[str]:
    raw = secret.encode()
    encoded = {b64encode(raw).decode().rstrip("="), urlsafe_b64encode(raw).decode().rstrip("=")}
    return {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), *encoded}


def configuration(canaries: Canaries, folder: Path, url: str = "http://127.0.0.1:9/mcp") -> dict[str, Any]:
    printing = [sys.executable, "-c", f"'{PRINTS}'", f"'{canaries.output[::-1]}'"]
    parrot = {
        "command": sys.executable,
        "args": [str(PARROT), str(folder / "received.json"), "--token", canaries.argument],
        "env": {
            "CANARY_LITERAL": canaries.variable,
            "CANARY_PASSWORD": "${input:password}",
            "CANARY_OUTPUT": "${input:output}",
        },
    }
    address = url.replace("//", f"//me:{canaries.user}@") + f"?key={quote_plus(canaries.query)}"
    remote = {"url": address, "headers": {"X-Secret": canaries.header}}
    allowed = {"auto_apply": True}
    return {
        "inputs": [
            {"type": "promptString", "id": "password", "description": "p", "password": True, "default": canaries.typed},
            {"type": "command", "id": "output", "description": "o", "command": " ".join(printing)},
        ],
        "servers": {
            "parrot": {"type": "stdio", "server_parameters": parrot, "default_tool_meta": allowed},
            "remote": {"type": "streamable", "server_parameters": remote},
            "asks": {"type": "stdio", "server_parameters": {**parrot, "args": [str(PARROT), "/dev/null"]}},
        },
    }


@asynccontextmanager
async def tactless_server() -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP server that answers with everything it was asked with."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        basic = request.headers.get("Authorization", "").removeprefix("Basic ")
        seen.append("\n".join([*request.headers.values(), *request.query.values(), b64decode(basic).decode()]))
        return web.Response(status=500, text=f"{seen[-1]}\n{request.path_qs}")

    app = web.Application()
    app.router.add_route("*", "/mcp", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp", seen
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
    canaries, asked, states, logs = Canaries(), list[Request](), list[Any](), Everything()

    async def approve(request: Request) -> str:
        asked.append(request)
        return "no"

    def prompt(_: Any) -> str:
        return canaries.password

    computer = Computer(
        "laptop",
        approve=approve,  # type: ignore[arg-type]  # a str is one of its decisions
        prompt=prompt,
        approve_command=lambda *_: True,
        on_state=lambda *change: states.append(change),
    )
    root, before = logging.getLogger(), logging.getLogger().level
    root.addHandler(logs)
    root.setLevel(logging.DEBUG)
    try:
        async with tactless_server() as (url, seen):
            config = configuration(canaries, tmp_path, url)
            computer.define_inputs(config["inputs"])
            for name, server in config["servers"].items():
                computer.add_server({"name": name, **server})
            async with hosted(computer, shared_hub.url, office, tmp_path / "state", api_key=canaries.key) as said:
                await ready(computer, "parrot", "asks")
                await until(lambda: computer.status()["remote"].reason)
                left = await provoke(computer, agent, canaries)
                left += [said, states, asked, [request.arguments for request in asked]]
                left += [computer.status(), computer.history, computer.inputs.list(), computer]
    finally:
        root.removeHandler(logs)
        root.setLevel(before)
    received = json.loads((tmp_path / "received.json").read_text())
    assert {canaries.argument, canaries.variable, canaries.password, canaries.output} <= set(received)
    assert all(each in seen[0] for each in (canaries.header, canaries.user, canaries.query))
    for each in left:
        assert canaries.found_in(json.dumps(each, default=repr, ensure_ascii=False)) == [], type(each)
        assert canaries.found_in(repr(each)) == []
    for line in logs.lines:
        assert canaries.found_in(line) == [], line[:40]


async def provoke(computer: Computer, agent: Peer, canaries: Canaries) -> list[Any]:
    """Everything an agent can get to see, with the servers doing their worst."""

    async def call(tool: str, **params: Any) -> Any:
        return await agent.call_tool("laptop", tool, timeout=10, params=params)

    everything = dict(canaries.all)
    left = [await agent.request(f"client:get_{what}", "laptop") for what in ("tools", "config", "desktop")]
    assert "***" in repr(left[1])
    assert "${input:password}" in repr(left[1])
    assert "***" in left[2]["desktops"][0]
    told = await call("parrot__tell")
    assert "***" in told["content"][0]["text"]
    left += [told, await call("parrot__refuse"), await call("tell", **everything), await call("nothing", **everything)]
    left.append(await call("parrot__crash"))
    left.append(await call("parrot__tell"))
    await ready(computer, "parrot")
    left.append(await agent.request("client:get_tools", "laptop"))
    return [*left, await agent.heard_until_now()]


@pytest.mark.covers("secrets-logs", "secrets-masked", "inputs-sources")
async def test_the_program_prints_no_secret(shared_hub: Any, agent: Peer, office: str, tmp_path: Path) -> None:
    canaries = Canaries()
    config = configuration(canaries, tmp_path)
    del config["servers"]["parrot"]["server_parameters"]["env"]["CANARY_OUTPUT"]
    (tmp_path / "servers.json").write_text(json.dumps(config))
    (tmp_path / "inputs.json").write_text(json.dumps({"password": canaries.password}))
    program = await asyncio.create_subprocess_exec(
        *(str(SCRIPT), "computer", "--name", "laptop", "--office", office),
        *("--url", shared_hub.url, "--config", str(tmp_path / "servers.json"), "--yes", "--log-level", "debug"),
        *("--inputs", str(tmp_path / "inputs.json"), "--api-key", canaries.key, "--no-input"),
        env={"XDG_STATE_HOME": str(tmp_path), "PATH": ""},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    await agent.hears("notify:enter_office", computer="laptop")
    left = []
    async with asyncio.timeout(20):
        while "tell" not in repr(tools := await agent.request("client:get_tools", "laptop")):
            left.append(tools)
            await asyncio.sleep(0.05)
    left += [await agent.call_tool("laptop", tool, timeout=10) for tool in ("tell", "refuse", "crash")]
    program.send_signal(signal.SIGTERM)
    printed = (await program.communicate())[0].decode()
    assert "parrot: ready" in printed
    assert "joined" in printed
    received = json.loads((tmp_path / "received.json").read_text())
    assert {canaries.argument, canaries.variable, canaries.password} <= set(received)
    assert canaries.found_in(json.dumps(left, ensure_ascii=False)) == []
    assert canaries.found_in(printed) == []
