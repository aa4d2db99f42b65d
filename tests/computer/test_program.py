"""The `a2c-smcp computer` program, as its owner uses it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.server import DefaultAuthenticationProvider
from tests.computer.test_computer import GOOD
from tests.peer import Peer

SCRIPT = Path(sys.executable).with_name("a2c-smcp")


class Program:
    """One run of it, with every line that it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def prints(self, wanted: str) -> str:
        """Waits for a line that holds these words."""
        async with asyncio.timeout(30):
            while True:
                assert self.process.stderr
                line = (await self.process.stderr.readline()).decode()
                assert line, f"it ended without {wanted!r}: {self.lines}"
                self.lines.append(line)
                if wanted in line:
                    return line

    async def ends(self) -> int:
        async with asyncio.timeout(30):
            _, rest = await self.process.communicate()
        self.lines += rest.decode().splitlines(keepends=True)
        assert self.process.returncode is not None
        return self.process.returncode


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def run(*arguments: str, **environ: str) -> Program:
            known = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
            environ = {**known, "XDG_STATE_HOME": str(tmp_path), "COLUMNS": "200", **environ}
            process = await asyncio.create_subprocess_exec(
                str(SCRIPT), "computer", *arguments, env=environ, stdout=-1, stderr=-1, stdin=-3
            )
            stack.push_async_callback(_end, process)
            return Program(process)

        yield run


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


@pytest.fixture
def servers(tmp_path: Path) -> str:
    good = {"command": sys.executable, "args": [str(GOOD)], "default_tool_meta": {"auto_apply": True}}
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": {"good": good, "missing": {"command": "no-such-command"}}}), "utf-8")
    return str(path)


@pytest.mark.covers("computer-serves", "supervise-isolation")
async def test_it_tells_what_happens_serves_and_ends_cleanly(
    shared_hub: Any, agent: Peer, office: str, start: Any, servers: str
) -> None:
    program = await start("--name", "laptop", "--url", shared_hub.url, "--office", office, "--config", servers)
    await program.prints("missing: failed (Command not found")
    await agent.hears("notify:enter_office", computer="laptop")
    await program.prints("good: ready")
    answer = await agent.call_tool("laptop", "add", params={"a": 2, "b": 3}, timeout=10)
    assert answer["content"][0]["text"] == "5"
    program.process.send_signal(signal.SIGINT)
    assert await program.ends() == 0
    assert await agent.hears("notify:leave_office", computer="laptop")
    assert "Traceback" not in "".join(program.lines)


@pytest.mark.covers("auth-refused", "program-errors")
async def test_a_wrong_key_or_a_taken_name_ends_it_with_a_sentence(
    serve: Any, connect: Any, office: str, start: Any
) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider("the right key"))
    program = await start("--url", hub.url, "--office", office, "--api-key", "a wrong key")
    assert await program.ends() == 1
    assert "401 Not authenticated" in "".join(program.lines)
    namesake = await connect(hub, auth={"token": "the right key"})
    await namesake.join("computer", "laptop", office)
    program = await start("--name", "laptop", "--url", hub.url, "--office", office, A2C_API_KEY="the right key")
    assert await program.ends() == 1
    assert "403 Name is taken" in "".join(program.lines)


WRONG = {
    "no such file": (["--config", "nowhere.json"], "cannot be read"),
    "not a time": (["--idle-stop", "soon"], "10m"),
    "no such CA": (["--ca", "nowhere.pem"], "--ca"),
    "no such option": (["--frobnicate"], "No such option"),
}


@pytest.mark.covers("program-errors")
@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
async def test_wrong_use_ends_at_once_and_says_what_to_do(start: Any, arguments: list[str], words: str) -> None:
    program = await start(*arguments)
    assert await program.ends() == 2
    assert words in "".join(program.lines)
    assert "Traceback" not in "".join(program.lines)


@pytest.mark.covers("inputs-sources", "program-errors")
async def test_a_missing_input_is_named_with_how_to_give_it(
    shared_hub: Any, office: str, start: Any, tmp_path: Path
) -> None:
    path = tmp_path / "secret.json"
    server = {"type": "stdio", "server_parameters": {"command": "x", "args": ["${input:token}"]}}
    inputs = [{"id": "token", "type": "promptString", "description": "A token", "password": True}]
    path.write_text(json.dumps({"servers": {"needs": server}, "inputs": inputs}), "utf-8")
    program = await start("--url", shared_hub.url, "--office", office, "--config", str(path), "--no-input")
    await program.prints("needs: failed")
    assert "token" in await program.prints("A2C_INPUT_TOKEN")
