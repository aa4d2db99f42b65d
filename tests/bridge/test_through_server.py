"""Stdio bridges that go through a Server which serves MCP clients itself, beside clients that have its URL."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from tests.stage.bridge import BridgedOffice, Heard, all_tools, subscribed, until_listed
from tests.stage.keys import write_keys
from tests.stage.texts import text_of
from tests.stage.windows import alone, holder_files, windows
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("bridge-through-server")

KEY, OTHER = "key-of-ann-0123456789", "key-of-ben-0123456789"
UNKNOWN = {"code": 503, "outcome": "unknown"}


class Served(BridgedOffice):
    """An office of a Server with `--mcp` and keys."""

    @property
    def office(self) -> str:
        return f"{self.url}/mcp/desk"

    def set_keys(self, *keys: str) -> Path:
        return write_keys(self.place.folder, {key: key[7:10] for key in keys})

    async def serve(self) -> None:
        await self.start_server("--mcp", "--keys-file", str(self.place.folder / "keys.json"))

    async def restart(self, client: Client) -> None:
        """Kill the Server, and wait until the computer is back."""
        await self.server.kill()
        await self.serve()
        await all_tools(client)


@pytest.fixture
async def served(tmp_path: Path) -> Any:
    """With a computer."""
    office = Served(tmp_path)
    office.set_keys(KEY, OTHER)
    await office.serve()
    await office.start_computer(A2C_API_KEY=KEY)
    yield office
    await office.close()


async def used(client: Client, heard: Heard, rounds: int = 5) -> None:
    """Call, ask and report: each client gets what is its own."""
    for number in range(rounds):
        assert (await client.call_tool("add", {"a": number, "b": 1})).structured_content == {"result": number + 1}
        assert text_of(await client.call_tool("greet", {})) == f"hi {heard.name}, asked 'Who are you?'"
    heard.progress.clear()
    await client.call_tool("steps", {"count": 3}, progress_callback=heard.report)
    assert heard.progress[-1] == (3, 3, "step 3")
    assert len(heard.asked) == rounds


async def status(client: Client) -> str:
    return text_of(await client.call_tool("office_status", {}))


async def test_two_windows_and_a_client_with_the_url_work_at_once(served: Served, mode: Any) -> None:
    eve = Heard("Eve")
    async with (
        served.user(served.office, mode, eve, key=KEY) as by_url,
        windows(served, served.stdio("--api-key", KEY), mode, "Ada", "Bob") as found,
    ):
        opened = [await each.opened() for each in found]
        await asyncio.gather(used(by_url, eve), *(used(c, w.heard) for c, w in zip(opened, found, strict=True)))
        calling = await served.waiting(opened[0], "x")
        calling.cancel()
        await served.is_cancelled("x")
        assert holder_files(served) == []


async def test_older_clients_are_told_of_changes(served: Served) -> None:
    uri = "notes://page"
    async with windows(served, served.stdio("--api-key", KEY), "legacy", "Ada") as (window,):
        client = await window.opened()
        await until_listed(client, uri)
        await subscribed(client, uri)
        await client.call_tool("write", {"text": "second"})
        await until(lambda: uri in window.heard.updated)


async def test_newer_clients_listen_also_after_a_restart(served: Served) -> None:
    uri = "notes://page"
    async with windows(served, served.stdio("--api-key", KEY), "auto", "Ada") as (window,):
        client = await window.opened()
        await until_listed(client, uri)
        async with client.listen(resource_subscriptions=[uri]) as news:
            events = aiter(news)
            await served.restart(client)
            assert (await anext(events)).uri == uri  # type: ignore[union-attr]  # it may have changed meanwhile
            heard = asyncio.ensure_future(anext(events))
            while not heard.done():  # the Server's agent subscribes when the computer is back
                await client.call_tool("write", {"text": "second"})
                await asyncio.sleep(0.02)
            assert (await heard).uri == uri  # type: ignore[union-attr]


async def test_a_client_that_goes_away_cancels_its_calls(served: Served, mode: Any) -> None:
    async with windows(served, served.stdio("--api-key", KEY), mode, "Ada") as (window,):
        waiting = await served.waiting(await window.opened(), "z")
    await asyncio.wait([waiting])
    await served.is_cancelled("z")


async def test_clients_go_on_when_the_server_is_killed_and_open_calls_are_unknown(served: Served, mode: Any) -> None:
    async with windows(served, served.stdio("--api-key", KEY), mode, "Ada", "Bob") as found:
        clients = [await each.opened() for each in found]
        calls = [await served.waiting(each, str(number)) for number, each in enumerate(clients)]
        await served.restart(clients[0])
        for lost in await asyncio.gather(*calls):
            assert (lost.is_error, lost.meta["a2c_error"]) == (True, UNKNOWN)
        for window, client in zip(found, clients, strict=True):
            await all_tools(client)
            await used(client, window.heard, 1)
        async with served.user(served.office, mode, key=KEY) as by_url:
            assert (await by_url.call_tool("add", {"a": 1, "b": 1})).structured_content == {"result": 2}


async def test_who_waits_for_the_server_never_keeps_the_others_out(served: Served, mode: Any) -> None:
    await served.server.kill()
    async with alone(served, served.stdio("--api-key", KEY), mode) as window:
        client = await window.opened()
        assert "nothing listens there" in await status(client)
        await served.serve()
        await all_tools(client)
        async with served.user(served.office, mode, key=KEY) as by_url:
            assert (await by_url.call_tool("add", {"a": 1, "b": 1})).structured_content == {"result": 2}
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}
        await until(lambda: holder_files(served) == [])


async def test_a_wrong_key_and_a_revoked_one_are_told_why(served: Served, mode: Any) -> None:
    file = served.place.folder / "the key"
    file.write_text("a-wrong-key-0123456789")
    async with alone(served, served.stdio("--key-file", str(file)), mode) as window:
        client = await window.opened()
        assert f"does not accept the key in {file}" in await status(client)
        file.write_text(OTHER)
        await client.call_tool("add", {"a": 1, "b": 2})  # tries the key at once
        await all_tools(client)
        served.set_keys(KEY)
        served.server.signal(signal.SIGHUP)
        await until_status(client, f"does not accept the key in {file}")


async def test_who_has_another_key_is_told_why_and_goes_on_when_the_office_is_free(served: Served) -> None:
    ann, ben = (served.stdio("--api-key", key) for key in (KEY, OTHER))
    async with windows(served, ann, "auto", "Ann") as (first,), alone(served, ben, "auto") as second:
        client = await second.opened()
        assert "has an agent already" in await status(client)
        served.set_keys(OTHER)
        served.server.signal(signal.SIGHUP)
        await until_status(client, "There is no computer")
        assert "does not accept" in await status(await first.opened())


async def until_status(client: Client, text: str) -> None:
    """A call in the moment in which the key ends may be answered with an error."""

    async def says() -> None:
        try:
            assert text in await status(client)
        except MCPError as error:
            raise AssertionError from error

    await until_it_goes(says)


@pytest.mark.parametrize("words", [("--name", "other"), ("--one-for-all", "on"), ("--timeout", "60")])
async def test_options_of_the_bridge_itself_keep_it_in_its_own_seat(served: Served, words: tuple[str, ...]) -> None:
    async with windows(served, served.stdio("--api-key", KEY, *words), "auto", "Ada") as (window,):
        client = await window.opened()
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}
        assert len(holder_files(served)) == 1
