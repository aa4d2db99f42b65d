"""Tools, prompts and resources that log and ask while a client waits: pushed before 2026-07-28, in rounds since."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError
from pydantic import BaseModel, ConfigDict

from a2c_smcp.registry import Answer, AsyncToolContext, MCPRegistry, ToolContext
from a2c_smcp.registry.remote import rounds
from tests.stage.served import served
from tests.stage.texts import text_of
from tests.waiting import until

pytestmark = [pytest.mark.covers("registry-context"), pytest.mark.covers("registry-served")]

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Person:
    """Answers what a server asks. Each question waits for `may_answer`."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer or {"name": "Ada"}
        self.action: Any = "accept"
        self.asked: list[str] = []
        self.logs: list[tuple[str, Any]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    @property
    def callbacks(self) -> dict[str, Any]:
        listening = {"sampling_callback": self.sample, "logging_callback": self.log}
        return {"elicitation_callback": self.elicit, "list_roots_callback": self.roots, **listening}

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.message)
        await self.may_answer.wait()
        return types.ElicitResult(action=self.action, content=self.answer if self.action == "accept" else None)

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        self.asked.append(params.messages[0].content.text)
        return types.CreateMessageResult(role="assistant", content=types.TextContent(text="Paris"), model="m")

    async def roots(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///home")])

    async def log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logs.append((params.level, params.data))


def asked(
    registry: MCPRegistry, mode: Any, person: Person | None = None, **options: Any
) -> AbstractAsyncContextManager[Client]:
    return served(registry, mode, **(person.callbacks if person else {}), **options)


@pytest.fixture
def registry() -> MCPRegistry:
    registry = MCPRegistry()
    registry.runs = 0  # type: ignore[attr-defined]

    @registry.tool
    def greet(context: ToolContext) -> str:
        registry.runs += 1  # type: ignore[attr-defined]
        return f"hi {describe(context.ask('Who are you?', NAME))}"

    @registry.tool
    async def greet_async(context: AsyncToolContext) -> str:
        registry.runs += 1  # type: ignore[attr-defined]
        first = await context.ask("Who are you?", NAME)
        second = await context.ask("Really?")
        return f"hi {describe(first)}, {second.action}"

    @registry.prompt
    async def greeting(context: AsyncToolContext) -> str:
        return f"Greet {describe(await context.ask('Whom?', NAME))}"

    @registry.resource("greeting://card")
    def card(context: ToolContext) -> str:
        return f"Dear {describe(context.ask('Whom?', NAME))}"

    return registry


def describe(answer: Answer) -> Any:
    return (answer.content or {}).get("name", answer.action)


async def test_tools_ask_and_run_once(registry: MCPRegistry, mode: Any) -> None:
    person = Person()
    async with asked(registry, mode, person) as client:
        assert text_of(await client.call_tool("greet", {})) == "hi Ada"
        assert text_of(await client.call_tool("greet_async", {})) == "hi Ada, accept"
        person.action = "decline"
        assert text_of(await client.call_tool("greet", {})) == "hi decline"
        assert person.asked == ["Who are you?", "Who are you?", "Really?", "Who are you?"]
        assert registry.runs == 3  # type: ignore[attr-defined]
        assert not client.server.rounds._calls


async def test_prompts_and_resources_ask_too(registry: MCPRegistry, mode: Any) -> None:
    async with asked(registry, mode, Person()) as client:
        assert text_of(await client.get_prompt("greeting")) == "Greet Ada"
        assert text_of(await client.read_resource("greeting://card")) == "Dear Ada"


async def test_models_and_roots_are_asked_at_once(mode: Any) -> None:
    registry, person = MCPRegistry(), Person()

    @registry.tool
    async def everything(context: AsyncToolContext) -> list[Any]:
        assert context.can == {"ask", "sample", "roots"}
        answer, sampled, roots = await asyncio.gather(
            context.ask("Who?", NAME), context.sample("Where?", 10), context.roots()
        )
        return [describe(answer), sampled["content"]["text"], roots[0]["uri"]]

    async with asked(registry, mode, person) as client:
        result = await client.call_tool("everything", {})
        assert result.structured_content == {"result": ["Ada", "Paris", "file:///home"]}
        if mode == "auto":
            first = await raw_call(client, "everything")
            assert len(first["inputRequests"]) == 3


async def test_a_client_that_cannot_answer_is_told_what_is_missing(registry: MCPRegistry, mode: Any) -> None:
    async with asked(registry, mode) as client:
        if mode == "legacy":
            assert (await client.call_tool("greet", {})).is_error
            with pytest.raises(MCPError, match="cannot be asked"):
                await client.get_prompt("greeting")
            return
        for request in (client.call_tool("greet", {}), client.get_prompt("greeting")):
            with pytest.raises(MCPError) as caught:
                await request
            assert caught.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
            assert caught.value.data == {"requiredCapabilities": {"elicitation": {}}}


async def test_an_answer_that_does_not_fit_is_an_error_result(registry: MCPRegistry, mode: Any) -> None:
    async with asked(registry, mode, Person(name=7)) as client:
        result = await client.call_tool("greet", {})
        assert result.is_error
        assert "the answer does not fit the question" in text_of(result)


async def test_a_person_who_fails_to_answer_is_an_error_result(registry: MCPRegistry) -> None:
    class Absent(Person):
        async def elicit(self, context: Any, params: Any) -> Any:
            return types.ErrorData(code=-32000, message="nobody is here")

    async with asked(registry, "legacy", Absent()) as client:
        assert "nobody is here" in text_of(await client.call_tool("greet", {}))


@pytest.mark.parametrize("tool", ["greet", "greet_async"])
async def test_a_call_that_is_cancelled_while_it_asks_ends(registry: MCPRegistry, mode: Any, tool: str) -> None:
    person = Person()
    person.may_answer.clear()
    async with asked(registry, mode, person) as client:
        call = asyncio.create_task(client.call_tool(tool, {}))
        await until(lambda: person.asked)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if mode == "legacy":
            await until(lambda: not [each for each in threading.enumerate() if each.name.startswith("a2c-Function")])
    await until(lambda: not client.server.rounds._calls)


# Logs


@pytest.fixture
def talking() -> MCPRegistry:
    registry = MCPRegistry()

    @registry.tool
    def talk(context: ToolContext) -> str:
        for level in ("debug", "info", "error"):
            context.log(level, {"at": level}, logger="talker")  # type: ignore[arg-type]
        if "ask" in context.can:
            context.ask("Go on?")
        context.log("error", "last")
        return "talked"

    return registry


@pytest.mark.parametrize("level", [None, "debug", "error"])
async def test_logs_are_sent_as_the_client_wants_them(talking: MCPRegistry, mode: Any, level: Any) -> None:
    person, wanted = Person(), {"debug": ["debug", "info", "error", "error"], "error": ["error", "error"]}
    expected = wanted.get(level, ["info", "error", "error"] if mode == "legacy" else [])
    options = {"log_level": level} if level and mode == "auto" else {}
    async with asked(talking, mode, person, **options) as client:
        if level and mode == "legacy":
            await client.session.send_request(
                types.SetLevelRequest(params=types.SetLevelRequestParams(level=level)), types.EmptyResult
            )
        assert text_of(await client.call_tool("talk", {})) == "talked"
        await until(lambda: len(person.logs) == len(expected))
        assert [each for each, _ in person.logs] == expected


# Rounds of 2026-07-28, as they are on the wire


class Raw(BaseModel):
    """A result as it came."""

    model_config = ConfigDict(extra="allow")


async def raw_call(client: Client, tool: str, **more: Any) -> dict[str, Any]:
    """One request. The client's own loop of rounds is left out."""
    params = types.CallToolRequestParams.model_validate({"name": tool, "arguments": {}, **more})
    request = types.CallToolRequest(params=params)
    return (await client.session.send_request(request, Raw)).model_dump()


def answering(first: dict[str, Any], content: Any = None) -> dict[str, Any]:
    (key,) = first["inputRequests"]
    response = {"action": "accept", "content": content or {"name": "Ada"}}
    return {"inputResponses": {key: response}, "requestState": first["requestState"]}


async def test_a_call_is_parked_until_its_answer_comes(registry: MCPRegistry) -> None:
    async with asked(registry, "auto", Person()) as client:
        first = await raw_call(client, "greet_async")
        assert (first["resultType"], [*first["inputRequests"]]) == ("input_required", ["question-1"])
        assert first["inputRequests"]["question-1"]["params"]["message"] == "Who are you?"
        assert len(client.server.rounds._parked) == 1
        again = await raw_call(
            client, "greet_async", requestState=first["requestState"], inputResponses={"other": {"action": "accept"}}
        )
        assert [*again["inputRequests"]] == ["question-1"]
        second = await raw_call(client, "greet_async", **answering(again))
        assert [*second["inputRequests"]] == ["question-2"]
        assert second["requestState"] not in (first["requestState"], again["requestState"])
        last = await raw_call(client, "greet_async", **answering(second))
        assert last["content"][0]["text"] == "hi Ada, accept"
        assert (registry.runs, client.server.rounds._parked) == (1, {})  # type: ignore[attr-defined]


async def test_a_state_is_good_for_one_request_of_the_same_call(registry: MCPRegistry) -> None:
    async with asked(registry, "auto", Person()) as client:
        first = await raw_call(client, "greet")
        state = first["requestState"]
        for name, more in [
            ("greet_async", {}),
            ("greet", {"arguments": {"x": 1}}),
            ("greet", {"requestState": state + "x"}),
        ]:
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await raw_call(client, name, **{**answering(first), **more})
        assert (await raw_call(client, "greet", **answering(first)))["content"]
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await raw_call(client, "greet", **answering(first))


async def test_a_parked_call_ends_after_a_while(registry: MCPRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "STATE_TTL", 0.05)
    async with asked(registry, "auto", Person()) as client:
        first = await raw_call(client, "greet")
        await until(lambda: not client.server.rounds._calls)
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await raw_call(client, "greet", **answering(first))


async def test_parked_calls_end_with_the_server(registry: MCPRegistry) -> None:
    async with asked(registry, "auto", Person()) as client:
        await raw_call(client, "greet")
        await raw_call(client, "greet_async")
    assert (client.server.rounds._calls, client.server.rounds._parked) == (set(), {})


async def test_parked_calls_are_bounded(registry: MCPRegistry) -> None:
    async with asked(registry, "auto", Person()) as client:
        await asyncio.gather(*(raw_call(client, "greet_async") for _ in range(rounds.MAX_PARKED)))
        with pytest.raises(MCPError, match="Missing client capability"):
            await raw_call(client, "greet_async")
        assert len(client.server.rounds._parked) == rounds.MAX_PARKED


async def test_a_parked_call_whose_tool_gives_up_has_its_result(registry: MCPRegistry) -> None:
    impatient = MCPRegistry(timeout=0.05)
    impatient.register(registry["greet_async"])
    async with asked(impatient, "auto", Person()) as client:
        first = await raw_call(client, "greet_async")
        await until(lambda: not client.server.rounds._calls)
        result = await raw_call(client, "greet_async", **answering(first))
        assert result["isError"]
        assert "within 0.05 s" in result["content"][0]["text"]
