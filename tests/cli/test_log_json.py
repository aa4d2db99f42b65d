"""`--log-json`: every line on stderr of the programs is a JSON object with fields, from the first to the last."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.stage.place import Place, good
from tests.stage.program import Program
from tests.web_server import hosting

pytestmark = pytest.mark.covers("program")


async def stopped(program: Program) -> dict[str, dict[str, Any]]:
    """The last line of each event, of a program that is stopped."""
    await program.stops()
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


async def test_a_computer_without_its_server_warns_and_says_what_to_do(place: Place) -> None:
    async def busy(scope: Any, receive: Any, send: Any) -> None:
        body = json.dumps({"code": 503, "message": "Server unavailable: the store is not there"}).encode()
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": body})

    nobody = f"http://127.0.0.1:{free_port()}"
    async with hosting(busy) as there:
        for url, remedy in ((nobody, "Start a Server with "), (there, "its log says why.")):
            program = await place.start("computer", "--name", "laptop", "--url", url, "--log-json")
            told = json.loads(await program.says('"not connected"'))
            assert (told["level"], told["url"], remedy in told["message"]) == ("warning", url, True), told
            await program.stops()


async def test_a_lost_connection_is_a_warning_and_a_new_one_is_none(place: Place) -> None:
    server = await place.start("server", "--port", "0")
    url = await server.listens()
    program = await place.start("computer", "--name", "laptop", "--url", url, "--log-json")
    assert json.loads(await program.says('"joined"'))["level"] == "info"
    await server.kill()
    assert json.loads(await program.says("connection lost"))["level"] == "warning"
    await program.stops()


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
