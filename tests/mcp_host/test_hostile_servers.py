"""MCP servers that send far too much: only their own call fails, and the error says why."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.mcp_host.limits import text_in
from a2c_smcp.mcp_host.processes.plan import possible
from tests.bystander import calling_meanwhile
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import PATIENCE, SERVERS, await_listening, good, naughty, quick, script, text_of
from tests.mcp_host.sandboxed import sandboxed
from tests.peer import Peer
from tests.ports import free_port
from tests.sign_in.served import served
from tests.stage.cases import cases
from tests.waiting import until

pytestmark = pytest.mark.covers("mcp-bounded")

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
    type_ = "sse" if kind == "sse" else "streamable"
    return {"name": "flood", "type": type_, "url": f"http://127.0.0.1:{port}/{path}", **TRUSTED}


def memory() -> int:
    """What this process has in RAM, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@asynccontextmanager
async def laptop(*servers: Any, **policy: Any) -> AsyncIterator[Laptop]:
    """A computer with these servers."""
    async with Laptop("laptop", policy=quick(**policy)) as computer:
        await asyncio.gather(*map(computer.put_server, servers))
        yield computer


class Laptop(Computer):
    async def call(self, tool: str, timeout: float = 20, **params: Any) -> dict[str, Any]:
        return await self.execute_tool(AGENT, f"r{next(numbers)}", tool, params, timeout)


@pytest.mark.covers("mcp-robust")
@cases(
    "transport, attacks",
    ("stdio", {"long": BYTES, "id last": BYTES, "values": VALUES, "result values": RESULT_VALUES}),
    ("streamable", {"gzip": BYTES, "endless": BYTES, "values": VALUES}),
    ("events", {"endless": BYTES, "values": VALUES}),
    ("sse", {"long": BYTES, "id last": BYTES, "values": VALUES}),
    ids=["stdio", "streamable", "events", "sse"],
)
async def test_an_answer_that_is_too_large_fails_its_call_and_delays_nobody(
    transport: str, attacks: dict[str, str], flood_port: int
) -> None:
    async with laptop(good(**TRUSTED), flooding(transport, flood_port)) as computer:

        async def work() -> None:
            held.append(memory())
            assert (await computer.call("add", a=20, b=22))["structuredContent"] == {"result": 42}

        held: list[int] = []
        await work()
        async with calling_meanwhile(work, pause=0.005):
            for kind, said in attacks.items():
                refused = await computer.call("flood", kind=kind, events=transport == "events")
                assert (refused["isError"], refused["code"]) == (True, 413)
                assert said in text_of(refused)
                assert text_of(await computer.call("flood", kind="fine")) == "fine"
        assert computer.status()["flood"].starts == 1
        assert max(held) - held[0] < ROOM


async def test_many_large_answers_at_once_are_read_one_after_the_other(flood_port: int) -> None:
    async with laptop(flooding("streamable", flood_port)) as computer:
        before = memory()
        calls = [asyncio.create_task(computer.call("flood", 60, kind="as large as may be")) for _ in range(16)]
        held = [memory()]
        while not all(call.done() for call in calls):
            await asyncio.wait(calls, timeout=0.01)
            held.append(memory())
        assert {call.result()["code"] for call in calls} == {413}
        assert max(held) - before < ROOM


async def test_bytes_after_the_end_of_gzip_are_not_read(flood_port: int) -> None:
    async with laptop(flooding("streamable", flood_port)) as computer:
        before = memory()
        assert text_of(await computer.call("flood", 10, kind="behind gzip")) == "fine"
        assert memory() - before < ROOM


@pytest.mark.parametrize("events", [False, True])
async def test_a_body_that_cannot_be_decompressed_fails_its_call_only(events: bool, flood_port: int) -> None:
    async with laptop(flooding("streamable", flood_port)) as computer:
        refused = await computer.call("flood", 10, kind="no gzip", events=events)
        assert "the server's answer cannot be read" in text_of(refused)
        assert computer.status()["flood"].starts == 1


