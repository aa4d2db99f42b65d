"""The example of an application of one's own in which people sign in."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.ports import free_port
from tests.stage.mcp_clients import ask, key_of
from tests.stage.program import ENVIRONMENT
from tests.stage.signing_in import RawClient, send
from tests.waiting import until_it_goes

EXAMPLE = Path(__file__).parents[2] / "examples" / "sign_in.py"


@pytest.mark.covers("mcp-sign-in")
async def test_people_sign_in_at_a_server_inside_another_application(tmp_path: Path) -> None:
    port = free_port()
    url, place = f"http://127.0.0.1:{port}", {"PORT": str(port), "GRANTS": str(tmp_path / "grants.json")}
    environment = {**ENVIRONMENT, **place, "A2C_SERVER_API_KEY": key_of("alice")}
    program = await asyncio.create_subprocess_exec(sys.executable, EXAMPLE, env=environment, cwd=tmp_path)

    async def answers() -> None:
        try:
            assert (await send("GET", f"{url}/hello")).text == "Hello"
        except aiohttp.ClientError:
            raise AssertionError from None

    try:
        await until_it_goes(answers)
        client = RawClient(url)
        await client.register()
        assert "Let an assistant into Example Ltd." in (await send("GET", client.address())).text
        tokens = await client.signed_in(key_of("alice"))
        assert (await ask(url, tokens["access_token"]))[0] == 200
        assert (await ask(url, tokens["access_token"], "den"))[0] == 401
        assert (tmp_path / "grants.json").stat().st_mode & 0o777 == 0o600
    finally:
        program.terminate()
        await program.wait()
