"""Other users of this machine, who have no session of the owner's console, at its real port."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from a2c_smcp.server.settings import Limits
from tests.ports import free_port
from tests.stage.place import PATIENCE, good, place_in

pytestmark = pytest.mark.covers("strangers-console")

MOST = Limits().newcomers_per_address
BEGUN = b"POST /new-link HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\nx"
"""A form that never ends."""


async def test_strangers_hold_no_more_connections_of_the_owners_console_than_it_allows(tmp_path: Path) -> None:
    async with place_in(tmp_path) as place, AsyncExitStack() as stack, asyncio.timeout(3 * PATIENCE):
        place.write({"good": good()})
        program = await place.start("up", "--port", "0", "--name", "laptop", "--console", "--no-browser", "--no-input")
        link = urlsplit((await program.says("console, opens once")).split()[-1])
        url = f"http://127.0.0.1:{link.port}"
        owner = await stack.enter_async_context(aiohttp.ClientSession(headers={"Origin": url}))
        async with owner.post(f"{url}/open", data={"link": parse_qs(link.query)["link"]}) as opened:
            owner.headers["X-A2C-Session"] = (await opened.json())["secret"]
        live = await stack.enter_async_context(owner.get(f"{url}/live", params={"page": "/"}))
        assert (await live.content.readline()).startswith(b"event: regions")
        lines = []
        for number in range(MOST + 50):
            reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
            stack.callback(writer.close)
            writer.write(b"" if number % 2 else BEGUN)
            lines.append(reader)
        for reader in lines[:50]:
            with suppress(ConnectionError):
                await reader.read()  # the oldest are cut
        for _ in range(3):
            async with aiohttp.ClientSession(headers=owner.headers) as new, new.get(f"{url}/servers") as page:
                assert (page.status, "good" in await page.text()) == (200, True)
        for reader in lines[50:]:
            with suppress(ConnectionError):
                await reader.read()  # and all others in time
        async with owner.get(f"{url}/servers") as page:
            assert page.status == 200
        assert not live.content.at_eof()


@pytest.mark.covers("console-origin")
async def test_each_start_has_an_address_that_no_program_can_have_had_before(tmp_path: Path) -> None:
    """A browser keeps the service worker of a program that was there: it would read the link."""
    port, hosts = str(free_port()), []
    for words in (("up", "--port", "0", "--no-browser"), ("up", "--port", "0", "--no-browser", "--console-port", port)):
        async with place_in(tmp_path) as place:
            place.write({"good": good()})
            program = await place.start(*words, "--name", words[-1], "--console")
            hosts.append(urlsplit((await program.says("console, opens once")).split()[-1]).hostname)
    async with place_in(tmp_path) as place:
        program = await place.start("server", "--port", port, "--console")
        hosts.append(urlsplit((await program.says("/console/open")).split()[-1]).hostname)
    assert all(host and host.endswith(".localhost") for host in hosts)
    assert len({*hosts}) == 3
