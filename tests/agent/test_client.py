"""Both clients of the agent, with a real Server and real computers."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient, Credentials, SMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import (
    AmbiguousComputer,
    BadRequest,
    CallCancelled,
    CallTimeout,
    ComputerLeft,
    ComputerNotFound,
    ConfigError,
    NotAuthenticated,
    NotInOffice,
    OfficeHasAgent,
    TooLarge,
    ToolNotFound,
    Unavailable,
    UnsupportedEvent,
)
from a2c_smcp.loops import LoopIsRunning
from a2c_smcp.registry.results import ToolFailed
from a2c_smcp.server import DefaultAuthenticationProvider
from tests.agent.twins import KINDS, SOON, Twin, at_work
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import good
from tests.peer import Peer
from tests.waiting import until

both = pytest.mark.parametrize("kind", KINDS, ids=["async", "blocking"])


class Desk:
    """A computer with tools of which a test can see what becomes of them."""

    def __init__(self, name: str = "laptop") -> None:
        self.computer = Computer(name)
        self.started = self.stopped = 0
        self.computer.tool(self.add, auto_apply=True)
        self.computer.tool(self.fail, auto_apply=True)
        self.computer.tool(self.wait, auto_apply=True)

    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def fail(self) -> None:
        raise ValueError("this tool always fails")

    async def wait(self) -> None:
        self.started += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped += 1


@pytest.fixture
async def desk(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk()
    async with hosted(desk.computer, shared_hub.url, office, tmp_path):
        yield desk


@pytest.fixture
def start(shared_hub: Any, office: str) -> Callable[..., Any]:
    """`async with start(kind) as agent`, in the test's office unless another is named."""
    return lambda kind, name="planner", **options: at_work(
        kind, name, **{"url": shared_hub.url, "office": office, **options}
    )


Start = Callable[..., Any]


@both
@pytest.mark.covers("agent-asks", "agent-registry")
async def test_a_planner_lists_and_calls_the_tools_of_its_office(
    kind: Any, start: Start, desk: Desk, office: str
) -> None:
    async with start(kind) as agent:
        assert set(agent.registry) == {"add", "fail", "wait"}
        assert agent.registry.describe()["add"]["description"] == "Add two numbers."
        assert agent.registry["add"].origin == f"{office}/laptop"
        assert await agent.use("add", a=2, b=3) == {"result": 5}
        with pytest.raises(ToolFailed, match="always fails"):
            await agent.use("fail")
    assert len(agent.registry) == 0


@both
@pytest.mark.covers("agent-asks")
async def test_a_call_returns_the_result_also_that_of_a_failed_tool(kind: Any, start: Start, desk: Desk) -> None:
    async with start(kind) as agent:
        result = await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, 30)
        assert (result.text, result.is_error, result.structured_content) == ("3", False, {"result": 3})
        assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, expires=30)).text == "3"
        failed = await agent.emit_tool_call("laptop", "fail")
        assert failed.is_error
        assert "always fails" in failed.text


@both
@pytest.mark.covers("agent-asks")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("laptop", "nothing"), ToolNotFound),
        (("nobody", "add"), ComputerNotFound),
        (("laptop", "add", {"a": 1}), BadRequest),
        (("laptop", "add", {}, -1), BadRequest),
        (("laptop", "add", {}, 4000), BadRequest),
        (("laptop", "add", {"a": float("nan")}), BadRequest),
        (("laptop", "add", {"a": object()}), BadRequest),
        (("laptop", "add", {"a": "x" * 5_000_000}), TooLarge),
        (("laptop", "add", {"a": "x" * 9_000_000}), TooLarge),
    ],
)
async def test_a_call_that_cannot_be_made_is_refused_at_once_and_has_no_other_effect(
    kind: Any, start: Start, desk: Desk, arguments: Any, error: type[Exception]
) -> None:
    async with start(kind) as agent:
        with pytest.raises(error):
            await agent.emit_tool_call(*arguments)
        assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})).text == "3"


