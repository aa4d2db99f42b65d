"""`--webhook` of the real program: what a receiver on this machine gets, and that its signature is right."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.console.webhook import SIGNATURE, TIMESTAMP, signature_of
from a2c_smcp.errors import CallTimeout
from tests.console.browserless import received
from tests.stage.place import PATIENCE, Place, good

SECRET = "a-secret-of-the-team"


async def test_a_receiver_is_told_of_a_request_and_of_its_end_with_a_signature_it_can_check(
    place: Place, tmp_path: Path
) -> None:
    told = asyncio.Queue[dict[str, Any]]()

    async def receive(request: web.Request) -> web.Response:
        body = await request.read()
        expected = signature_of(SECRET.encode(), request.headers[TIMESTAMP], body)
        assert request.headers[SIGNATURE] == expected
        told.put_nowait(json.loads(body))
        return web.Response()

    (tmp_path / "secret.txt").write_text(f"{SECRET}\n", "utf-8")
    async with received(receive) as hook, asyncio.timeout(PATIENCE):
        server = await place.start("server", "--port", "0")
        url = await server.listens()
        config = place.write({"asking": good(default_tool_meta=None)})
        options = ("--console", "--webhook", hook, "--webhook-secret", "secret.txt")
        program = await place.start("computer", "--name", "laptop", "--url", url, "--config", str(config), *options)
        console = (await program.says("within ten minutes: ")).partition("minutes: ")[2].partition("open")[0]
        await program.says("ready")
        async with AsyncSMCPAgentClient("planner", url=url, office="desk") as agent:
            with pytest.raises(CallTimeout):
                await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, timeout=2)
        asked, ended = await told.get(), await told.get()
    assert (asked["type"], asked["computer"], asked["agent"]) == ("approval.requested", "laptop", "planner")
    assert (asked["office"], asked["server"], asked["tool"]) == ("desk", "asking", "add")
    assert (asked["arguments"], asked["console"]) == ({"a": 1, "b": 2}, console)
    assert (ended["type"], ended["number"], ended["outcome"]) == ("approval.ended", asked["number"], "withdrawn")
    assert SECRET not in program.said
