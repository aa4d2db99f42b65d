"""`--log-json`: every line on stderr of the programs is a JSON object with fields, from the first to the last."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.programs import Place, good
from tests.server.test_program import Program

pytestmark = pytest.mark.covers("program")


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await place.end()


async def stopped(program: Program) -> dict[str, dict[str, Any]]:
    """The last line of each event, of a program that is stopped."""
    program.signal(signal.SIGTERM)
    assert await program.ends() == 0
    lines = [json.loads(line) for line in program.err]
    assert all({"time", "level", "logger", "message", "event"} <= line.keys() for line in lines), lines
    return {line["event"]: line for line in lines}


async def test_a_computer_says_in_fields_what_it_does(place: Place) -> None:
    server = await place.start("server", "--port", "0", "--log-json")
    told = json.loads(await server.says("listening"))
    url = told["url"]
    assert (told["event"], url) == ("listening", f"http://{told['host']}:{told['port']}")
    file = place.write({"good": good(), "broken": {"command": "no-such-program"}})
    options = ("--metrics-port", "0", "--console", "--no-input", "--log-json")
    program = await place.start("computer", "--name", "laptop", "--config", str(file), "--url", url, *options)
    await program.says('"joined"')
    await program.says('"ready"')
    said = await stopped(program)
    assert (said["joined"]["office"], said["joined"]["url"]) == ("desk", url)
    assert said["metrics"]["url"].endswith("/metrics")
    assert "/open?link=" in said["console"]["url"]
    assert {"server", "state", "reason"} <= said["server"].keys()
    assert said["stopped"]["level"] == "info"


async def test_up_says_in_fields_what_it_does(place: Place) -> None:
    place.write({"good": good()})
    program = await place.start("up", "--port", "0", "--name", "laptop", "--log-json")
    assert (await program.says("listening on ")).startswith("listening on http")
    await program.says("try in another terminal")
    said = await stopped(program)
    assert {"joined", "server", "stopped"} <= said.keys()


async def test_a_bridge_says_in_fields_what_it_does(place: Place) -> None:
    place.write({"good": good()})
    up = await place.start("up", "--port", "0", "--name", "laptop")
    url = (await up.says("listening on ")).removeprefix("listening on ").strip()
    key = (await up.says("API key: ")).removeprefix("API key: ").strip()
    environ = {"A2C_API_KEY": (await asyncio.to_thread(Path(key).read_text, "utf-8")).strip()}
    bridge = await place.start("bridge", "--port", "0", "--url", url, "--log-json", **environ)
    await bridge.says("listening on ")
    said = await stopped(bridge)
    assert {"new key", "stopped"} <= said.keys()


async def test_a_file_that_cannot_be_read_is_told_in_json(place: Place) -> None:
    ended = await place.run("computer", "--config", "nothing.json", "--log-json")
    assert ended.code != 0
    (line,) = ended.err.splitlines()
    assert (json.loads(line)["event"], json.loads(line)["level"]) == ("failed", "error")