@both
@pytest.mark.covers("agent-asks")
async def test_tools_configuration_desktop_members_and_any_event_can_be_requested(
    kind: Any, start: Start, desk: Desk, office: str
) -> None:
    async with start(kind) as agent:
        assert {tool["name"] for tool in await agent.get_tools("laptop")} == {"add", "fail", "wait"}
        assert await agent.get_config("laptop") == {"inputs": [], "servers": {}}
        assert await agent.get_desktop("laptop") == []
        assert {each["name"] for each in await agent.list_room()} == {"planner", "laptop"}
        answer = await agent.request("client:get_tools", "laptop", office=office)
        assert len(answer["tools"]) == 3
        with pytest.raises(BadRequest, match="does not know"):
            await agent.request("client:get_weather", "laptop", {"town": "Bern"})
        with pytest.raises(UnsupportedEvent):
            await agent.request("nonsense", "laptop")


@both
@pytest.mark.covers("agent-asks")
async def test_a_thousand_concurrent_calls_all_return(kind: Any, start: Start, desk: Desk) -> None:
    async with start(kind) as agent:
        calls = (agent.emit_tool_call("laptop", "add", {"a": n, "b": 0}) for n in range(1000))
        assert [result.text for result in await asyncio.gather(*calls)] == [str(n) for n in range(1000)]


@pytest.mark.covers("agent-twins")
def test_both_clients_have_the_same_methods_and_parameters() -> None:
    def surface(client: type[Any]) -> dict[str, list[inspect.Parameter]]:
        methods = {name: method for name, method in inspect.getmembers(client, callable) if not name.startswith("_")}
        return {name: list(inspect.signature(method).parameters.values()) for name, method in methods.items()}

    assert surface(SMCPAgentClient) == surface(AsyncSMCPAgentClient)
    assert inspect.signature(SMCPAgentClient) == inspect.signature(AsyncSMCPAgentClient)


@pytest.mark.covers("agent-twins")
async def test_the_blocking_client_works_in_many_threads_and_refuses_to_block_an_event_loop(
    start: Start, desk: Desk
) -> None:
    async with start(SMCPAgentClient) as agent:
        results: list[str] = []

        def work(number: int) -> None:
            results.append(agent.client.emit_tool_call("laptop", "add", {"a": number, "b": 0}).text)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        assert sorted(map(int, results)) == list(range(20))
        with pytest.raises(LoopIsRunning, match="AsyncSMCPAgentClient"):
            agent.client.get_tools("laptop")


@both
@pytest.mark.covers("agent-reacts", "agent-registry")
async def test_the_registry_follows_what_computers_offer(
    kind: Any, start: Start, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    async with start(kind) as agent:
        assert len(agent.registry) == 0
        laptop, tower = Desk(), Desk("tower")
        async with hosted(laptop.computer, shared_hub.url, office, tmp_path):
            await until(lambda: "add" in agent.registry)
            laptop.computer.tool(lambda: "new", name="fresh", auto_apply=True)
            await until(lambda: "fresh" in agent.registry)
            async with hosted(tower.computer, shared_hub.url, office, tmp_path):
                await until(lambda: "tower__add" in agent.registry)
                assert {"add", "fresh"} <= set(agent.registry)
                assert agent.registry["add"].seat.computer == "laptop"
                assert await agent.use("tower__add", a=1, b=1) == {"result": 2}
            await until(lambda: "tower__add" not in agent.registry)
            agent.registry.tool(lambda: "local", name="add")
            await until(lambda: "laptop__add" in agent.registry)
            assert await agent.use("add") == "local"
            agent.registry.unregister("add")
            await until(lambda: "add" in agent.registry)
        await until(lambda: len(agent.registry) == 0)


@both
@pytest.mark.covers("agent-offices", "agent-registry")
async def test_an_agent_in_three_offices_with_computers_of_one_name(
    kind: Any, start: Start, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    offices = [f"{office}-{number}" for number in range(3)]
    desks = [Desk() for _ in offices]
    async with start(kind, office=offices[:2]) as agent, hosts(desks, offices, shared_hub.url, tmp_path):
        await agent.join_office(offices[2])
        names = ["add", "laptop__add", f"{offices[2]}__laptop__add"]
        await until(lambda: set(names) <= set(agent.registry))
        with pytest.raises(AmbiguousComputer):
            await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})
        for each, name in zip(offices, names, strict=True):
            assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, office=each)).text == "3"
            assert agent.registry[name].seat.office == each
            assert await agent.use(name, a=1, b=2) == {"result": 3}
            assert len(await agent.get_tools("laptop", office=each)) == 3
        assert set(agent.offices) == set(offices)
        with pytest.raises(BadRequest, match="3 offices"):
            await agent.list_room()
        for each in offices[:2]:
            await agent.leave_office(each)
        assert set(agent.registry) == {"add", "fail", "wait"}
        with pytest.raises(NotInOffice):
            await agent.leave_office(offices[0])


