"""MCP clients of others sign in at `server --mcp --sign-in`, with a person who follows the page."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult

from tests.clients.bridged import CACHE, KEY, PATIENCE, bridged_office, listening, run, surroundings, visit
from tests.program import PROGRAM
from tests.stage.installed import environment
from tests.stage.mcp_clients import called, client_at
from tests.stage.signing_in import Person, RawClient
from tests.waiting import until_it_goes

pytestmark = [pytest.mark.covers("clients"), pytest.mark.covers("mcp-sign-in")]

PROGRAMS = Path(__file__).with_name("programs")
NODE = CACHE / "mcp-clients" / "node_modules" / ".bin" / "node"
TYPESCRIPT = [NODE, Path(__file__).parent / "typescript" / "sign_in.mjs", CACHE / "mcp-clients" / "package.json"]
CLIENTS: dict[str, Any] = {
    "python-1": lambda: [environment("clients"), PROGRAMS / "sign_in_python_1.py"],
    "fastmcp": lambda: [environment("frameworks"), PROGRAMS / "sign_in_fastmcp.py"],
    "typescript-1": lambda: [*TYPESCRIPT, "sdk"],
    "typescript-2": lambda: [*TYPESCRIPT, "client"],
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_of_others_signs_in_and_calls(signing_in: str, name: str, tmp_path: Path) -> None:
    words = [*CLIENTS[name](), f"{signing_in}/mcp/desk"]
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, env=surroundings(tmp_path))
    assert client.stdin
    assert client.stdout
    async with asyncio.timeout(PATIENCE):
        page = (await client.stdout.readline()).decode().strip()
        led = (await Person(signing_in).sign_in(page, KEY)).headers["Location"]
        if name == "fastmcp":
            await until_it_goes(lambda: visit(led))
        else:
            client.stdin.write(f"{led}\n".encode())
        told = json.loads(await client.stdout.readline())
        assert (told, await client.wait()) == ({"call": "3", "scope": "mcp"}, 0)


async def test_mcp_remote_signs_in_for_a_client_that_starts_processes(signing_in: str, tmp_path: Path) -> None:
    pipe, program = asyncio.subprocess.PIPE, CACHE / "mcp-clients" / "node_modules" / ".bin" / "mcp-remote"
    opens_nothing = {**surroundings(tmp_path), "BROWSER": "true"}
    words = [NODE, program, f"{signing_in}/mcp/desk", "--allow-http"]
    client = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, env=opens_nothing)
    assert client.stdin
    assert client.stdout
    assert client.stderr
    errors = client.stderr

    async def ask(method: str, **params: Any) -> Any:
        assert client.stdin
        assert client.stdout
        client.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
        return json.loads(await client.stdout.readline())["result"]

    async def open_page() -> None:
        async for line in errors:
            if line.startswith(f"{signing_in}/sign-in/authorize?".encode()):
                led = (await Person(signing_in).sign_in(line.decode().strip(), KEY)).headers["Location"]
                await until_it_goes(partial(visit, led))

    reading = asyncio.create_task(open_page())
    async with asyncio.timeout(PATIENCE):
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        await ask("initialize", **about)
        client.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        result = await ask("tools/call", name="add", arguments={"a": 1, "b": 2})
        assert result["content"][0]["text"] == "3"
        client.terminate()
        await client.wait()
        await reading


ROUNDS = 5


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("count", [2, 5])
async def test_clients_of_one_person_call_ask_and_follow_at_once_and_nothing_is_crossed(
    office: str, tmp_path: Path, count: int, mode: Any
) -> None:
    """Each has the entry that `connect` writes, and a grant of its own. All share one seat."""
    server = ("server", "--mcp", "--sign-in", "--port", "0", "--api-key", KEY)
    async with (
        listening(*server, folder=tmp_path) as url,
        bridged_office(url, office, tmp_path, api_key=KEY) as place,
        AsyncExitStack() as stack,
    ):
        words = ("connect", "cursor", "--http", "--print", "--url", url, "--office", office)
        (entry,) = json.loads(await run(place, [PROGRAM, *words]))["mcpServers"].values()
        crowd = []
        for number in range(count):
            tokens = await RawClient(url, office).signed_in(KEY)
            answering = {"elicitation_callback": partial(answer, number)}
            client = client_at(entry["url"], tokens["access_token"], mode, callbacks=answering)
            crowd.append(await stack.enter_async_context(client))
        async with asyncio.timeout(PATIENCE):
            heard = await asyncio.gather(*(use(session, number) for number, session in enumerate(crowd)))
    expected = [({n + 2}, f"Booked for day {n}: {n + 1} people, terrace", str(n)) for n in range(count)]
    assert heard == [[each] * ROUNDS for each in expected]


async def answer(number: int, context: Any, params: Any) -> ElicitResult:
    assert f"day {number}" in params.message
    return ElicitResult(action="accept", content={"people": number + 1, "place": "terrace"})


async def use(session: Any, number: int) -> list[tuple[set[float], str, str]]:
    """The totals in its progress, the result of a question, and a sum, in each of some rounds."""
    found = []
    for _ in range(ROUNDS):
        totals: set[float] = set()

        async def report(value: float, total: float | None, message: str | None, heard: Any = totals) -> None:
            if total is not None:  # a report that the call waits has none
                heard.add(total)

        cooking = session.call_tool("cook", {"dishes": number + 2, "seconds": 0.01}, progress_callback=report)
        _, booked, added = await asyncio.gather(
            cooking, called(session, "book_table", day=f"day {number}"), called(session, "add", a=number, b=0)
        )
        found.append((totals, booked, added))
    return found
