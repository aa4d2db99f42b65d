"""A computer whose MCP server asks: its harness, and the requests of a bare agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from a2c_smcp.computer.computer import Computer
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, parse_server
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import SERVERS, await_listening, quick, script
from tests.peer import Peer
from tests.ports import free_port
from tests.program import ForkedScript
from tests.stage.bridge import Heard
from tests.waiting import until

OLDER, NEWER = "older_asking.py", "asking.py"
both = pytest.mark.parametrize("file", [OLDER, NEWER], ids=["2025-11-25", "2026-07-28"])
SECRET = "correct-horse-battery-staple"


class Asking:
    """A computer whose MCP server asks, and the notes of that server."""

    def __init__(self, file: str, folder: Path, **options: Any) -> None:
        self._notes = folder / "notes"
        config = {
            "default_tool_meta": {"auto_apply": options.pop("auto_apply", True)},
            "questions_for_agents": options.pop("for_agents", []),
        }
        self.computer = Computer("laptop", policy=quick(), **options)
        self.computer.add_server(script(file, self._notes, name="asking", **config))

    @property
    def notes(self) -> list[str]:
        """A line for each run of a tool; levels of logs aside."""
        lines = self._notes.read_text().split() if self._notes.exists() else []
        return [line for line in lines if not line.startswith("level:")]

    @property
    def levels(self) -> list[str]:
        return [line for line in self._notes.read_text().split() if line.startswith("level:")]

    @asynccontextmanager
    async def at(self, url: str, office: str, folder: Path, **connection: Any) -> AsyncIterator[list[str]]:
        async with hosted(self.computer, url, office, folder, **connection) as said:
            await ready(self.computer, "asking")
            yield said


class Answerer(Heard):
    """One client, which answers with its name and what it was asked."""

    async def answer(self, _: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content=self.content(params.message))

    def content(self, message: str) -> dict[str, Any]:
        return {"name": f"{self.name} says: {message}"}

    async def calls(self, client: Client, tool: str, times: int) -> None:
        """Every call asks, and has the answer of this client."""
        replies = []
        for number in range(times):
            result = await client.call_tool(tool, {"name": f"{self.name} {number}"})
            replies.append(str(getattr(result.content[0], "text", result)))
        self.check(tool, replies)

    def check(self, tool: str, replies: list[str]) -> None:
        messages = [f"Who is {self.name} {number}?" for number in range(len(replies))]
        assert [json.loads(reply) for reply in replies] == [self.content(message) for message in messages], tool
        assert self.asked == messages, tool
        self.asked.clear()


async def until_listed(client: Client, *tools: str) -> None:
    while not {*tools} <= {tool.name for tool in (await client.list_tools()).tools}:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


@contextmanager
def over_http(folder: Path, **config: Any) -> Iterator[MCPServerConfig]:
    """A server of 2025-11-25 over HTTP, which asks in the response to the call."""
    port = free_port()
    process = ForkedScript(SERVERS / NEWER, folder / "notes", port)
    try:
        await_listening(port)
        url = f"http://127.0.0.1:{port}/mcp"
        yield parse_server({"name": "asking", "type": "streamable", "server_parameters": {"url": url}, **config})
    finally:
        process.kill()
        process.wait()


Start = Callable[..., Awaitable[Asking]]


@pytest.fixture
async def start(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts such a computer, in the test's office: `await start(OLDER, on_question=…)`."""
    async with AsyncExitStack() as stack:

        async def begin(file: str = OLDER, **options: Any) -> Asking:
            asking = Asking(file, tmp_path, **options)
            await stack.enter_async_context(asking.at(shared_hub.url, office, tmp_path))
            return asking

        yield begin


def begin(agent: Peer, tool: str = "book", timeout: int = 30, **more: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(agent.call_tool("laptop", tool, timeout=timeout, **more))


async def asked(agent: Peer, text: str) -> dict[str, Any]:
    """Waits for the question whose message begins so."""

    def found() -> Any:
        told = [data for name, data in agent.heard if name == "notify:tell_question"]
        return next((each for each in told if each["request"]["params"]["message"].startswith(text)), None)

    await until(lambda: found() is not None)
    question: dict[str, Any] = found()
    return question


async def answer(agent: Peer, question: dict[str, Any], action: str = "accept", **content: Any) -> Any:
    more = {"content": content} if content else {}
    told = {"question_id": question["question_id"], "action": action, **more}
    return await agent.request("client:answer_question", "laptop", **told)


async def questions_of(agent: Peer) -> list[dict[str, Any]]:
    questions: list[dict[str, Any]] = (await agent.request("client:get_questions", "laptop"))["questions"]
    return questions


def accepted(given: dict[str, Any]) -> bool:
    return given.keys() == {"req_id"}


def said(result: dict[str, Any]) -> Any:
    assert not result.get("isError"), result
    return json.loads(result["content"][0]["text"])


def booking(result: dict[str, Any]) -> tuple[Any, Any]:
    return booked(said(result))


def booked(found: dict[str, Any]) -> tuple[Any, Any]:
    """The city and the seats. The older server shows the answers themselves."""
    if "where" in found:
        return found["where"]["content"]["city"], found["seats"]["content"]["count"]
    return found["city"], found["count"]


# Questions as results


def request_in(result: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The only input request of a result, with its key."""
    assert result["resultType"] == "input_required", result
    ((key, request),) = result["inputRequests"].items()
    return key, request


def ask(agent: Peer, tool: str = "book", before: dict[str, Any] | None = None, **more: Any) -> asyncio.Task[Any]:
    """A request, which answers the one input request of the result before with `content` or `response`."""
    if before is not None:
        content = more.pop("content", None)
        response = more.pop("response", None) or {"action": "accept", "content": content}
        more["input_responses"] = {request_in(before)[0]: response}
        more["request_state"] = before["requestState"]
    return begin(agent, tool, questions="result", **more)