@asynccontextmanager
async def hosts(desks: list[Desk], offices: list[str], url: str, folder: Path) -> AsyncIterator[None]:
    """Each desk in its office."""
    async with AsyncExitStack() as stack:
        for desk, office in zip(desks, offices, strict=True):
            await stack.enter_async_context(hosted(desk.computer, url, office, folder / office))
        yield


@both
@pytest.mark.covers("agent-offices")
async def test_one_of_several_agents_gets_an_office_and_the_others_get_the_reason(
    kind: Any, shared_hub: Any, office: str
) -> None:
    clients = [Twin(kind(f"agent-{number}", url=shared_hub.url, office=office)) for number in range(5)]
    outcomes = await asyncio.gather(*(client.connect() for client in clients), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", *["OfficeHasAgent"] * 4]
    winner = clients[outcomes.index(None)]
    assert [each["name"] for each in await winner.list_room()] == [winner.client.name]
    await winner.disconnect()


@both
@pytest.mark.covers("agent-offices")
async def test_an_agent_without_an_office_joins_the_one_of_its_own_name(kind: Any, start: Start, office: str) -> None:
    async with start(kind, office, office=None) as agent:
        assert agent.offices == [office]
    async with start(kind, office, office=[]) as agent:
        assert agent.offices == []
        with pytest.raises(NotInOffice):
            await agent.emit_tool_call("laptop", "add")


@both
@pytest.mark.covers("agent-cancels")
async def test_a_call_is_cancelled_by_its_id(kind: Any, start: Start, desk: Desk) -> None:
    async with start(kind) as agent:
        calling = asyncio.ensure_future(agent.emit_tool_call("laptop", "wait", req_id="slow-one"))
        await until(lambda: desk.started)
        await agent.cancel("slow-one")
        with pytest.raises(CallCancelled):
            await calling
        await until(lambda: desk.stopped)


@both
@pytest.mark.covers("agent-cancels")
async def test_a_cancel_before_its_call_ends_it_and_one_after_it_has_no_effect(
    kind: Any, start: Start, desk: Desk
) -> None:
    async with start(kind) as agent:
        await agent.cancel("early")
        with pytest.raises(CallCancelled):
            await agent.emit_tool_call("laptop", "wait", req_id="early")
        assert desk.started == 0
        assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, req_id="late")).text == "3"
        await agent.cancel("late")
        assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, req_id="late")).text == "3"


@pytest.mark.covers("agent-cancels")
async def test_a_caller_that_stops_waiting_cancels_the_call(start: Start, desk: Desk) -> None:
    async with start(AsyncSMCPAgentClient) as agent:
        calling = asyncio.create_task(agent.emit_tool_call("laptop", "wait"))
        await until(lambda: desk.started)
        calling.cancel()
        await until(lambda: desk.stopped)
        assert calling.cancelled() or (await asyncio.wait([calling]))
        assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})).text == "3"


