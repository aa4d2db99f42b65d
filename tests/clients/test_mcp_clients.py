"""MCP clients of others use an office through the bridge: by stdio, and by streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.clients.bridged import (
    CACHE,
    KEY,
    PATIENCE,
    BridgedOffice,
    bridged_office,
    found_by,
    listening,
    over_http,
    run,
    surroundings,
    target,
)
from tests.ports import free_port
from tests.program import PROGRAM, Running, run_program, start_program
from tests.shown_output import Machine, is_printed, steps
from tests.stage.guides import Up, abacus
from tests.stage.installed import environment

pytestmark = pytest.mark.covers("clients")

PROGRAMS = Path(__file__).with_name("programs")
NODE = CACHE / "mcp-clients" / "node_modules" / ".bin" / "node"
TYPESCRIPT = [NODE, Path(__file__).parent / "typescript" / "client.mjs", CACHE / "mcp-clients" / "package.json"]
PAGE, NPX = CACHE.parent / "docs" / "clients" / "index.md", "npx -y @modelcontextprotocol/inspector"
TOOLS = {"add", "wait", "book_table", "cook", "find_book", "lend"}
EXPECTED = {
    "call": "5",
    "question": "Booked for Friday: 4 people, terrace",
    "updated": "library://catalogue",
    "resource": "Emma (lent)\nMoby-Dick\nWalden",
}


CLIENTS: dict[str, Any] = {
    "python-1": lambda: ([environment("clients"), PROGRAMS / "python_1.py"], []),
    "python-2-modern": lambda: ([PROGRAM.with_name("python"), PROGRAMS / "python_2.py"], ["auto"]),
    "python-2-older": lambda: ([PROGRAM.with_name("python"), PROGRAMS / "python_2.py"], ["legacy"]),
    "fastmcp-modern": lambda: ([environment("frameworks"), PROGRAMS / "fastmcp_client.py"], ["auto"]),
    "fastmcp-older": lambda: ([environment("frameworks"), PROGRAMS / "fastmcp_client.py"], ["legacy"]),
    "typescript-1": lambda: ([*TYPESCRIPT, "sdk"], []),
    "typescript-2": lambda: ([*TYPESCRIPT, "client"], []),
}
REVISIONS = {"python-2-modern": "2026-07-28", "python-2-older": "2025-11-25", "typescript-2": "2026-07-28"}
"""The revision of MCP that a client says it speaks; the others do not say."""
WITHOUT_SUBSCRIPTIONS = "fastmcp-modern"
"""FastMCP's client has no subscriptions/listen."""


