"""An agent that reads resources and prompts, with a real Server and a bare computer that answers as a test wants."""

from __future__ import annotations

import asyncio
import base64
from itertools import count
from typing import Any

import pytest

from a2c_smcp import errors
from a2c_smcp.agent.reading import answers
from tests.peer import Peer
from tests.stage.agent import Line, Twin
from tests.stage.chunks import chunk, marks_of
from tests.stage.raising import raises
from tests.waiting import until

NOTES = {"uri": "file:///notes.txt", "mimeType": "text/plain", "text": "one"}
CLIENT = {"name": "claude-desktop", "version": "1.2"}
ASKS = {"resultType": "input_required", "inputRequests": {"k": {"method": "roots/list"}}, "requestState": "s"}


class Library:
    """A computer with one MCP server, `notes`, and what it was asked."""

    def __init__(self, peer: Peer, name: str = "laptop") -> None:
        self.peer, self.name = peer, name
        for event in ("subscribe_resource", "unsubscribe_resource"):
            peer.answers(f"client:{event}", lambda data: {"req_id": data["req_id"]})

    def gives(self, event: str, answer: Any) -> None:
        def give(data: dict[str, Any]) -> Any:
            given = answer(data) if callable(answer) else answer
            return {**given, "req_id": data["req_id"]} if isinstance(given, dict) else given

        self.peer.answers(f"client:{event}", give)

    def asked(self, event: str) -> list[dict[str, Any]]:
        """The fields of all requests, without those that every request has."""
        common = ("agent", "req_id", "computer")
        payloads = [data for name, data in self.peer.asked if name == f"client:{event}"]
        return [{key: value for key, value in data.items() if key not in common} for data in payloads]

    async def tells(self, uri: str, mcp_server: str = "notes") -> None:
        told = await self.peer.ask("server:tell_resource", {"agent": "planner", "mcp_server": mcp_server, "uri": uri})
        assert told == {"delivered": True}

    async def announces(self, what: str, **more: Any) -> None:
        assert not await self.peer.ask(f"server:update_{what}", {"computer": self.name, **more})


@pytest.fixture
def library(computer: Peer) -> Library:
    return Library(computer)


