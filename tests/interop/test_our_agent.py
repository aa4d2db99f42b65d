"""Our agents, awaited and blocking, among published peers: computers of both generations, and the package's Server."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest
import pytest_asyncio

from a2c_smcp import errors
from a2c_smcp.agent import AgentEvents
from a2c_smcp.computer.computer import Computer
from a2c_smcp.connection import ConnectionLost
from a2c_smcp.registry.content import ToolFailed
from tests.computer.hosted import Relay, hosted, ready
from tests.interop.conftest import KEY, a_server, computer_of, driven, peer_command
from tests.interop.driver import Driver
from tests.stage.agent import Twin, at_work, both
from tests.waiting import until

OFFICE = "studio"
WINDOW = "window://org.example.desk/notes?priority=50"
PROMPTLY = 5.0


class Diary(AgentEvents):
    """What an agent was told."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any]] = []

    def on_computer_enter_office(self, data: dict[str, Any]) -> None:
        self.entries.append(("entered", data))

    def on_computer_leave_office(self, data: dict[str, Any]) -> None:
        self.entries.append(("left", data))

    def on_computer_update_config(self, data: dict[str, Any]) -> None:
        self.entries.append(("config", data))

    def on_tools_received(self, computer: str, tools: list[Any], office: str) -> None:
        self.entries.append(("tools", {tool["name"] for tool in tools}))

    def on_desktop_updated(self, computer: str, desktops: list[str], office: str) -> None:
        self.entries.append(("desktop", desktops))

    async def tells(self, what: str, content: Any) -> None:
        """Each entry is read once: the same again means that it came again."""
        await until(lambda: (what, content) in self.entries)
        self.entries.remove((what, content))


class Laptop(Protocol):
    """A computer called `laptop` with the MCP server of `peers/mcp_server.py`."""

    tools: set[str]

    def at_work(self) -> AbstractAsyncContextManager[None]:
        """In the office, for a while."""

    async def tells_of_changes(self, diary: Diary) -> set[str]:
        """Has the agent fetch its tools again; those that it has then."""


class PublishedLaptop:
    def __init__(self, driver: Driver, version: str) -> None:
        prefix = "" if version == "0.1.2" else "desk__"
        self.tools = {f"{prefix}{tool}" for tool in ("add", "slow", "note", "picture")}
        self._driver = driver

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        await self._driver.ask("join")
        try:
            yield
        finally:
            await self._driver.ask("leave")

    async def tells_of_changes(self, diary: Diary) -> set[str]:
        for update in ("update_tool_list", "update_config"):
            await self._driver.ask(update)
            await diary.tells("tools", self.tools)
        await diary.tells("config", {"office_id": OFFICE, "computer": "laptop"})
        return self.tools


class OurLaptop:
    def __init__(self, url: str, folder: Path, marks: Path) -> None:
        self.tools = {"add", "slow", "note", "picture"}
        self._url, self._folder, self._marks = url, folder, marks

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        self._computer = Computer("laptop")
        command, *words = peer_command("0.4.2", "mcp_server.py", self._marks)
        parameters = {"command": command, "args": words}
        desk = {"name": "desk", "server_parameters": parameters, "default_tool_meta": {"auto_apply": True}}
        self._computer.add_server(desk)
        async with hosted(self._computer, self._url, OFFICE, self._folder, api_key=KEY):
            await ready(self._computer, "desk")
            yield

    async def tells_of_changes(self, diary: Diary) -> set[str]:
        self._computer.tool(name="greet", auto_apply=True)(lambda: "hello")
        tools = self.tools | {"greet"}
        await diary.tells("tools", tools)
        return tools


@dataclass
class World:
    """A Server and a computer. The computer's slow tool writes down in `marks` what becomes of it."""

    url: str
    laptop: Laptop
    marks: Path
    refusal: type[errors.SMCPError]
    """What a wrong key is answered with."""
    heeds_cancels: bool
    knows_calls: bool
    """Whether the Server says that it knows a call that comes again."""
    lists_resources: bool
    """Whether its computer answers the requests of the 0.4 generation."""