@pytest.mark.covers("agent-cancels")
async def test_a_cancel_is_sent_before_the_agent_leaves(start: Start, desk: Desk) -> None:
    async with start(AsyncSMCPAgentClient) as agent:
        calling = asyncio.create_task(agent.emit_tool_call("laptop", "wait"))
        await until(lambda: desk.started)
        calling.cancel()
        await asyncio.wait([calling])
    await until(lambda: desk.stopped)


@both
@pytest.mark.covers("agent-cancels")
async def test_a_call_that_takes_too_long_ends_on_both_sides(kind: Any, start: Start, desk: Desk) -> None:
    async with start(kind) as agent:
        with pytest.raises(CallTimeout):
            await agent.emit_tool_call("laptop", "wait", timeout=1)
        await until(lambda: desk.stopped)


@pytest.mark.covers("agent-cancels")
async def test_a_computer_that_never_answers_is_cancelled_after_the_deadline(start: Start, computer: Peer) -> None:
    """The Server answers for it. The agent sends a cancel as well, for computers that have no deadline."""
    computer.answers("client:tool_call", lambda _: asyncio.Event().wait())
    async with start(AsyncSMCPAgentClient) as agent:
        with pytest.raises(CallTimeout):
            await agent.emit_tool_call("laptop", "wait", timeout=1, req_id="stuck")
        await computer.hears("notify:tool_call_cancel", req_id="stuck")


@both
@pytest.mark.covers("agent-reacts")
async def test_calls_fail_at_once_when_their_computer_leaves(
    kind: Any, start: Start, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    desk = Desk()
    async with start(kind) as agent:
        async with hosted(desk.computer, shared_hub.url, office, tmp_path):
            await until(lambda: "wait" in agent.registry)
            calls = [asyncio.ensure_future(agent.emit_tool_call("laptop", "wait")) for _ in range(3)]
            await until(lambda: desk.started == 3)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ComputerLeft] * 3


@both
@pytest.mark.covers("agent-desktop")
async def test_a_desktop_is_watched(kind: Any, start: Start, desk: Desk) -> None:
    await desk.computer.put_server(good(default_tool_meta={"auto_apply": True}))
    await ready(desk.computer, "good")
    heard: list[Any] = []

    class Handler:
        def on_desktop_updated(self, computer: str, desktops: list[str], office: str) -> None:
            heard.append((computer, desktops))

    async with start(kind, event_handler=Handler()) as agent:
        frames = watching(agent, "laptop", size=1)
        assert await anext(frames) == ["window://good/one?priority=5\n\nfirst"]
        await agent.emit_tool_call("laptop", "open_window", {"uri": "window://good/top?priority=90", "text": "new"})
        assert await anext(frames) == ["window://good/top?priority=90\n\nnew"]
        await until(lambda: heard and heard[-1] == ("laptop", ["window://good/top?priority=90\n\nnew"]))
        await frames.aclose()
        assert agent.client.desktop("laptop") is None
        assert len(await agent.get_desktop("laptop")) == 3
        await agent.emit_tool_call("laptop", "open_window", {"uri": "window://good/more", "text": "more"})
        await until(lambda: len(agent.client.desktop("laptop")) == 4)
        with pytest.raises(ComputerNotFound):
            await anext(watching(agent, "nobody"))


async def watching(agent: Twin, computer: str, **options: Any) -> AsyncIterator[list[str]]:
    frames = agent.client.watch_desktop(computer, **options)
    if isinstance(agent.client, AsyncSMCPAgentClient):
        async for frame in frames:
            yield frame
        return
    while (frame := await asyncio.to_thread(next, frames, None)) is not None:
        yield frame


