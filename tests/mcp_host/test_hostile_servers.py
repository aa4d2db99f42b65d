"""MCP servers that send far too much: only their own call fails, and the error says why."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.computer import Computer
from a2c_smcp.mcp_host.message_limits import text_in
from tests.bystander import calling_meanwhile
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import SERVERS, await_listening, good, naughty, quick, script
from tests.peer import Peer
from tests.ports import free_port

AGENT = Caller("desk", "planner")
TRUSTED = {"default_tool_meta": {"auto_apply": True}}
ROOM = 160 * 1024 * 1024
"""Memory that an attack may take for a moment: a message of 16 MiB in a few copies."""
BYTES = "the server's answer exceeded the 16777216 byte limit"
VALUES = "the server's answer exceeded the 300000 value limit"
RESULT_VALUES = "the server's answer exceeded the 250000 value limit"
numbers = count(1)


@pytest.fixture(scope="module")
def flood_port() -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, str(SERVERS / "flood.py"), "http", str(port)])
    try:
        await_listening(port)
        yield port
    finally:
        process.kill()
        process.wait()


def flooding(kind: str, port: int) -> Any:
    if kind == "stdio":
        return script("flood.py", "stdio", name="flood", **TRUSTED)
    path = {"streamable": "mcp", "events": "mcp"}.get(kind, kind)
    url = f"http://127.0.0.1:{port}/{path}"
    return {
        "name": "flood",
        "type": "sse" if kind == "sse" else "streamable",
        "server_parameters": {"url": url},
        **TRUSTED,
    }


def memory() -> int:
    """What this process has in RAM, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.covers("mcp-robust", "mcp-bounded")
@pytest.mark.parametrize(
    ("transport", "attacks"),
    [
        ("stdio", {"long": BYTES, "id last": BYTES, "values": VALUES, "result values": RESULT_VALUES}),
        ("streamable", {"gzip": BYTES, "endless": BYTES, "values": VALUES}),
        ("events", {"endless": BYTES, "values": VALUES}),
        ("sse", {"long": BYTES, "id last": BYTES, "values": VALUES}),
    ],
    ids=["stdio", "streamable", "events", "sse"],
)
async def test_an_answer_that_is_too_large_fails_its_call_and_delays_nobody(
    transport: str, attacks: dict[str, str], flood_port: int
) -> None:
    async with Computer("laptop", policy=quick()) as computer:

        async def call(tool: str, **params: Any) -> dict[str, Any]:
            return await computer.execute_tool(AGENT, f"r{next(numbers)}", tool, params, 20)

        async def work() -> None:
            held.append(memory())
            assert (await call("add", a=20, b=22))["structuredContent"] == {"result": 42}

        held: list[int] = []
        await asyncio.gather(*map(computer.put_server, (good(**TRUSTED), flooding(transport, flood_port))))
        await work()
        async with calling_meanwhile(work, pause=0.005):
            for kind, said in attacks.items():
                refused = await call("flood", kind=kind, events=transport == "events")
                assert (refused["isError"], refused["code"]) == (True, 413)
                assert said in refused["content"][0]["text"]
                assert (await call("flood", kind="fine"))["content"][0]["text"] == "fine"
        assert computer.status()["flood"].starts == 1
        assert max(held) - held[0] < ROOM


@pytest.mark.covers("mcp-bounded")
async def test_many_large_answers_at_once_are_read_one_after_the_other(flood_port: int) -> None:
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(flooding("streamable", flood_port))
        before, params = memory(), {"kind": "as large as may be"}
        calls = [
            asyncio.create_task(computer.execute_tool(AGENT, f"r{next(numbers)}", "flood", params, 60))
            for _ in range(16)
        ]
        held = [memory()]
        while not all(call.done() for call in calls):
            await asyncio.wait(calls, timeout=0.01)
            held.append(memory())
        assert {call.result()["code"] for call in calls} == {413}
        assert max(held) - before < ROOM


@pytest.mark.covers("mcp-bounded")
async def test_bytes_after_the_end_of_gzip_are_not_read(flood_port: int) -> None:
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(flooding("streamable", flood_port))
        before = memory()
        answer = await computer.execute_tool(AGENT, f"r{next(numbers)}", "flood", {"kind": "behind gzip"}, 10)
        assert answer["content"][0]["text"] == "fine"
        assert memory() - before < ROOM


