"""An office that cannot be used: the MCP client is told why and what to do, and goes on when it is mended."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import jwt
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from a2c_smcp.agent import AsyncSMCPAgentClient
from tests.stage.bridge import BridgedOffice, all_tools
from tests.stage.place import Place
from tests.stage.texts import text_of

pytestmark = pytest.mark.covers("bridge-trouble")

STATUS = "office_status"
KEY = "a-key-of-this-test"
SECRET = "a secret of at least thirty-two characters"


async def said(client: Client) -> str:
    """What a client is told, in its list of tools and by the tool in it. A tool from an older list says the same."""
    (tool,) = (await client.list_tools()).tools
    assert tool.name == STATUS
    told = text_of(await client.call_tool(STATUS, {}))
    assert told in (tool.description or "")
    reading = asyncio.create_task(client.get_prompt("trip", {"city": "Paris"}))  # both wait a moment for the office
    older = await client.call_tool("add", {"a": 1, "b": 2})
    assert (older.is_error, text_of(older)) == (True, told)
    with pytest.raises(MCPError) as refused:
        await reading
    assert refused.value.message == told or "no computer" in told
    return told


async def test_a_server_that_is_not_there_yet(empty: BridgedOffice, mode: Any) -> None:
    async with empty.client(empty.stdio(), mode) as client:
        assert "cannot be used now" in (client.instructions or "")
        told = await said(client)
        assert "nothing listens there" in told
        assert "a2c-smcp server" in told
        await empty.start_server()
        await until_told(client, "no computer")
        assert "a2c-smcp computer --office desk" in await said(client)
        await empty.start_computer()
        assert STATUS not in await all_tools(client)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


async def test_a_key_that_is_wrong_or_expired_is_replaced_in_its_file(empty: BridgedOffice, mode: Any) -> None:
    now = int(time.time())

    def token(**claims: Any) -> str:
        return jwt.encode({"sub": "ada", **claims}, SECRET, "HS256")

    key = empty.place.folder / "the key"
    await empty.start_server("--jwt-secret", SECRET, "--jwt-algorithm", "HS256")
    await empty.start_computer(A2C_API_KEY=token(exp=now + 3600))
    key.write_text("not a token of this Server")
    async with empty.client(empty.stdio("--key-file", str(key)), mode) as client:
        told = await said(client)
        assert f"does not accept the key in {key}" in told
        assert "not a token" not in told
        key.write_text(token(exp=now - 60))
        assert f"does not accept the key in {key}" in await said(client)
        key.unlink()
        await until_told(client, "cannot be read")
        key.write_text(f"{token(exp=now + 3600)}\n")
        await until_well(client)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


async def test_an_option_that_is_typed_goes_before_the_variable_of_the_other_one(empty: BridgedOffice) -> None:
    key = empty.place.folder / "the key"
    key.write_text(KEY)
    await empty.start_server("--api-key", KEY)
    await empty.start_computer(A2C_API_KEY=KEY)
    wrong = str(empty.place.folder / "no such file")
    for words, environ in (
        (("--key-file", str(key)), {"A2C_API_KEY": "wrong"}),
        (("--api-key", KEY), {"A2C_KEY_FILE": wrong}),
    ):
        async with empty.client(empty.stdio(*words, **environ), "auto") as client:
            await until_well(client)


FAULTS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "two keys that are typed": (
        ["--api-key", "a-key", "--key-file", "x"],
        {},
        "--api-key and --key-file are both given",
    ),
    "two variables": ([], {"A2C_API_KEY": "a-key", "A2C_KEY_FILE": "x"}, "--api-key and --key-file are both given"),
    "an option that there is not": (["--keyfile", "x"], {}, "No such option: --keyfile"),
    "a value that is none": (["--timeout", "long"], {}, "--timeout"),
    "a URL that is none": (["--url", "ftp://hub"], {}, "Correct --url"),
    "certificates that are none": (["--ca", "nothing.pem"], {}, "--ca, --cert or --cert-key cannot be used"),
    "an office that cannot be": (["--office", " x"], {}, "--office"),
    "both ways": (["--port", "0"], {}, "a bridge serves either stdin and stdout or a port"),
    "a state folder for nobody": ([], {"XDG_STATE_HOME": "/proc/nowhere"}, "/proc/nowhere"),
}


@pytest.mark.parametrize(("words", "environ", "reason"), FAULTS.values(), ids=FAULTS)
async def test_every_error_of_the_start_is_told_to_the_client(
    empty: BridgedOffice, mode: Any, words: list[str], environ: dict[str, str], reason: str
) -> None:
    async with empty.client(empty.stdio(*words, **environ), mode) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == STATUS
        told = text_of(await client.call_tool(STATUS, {}))
        assert reason in told
        assert reason in (tool.description or "")
        assert reason in (client.instructions or "")
        assert "a-key" not in told


async def test_a_bridge_that_cannot_start_ends_with_its_client_and_its_exit_code(place: Place) -> None:
    ended = await place.run("bridge", "--stdio", "--keyfile", "x")
    assert ended.code == 2
    assert "No such option: --keyfile" in ended.err


async def test_a_key_that_is_not_for_this_office(empty: BridgedOffice) -> None:
    made = await empty.place.run("key", "--principal", "ada", "--office", "other", "--add-to", "keys.json", "--json")
    assert made.code == 0
    await empty.start_server("--keys-file", str(empty.place.folder / "keys.json"))
    given = made.out.partition('"key":')[2].split('"')[1]
    async with empty.client(empty.stdio("--api-key", given), "auto") as client:
        told = await said(client)
        assert "--office" in told
        assert given not in told


async def test_an_office_that_another_agent_holds(bridged: BridgedOffice, mode: Any) -> None:
    holder = AsyncSMCPAgentClient("planner", url=bridged.url, office="desk")
    await holder.connect()
    async with bridged.client(bridged.stdio(), mode) as client:
        told = await said(client)
        assert "has an agent already" in told
        for cure in (f"{bridged.url}/mcp/desk with the same key", "a2c-smcp bridge --port 7100", "--office"):
            assert cure in told
        await holder.disconnect()
        await until_well(client)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


async def until_told(client: Client, words: str) -> None:
    while True:
        if words in text_of(await client.call_tool(STATUS, {})):
            return
        await asyncio.sleep(0.05)


async def until_well(client: Client) -> None:
    await until_told(client, "The office can be used")
    await all_tools(client)