@both
@pytest.mark.covers("agent-handlers")
async def test_handlers_get_all_events_in_order_and_may_raise(
    kind: Any, start: Start, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    heard: list[str] = []

    class Own(kind):  # type: ignore[misc]
        def on_computer_enter_office(self, data: dict[str, Any]) -> None:
            heard.append(f"self {data['computer']} entered {data['office_id'] == office}")
            raise RuntimeError("a handler that raises")

        async def on_computer_leave_office(self, data: dict[str, Any]) -> None:
            heard.append("self left")

    class Handler:
        def on_computer_enter_office(self, data: dict[str, Any]) -> None:
            heard.append("handler entered")

        def on_tools_received(self, computer: str, tools: list[Any], office: str) -> None:
            heard.append(f"tools {len(tools)}")
            raise SystemError("another one")

        async def on_computer_update_mcp_config(self, data: dict[str, Any]) -> None:
            heard.append("config")

    async with start(Own, event_handler=Handler()) as agent:
        desk = Desk()
        async with hosted(desk.computer, shared_hub.url, office, tmp_path):
            await until(lambda: "tools 3" in heard)
            await desk.computer.put_server(good())
            await until(lambda: "config" in heard)
            await until(lambda: "crash" in agent.registry)
        await until(lambda: "self left" in heard)
    assert heard[:3] == ["self laptop entered True", "handler entered", "tools 3"]
    assert heard[-1] == "self left"


@both
@pytest.mark.covers("agent-handlers", "agent-twins")
async def test_a_handler_may_use_the_client(
    kind: Any, start: Start, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    answers: list[str] = []

    class Async:
        agent: Any

        async def on_tools_received(self, computer: str, tools: list[Any], office: str) -> None:
            answers.append((await self.agent.emit_tool_call(computer, "add", {"a": 1, "b": 2})).text)

    class Blocking:
        agent: Any

        def on_tools_received(self, computer: str, tools: list[Any], office: str) -> None:
            answers.append(self.agent.emit_tool_call(computer, "add", {"a": 1, "b": 2}).text)

    handler = (Async if kind is AsyncSMCPAgentClient else Blocking)()
    async with start(kind, event_handler=handler) as agent:
        handler.agent = agent.client
        async with hosted(Desk().computer, shared_hub.url, office, tmp_path):
            await until(lambda: "3" in answers)


@both
@pytest.mark.covers("agent-asks")
async def test_credentials_are_asked_for_on_every_dial_and_wrong_ones_are_refused(
    kind: Any, serve: Callable[..., Any], office: str
) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider("the right key"))

    class Fresh:
        asked = 0

        async def credentials(self) -> Credentials:
            self.asked += 1
            return Credentials(headers={"x-api-key": "the right key"})

    provider = Fresh()
    async with at_work(kind, url=hub.url, office=office, auth=provider):
        assert provider.asked == 1
    async with at_work(kind, url=hub.url, office=office, api_key="the right key"):
        pass
    with pytest.raises(NotAuthenticated):
        async with at_work(kind, url=hub.url, office=office, api_key="a wrong key"):
            pass


@both
@pytest.mark.covers("agent-asks")
async def test_wrong_urls_and_unreachable_servers_are_reported_at_once(kind: Any) -> None:
    with pytest.raises(ConfigError, match="looks like http"):
        kind("planner", url="127.0.0.1:7000")
    client = Twin(kind("planner", url="http://user:secret@127.0.0.1:9?token=secret", reconnect=SOON))
    with pytest.raises(Unavailable) as caught:
        await client.connect()
    assert "secret" not in str(caught.value)
    with pytest.raises(Unavailable, match=r"connect\(\)"):
        await client.get_tools("laptop")


@both
@pytest.mark.covers("agent-offices")
async def test_an_agent_can_connect_again_after_it_has_left(kind: Any, start: Start, desk: Desk) -> None:
    async with start(kind) as agent:
        await agent.disconnect()
        await agent.disconnect()
        await agent.connect()
        await agent.connect()
        assert await agent.use("add", a=2, b=3) == {"result": 5}


@both
@pytest.mark.covers("agent-offices")
async def test_a_second_agent_in_an_office_is_refused(kind: Any, start: Start, office: str) -> None:
    async with start(kind):
        with pytest.raises(OfficeHasAgent, match=office):
            async with start(kind, "another"):
                pass