@pytest.fixture
async def place(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[BridgedOffice]:
    async with bridged_office(shared_hub.url, office, tmp_path) as found:
        yield found


@pytest.fixture(params=["stdio", "http"])
async def url(request: pytest.FixtureRequest, place: BridgedOffice) -> AsyncIterator[str | None]:
    """Where the bridge listens; `None` if clients start it."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(over_http(place)) if request.param == "http" else None


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_lists_calls_follows_cancels_answers_subscribes_and_prompts(
    place: BridgedOffice, url: str | None, client: str
) -> None:
    await use(client, place, url)


@pytest.mark.parametrize("client", ["python-1", "python-2-modern", "typescript-2"])
async def test_a_client_does_the_same_at_the_url_of_the_server(client: str, office: str, tmp_path: Path) -> None:
    async with (
        listening("server", "--mcp", "--port", "0", "--api-key", KEY, folder=tmp_path) as url,
        bridged_office(url, office, tmp_path, api_key=KEY) as place,
    ):
        await use(client, place, f"{url}/mcp/{office}")


async def use(client: str, place: BridgedOffice, url: str | None) -> None:
    """Run the program of a client, and look at what came of it."""
    program, words = CLIENTS[client]()
    found = await found_by(place, [*program, json.dumps(target(place, url)), *words])
    assert set(found["tools"]) >= TOOLS
    assert found["prompt"].startswith("Write a review of Emma")
    expected = {key: value for key, value in EXPECTED.items() if (client, key) != (WITHOUT_SUBSCRIPTIONS, "updated")}
    assert {key: found.get(key) for key in expected} == expected
    assert found["progress"] in ([0], [1], [0, 1]), "a client may drop one that arrives together with the next message"
    assert found.get("revision") == REVISIONS.get(client)
    async with asyncio.timeout(PATIENCE):
        await place.cancelled.wait()


@pytest.mark.covers("bridge-killed")
@pytest.mark.parametrize("line", ["sdk", "client"])
async def test_a_client_goes_on_when_the_bridge_is_killed_in_the_middle_of_a_call(
    place: BridgedOffice, line: str
) -> None:
    words = ("bridge", "--port", str(free_port()), "--url", place.url, "--office", place.office, "--bearer-key", KEY)
    program = [NODE, PROGRAMS.parent / "typescript" / "restart.mjs", TYPESCRIPT[2], line]
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):

        async def start() -> Running:
            process = await start_program(*words, env=surroundings(place.folder))
            stack.callback(ended, process)
            assert process.stdout
            assert (await process.stdout.readline()).startswith(b"listening on ")
            return process

        bridge = await start()
        url = f"http://127.0.0.1:{words[2]}/mcp"
        client = await asyncio.create_subprocess_exec(
            *program, json.dumps(target(place, url)), env=surroundings(place.folder), stdin=-1, stdout=-1
        )
        stack.callback(ended, client)
        assert client.stdin
        assert client.stdout
        assert await client.stdout.readline() == b"called\n"
        bridge.kill()
        await bridge.wait()
        await start()
        client.stdin.write(b"\n")
        found = json.loads(await client.stdout.readline())
    assert (len(found["answers"]), found["call"]) == (1, "5")
    assert found["answers"] != ["result"]


def ended(process: Any) -> None:
    with suppress(ProcessLookupError):
        process.kill()


# The MCP Inspector


class Inspector:
    """Its command line, against one target."""

    def __init__(self, place: BridgedOffice, *words: str) -> None:
        self._place = place
        patience = ["--connect-timeout", str(round(PATIENCE * 1000))]
        self._words = [NODE, CACHE / "mcp-clients/node_modules/.bin/mcp-inspector", "--cli", *words, *patience]

    async def __call__(self, method: str, *words: str) -> Any:
        """The result of one request."""
        said = await run(self._place, [*self._words, "--method", method, *words, "--format", "json", "-q"])
        return json.loads(said)["result"]


@pytest.fixture
def inspector(place: BridgedOffice, url: str | None) -> Inspector:
    if url:
        return Inspector(place, url, "--transport", "http", "--header", f"Authorization: Bearer {KEY}")
    return Inspector(place, *place.command)


async def test_the_inspector_lists_calls_reads_and_prompts(inspector: Inspector) -> None:
    assert {tool["name"] for tool in (await inspector("tools/list", "--strict"))["tools"]} >= TOOLS
    for era in ("legacy", "modern"):
        called = await inspector("tools/call", "--tool-name", "add", "--tool-arg", "a=2", "b=3", "--protocol-era", era)
        assert called["content"] == [{"type": "text", "text": "5"}], era
    (contents,) = (await inspector("resources/read", "--uri", "library://catalogue"))["contents"]
    assert contents["text"] == "Emma\nMoby-Dick\nWalden"
    prompt = await inspector("prompts/get", "--prompt-name", "review", "--prompt-args", "title=Emma")
    assert prompt["messages"][0]["content"]["text"].startswith("Write a review of Emma")


async def test_four_commands_lead_from_a_clone_to_a_tool_of_ones_own(machine: Machine) -> None:
    """The page has the first, which installs the package, too."""
    machine.put("../work/mcp.json", {"mcpServers": {"abacus": abacus()}})
    up = await Up.start(machine, "a2c-smcp up --name laptop --yes")
    (step,) = [each for each in steps(PAGE) if each.command.startswith(NPX)]
    inspector = shlex.join(map(str, [NODE, CACHE / "mcp-clients/node_modules/.bin/mcp-inspector"]))
    call = step.command.replace(NPX, inspector).replace("--stdio", f"--stdio --url {up.url}")  # not 7000 here
    said = await machine.runs(call)
    assert is_printed(step.prints, said), said


async def test_the_inspector_starts_what_connect_has_written(place: BridgedOffice, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    written = run_program("connect", "cursor", "--config", file, "--write", *place.command[3:])
    assert written.returncode == 0, written.stderr
    (name,) = json.loads(file.read_text("utf-8"))["mcpServers"]
    inspector = Inspector(place, "--config", str(file), "--server", name)
    called = await inspector("tools/call", "--tool-name", "add", "--tool-arg", "a=2", "b=3")
    assert called["content"] == [{"type": "text", "text": "5"}]
