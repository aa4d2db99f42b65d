"""Questions of servers that do not say which call they ask for: each reaches its own call, or nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.errors import CallTimeout
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from a2c_smcp.mcp_host.request_queue import RequestQueue
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, OnInput, ToolRequest
from a2c_smcp.protocol.questions import InputRequest
from tests.computer.supervised import managed, script, session, text_of
from tests.stage.questions import OLDER, over_http
from tests.waiting import until

pytestmark = pytest.mark.covers("questions-whose")


class Asked:
    """Answers with a name, when `may_answer` is set."""

    def __init__(self, name: str, *, waits: bool = False) -> None:
        self.name = name
        self.messages: list[str] = []
        self.withdrawn = 0
        self.may_answer = asyncio.Event()
        if not waits:
            self.may_answer.set()

    async def __call__(self, asked: InputRequest) -> dict[str, Any]:
        self.messages.append(asked.params["message"])
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        return {"action": "accept", "content": {"name": self.name}}


def greet(name: str, on_input: OnInput | None, timeout: float = 60, **more: Any) -> ToolRequest:
    return ToolRequest("greet", {"name": name}, timeout, on_input=on_input, **more)


def named(result: dict[str, Any]) -> Any:
    return text_of(result).replace(" ", "").replace("\n", "")


def tool(name: str, on_input: OnInput | None = None, **more: Any) -> ToolRequest:
    return ToolRequest(name, {}, more.pop("timeout", 60), on_input=on_input, **more)


class Notes:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "notes"

    def has(self, line: str, times: int = 1) -> bool:
        return self.file.exists() and self.file.read_text().split().count(line) >= times


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


@pytest.fixture
async def queue(notes: Notes) -> AsyncIterator[RequestQueue]:
    """The requests to a server of 2025-11-25 over stdio, as a computer makes them."""
    async with older(script(OLDER, notes.file, name="asking")) as requests:
        yield requests


@asynccontextmanager
async def older(config: MCPServerConfig) -> AsyncIterator[RequestQueue]:
    async with managed(config) as (manager, _, _):
        yield manager[config.name].requests


async def test_a_question_is_never_put_to_another_call_that_has_run_for_longer(notes: Notes) -> None:
    ada, bob = Asked("ada"), Asked("bob")
    async with session(script(OLDER, notes.file, name="asking")) as one:
        long = asyncio.create_task(one.call_tool(tool("wait", ada)))
        await until(lambda: notes.has("waits"))
        greeting = asyncio.create_task(one.call_tool(greet("bob", bob)))
        await until(lambda: notes.has("greet"))
        assert text_of(await one.call_tool(tool("go"))) == '"gone"'
        assert text_of(await long) == '"went"'
        assert named(await greeting) == '{"name":"bob"}'
    assert (ada.messages, bob.messages) == ([], ["Who is bob?"])


async def test_what_a_call_without_an_answerer_asks_reaches_no_other_call(notes: Notes) -> None:
    ada = Asked("ada")
    async with session(script(OLDER, notes.file, name="asking")) as one:
        long = asyncio.create_task(one.call_tool(tool("wait", ada)))
        await until(lambda: notes.has("waits"))
        greeting = asyncio.create_task(one.call_tool(greet("nobody", None)))
        await until(lambda: notes.has("greet"))
        await one.call_tool(tool("go"))
        await long
        assert named(await greeting) == '{"action":"cancel"}'
    assert ada.messages == []


async def test_a_call_that_was_left_and_asks_all_the_same_reaches_no_other_call(
    queue: RequestQueue, notes: Notes
) -> None:
    ada, bob = Asked("ada"), Asked("bob")
    left = asyncio.create_task(queue.call_tool(tool("stray", ada)))
    await until(lambda: notes.has("strays"))
    await cancel_and_wait(left)
    greeting = asyncio.create_task(queue.call_tool(greet("bob", bob)))
    await queue.call_tool(tool("go"))
    await until(lambda: notes.has("stray:cancel"))
    assert named(await greeting) == '{"name":"bob"}'
    assert (ada.messages, bob.messages) == ([], ["Who is bob?"])


async def test_a_question_ends_with_its_own_call_and_not_with_another(queue: RequestQueue, notes: Notes) -> None:
    await queue.call_tool(greet("first", Asked("first")))
    ada, bob = Asked("ada", waits=True), Asked("bob")
    greeting = asyncio.create_task(queue.call_tool(greet("ada", ada)))
    await until(lambda: ada.messages)
    later = asyncio.create_task(queue.call_tool(tool("wait", bob)))
    await until(lambda: notes.has("waits"))
    await queue.call_tool(tool("go"))
    await later
    assert ada.withdrawn == 0
    assert not greeting.done()
    ada.may_answer.set()
    assert named(await greeting) == '{"name":"ada"}'


async def test_calls_that_begin_together_and_all_ask_get_their_own_questions(queue: RequestQueue) -> None:
    people = [Asked(f"p{number}") for number in range(8)]
    results = await asyncio.gather(*(queue.call_tool(greet(each.name, each)) for each in people for _ in range(3)))
    assert [named(result) for result in results] == [f'{{"name":"{each.name}"}}' for each in people for _ in range(3)]
    assert all(each.messages == [f"Who is {each.name}?"] * 3 for each in people)


async def test_a_tool_that_asks_late_in_its_first_call_is_waited_for_by_calls_of_the_same(queue: RequestQueue) -> None:
    people = [Asked(f"p{number}") for number in range(3)]
    first = ToolRequest("greet", {"name": "p0", "pause": 6}, 60, on_input=people[0])
    others = [greet(each.name, each) for each in people[1:]]
    results = await asyncio.gather(*(queue.call_tool(each) for each in (first, *others)))
    assert [named(result) for result in results] == [f'{{"name":"{each.name}"}}' for each in people]
    assert all(each.messages == [f"Who is {each.name}?"] for each in people)


async def test_calls_of_a_tool_that_does_not_ask_never_wait_for_one_that_does(queue: RequestQueue) -> None:
    ada, bob = Asked("ada", waits=True), Asked("bob")
    assert text_of(await queue.call_tool(tool("chat", bob))) == '"done"'
    greeting = asyncio.create_task(queue.call_tool(greet("ada", ada)))
    await until(lambda: ada.messages)
    for on_input in (bob, None):
        assert text_of(await queue.call_tool(tool("chat", on_input, timeout=5))) == '"done"'
    waiting = asyncio.create_task(queue.call_tool(greet("bob", bob)))
    for _ in range(40):  # more than may run at the same time: those that wait for their turn take nobody's place
        asyncio.ensure_future(queue.call_tool(greet("bob", bob, timeout=0.5))).add_done_callback(
            lambda t: t.exception()
        )
    assert text_of(await queue.call_tool(tool("chat", None, timeout=5))) == '"done"'
    with pytest.raises(CallTimeout, match="may ask a question was before it"):
        await queue.call_tool(greet("bob", bob, timeout=0.5))
    ada.may_answer.set()
    assert named(await greeting) == '{"name":"ada"}'
    assert named(await waiting) == '{"name":"bob"}'


async def test_a_tool_that_waits_for_another_does_not_stop_it(queue: RequestQueue, notes: Notes) -> None:
    """Nobody knows yet whether either asks: the second waits for the first for a while only."""
    ada = Asked("ada")
    waiting = asyncio.create_task(queue.call_tool(tool("wait", ada)))
    await until(lambda: notes.has("waits"))
    assert text_of(await queue.call_tool(tool("go", ada))) == '"gone"'
    assert text_of(await waiting) == '"went"'


async def test_a_call_that_nobody_answers_runs_beside_none_that_is_asked(queue: RequestQueue) -> None:
    ada = Asked("ada", waits=True)
    assert named(await queue.call_tool(greet("nobody", None))) == '{"action":"cancel"}'
    greeting = asyncio.create_task(queue.call_tool(greet("ada", ada)))
    await until(lambda: ada.messages)
    plain = [asyncio.create_task(queue.call_tool(greet("nobody", None))) for _ in range(3)]
    ada.may_answer.set()
    assert named(await greeting) == '{"name":"ada"}'
    assert [named(await each) for each in plain] == ['{"action":"cancel"}'] * 3
    assert ada.messages == ["Who is ada?"]


async def test_questions_in_the_response_to_their_call_are_asked_at_the_same_time(tmp_path: Path) -> None:
    with over_http(tmp_path) as config:
        ada, bob = Asked("ada", waits=True), Asked("bob", waits=True)
        async with session(config) as one:
            assert one.revision < "2026"
            both = [asyncio.create_task(one.call_tool(greet(each.name, each))) for each in (ada, bob)]
            await until(lambda: (ada.messages, bob.messages) == (["Who is ada?"], ["Who is bob?"]))
            for each in (bob, ada):
                each.may_answer.set()
            assert [named(await each) for each in both] == ['{"name":"ada"}', '{"name":"bob"}']
        async with older(config) as requests:
            await requests.call_tool(greet("x", Asked("x")))
            slow = Asked("slow", waits=True)
            first = asyncio.create_task(requests.call_tool(greet("slow", slow)))
            await until(lambda: slow.messages)
            assert named(await requests.call_tool(greet("quick", Asked("quick"), timeout=30))) == '{"name":"quick"}'
            slow.may_answer.set()
            assert named(await first) == '{"name":"slow"}'


async def test_an_owner_is_asked_without_a_call_being_named_and_no_longer_than_one_of_them_runs(notes: Notes) -> None:
    ada, bob, owner = Asked("ada"), Asked("bob"), Asked("owner", waits=True)
    async with older(script(OLDER, notes.file, name="asking")) as queue:
        long = asyncio.create_task(queue.call_tool(tool("wait", ada, on_unnamed=owner)))
        await until(lambda: notes.has("waits"))
        greeting = asyncio.create_task(queue.call_tool(greet("bob", bob, on_unnamed=owner)))
        await until(lambda: owner.messages)
        assert owner.messages == ["Who is bob?"]
        owner.may_answer.set()
        assert named(await greeting) == '{"name":"owner"}'
        owner.may_answer.clear()
        again = asyncio.create_task(queue.call_tool(greet("again", bob, on_unnamed=owner)))
        await until(lambda: owner.messages[1:])
        await cancel_and_wait(again)
        assert owner.withdrawn == 0  # for all that is known it may be the other call's
        await cancel_and_wait(long)
        await until(lambda: owner.withdrawn == 1)
    assert (ada.messages, bob.messages) == ([], [])


async def test_a_refusal_to_answer_is_that_of_one_call(queue: RequestQueue) -> None:
    async def no(_: InputRequest) -> dict[str, Any]:
        raise InputRefused("no")

    results = await asyncio.gather(
        *(queue.call_tool(greet(f"n{n}", Asked(f"n{n}") if n % 2 else no)) for n in range(6))
    )
    assert [named(each) for each in results] == [
        '{"action":"cancel"}',
        '{"name":"n1"}',
        '{"action":"cancel"}',
        '{"name":"n3"}',
        '{"action":"cancel"}',
        '{"name":"n5"}',
    ]
