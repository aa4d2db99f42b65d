"""What a Computer answers to wrong requests, from a Server that passes everything on, and when it has too much."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import BadRequest, SMCPError, TooLarge
from tests.computer.hosted import CarelessServer, Host, hosted
from tests.computer.supervised import good, naughty, quick
from tests.peer import Peer
from tests.waiting import until

pytestmark = pytest.mark.covers("computer-malformed")

SOUND = {"agent": "planner", "req_id": "r1", "computer": "laptop"}
CALL = {"tool_name": "add", "params": {}, "timeout": 5}
REQUESTS = ("get_tools", "get_config", "get_desktop", "tool_call")


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Asks a Computer anything."""
    server, computer = CarelessServer(), Computer("laptop")
    computer.tool(lambda: "sum", name="add", auto_apply=True)
    computer.mask.add(["message", "details"])
    async with server.open() as url, hosted(computer, url, "desk", tmp_path):
        yield server.ask


MALFORMED: list[tuple[str, dict[str, Any], str]] = [
    *((event, {"agent": 7}, "agent") for event in REQUESTS),
    *((event, {"req_id": ""}, "req_id") for event in REQUESTS),
    ("get_tools", {"computer": ["laptop"]}, "computer"),
    *(("get_desktop", {"desktop_size": size}, "desktop_size") for size in ("3", True)),
    *(("get_desktop", {"window": window}, "window") for window in (5, "window://" + "x" * 3000)),
    *(("tool_call", {"tool_name": name}, "tool_name") for name in (None, "x" * 300)),
    ("tool_call", {"params": [1, 2]}, "params"),
    *(("tool_call", {"timeout": seconds}, "timeout") for seconds in (0, "5", 10**9)),
]


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


INVALID = [(f"client:{event}", payload) for event in REQUESTS for payload in (None, "text", 5, [SOUND], {})]
UNKNOWN = [(event, SOUND) for event in ("client:newer", "server:list_room", "nonsense")]


@pytest.mark.parametrize(("event", "payload"), [*INVALID, *UNKNOWN])
async def test_an_invalid_request_or_an_unknown_event_is_answered(
    ask: Callable[..., Any], event: str, payload: Any
) -> None:
    assert (await ask(event, payload))["code"] == 400


async def test_a_configuration_and_a_desktop_that_are_too_large_are_answered_with_their_size(
    host: Host, agent: Peer
) -> None:
    computer = Computer("laptop", policy=quick(), max_message=5000)
    computer.add_server(good(desktop="any", default_tool_meta={"auto_apply": True}))
    for number in range(5):
        computer.add_server(naughty("fine", "x" * 1000, name=f"server {number}", disabled=True))
    await host(computer, "good")
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
    first = computer.agents.tools_for("planner", "r1")
    assert json.loads(first.text) == first == {"tools": computer.get_tools(), "req_id": "r1"}
    computer.tool(lambda: "x", name="swordfish-1")
    second = computer.agents.tools_for("planner", 'r"2')
    assert json.loads(second.text) == second == {"tools": computer.get_tools(), "req_id": 'r"2'}
    description = second["tools"][0]["description"] or "params_schema"
    computer.mask.add([description, "a secret of no importance"])
    assert json.loads(computer.agents.tools_for("planner", "r3").text)["tools"] == computer.get_tools()