@pytest.mark.covers("mcp-bounded")
@pytest.mark.parametrize("events", [False, True])
async def test_a_body_that_cannot_be_decompressed_fails_its_call_only(events: bool, flood_port: int) -> None:
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(flooding("streamable", flood_port))
        params = {"kind": "no gzip", "events": events}
        refused = await computer.execute_tool(AGENT, f"r{next(numbers)}", "flood", params, 10)
        assert "the server's answer cannot be read" in refused["content"][0]["text"]
        assert computer.status()["flood"].starts == 1


@pytest.mark.covers("mcp-bounded", "questions-push")
@pytest.mark.parametrize("method", ["ping", "elicitation/create", "sampling/createMessage", "tasks/list"])
async def test_requests_of_a_server_that_reads_no_answers_do_not_pile_up(method: str) -> None:
    async with Computer("laptop", policy=quick()) as computer:
        await asyncio.gather(*map(computer.put_server, (good(**TRUSTED), naughty("pesters", method, **TRUSTED))))

        async def work() -> None:
            held.append((memory(), len(asyncio.all_tasks())))
            answer = await computer.execute_tool(AGENT, f"r{next(numbers)}", "add", {"a": 1, "b": 1}, 20)
            assert not answer.get("isError")

        held: list[tuple[int, int]] = []
        await work()
        async with calling_meanwhile(work, pause=0.005):
            done = await computer.execute_tool(AGENT, f"r{next(numbers)}", "echo", {}, 20)
        assert done["content"][0]["text"] == "done"
        assert max(tasks for _, tasks in held) < 200
        assert max(size for size, _ in held) - held[0][0] < ROOM


@pytest.mark.covers("mcp-bounded")
@pytest.mark.parametrize("kind", ["many", "many-events"])
async def test_a_list_of_100000_tools_over_http_is_cut_before_it_is_parsed(kind: str, flood_port: int) -> None:
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(flooding(kind, flood_port))
        assert [tool["name"] for tool in computer.get_tools()] == [f"tool-{n}" for n in range(1000)]


@pytest.mark.covers("mcp-bounded")
async def test_a_line_that_never_ends_fails_its_call_at_once() -> None:
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(flooding("stdio", 0))
        refused = await computer.execute_tool(AGENT, "r1", "flood", {"kind": "endless"}, 20)
        assert refused["code"] == 413


@pytest.mark.covers("mcp-bounded")
async def test_a_result_that_is_read_whole_and_cannot_be_sent_says_its_size() -> None:
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(flooding("stdio", 0))
        refused = await computer.execute_tool(AGENT, "r1", "flood", {"kind": "as large as may be"}, 20)
        assert "at most 4194304 can be sent" in refused["content"][0]["text"]


@pytest.mark.covers("mcp-bounded")
def test_keys_count_in_the_size_of_an_answer() -> None:
    assert text_in({"structuredContent": {"a" * 1000: [{"b" * 500: "c" * 10}]}}) >= 1510


@pytest.mark.covers("mcp-bounded", "tools-arguments")
async def test_a_check_of_arguments_ends_with_its_call_and_the_owner_is_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(naughty("heavy_schemas", **TRUSTED))

        async def call(timeout: float) -> tuple[int, str]:
            answer = await computer.execute_tool(AGENT, f"r{next(numbers)}", "doubling", {"a": 5}, timeout)
            return answer["code"], answer["details"]["outcome"]

        assert await call(0.3) == (408, "not_run")
        assert await call(30) == await call(30) == (413, "not_run")
    assert caplog.text.count("'doubling' of server 'heavy_schemas': This tool cannot be called") == 1


@pytest.mark.covers("mcp-bounded", "002-get_tools")
async def test_servers_that_list_too_much_leave_room_for_the_tools_of_others(
    shared_hub: Any, agent: Peer, office: str, tmp_path: Path
) -> None:
    modes = ("large_tool", "very_many_tools", "wordy_tools")
    computer = Computer("laptop", policy=quick(listing_limit=20, start_limit=40))
    for config in (good(**TRUSTED), *map(naughty, modes), naughty("wordy_tools", name="wordier")):
        computer.add_server(config)
    async with hosted(computer, shared_hub.url, office, tmp_path):
        await ready(computer, "good", "wordier", *modes)

        async def work() -> None:
            answer = await agent.call_tool("laptop", "add", params={"a": 2, "b": 3}, timeout=10)
            assert answer["content"][0]["text"] == "5"

        async with calling_meanwhile(work):
            tools = (await agent.request("client:get_tools", "laptop"))["tools"]
            await computer.restart("very_many_tools")
    of = Counter(tool["bundle_id"] for tool in tools)
    assert (of["good"], of["large_tool"], of["very_many_tools"]) == (9, 1, 1000)
    assert 30 < of["wordy_tools"] == of["wordier"] < 60
