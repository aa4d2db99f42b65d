"""What a Computer answers to wrong requests, from a Server that passes everything on, and when it has too much."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import socketio
from aiohttp import web

from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import BadRequest, SMCPError, TooLarge
from tests.computer.hosted import PATIENCE, hosted, ready
from tests.computer.supervised import good, naughty, quick
from tests.peer import NAMESPACE, Peer
from tests.waiting import until

SOUND = {"agent": "planner", "req_id": "r1", "computer": "laptop"}
CALL = {"tool_name": "add", "params": {}, "timeout": 5}


class CarelessServer:
    """Lets everybody in, and passes on whatever it is given."""

    def __init__(self) -> None:
        self._io = socketio.AsyncServer(async_mode="aiohttp")
        self._computers: list[str] = []
        self._io.on("server:join_office", self._join, namespace=NAMESPACE)
        self._io.on("*", lambda *_: None, namespace=NAMESPACE)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        app = web.Application()
        self._io.attach(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await self._io.shutdown()
            await runner.cleanup()

    async def ask(self, event: str, data: Any) -> Any:
        return await self._io.call(event, data, to=self._computers[-1], namespace=NAMESPACE, timeout=PATIENCE)

    def _join(self, sid: str, data: Any) -> tuple[bool, None]:
        self._computers.append(sid)
        return True, None


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Asks a Computer anything."""
    server, computer = CarelessServer(), Computer("laptop")
    computer.tool(lambda: "sum", name="add", auto_apply=True)
    computer.mask.add(["message", "details"])
    async with server.open() as url, hosted(computer, url, "desk", tmp_path):
        yield server.ask


MALFORMED: list[tuple[str, dict[str, Any], str]] = [
    *((event, {"agent": 7}, "agent") for event in ("get_tools", "get_config", "get_desktop", "tool_call")),
    *((event, {"req_id": ""}, "req_id") for event in ("get_tools", "get_config", "get_desktop", "tool_call")),
    ("get_tools", {"computer": ["laptop"]}, "computer"),
    ("get_desktop", {"desktop_size": "3"}, "desktop_size"),
    ("get_desktop", {"desktop_size": True}, "desktop_size"),
    ("get_desktop", {"window": 5}, "window"),
    ("get_desktop", {"window": "window://" + "x" * 3000}, "window"),
    ("tool_call", {"tool_name": None}, "tool_name"),
    ("tool_call", {"tool_name": "x" * 300}, "tool_name"),
    ("tool_call", {"params": [1, 2]}, "params"),
    ("tool_call", {"timeout": 0}, "timeout"),
    ("tool_call", {"timeout": "5"}, "timeout"),
    ("tool_call", {"timeout": 10**9}, "timeout"),
]


@pytest.mark.covers("computer-malformed")
@pytest.mark.parametrize(("event", "change", "field"), MALFORMED)
async def test_a_malformed_request_is_answered_with_its_field(
    ask: Callable[..., Any], event: str, change: dict[str, Any], field: str
) -> None:
    sound = {**SOUND, **(CALL if event == "tool_call" else {})}
    answer = await ask(f"client:{event}", {**sound, **change})
    assert isinstance(SMCPError.from_wire(answer), BadRequest)
    assert answer["details"] == {"field": field, **({"outcome": "not_run"} if event == "tool_call" else {})}
    assert answer.get("isError") is (True if event == "tool_call" else None)
    assert "error" not in await ask(f"client:{event}", sound)


@pytest.mark.covers("computer-malformed")
@pytest.mark.parametrize("event", ["get_tools", "get_config", "get_desktop", "tool_call"])
@pytest.mark.parametrize("payload", [None, "text", 5, [SOUND], {}])
async def test_an_invalid_request_is_answered(ask: Callable[..., Any], event: str, payload: Any) -> None:
    answer = await ask(f"client:{event}", payload)
    assert answer["code"] == 400


@pytest.mark.covers("computer-malformed")
@pytest.mark.parametrize("event", ["client:newer", "server:list_room", "nonsense"])
async def test_an_event_that_it_does_not_know_is_answered(ask: Callable[..., Any], event: str) -> None:
    assert (await ask(event, SOUND))["code"] == 400


@pytest.mark.covers("computer-malformed")
@pytest.mark.parametrize("change", [{"desktop_size": "3"}, {"window": 5}, {"req_id": 1}])
async def test_a_malformed_request_through_the_server_is_answered_with_its_field(
    shared_hub: Any, agent: Peer, office: str, tmp_path: Path, change: dict[str, Any]
) -> None:
    async with hosted(Computer("laptop"), shared_hub.url, office, tmp_path):
        answer = await agent.request("client:get_desktop", "laptop", **change)
        assert (answer["code"], answer["details"]["field"]) == (400, *change)


@pytest.mark.covers("computer-malformed")
async def test_a_configuration_and_a_desktop_that_are_too_large_are_answered_with_their_size(
    shared_hub: Any, agent: Peer, office: str, tmp_path: Path
) -> None:
    computer = Computer("laptop", policy=quick(), max_message=5000)
    computer.add_server(good(desktop="any", default_tool_meta={"auto_apply": True}))
    for number in range(5):
        computer.add_server(naughty("fine", "x" * 1000, name=f"server {number}", disabled=True))
    async with hosted(computer, shared_hub.url, office, tmp_path):
        await ready(computer, "good")
        opening = {"uri": "window://good/large", "text": "x" * 6000}
        await agent.call_tool("laptop", "open_window", timeout=10, params=opening)
        await until(lambda: computer.status()["good"].windows == 3)
        for event in ("client:get_config", "client:get_desktop"):
            answer = await agent.request(event, "laptop")
            assert isinstance(SMCPError.from_wire(answer), TooLarge)
            assert answer["details"]["size"] > 5000
        few = await agent.request("client:get_desktop", "laptop", window="window://good/two")
        assert few["desktops"] == ["window://good/two\n\nsecond"]


async def test_the_list_of_tools_is_rewritten_when_tools_or_secrets_change() -> None:
    computer = Computer("laptop")
    computer.tool(lambda: "sum", name="add")
    first = computer.tools_for("planner", "r1")
    assert json.loads(first.text) == first == {"tools": computer.get_tools(), "req_id": "r1"}
    computer.tool(lambda: "x", name="swordfish-1")
    second = computer.tools_for("planner", 'r"2')
    assert json.loads(second.text) == second == {"tools": computer.get_tools(), "req_id": 'r"2'}
    description = second["tools"][0]["description"] or "params_schema"
    computer.mask.add([description, "a secret of no importance"])
    assert json.loads(computer.tools_for("planner", "r3").text)["tools"] == computer.get_tools()