class Heard:
    """An event handler that notes what it hears."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []

    def on_resource_updated(self, *about: Any) -> None:
        self.all.append(("updated", *about))

    def on_resources_changed(self, *about: Any) -> None:
        self.all.append(("resources", *about))

    def on_prompts_changed(self, *about: Any) -> None:
        self.all.append(("prompts", *about))


# Requests


@pytest.mark.covers("agent-reads", "client-names")
async def test_requests_and_answers_are_mcps_own(library: Library, agent: Twin, office: str) -> None:
    server = {"name": "notes", "bundle_id": "notes", "state": "ready", "capabilities": {}, "instructions": "Read."}
    message = {"role": "user", "content": {"type": "text", "text": "Sum up one"}}
    completion = {"completion": {"values": ["one"], "total": 1, "hasMore": False}}
    library.gives("get_servers", {"servers": [server]})
    library.gives("read_resource", {"contents": [NOTES], "_meta": {"a": 1}})
    library.gives("get_prompt", {"messages": [message], "description": "d"})
    library.gives("complete", completion)
    ref, argument, context = {"type": "ref/prompt", "name": "sum"}, {"name": "of", "value": "o"}, {"arguments": {}}
    assert await agent.get_servers("laptop") == [server]
    assert await agent.read_resource("laptop", "notes", "file:///notes.txt") == {"contents": [NOTES], "_meta": {"a": 1}}
    assert (await agent.get_prompt("laptop", "notes", "sum", {"of": "one"}, office=office))["messages"] == [message]
    await agent.read_resource("laptop", "notes", "file:///notes.txt", client=CLIENT)
    await agent.get_prompt("laptop", "notes", "sum", client=CLIENT)
    assert await agent.complete("laptop", "notes", ref, argument) == completion
    assert await agent.complete("laptop", "notes", ref, argument, context) == completion
    read = {"mcp_server": "notes", "uri": "file:///notes.txt", "blobs": True}
    assert library.asked("read_resource") == [read, {**read, "client": CLIENT}]
    assert library.asked("get_prompt") == [
        {"mcp_server": "notes", "name": "sum", "arguments": {"of": "one"}, "office_id": office, "blobs": True},
        {"mcp_server": "notes", "name": "sum", "blobs": True, "client": CLIENT},
    ]
    asked = {"mcp_server": "notes", "ref": ref, "argument": argument}
    assert library.asked("complete") == [asked, {**asked, "context": context}]


@pytest.mark.covers("agent-reads")
async def test_lists_follow_their_cursors_and_are_in_mcps_spelling(library: Library, agent: Twin) -> None:
    first = {
        "uri": "file:///a",
        "name": "a",
        "mime_type": "text/plain",
        "size": 5,
        "annotations": {"last_modified": "2026-01-01T00:00:00Z", "priority": 0.3},
        "_meta": {"mime_type": "kept"},
    }
    odd = [7, None, {"name": "no uri"}, {"uri": ["x"]}]

    def page(data: dict[str, Any]) -> dict[str, Any]:
        if "cursor" not in data:
            return {"resources": [first, *odd], "next_cursor": "2"}
        return {
            "resources": [{"uri": f"file:///{data['cursor']}"}],
            **({"next_cursor": "3"} if data["cursor"] == "2" else {}),
        }

    library.gives("get_resources", page)
    library.gives("get_resource_templates", {"resource_templates": [{"uri_template": "file:///{x}", "name": "t"}]})
    library.gives("get_prompts", {"prompts": [{"mcp_server": "notes", "name": "sum"}], "next_cursor": ""})
    found = await agent.get_resources("laptop", "notes")
    templates = await agent.get_resource_templates("laptop", "notes")
    prompts = await agent.get_prompts("laptop")
    await agent.get_prompts("laptop", "notes")
    assert found == {
        "resources": [
            {
                "uri": "file:///a",
                "name": "a",
                "mimeType": "text/plain",
                "size": 5,
                "annotations": {"lastModified": "2026-01-01T00:00:00Z", "priority": 0.3},
                "_meta": {"mime_type": "kept"},
            },
            {"uri": "file:///2"},
            {"uri": "file:///3"},
        ]
    }
    assert [asked.get("cursor") for asked in library.asked("get_resources")] == [None, "2", "3"]
    assert templates == {"resourceTemplates": [{"uriTemplate": "file:///{x}", "name": "t"}]}
    assert prompts == {"prompts": [{"mcp_server": "notes", "name": "sum"}]}
    assert library.asked("get_prompts") == [{}, {"mcp_server": "notes"}]


@pytest.mark.covers("agent-reads", "questions-result")
async def test_what_a_server_asks_first_may_be_the_answer(library: Library, agent: Twin) -> None:
    library.gives("read_resource", lambda data: {"contents": [NOTES]} if "input_responses" in data else ASKS)
    library.gives("get_prompt", lambda data: {"messages": []} if "request_state" in data else ASKS)
    capabilities, responses = {"roots": {}}, {"k": {"roots": []}}
    asks = await agent.read_resource(
        "laptop", "notes", "file:///x", questions="result", client_capabilities=capabilities
    )
    assert asks == ASKS
    read = await agent.read_resource(
        "laptop", "notes", "file:///x", input_responses=responses, request_state=asks["requestState"]
    )
    assert read["contents"] == [NOTES]
    assert await agent.get_prompt("laptop", "notes", "p", questions="result") == ASKS
    assert await agent.get_prompt("laptop", "notes", "p", request_state="s") == {"messages": []}
    with pytest.raises(errors.BadRequest, match="questions"):
        await agent.read_resource("laptop", "notes", "file:///x", questions=True)
    with pytest.raises(TypeError, match="on_question"):
        await agent.get_prompt("laptop", "notes", "p", on_question=print)
    first, second = library.asked("read_resource")
    assert (first["questions"], first["client_capabilities"]) == ("result", capabilities)
    assert (second["questions"], second["input_responses"], second["request_state"]) == ("result", responses, "s")


CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "get_servers": ("get_servers", ()),
    "get_resources": ("get_resources", ("notes",)),
    "get_resource_templates": ("get_resource_templates", ("notes",)),
    "get_prompts": ("get_prompts", ()),
    "read_resource": ("read_resource", ("notes", "file:///x")),
    "get_prompt": ("get_prompt", ("notes", "p")),
    "complete": ("complete", ("notes", {}, {})),
}
ODD = [
    7,
    "text",
    [],
    {},
    {"servers": {}, "resources": {}, "resource_templates": 7, "prompts": "x", "contents": {}, "messages": None},
    {"contents": ["text"], "messages": [7], "completion": {"values": [1]}},
    {"completion": [], "resources": [], "resource_templates": [], "prompts": [], "next_cursor": 7},
]


@pytest.mark.covers("agent-reads")
async def test_a_malformed_answer_is_an_error_that_says_so(library: Library, planner: Twin) -> None:
    for method, (event, arguments) in CALLS.items():
        for odd in ODD:
            library.gives(event, odd)
            with pytest.raises(errors.SMCPError, match=r"the answer (has no list of|is not a)|the cursor of") as raised:
                await getattr(planner, method)("laptop", *arguments)
            assert raised.value.code == 500, (method, odd)
    assert planner.is_connected


@pytest.mark.covers("agent-reads", "agent-not-carried")
async def test_an_error_of_the_computer_is_raised(library: Library, agent: Twin) -> None:
    """What a published Server answers is in `tests/interop`."""
    library.gives("get_resources", errors.ServerNotRegistered(mcp_server="x").to_wire())
    library.gives("get_prompts", errors.CapabilityNotSupported(mcp_server="notes", capability="prompts").to_wire())
    library.gives("read_resource", None)
    with raises(errors.ServerNotRegistered, mcp_server="x"):
        await agent.get_resources("laptop", "x")
    with raises(errors.CapabilityNotSupported, capability="prompts"):
        await agent.get_prompts("laptop", "notes")
    with pytest.raises(errors.UnsupportedEvent, match="computer 'laptop' does not know client:read_resource"):
        await agent.read_resource("laptop", "notes", "file:///x")


@pytest.mark.covers("agent-reads")
async def test_a_list_without_an_end_is_given_up(library: Library, planner: Twin) -> None:
    numbers = count()
    library.gives("get_resources", {"resources": [], "next_cursor": "again"})
    with pytest.raises(errors.SMCPError, match="the list of resources repeats a cursor"):
        await planner.get_resources("laptop", "notes")
    assert len(library.asked("get_resources")) == 2
    library.gives("get_prompts", lambda data: {"prompts": [], "next_cursor": str(next(numbers))})
    with pytest.raises(errors.SMCPError, match="the list of prompts repeats a cursor or has too many pages"):
        await planner.get_prompts("laptop")
    assert len(library.asked("get_prompts")) == answers.MAX_PAGES
    page = [{"uriTemplate": "x" * 3_000_000}]
    library.gives(
        "get_resource_templates", lambda data: {"resource_templates": page, "next_cursor": str(next(numbers))}
    )
    with pytest.raises(errors.AnswerTooLarge, match="more than 16777216 bytes"):
        await planner.get_resource_templates("laptop", "notes")


@pytest.mark.covers("agent-reads")
async def test_contents_that_stayed_on_the_computer_are_fetched(library: Library, agent: Twin) -> None:
    image, text = bytes(range(256)) * 2000, "Zeile für Zeile\n" * 40_000
    kept = {"image": image, "text": text.encode()}

    def marked(handle: str) -> dict[str, Any]:
        return {"_meta": marks_of(kept[handle], handle)}

    contents = [
        {"uri": "file:///a.png", "blob": "", **marked("image")},
        {"uri": "file:///a.txt", "text": "", **marked("text")},
    ]
    message = {"role": "user", "content": {"type": "image", "data": "", "mimeType": "image/png", **marked("image")}}
    library.gives("read_resource", {"contents": contents})
    library.gives("get_prompt", {"messages": [message]})
    library.gives("get_blob", lambda data: chunk(data, kept[data["blob_handle"]]))
    seen: list[tuple[float, float | None, str | None]] = []
    read = await agent.read_resource("laptop", "notes", "file:///a", on_transfer=lambda *report: seen.append(report))
    asked = await agent.get_prompt("laptop", "notes", "p")
    size = float(len(image) + len(text.encode()))
    assert seen[-1] == (size, size, None)
    encoded = base64.b64encode(image).decode()
    assert read["contents"] == [{"uri": "file:///a.png", "blob": encoded}, {"uri": "file:///a.txt", "text": text}]
    assert asked["messages"][0]["content"] == {"type": "image", "data": encoded, "mimeType": "image/png"}


# Links in results


@pytest.mark.covers("agent-links")
async def test_a_link_in_a_result_is_followed(kind: Any, planning: Any, library: Library, office: str) -> None:
    link, other = ({"type": "resource_link", "uri": f"file:///{name}", "name": name} for name in "ab")
    tool = {"name": "find", "description": "", "params_schema": {}, "return_schema": None}
    library.peer.answers(
        "client:get_tools", {"tools": [{**tool, "bundle_id": "notes"}, {**tool, "name": "own"}], "req_id": "x"}
    )
    library.gives("tool_call", {"content": [{"type": "text", "text": "here"}, link], "isError": False})
    library.gives("read_resource", lambda data: {"contents": [{"uri": data["uri"], "text": data["mcp_server"]}]})
    async with planning(kind) as agent:
        result = await agent.emit_tool_call("laptop", "find")
        assert result.links == [link]
        whole = {"contents": [{"uri": "file:///a", "text": "notes"}]}
        assert await agent.read_link(result) == whole
        assert await agent.read_link(result, result.links[0]) == whole
        assert (await agent.read_link(result, "file:///b", server="x"))["contents"][0] == {
            "uri": "file:///b",
            "text": "x",
        }
        await library.announces("tool_list")
        library.peer.answers("client:get_tools", {"tools": [], "req_id": "x"})
        with pytest.raises(errors.BadRequest, match="link"):
            await agent.read_link(result, {"type": "text"})
        library.gives("tool_call", {"content": [link, other]})
        several = await agent.emit_tool_call("laptop", "own", office=office)
        with pytest.raises(errors.BadRequest, match=r"the result has 2 links: say which, such as result.links\[0\]"):
            await agent.read_link(several)
        with pytest.raises(errors.SMCPError, match=r"give server=|No such tool"):
            await agent.read_link(several, other)
        with pytest.raises(errors.BadRequest, match="use read_resource"):
            await agent.read_link(type(result)(), "file:///b")


# Subscriptions


@pytest.mark.covers("agent-subscribes")
async def test_a_change_reaches_both_listeners_until_it_is_unsubscribed(
    kind: Any, planning: Any, library: Library, office: str
) -> None:
    heard, updates = Heard(), []
    async with planning(kind, event_handler=heard) as agent:
        await library.tells("file:///a")
        await agent.list_room()
        await agent.subscribe_resource("laptop", "notes", "file:///a", on_update=updates.append)
        await agent.subscribe_resource("laptop", "notes", "file:///b")
        await library.tells("file:///a/part")
        await until(lambda: updates)
        await library.tells("file:///b", mcp_server="notes-bundle-id")
        await library.tells("file:///other")
        await until(lambda: len(heard.all) == 2)
        await agent.unsubscribe_resource("laptop", "notes", "file:///a", office=office)
        await library.tells("file:///a")
        await agent.list_room()
    assert updates == ["file:///a/part"]
    assert heard.all == [
        ("updated", "laptop", "notes", "file:///a/part", office),
        ("updated", "laptop", "notes", "file:///b", office),
    ]
    assert library.asked("unsubscribe_resource") == [{"mcp_server": "notes", "uri": "file:///a", "office_id": office}]
    assert [asked["uri"] for asked in library.asked("subscribe_resource")] == ["file:///a", "file:///b"]


@pytest.mark.covers("agent-subscribes")
async def test_a_slow_listener_hears_each_change_once_more_and_not_each_notice(library: Library, planner: Twin) -> None:
    updates: list[str] = []
    go_on = asyncio.Event()

    async def slow(uri: str) -> None:
        updates.append(uri)
        await go_on.wait()

    await planner.subscribe_resource("laptop", "notes", "file:///a", on_update=slow)
    await planner.subscribe_resource("laptop", "notes", "file:///a", on_update=slow)
    for _ in range(20):
        await library.tells("file:///a")
    await planner.list_room()
    go_on.set()
    await until(lambda: len(updates) == 2)
    await library.tells("file:///a")
    await until(lambda: len(updates) == 3)


@pytest.mark.covers("agent-subscribes")
async def test_a_refused_subscription_is_none(kind: Any, planning: Any, library: Library) -> None:
    library.gives(
        "subscribe_resource", errors.CapabilityNotSupported(mcp_server="notes", capability="resources").to_wire()
    )
    heard = Heard()
    async with planning(kind, event_handler=heard) as agent:
        with pytest.raises(errors.CapabilityNotSupported):
            await agent.subscribe_resource("laptop", "notes", "file:///a")
        assert agent.client._flows.reading.subscriptions.standing.all() == []
        await library.tells("file:///a")
        await agent.list_room()
    assert heard.all == []


@pytest.mark.covers("agent-subscribes", "agent-rejoins")
async def test_a_subscription_is_taken_again_after_a_reconnect_and_when_the_computer_is_back(
    far_agent: Twin, relay: Line, office: str, connect: Any, seat: Any
) -> None:
    updates: list[str] = []
    library = Library(await seat("computer", "laptop", office, instance="the-instance-of-both"))
    await until(lambda: far_agent.computers)
    await far_agent.subscribe_resource("laptop", "notes", "file:///a", on_update=updates.append)
    relay.cut()
    await library.peer.was_asked("client:subscribe_resource", 2)
    await library.peer.close()
    await until(lambda: far_agent.computers == [])
    again = Library(await connect())
    is_ready = False
    again.gives(
        "subscribe_resource", lambda data: {} if is_ready else errors.ServerNotRegistered(mcp_server="notes").to_wire()
    )
    await again.peer.join("computer", "laptop", office, instance="the-instance-of-both")
    await again.peer.was_asked("client:subscribe_resource")
    is_ready = True
    await until(lambda: far_agent.client._flows.reading.subscriptions.standing._refused)
    await again.announces("tool_list")
    await again.peer.was_asked("client:subscribe_resource", 2)
    await again.tells("file:///a")
    await until(lambda: updates)
    first, second = library.asked("subscribe_resource")[-1], again.asked("subscribe_resource")[0]
    assert first == second == {"mcp_server": "notes", "uri": "file:///a", "office_id": office, "seat": first["seat"]}
    await far_agent.leave_office(office)
    assert far_agent.client._flows.reading.subscriptions.standing.all() == []


# The cache


@pytest.mark.covers("agent-cache")
async def test_an_answer_is_kept_for_its_time_unless_a_change_is_announced(
    kind: Any, planning: Any, library: Library, office: str
) -> None:
    heard = Heard()
    library.gives("get_resources", {"resources": [{"uri": "file:///a"}], "ttlMs": 60_000, "cacheScope": "public"})
    library.gives("read_resource", {"contents": [NOTES], "ttlMs": 60_000})
    library.gives("get_prompts", {"prompts": [], "ttlMs": 60_000})
    library.gives("get_prompt", {"messages": [], "ttlMs": 60_000})

    async with planning(kind, event_handler=heard) as agent:

        async def everything() -> tuple[int, int, int]:
            """Asks for everything, twice; returns how often the computer was asked."""
            for _ in range(2):
                listed = await agent.get_resources("laptop", "notes")
                assert 0 < listed.pop("ttlMs") <= 60_000
                assert listed == {"resources": [{"uri": "file:///a"}], "cacheScope": "public"}
                listed["resources"].clear()
                assert (await agent.read_resource("laptop", "notes", "file:///a"))["contents"] == [NOTES]
                await agent.get_prompts("laptop")
                await agent.get_prompt("laptop", "notes", "p")
            return tuple(len(library.asked(each)) for each in ("get_resources", "read_resource", "get_prompts"))

        async def told(*event: Any) -> None:
            await until(lambda: event in heard.all)
            heard.all.clear()

        assert await everything() == (1, 1, 1)
        await library.announces("prompts", mcp_server="notes")
        await told("prompts", "laptop", "notes", office)
        assert await everything() == (1, 1, 2)
        await library.announces("resource_list")
        await told("resources", "laptop", None, office)
        assert await everything() == (2, 2, 2)
        await agent.subscribe_resource("laptop", "notes", "file:///a")
        await library.tells("file:///a")
        await told("updated", "laptop", "notes", "file:///a", office)
        assert await everything() == (2, 3, 2)
        await agent.read_resource("laptop", "notes", "file:///a", questions="result")
        assert len(library.asked("read_resource")) == 4
        await agent.read_resource("laptop", "notes", "file:///a", client=CLIENT)
        assert len(library.asked("read_resource")) == 4, "all clients of an agent are given the same"
    assert len(library.asked("get_prompt")) == 8, "MCP does not let it be kept"


@pytest.mark.covers("agent-cache")
async def test_a_lost_connection_and_an_answer_without_a_time_leave_nothing_in_the_cache(
    library: Library, far_agent: Twin, relay: Line
) -> None:
    library.gives("get_prompts", {"prompts": []})
    library.gives("get_resources", {"resources": [], "ttlMs": 60_000})
    for _ in range(2):
        await far_agent.get_prompts("laptop")
        await far_agent.get_resources("laptop", "notes")
    assert (len(library.asked("get_prompts")), len(library.asked("get_resources"))) == (2, 1)
    await relay.lose(far_agent)
    relay.reopen()
    await far_agent.get_resources("laptop", "notes")
    assert len(library.asked("get_resources")) == 2


@pytest.mark.covers("agent-cache")
async def test_an_answer_that_may_be_older_than_a_change_is_not_kept(planning: Any, library: Library) -> None:
    heard = Heard()

    async def changes(data: dict[str, Any]) -> dict[str, Any]:
        await library.announces("resource_list", mcp_server="notes")
        return {"resources": [], "ttlMs": 60_000, "req_id": data["req_id"]}

    library.peer.answers("client:get_resources", changes)
    async with planning(event_handler=heard) as agent:
        await agent.get_resources("laptop", "notes")
        await until(lambda: heard.all)
        assert len(agent.client._flows.reading.cache) == 0