ARRANGEMENTS = {
    "our server, 0.1.2 computer": ("ours", "0.1.2"),
    "our server, 0.4.2 computer": ("ours", "0.4.2"),
    "0.4.2 server, 0.4.2 computer": ("0.4.2", "0.4.2"),
    "0.4.2 server, our computer": ("0.4.2", "ours"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ARRANGEMENTS.values(), ids=list(ARRANGEMENTS))
async def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """For both clients, one after the other: published peers take seconds to start."""
    server, computer = request.param
    folder = tmp_path_factory.mktemp("world")
    marks = folder / "marks"
    async with a_server(server, folder) as url, a_laptop(computer, url, folder, marks) as laptop:
        yield World(
            url,
            laptop,
            marks,
            refusal=errors.NotAuthenticated if server == "ours" else errors.Unavailable,  # the package gives no reason
            heeds_cancels=computer != "0.1.2",
            knows_calls=server == "ours",
            lists_resources=computer != "0.1.2",
        )


@asynccontextmanager
async def a_laptop(make: str, url: str, folder: Path, marks: Path) -> AsyncIterator[Laptop]:
    if make == "ours":
        yield OurLaptop(url, folder, marks)
    else:
        options = ("--url", url, "--name", "laptop", "--office", OFFICE, "--api-key", KEY, "--marks", str(marks))
        async with driven(computer_of(make, *options), home=folder) as (driver, _):
            yield PublishedLaptop(driver, make)


@asynccontextmanager
async def in_office(kind: type[Any], url: str, **options: Any) -> AsyncIterator[tuple[Twin, Diary]]:
    """An agent in the office, and what it is told."""
    diary = Diary()
    async with at_work(kind, url=url, office=OFFICE, event_handler=diary, **{"api_key": KEY, **options}) as agent:
        yield agent, diary


def named(name: str, tools: set[str]) -> str:
    """0.4.2 puts the name of the MCP server before that of the tool."""
    return next(tool for tool in tools if tool.endswith(name))


async def the_agent_works(agent: Any, tools: set[str]) -> None:
    add, sum_of, wrong = named("add", tools), {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}
    assert {tool["name"] for tool in await agent.get_tools("laptop")} == tools
    assert "desk" in (await agent.get_config("laptop"))["servers"]
    result = await agent.emit_tool_call("laptop", add, sum_of)
    assert (result.text, result.is_error, await agent.use(add, **sum_of)) == ("3", False, "3")
    failure = await agent.emit_tool_call("laptop", add, wrong)
    assert failure.is_error
    assert "unexpected keyword argument 'c'" in failure.text
    with pytest.raises(ToolFailed, match="unexpected keyword argument 'c'"):
        await agent.use(add, **wrong)
    with pytest.raises(errors.NotFound, match="nobody"):
        await agent.emit_tool_call("nobody", add, sum_of)


async def the_agent_gets_pictures_whole(agent: Any, tools: set[str]) -> None:
    """Computers of the 0.4 generation send large ones in chunks, on request."""
    for size in (100, 200_000):
        result = await agent.emit_tool_call("laptop", named("picture", tools), {"size": size})
        assert b64decode(result.content[0]["data"]) == bytes(size)
        assert not any(key.startswith("a2c_") for key in result.content[0].get("_meta") or {})
    assert await agent.use(named("picture", tools), size=200_000)


async def the_agent_lists_resources(agent: Any, world: World) -> None:
    if not world.lists_resources:
        with pytest.raises(errors.UnsupportedEvent):
            await agent.get_resources("laptop", "desk")
        return
    (window,) = (await agent.get_resources("laptop", "desk"))["resources"]
    assert (window["uri"], window["name"], window["mimeType"]) == (WINDOW, "notes", "text/plain")
    with pytest.raises(errors.ServerNotRegistered) as unknown:
        await agent.get_resources("laptop", "nothing")
    assert unknown.value.details["mcp_server"] == "nothing"


async def what_the_server_cannot_take_is_refused_at_once(agent: Any, world: World) -> None:
    """A published Server drops the connection of a client that sends more than a million bytes at once."""
    note, text = named("note", world.laptop.tools), "x" * 1_200_000
    if world.knows_calls:
        await agent.emit_tool_call("laptop", note, {"text": text})
    else:
        with pytest.raises(errors.TooLarge, match="at most 99"):
            await agent.emit_tool_call("laptop", note, {"text": text})
    assert (await agent.emit_tool_call("laptop", named("add", world.laptop.tools), {"a": 1, "b": 2})).text == "3"


async def the_agent_sees_the_desktop(agent: Any, diary: Diary, tools: set[str], text: str) -> None:
    (shown,) = await agent.get_desktop("laptop")
    assert shown.startswith(f"{WINDOW}\n\n")
    await agent.use(named("note", tools), text=text)
    await diary.tells("desktop", [f"{WINDOW}\n\n{text}"])
    assert agent.desktop("laptop") == [f"{WINDOW}\n\n{text}"]


async def newer_events_are_refused_in_words(agent: Any, world: World) -> None:
    """Published Servers and computers answer them with nothing (WIRE §9)."""
    refusal: tuple[type[errors.SMCPError], str] = (errors.UnsupportedEvent, "computer 'laptop' does not know client:")
    if not world.knows_calls:
        refusal = (errors.NotCarried, "This Server does not carry the event: client:")
    asked = (
        agent.withdraw("laptop", "r-1"),
        *(agent.set_log_level("laptop", "debug"), agent.get_questions("laptop"), agent.get_servers("laptop")),
        *(agent.answer_question("laptop", "q-1", None), agent.get_prompts("laptop")),
        *(agent.read_resource("laptop", "desk", WINDOW), agent.subscribe_resource("laptop", "desk", WINDOW)),
    )
    for each in asked:
        with pytest.raises(refusal[0], match=refusal[1]):
            await each


async def a_call_with_callbacks_is_a_plain_one(agent: Any, tools: set[str]) -> None:
    """Published peers tell nothing, and do not mind being asked to."""
    told: list[Any] = []
    result = await agent.emit_tool_call(
        "laptop", named("add", tools), {"a": 1, "b": 2}, on_progress=told.append, on_question=told.append, extend=True
    )
    assert (result.text, told) == ("3", [])


async def the_agent_cancels(agent: Any, world: World) -> None:
    world.marks.unlink(missing_ok=True)
    slow, req_id = named("slow", world.laptop.tools), uuid4().hex
    call = asyncio.create_task(agent.emit_tool_call("laptop", slow, {"seconds": 600}, 60, req_id=req_id))
    await until(lambda: marks(world) == ["started"])
    await agent.cancel(req_id)
    with pytest.raises(errors.CallCancelled):
        async with asyncio.timeout(PROMPTLY):
            await call
    if world.heeds_cancels:
        await until(lambda: marks(world) == ["started", "cancelled"])


async def a_call_over_a_cut_line_runs_once(agent: Any, world: World, relay: Relay) -> None:
    """A Server that would run it a second time is not asked again, and the caller is told what is known."""
    world.marks.unlink(missing_ok=True)
    slow = named("slow", world.laptop.tools)
    call = asyncio.create_task(agent.emit_tool_call("laptop", slow, {"seconds": 0.5}, 20))
    await until(lambda: "started" in marks(world))
    relay.cut()
    if world.knows_calls:
        assert (await call).text == "slept"
    else:
        with pytest.raises(ConnectionLost) as lost:
            await call
        assert lost.value.outcome == "unknown"
    await until(lambda: marks(world) == ["started", "finished"])


def marks(world: World) -> list[str]:
    """What became of slow calls."""
    return world.marks.read_text().split() if world.marks.exists() else []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.covers("interop-0.1.2", "interop-0.4.2", "agent-interop")
@both
async def test_our_agent_works_with_published_peers(world: World, kind: type[Any]) -> None:
    seat = {"office_id": OFFICE, "computer": "laptop"}
    async with in_office(kind, world.url) as (agent, diary):
        assert (agent.computers, list(agent.registry)) == ([], [])
        async with world.laptop.at_work():
            await diary.tells("entered", seat)
            await until(lambda: set(agent.registry) == world.laptop.tools)
            await the_agent_works(agent, world.laptop.tools)
            await the_agent_gets_pictures_whole(agent, world.laptop.tools)
            await the_agent_lists_resources(agent, world)
            await what_the_server_cannot_take_is_refused_at_once(agent, world)
            await the_agent_sees_the_desktop(agent, diary, world.laptop.tools, f"{kind.__name__} was here")
            diary.entries.clear()
            changed = await world.laptop.tells_of_changes(diary)
            assert set(agent.registry) == changed
            await newer_events_are_refused_in_words(agent, world)
            await a_call_with_callbacks_is_a_plain_one(agent, world.laptop.tools)
            await the_agent_cancels(agent, world)
        await diary.tells("left", seat)
        assert (agent.computers, list(agent.registry)) == ([], [])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.covers("interop-0.1.2", "interop-0.4.2", "agent-interop")
@both
async def test_our_agent_finds_published_peers_and_returns_over_a_new_line(world: World, kind: type[Any]) -> None:
    relay, seat = Relay(world.url), {"office_id": OFFICE, "computer": "laptop"}
    async with world.laptop.at_work(), relay.open() as url, in_office(kind, url) as (agent, diary):
        await diary.tells("entered", seat)
        assert agent.computers == [f"{OFFICE}/laptop"]
        assert set(agent.registry) == world.laptop.tools
        members = {(member["role"], member["name"]) for member in await agent.list_room()}
        assert members == {("agent", "planner"), ("computer", "laptop")}
        await a_call_over_a_cut_line_runs_once(agent, world, relay)
        assert await agent.use(named("add", world.laptop.tools), a=2, b=2) == "4"
        assert set(agent.registry) == world.laptop.tools
        assert ("left", seat) not in diary.entries


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.covers("agent-interop", "auth-refused")
@both
async def test_our_agent_is_told_that_its_key_is_wrong(world: World, kind: type[Any]) -> None:
    with pytest.raises(world.refusal, match=r"refused|authenticated"):
        async with in_office(kind, world.url, api_key="a wrong key"):
            pass