@pytest.mark.covers("questions-push")
@pytest.mark.parametrize("method", ["ping", "elicitation/create", "sampling/createMessage", "tasks/list"])
async def test_requests_of_a_server_that_reads_no_answers_do_not_pile_up(method: str) -> None:
    async with laptop(good(**TRUSTED), naughty("pesters", method, **TRUSTED)) as computer:

        async def work() -> None:
            held.append((memory(), len(asyncio.all_tasks())))
            assert not (await computer.call("add", a=1, b=1)).get("isError")

        held: list[tuple[int, int]] = []
        await work()
        async with calling_meanwhile(work, pause=0.005):
            assert text_of(await computer.call("echo")) == "done"
        assert max(tasks for _, tasks in held) < 200
        assert max(size for size, _ in held) - held[0][0] < ROOM


@pytest.mark.parametrize("kind", ["many", "many-events"])
async def test_a_list_of_100000_tools_over_http_is_cut_before_it_is_parsed(kind: str, flood_port: int) -> None:
    async with laptop(flooding(kind, flood_port)) as computer:
        assert [tool["name"] for tool in computer.get_tools()] == [f"tool-{n}" for n in range(1000)]


async def test_a_line_that_never_ends_fails_its_call_and_a_result_that_cannot_be_sent_says_its_size() -> None:
    async with laptop(flooding("stdio", 0)) as computer:
        assert "at most 4194304 can be sent" in text_of(await computer.call("flood", kind="as large as may be"))
        assert (await computer.call("flood", kind="endless"))["code"] == 413


def test_keys_count_in_the_size_of_an_answer() -> None:
    assert text_in({"structuredContent": {"a" * 1000: [{"b" * 500: "c" * 10}]}}) >= 1510


@pytest.mark.covers("tools-arguments")
async def test_a_check_of_arguments_ends_with_its_call_and_the_owner_is_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with laptop(naughty("heavy_schemas", **TRUSTED)) as computer:
        answers = [await computer.call("doubling", timeout, a=5) for timeout in (0.3, 30, 30)]
        assert [answer["code"] for answer in answers] == [408, 413, 413]
        assert {answer["details"]["outcome"] for answer in answers} == {"not_run"}
    assert caplog.text.count("'doubling' of server 'heavy_schemas': This tool cannot be called") == 1


@pytest.mark.covers("002-get_tools")
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


@pytest.mark.skipif(not possible().files, reason="this kernel has no Landlock that covers files")
@cases(
    "unit, count",
    ("EPERM\n" + "x" * 30_000, 100),
    ("EPERM /a/b\n", 20_000),
    ids=["long lines", "many paths"],
)
async def test_what_a_sandboxed_server_writes_to_stderr_delays_nobody(unit: str, count: int) -> None:
    async with laptop(good(**TRUSTED), sandboxed(**TRUSTED)) as computer:

        async def work() -> None:
            assert (await computer.call("add", a=20, b=22))["structuredContent"] == {"result": 42}

        async with calling_meanwhile(work, pause=0.005):
            code = f"import sys; print({unit!r} * {count}, file=sys.stderr, flush=True)"
            assert text_of(await computer.call("run", PATIENCE, code=code)) == "done"


@pytest.mark.covers("9-sign-in")
@pytest.mark.parametrize("letter", ["a", '"', "=", 'a="', "a=b "])
async def test_a_server_whose_refusal_has_a_huge_challenge_delays_nobody(letter: str) -> None:
    challenge = ("Bearer " + letter * 90_000)[:90_000].strip()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"www-authenticate", challenge.encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

    async with served(lambda _: app) as url, laptop(good(**TRUSTED)) as computer:

        async def work() -> None:
            assert (await computer.call("add", a=20, b=22))["structuredContent"] == {"result": 42}

        async with calling_meanwhile(work, pause=0.005):
            await computer.put_server({"name": "guarded", "type": "streamable", "url": f"{url}/mcp"})
            await until(lambda: computer.status()["guarded"].state == "auth_required")
