"""`a2c-smcp agent servers`, `resources`, `read`, `prompts` and `prompt`, as people and scripts use them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import BadRequest, SMCPError
from tests.computer.hosted import ready
from tests.computer.supervised import good
from tests.peer import Peer
from tests.stage.library import computer_with_library
from tests.stage.place import Ended

PATIENCE = 60.0

pytestmark = pytest.mark.covers("agent-program")

BOOKS = "Emma\nMoby-Dick\nWalden"


@pytest.fixture
async def desk(hosts: Any) -> AsyncIterator[Computer]:
    computer = computer_with_library(good())
    async with hosts(computer):
        await ready(computer, "library", "good")
        yield computer


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


async def test_servers_resources_and_prompts_are_tables_or_json(desk: Computer, run: Any) -> None:
    servers = {each["name"]: each for each in json.loads((await run("servers", "--json")).out)}
    library = servers["library"]
    assert (library["computer"], library["state"], library["version"]) == ("laptop", "ready", "1.2")
    assert {"resources", "prompts", "tools"} <= library["capabilities"].keys()
    table = rows((await run("servers", "laptop")).out)
    assert table[0] == ["server", "computer", "state", "title", "version", "offers", "instructions"]
    assert ["library", "laptop", "ready", "Library", "1.2"] in [row[:5] for row in table]
    of_all = json.loads((await run("resources", "laptop", "--json")).out)
    assert {each["mcp_server"] for each in of_all} == {"library", "good"}
    table = rows((await run("resources", "laptop", "library")).out)
    assert table[0] == ["resource", "server", "name", "type", "description"]
    assert table[1][:4] == ["library://catalogue", "library", "catalogue", "text/plain"]
    templates = rows((await run("resources", "laptop", "library", "--templates")).out)
    assert templates[1][:2] == ["library://books/{title}", "library"]
    prompts = rows((await run("prompts", "laptop")).out)
    assert prompts == [
        ["prompt", "server", "arguments", "description"],
        ["review", "library", "title", "[words]", "Ask", "for", "a", "review", "of", "a", "book."],
    ]
    (prompt,) = json.loads((await run("prompts", "laptop", "library", "--json")).out)
    assert (prompt["mcp_server"], prompt["name"]) == ("library", "review")


async def test_text_is_printed_and_bytes_go_to_files_and_pipes_only(
    desk: Computer, run: Any, terminal: Any, tmp_path: Path
) -> None:
    assert await run("read", "laptop", "library", "library://catalogue") == Ended(0, BOOKS, "")
    whole = json.loads((await run("read", "laptop", "library", "library://stamp", "--json")).out)
    assert whole["contents"][0]["mimeType"] == "image/png"
    file = tmp_path / "stamp.png"
    saved = await run("read", "laptop", "library", "library://stamp", "--output", str(file))
    assert saved == Ended(0, "", f"{file.stat().st_size} bytes written to {file}\n")
    assert file.read_bytes().startswith(b"\x89PNG")
    nowhere = await run("read", "laptop", "library", "library://stamp", "--output", str(tmp_path / "no" / "stamp.png"))
    assert nowhere.code == 1
    assert "cannot be written: No such file or directory. Give another file" in nowhere.err
    async with terminal("read", "laptop", "library", "library://stamp") as program:
        assert await program.ends() == 1
        await program.shows("library://stamp is binary (image/png), which a terminal cannot show. --output FILE")
        assert "IHDR" not in program.screen.raw
    async with terminal("read", "laptop", "library", "library://catalogue") as program:
        assert await program.ends() == 0
        await program.shows("Moby-Dick")


async def test_a_prompt_is_printed_with_its_arguments(desk: Computer, run: Any) -> None:
    asked = await run("prompt", "laptop", "library", "review", "title=Emma", "words=7")
    assert asked.out.startswith("Write a review of Emma in at most 7 words. It begins: Emma Woodhouse")
    typed = await run("prompt", "laptop", "library", "review", "-", "--json", typed='{"title": "Emma"}')
    assert json.loads(typed.out)["messages"][0]["role"] == "user"


FAILING = {
    "no such server": (
        ["read", "laptop", "librery", "x:y"],
        "laptop has no MCP server 'librery' that is running. Did you mean library",
    ),
    "no such server to list": (["resources", "laptop", "x"], "There are library, good."),
    "no such resource": (["read", "laptop", "library", "library://catalog"], "Did you mean library://catalogue?"),
    "no resource at all like it": (
        ["read", "laptop", "library", "zzz:7"],
        "a2c-smcp agent resources laptop library shows what there is.",
    ),
    "no such prompt": (
        ["prompt", "laptop", "library", "reviews", "title=Emma"],
        "library has no prompt 'reviews'. Did you mean review",
    ),
    "missing argument": (["prompt", "laptop", "library", "review"], "The prompt 'review' needs title. Add title=…."),
    "unknown argument": (
        ["prompt", "laptop", "library", "review", "title=Emma", "colour=red"],
        "The prompt 'review' has no argument 'colour'. It takes title, words.",
    ),
    "a template that has no such resource": (
        ["read", "laptop", "library", "library://books/Nope"],
        "library://books/Nope. a2c-smcp agent resources laptop library shows what there is.",
    ),
    "no prompts": (
        ["prompts", "laptop", "good"],
        "good on laptop offers no prompts. a2c-smcp agent servers laptop shows",
    ),
    "no such computer": (["servers", "tower"], "No such computer: 'tower'. Office '{office}' has laptop."),
}


@pytest.mark.covers("program-errors")
async def test_what_goes_wrong_is_said_with_what_to_do(desk: Computer, run: Any, office: str) -> None:
    for name, (arguments, words) in FAILING.items():
        ended = await run(*arguments)
        assert (ended.code, ended.out) == (1, ""), (name, ended)
        assert words.format(office=office) in ended.err, (name, ended.err)
        assert len(ended.err.splitlines()) == 1, (name, ended.err)


async def test_a_call_says_how_to_follow_its_links(desk: Computer, run: Any) -> None:
    line = "a2c-smcp agent read laptop library library://books/Moby-Dick"
    assert await run("call", "laptop", "find_book", "word=ishmael") == Ended(0, "", f"it links to a resource: {line}\n")


@pytest.fixture
async def odd(connect: Any, office: str) -> Peer:
    """A computer whose answers a test chooses."""
    peer: Peer = await connect()
    peer.answers("client:get_tools", {"tools": [], "req_id": "x"})
    await peer.join("computer", "odd", office)
    return peer


@pytest.mark.covers("program-errors")
async def test_a_computer_that_is_old_or_odd_is_named_and_costs_only_its_own_list(odd: Peer, run: Any) -> None:
    unknown = BadRequest("this computer does not know 'client:get_servers'").to_wire()
    odd.answers("client:get_servers", None)
    odd.answers("client:get_config", {"servers": {"files": {}, "broken": {}, "empty": {}}})
    listed = {
        "files": {"resources": [{"uri": "file:///a", "name": "a", "mime_type": "text/plain", "size": 2_500_000}]},
        "broken": {"resources": 7},
        "empty": {"code": 4015, "message": "MCP capability not supported", "mcp_server": "empty", "capability": "x"},
    }
    odd.answers("client:get_resources", lambda data: {**listed[data["mcp_server"]], "req_id": data["req_id"]})
    servers = await run("servers", "--json")
    assert (servers.code, servers.out) == (1, "[]\n")
    assert "odd gave no list: Unsupported event: computer 'odd' does not know client:get_servers" in servers.err
    resources = await run("resources", "odd")
    assert resources.code == 1
    assert rows(resources.out)[1] == ["file:///a", "files", "a", "text/plain", "2.5", "MB"]
    assert "broken gave no list: Internal error: the answer has no list of resources" in resources.err
    odd.answers("client:get_servers", unknown)
    assert "Correct that, and try again." in (await run("servers", "odd")).err
    odd.answers("client:read_resource", {"contents": [{"uri": "x:y", "blob": "not base64"}], "req_id": "x"})
    ended = await run("read", "odd", "files", "x:y")
    assert (ended.code, "neither text nor base64" in ended.err) == (1, True)
    odd.answers("client:read_resource", {"resultType": "input_required", "inputRequests": {}, "req_id": "x"})
    assert "asks something before it gives this resource" in (await run("read", "odd", "files", "x:y")).err
    several = [{"uri": "x:y", "text": "a"}, {"uri": "x:z", "text": "b\n"}]
    odd.answers("client:read_resource", {"contents": several, "req_id": "x"})
    assert (await run("read", "odd", "files", "x:y")).out == "ab\n"
    assert "has 2 parts, which do not fit one file" in (await run("read", "odd", "files", "x:y", "--output", "f")).err
    messages = [
        {"role": "user", "content": {"type": "text", "text": "One"}},
        {"role": "assistant", "content": {"type": "image", "data": "", "mimeType": "image/png"}},
        {"role": "assistant", "content": {"type": "resource", "resource": {"uri": "x:y", "text": "Two"}}},
        {"role": "user", "content": ["odd"]},
    ]
    odd.answers("client:get_prompt", {"messages": messages, "req_id": "x"})
    assert await run("prompt", "odd", "files", "p") == Ended(
        0, "user:\nOne\n\nassistant:\nTwo\n", "there is more than text: --json has it\n"
    )
    odd.answers("client:get_prompts", {"prompts": [], "req_id": "x"})
    assert (await run("prompts", "odd")).err == "no MCP server on odd has prompts\n"
    odd.answers("client:get_prompt", SMCPError("broken").to_wire())
    assert "files has no prompt 'p'. It has no prompts at all." in (await run("prompt", "odd", "files", "p")).err


async def test_a_watched_resource_is_printed_again_when_it_has_changed(odd: Peer, start: Any, office: str) -> None:
    texts = ["one"]
    odd.answers("client:subscribe_resource", lambda data: {"req_id": data["req_id"]})
    odd.answers("client:read_resource", lambda data: {"contents": [{"uri": "x:y", "text": texts[-1]}], "req_id": "x"})
    process = await start("--name", "planner", "read", "odd", "files", "x:y", "--watch", "--json")
    async with asyncio.timeout(PATIENCE):
        assert json.loads(await process.stdout.readline())["contents"][0]["text"] == "one"
        texts.append("two")
        told = {"agent": "planner", "mcp_server": "files", "uri": "x:y"}
        assert await odd.ask("server:tell_resource", told) == {"delivered": True}
        assert json.loads(await process.stdout.readline())["contents"][0]["text"] == "two"
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 0
