"""Both clients of the agent, with a real Server and real computers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from a2c_smcp import errors
from a2c_smcp.agent import AsyncSMCPAgentClient, Credentials, SMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.loops import LoopIsRunning
from a2c_smcp.registry.content import ToolFailed
from a2c_smcp.server import DefaultAuthenticationProvider
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import good
from tests.peer import Peer
from tests.stage.agent import SOON, Twin
from tests.waiting import until


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
async def desk(hosts: Any) -> AsyncIterator[Desk]:
    desk = Desk()
    async with hosts(desk.computer):
        yield desk


@pytest.mark.covers("agent-asks", "agent-registry")
async def test_a_planner_lists_and_calls_the_tools_of_its_office_until_it_leaves(
    desk: Desk, agent: Twin, office: str
) -> None:
    assert set(agent.registry) == {"add", "fail", "wait"}
    assert agent.registry.describe()["add"]["description"] == "Add two numbers."
    assert agent.registry["add"].origin == f"{office}/laptop"
    assert await agent.use("add", a=2, b=3) == {"result": 5}
    with pytest.raises(ToolFailed, match="always fails"):
        await agent.use("fail")
    await agent.disconnect()
    assert len(agent.registry) == 0


@pytest.mark.covers("agent-asks")
async def test_a_call_returns_the_result_also_that_of_a_failed_tool(desk: Desk, agent: Twin) -> None:
    result = await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, 30)
    assert (result.text, result.is_error, result.structured_content) == ("3", False, {"result": 3})
    assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, expires=30)).text == "3"
    failed = await agent.emit_tool_call("laptop", "fail")
    assert failed.is_error
    assert "always fails" in failed.text


@pytest.mark.covers("agent-asks")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("laptop", "nothing"), errors.ToolNotFound),
        (("nobody", "add"), errors.ComputerNotFound),
        (("laptop", "add", {"a": 1}), errors.BadRequest),
        (("laptop", "add", {}, -1), errors.BadRequest),
        (("laptop", "add", {}, 4000), errors.BadRequest),
        (("laptop", "add", {"a": float("nan")}), errors.BadRequest),
        (("laptop", "add", {"a": object()}), errors.BadRequest),
        (("laptop", "add", {"a": "x" * 5_000_000}), errors.TooLarge),
        (("laptop", "add", {"a": "x" * 9_000_000}), errors.TooLarge),
    ],
)
async def test_a_call_that_cannot_be_made_is_refused_at_once_and_has_no_other_effect(
    desk: Desk, agent: Twin, arguments: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await agent.emit_tool_call(*arguments)
    assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})).text == "3"


HINTS = {
    "ad": "Did you mean add?",
    "failed": "Did you mean fail?",
    "zzz": "It has add, fail",
    "x" * 5_000: None,
}


@pytest.mark.covers("agent-hints")
@pytest.mark.parametrize(("tool", "hint"), HINTS.items(), ids=["near", "longer", "far", "no name at all"])
async def test_an_unknown_tool_is_refused_with_the_names_that_could_be_meant(
    desk: Desk, agent: Twin, tool: str, hint: str | None
) -> None:
    with pytest.raises(errors.SMCPError) as caught:
        await agent.emit_tool_call("laptop", tool)
    assert len(str(caught.value)) < 1000
    if hint:
        assert isinstance(caught.value, errors.ToolNotFound)
        assert caught.value.message.startswith(f"No such tool: {tool!r}. {hint}")
        assert (caught.value.details["toolId"], caught.value.outcome) == (tool, "not_run")


@pytest.mark.covers("agent-hints")
@pytest.mark.parametrize("listed", [{"code": 500, "message": "Internal error"}, {"tools": [7, {}, {"name": 7}]}, {}])
async def test_a_computer_that_does_not_say_which_tools_it_has_costs_only_the_hint(
    connect: Any, agent: Twin, office: str, listed: dict[str, Any]
) -> None:
    broken = await connect()
    broken.answers("client:get_tools", listed)
    broken.answers("client:tool_call", {"code": 404, "message": "No such tool: 'ad'", "details": {"reason": "own"}})
    await broken.join("computer", "broken", office)
    with pytest.raises(errors.ToolNotFound, match="No such tool: 'ad'") as caught:
        await agent.emit_tool_call("broken", "ad")
    assert caught.value.details["reason"] == "own"


@pytest.mark.covers("agent-public-names")
@pytest.mark.parametrize("client", [AsyncSMCPAgentClient, SMCPAgentClient])
async def test_a_call_with_wrong_arguments_names_the_class_that_was_written(client: type) -> None:
    made: Any = client("planner")
    for wrong in (
        partial(client),
        partial(client, "planner", "http://127.0.0.1:7000"),
        partial(client, "planner", urll="http://127.0.0.1:7000"),
        partial(made.listen),
        partial(made.desktop, "laptop", "desk"),
        *([partial(made.emit_tool_call), partial(made.get_tools, office="desk")] if client is SMCPAgentClient else []),
    ):
        with pytest.raises(TypeError, match=rf"^{client.__name__}[.(]"):
            wrong()


@pytest.mark.covers("agent-asks")
async def test_tools_configuration_desktop_members_and_any_event_can_be_requested(
    desk: Desk, agent: Twin, office: str
) -> None:
    assert {tool["name"] for tool in await agent.get_tools("laptop")} == {"add", "fail", "wait"}
    assert await agent.get_config("laptop") == {"inputs": [], "servers": {}}
    assert await agent.get_desktop("laptop") == []
    assert {each["name"] for each in await agent.list_room()} == {"planner", "laptop"}
    answer = await agent.request("client:get_tools", "laptop", office=office)
    assert len(answer["tools"]) == 3
    with pytest.raises(errors.BadRequest, match="does not know"):
        await agent.request("client:get_weather", "laptop", {"town": "Bern"})
    with pytest.raises(errors.UnsupportedEvent):
        await agent.request("nonsense", "laptop")


@pytest.mark.covers("agent-asks")
async def test_a_thousand_concurrent_calls_all_return(desk: Desk, agent: Twin) -> None:
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
    planning: Any, desk: Desk
) -> None:
    async with planning(SMCPAgentClient) as agent:

        def work(number: int) -> str:
            return agent.client.emit_tool_call("laptop", "add", {"a": number, "b": 0}).text

        with ThreadPoolExecutor(20) as threads:
            loop = asyncio.get_running_loop()
            results = await asyncio.gather(*(loop.run_in_executor(threads, work, number) for number in range(20)))
        assert results == [str(number) for number in range(20)]
        with pytest.raises(LoopIsRunning, match="AsyncSMCPAgentClient"):
            agent.client.get_tools("laptop")


@pytest.mark.covers("agent-offices", "agent-registry")
async def test_an_agent_in_three_offices_with_computers_of_one_name(
    kind: Any, planning: Any, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    offices = [f"{office}-{number}" for number in range(3)]
    async with planning(kind, office=offices[:2]) as agent, AsyncExitStack() as stack:
        for each in offices:
            await stack.enter_async_context(hosted(Desk().computer, shared_hub.url, each, tmp_path / each))
        await agent.join_office(offices[2])
        names = ["add", "laptop__add", f"{offices[2]}__laptop__add"]
        await until(lambda: set(names) <= set(agent.registry))
        with pytest.raises(errors.AmbiguousComputer):
            await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})
        for each, name in zip(offices, names, strict=True):
            assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, office=each)).text == "3"
            assert agent.registry[name].seat.office == each
            assert await agent.use(name, a=1, b=2) == {"result": 3}
            assert len(await agent.get_tools("laptop", office=each)) == 3
        assert set(agent.offices) == set(offices)
        with pytest.raises(errors.BadRequest, match="3 offices"):
            await agent.list_room()
        for each in offices[:2]:
            await agent.leave_office(each)
        assert set(agent.registry) == {"add", "fail", "wait"}
        with pytest.raises(errors.NotInOffice):
            await agent.leave_office(offices[0])


@pytest.mark.covers("agent-offices")
async def test_one_of_several_agents_gets_an_office_and_the_others_get_the_reason(
    kind: Any, shared_hub: Any, office: str
) -> None:
    clients = [Twin(kind(f"agent-{number}", url=shared_hub.url, office=office)) for number in range(5)]
    outcomes = await asyncio.gather(*(client.connect() for client in clients), return_exceptions=True)
    winner = clients[outcomes.index(None)]
    refusals = [outcome for outcome in outcomes if outcome is not None]
    assert [(type(each), office in str(each)) for each in refusals] == [(errors.OfficeHasAgent, True)] * 4
    assert [each["name"] for each in await winner.list_room()] == [winner.client.name]
    await winner.disconnect()


@pytest.mark.covers("agent-offices")
async def test_an_agent_without_an_office_joins_the_one_of_its_own_name(kind: Any, planning: Any, office: str) -> None:
    async with planning(kind, office, office=None) as agent:
        assert agent.offices == [office]
    async with planning(kind, office, office=[]) as agent:
        assert agent.offices == []
        with pytest.raises(errors.NotInOffice):
            await agent.emit_tool_call("laptop", "add")


@pytest.mark.covers("agent-cancels")
async def test_a_call_is_cancelled_by_its_id(desk: Desk, agent: Twin) -> None:
    calling = asyncio.ensure_future(agent.emit_tool_call("laptop", "wait", req_id="slow-one"))
    await until(lambda: desk.started)
    await agent.cancel("slow-one")
    with pytest.raises(errors.CallCancelled):
        await calling
    await until(lambda: desk.stopped)


@pytest.mark.covers("agent-cancels")
async def test_a_cancel_before_its_call_ends_it_and_one_after_it_has_no_effect(desk: Desk, agent: Twin) -> None:
    await agent.cancel("early")
    with pytest.raises(errors.CallCancelled):
        await agent.emit_tool_call("laptop", "wait", req_id="early")
    assert desk.started == 0
    assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, req_id="late")).text == "3"
    await agent.cancel("late")
    assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, req_id="late")).text == "3"


@pytest.mark.covers("agent-cancels")
@pytest.mark.parametrize("leaves", [False, True], ids=["and stays", "and leaves"])
async def test_a_caller_that_stops_waiting_cancels_the_call(desk: Desk, planner: Twin, leaves: bool) -> None:
    calling = asyncio.create_task(planner.emit_tool_call("laptop", "wait"))
    await until(lambda: desk.started)
    calling.cancel()
    await asyncio.wait([calling])
    if leaves:
        await planner.disconnect()
    else:
        assert (await planner.emit_tool_call("laptop", "add", {"a": 1, "b": 2})).text == "3"
    await until(lambda: desk.stopped)


@pytest.mark.covers("agent-cancels")
async def test_a_call_that_takes_too_long_ends_on_both_sides(desk: Desk, agent: Twin) -> None:
    with pytest.raises(errors.CallTimeout):
        await agent.emit_tool_call("laptop", "wait", timeout=1)
    await until(lambda: desk.stopped)


@pytest.mark.covers("agent-cancels")
async def test_a_computer_that_never_answers_is_cancelled_after_the_deadline(computer: Peer, planner: Twin) -> None:
    """The Server answers for it. The agent sends a cancel as well, for computers that have no deadline."""
    computer.answers("client:tool_call", lambda _: asyncio.Event().wait())
    with pytest.raises(errors.CallTimeout):
        await planner.emit_tool_call("laptop", "wait", timeout=1, req_id="stuck")
    await computer.hears("notify:tool_call_cancel", req_id="stuck")


@pytest.mark.covers("agent-reacts")
async def test_calls_fail_at_once_when_their_computer_leaves(agent: Twin, hosts: Any) -> None:
    desk = Desk()
    async with hosts(desk.computer):
        await until(lambda: "wait" in agent.registry)
        calls = [asyncio.ensure_future(agent.emit_tool_call("laptop", "wait")) for _ in range(3)]
        await until(lambda: desk.started == 3)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [errors.ComputerLeft] * 3


@pytest.mark.covers("agent-desktop")
async def test_a_desktop_is_watched(kind: Any, planning: Any, desk: Desk) -> None:
    await desk.computer.put_server(good(default_tool_meta={"auto_apply": True}))
    await ready(desk.computer, "good")
    heard: list[Any] = []
    handler = SimpleNamespace(on_desktop_updated=lambda computer, desktops, office: heard.append((computer, desktops)))
    async with planning(kind, event_handler=handler) as agent:
        frames = agent.watch_desktop("laptop", size=1)
        assert await anext(frames) == ["window://good/one?priority=5\n\nfirst"]
        await agent.emit_tool_call("laptop", "open_window", {"uri": "window://good/top?priority=90", "text": "new"})
        assert await anext(frames) == ["window://good/top?priority=90\n\nnew"]
        await until(lambda: heard and heard[-1] == ("laptop", ["window://good/top?priority=90\n\nnew"]))
        await frames.aclose()
        assert agent.client.desktop("laptop") is None
        assert len(await agent.get_desktop("laptop")) == 3
        await agent.emit_tool_call("laptop", "open_window", {"uri": "window://good/more", "text": "more"})
        await until(lambda: len(agent.client.desktop("laptop")) == 4)
        with pytest.raises(errors.ComputerNotFound):
            await anext(agent.watch_desktop("nobody"))


@pytest.mark.covers("agent-handlers")
async def test_handlers_get_all_events_in_order_and_may_raise(
    kind: Any, hosts: Any, planning: Any, office: str
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

    async with planning(Own, event_handler=Handler()) as agent:
        desk = Desk()
        async with hosts(desk.computer):
            await until(lambda: "tools 3" in heard)
            await desk.computer.put_server(good())
            await until(lambda: "config" in heard)
            await until(lambda: "crash" in agent.registry)
        await until(lambda: "self left" in heard)
    assert heard[:3] == ["self laptop entered True", "handler entered", "tools 3"]
    assert heard[-1] == "self left"


@pytest.mark.covers("agent-handlers", "agent-twins")
async def test_a_handler_may_use_the_client(kind: Any, hosts: Any, planning: Any) -> None:
    answers: list[str] = []

    async def call(computer: str, *_: Any) -> None:
        answers.append((await agent.client.emit_tool_call(computer, "add", {"a": 1, "b": 2})).text)

    def call_and_wait(computer: str, *_: Any) -> None:
        answers.append(agent.client.emit_tool_call(computer, "add", {"a": 1, "b": 2}).text)

    handler = SimpleNamespace(on_tools_received=call if kind is AsyncSMCPAgentClient else call_and_wait)
    async with planning(kind, event_handler=handler) as agent, hosts(Desk().computer):
        await until(lambda: "3" in answers)


@pytest.mark.covers("agent-asks")
async def test_credentials_are_asked_for_on_every_dial_and_wrong_ones_are_refused(
    kind: Any, planning: Any, serve: Callable[..., Any]
) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider("the right key"))

    class Fresh:
        asked = 0

        async def credentials(self) -> Credentials:
            self.asked += 1
            return Credentials(headers={"x-api-key": "the right key"})

    provider = Fresh()
    async with planning(kind, url=hub.url, auth=provider):
        assert provider.asked == 1
    async with planning(kind, url=hub.url, api_key="the right key"):
        pass
    with pytest.raises(errors.NotAuthenticated):
        await planning(kind, url=hub.url, api_key="a wrong key").__aenter__()


@pytest.mark.covers("agent-asks")
async def test_wrong_urls_and_unreachable_servers_are_reported_at_once(kind: Any) -> None:
    with pytest.raises(errors.ConfigError, match="looks like http"):
        kind("planner", url="127.0.0.1:7000")
    client = Twin(kind("planner", url="http://user:secret@127.0.0.1:9?token=secret", reconnect=SOON))
    with pytest.raises(errors.Unavailable) as caught:
        await client.connect()
    assert "secret" not in str(caught.value)
    with pytest.raises(errors.Unavailable, match=r"connect\(\)"):
        await client.get_tools("laptop")
