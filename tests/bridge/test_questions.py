"""Five clients at once whose calls all ask: each question reaches its own client, and none is lost.

`QUESTIONS_EACH=200` makes it a thousand questions for each server.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient, Question
from tests.computer.supervised import SERVERS, await_listening
from tests.ports import free_port
from tests.program import ForkedScript, forked
from tests.stage import bridge
from tests.stage.agent import at_work
from tests.stage.bridge import BridgedOffice
from tests.stage.questions import NEWER, OLDER, Answerer, until_listed

pytestmark = pytest.mark.covers("questions-whose")

CLIENTS, EACH = 5, int(os.environ.get("QUESTIONS_EACH", "6"))
TOOLS = ("greet_older", "greet_older_http", "greet_newer")


class AskingOffice(BridgedOffice):
    """A computer with servers of both eras that ask, one of them over HTTP."""

    http_port = 0

    def servers(self) -> dict[str, dict[str, Any]]:
        command, *args = forked(SERVERS / NEWER, self.notes)
        ways: dict[str, dict[str, Any]] = {
            "older": {"command": sys.executable, "args": [str(SERVERS / OLDER), str(self.notes)]},
            "older_http": {"url": f"http://127.0.0.1:{self.http_port}/mcp"},
            "newer": {"command": command, "args": args},
        }
        meta = {"default_tool_meta": {"auto_apply": True}}
        return {name: {**way, **meta, "tool_meta": {"greet": {"alias": f"greet_{name}"}}} for name, way in ways.items()}


@pytest.fixture
async def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AskingOffice]:
    monkeypatch.setattr(bridge, "PATIENCE", 60.0 + EACH)
    office = AskingOffice(tmp_path)
    office.http_port = free_port()
    server = ForkedScript(SERVERS / NEWER, tmp_path / "notes", office.http_port)
    try:
        await_listening(office.http_port)
        await office.start_server()
        await office.start_computer()
        yield office
    finally:
        await office.close()
        server.kill()
        server.wait()


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_questions_of_five_clients_at_one_bridge_never_cross(office: AskingOffice, mode: Any, way: str) -> None:
    """Over stdio each client starts a bridge of its own, and the first serves them all."""
    url = (await office.start_bridge())[1] if way == "http" else office.stdio()
    people = [Answerer(f"client-{number}") for number in range(CLIENTS)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(office.client(url, mode, person)) for person in people]
        await until_listed(clients[0], *TOOLS)

        for tool in TOOLS:
            await asyncio.gather(
                *(person.calls(client, tool, EACH) for client, person in zip(clients, people, strict=True))
            )


async def test_questions_of_five_calls_of_an_agent_never_cross(office: AskingOffice) -> None:
    people = [Answerer(f"call-{number}") for number in range(CLIENTS)]
    async with at_work(AsyncSMCPAgentClient, url=office.url, office="desk") as agent:

        async def ask(person: Answerer, tool: str) -> None:
            def on_question(question: Question) -> dict[str, Any]:
                assert question.tool == tool
                person.asked.append(question.message)
                return person.content(question.message)

            replies = []
            for number in range(EACH):
                arguments = {"name": f"{person.name} {number}"}
                result = await agent.emit_tool_call("laptop", tool, arguments, 60, on_question=on_question)
                replies.append(result.text)
            person.check(tool, replies)

        for tool in TOOLS:
            await asyncio.gather(*(ask(person, tool) for person in people))
