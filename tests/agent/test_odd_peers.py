"""Computers of other makes may send anything: it affects only its sender, and hints and tags need the agent's trust."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from a2c_smcp.errors import BadRequest, CallCancelled, CallTimeout, SMCPError
from a2c_smcp.registry import InvalidArguments, MCPRegistry, Policy, Retry, ToolFailed
from a2c_smcp.registry.schemas.check import SchemaTooHeavy
from tests.bystander import calling_meanwhile
from tests.peer import Peer, Wire
from tests.stage.agent import Line, Twin
from tests.stage.raising import raises
from tests.waiting import until

GOOD = {"name": "good", "description": "", "params_schema": {}, "return_schema": None}
ODD = [
    None,
    7,
    {},
    {"name": ""},
    {"name": ["good"]},
    {"name": "odd-1", "params_schema": "nonsense"},
    {"name": "odd-2", "description": ["a", "list"], "meta": "nonsense"},
    {"name": "odd-3", "meta": ["nonsense"]},
    {"name": "odd-4", "meta": {"a2c_tool_meta": '{"tags": 7}', "MCP_TOOL_ANNOTATION": "[1"}},
    {"name": "odd-5", "meta": {"a2c_tool_meta": 7, "MCP_TOOL_ANNOTATION": {"readOnlyHint": "perhaps"}}},
    {"name": "odd-6", "params_schema": {"type": "nonsense", "properties": 7}},
    {"name": "__".join("a" * 20_000)},
]


@pytest.mark.covers("agent-registry", "agent-reacts")
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: str(odd)[:80])
async def test_a_malformed_tool_hides_no_other(
    planning: Any, odd: Any, office: str, computer: Peer, connect: Any
) -> None:
    computer.answers("client:get_tools", {"tools": [odd, GOOD], "req_id": "x"})
    async with planning() as agent:
        assert "good" in agent.registry
        assert all(len(name) <= 256 for name in agent.registry)
        json.dumps(agent.registry.describe())
        another: Peer = await connect()
        another.answers("client:get_tools", {"tools": [{**GOOD, "name": "later"}], "req_id": "x"})
        await another.join("computer", "tower", office)
        await until(lambda: "later" in agent.registry)


@pytest.mark.covers("agent-reacts")
@pytest.mark.parametrize("answer", [None, 7, "text", [], {}, {"tools": None}, {"tools": {"a": 1}}], ids=str)
async def test_a_malformed_list_of_tools_is_fetched_again(planning: Any, answer: Any, computer: Peer) -> None:
    computer.answers("client:get_tools", answer)
    async with planning() as agent:
        computer.answers("client:get_tools", {"tools": [GOOD], "req_id": "x"})
        await until(lambda: "good" in agent.registry)


BRANCHING = {"type": "object", "additionalProperties": {"oneOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]}}
DOUBLING = {
    "properties": {"a": {"$ref": "#/$defs/s40"}},
    "$defs": {"s0": {"type": "string"}}
    | {f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n - 1}"}] * 2} for n in range(1, 41)},
}
PATTERNS = {"properties": {f"p{n}": {"pattern": rf"^(\w{{1,200}}){{1,{40 + n}}}$"} for n in range(10)}}


@pytest.mark.covers("agent-registry", "mcp-bounded")
async def test_schemas_of_a_computer_that_are_too_heavy_delay_no_other_call(planning: Any, computer: Peer) -> None:
    schemas = {"branching": BRANCHING, "doubling": DOUBLING, **{f"patterns-{n}": PATTERNS for n in range(1000)}}
    tools = [GOOD, *({**GOOD, "name": name, "params_schema": schema} for name, schema in schemas.items())]
    computer.answers("client:get_tools", {"tools": tools, "req_id": "x"})
    computer.answers("client:tool_call", lambda _: {"content": [{"type": "text", "text": "done"}]})
    registry = MCPRegistry(validate=True)
    deep: dict[str, Any] = {}
    for _ in range(30):
        deep = {"a": deep}
    deep = {"a": {"b": 1, **deep}}
    async with planning(registry=registry) as agent, calling_meanwhile(lambda: agent.use("good")):
        with pytest.raises(SchemaTooHeavy):
            await agent.use("doubling", a=5)
        with pytest.raises((SchemaTooHeavy, InvalidArguments)):
            await agent.use("branching", **deep)
        assert await agent.use("patterns-7", p0="word") == "done"


@pytest.mark.covers("agent-asks")
@pytest.mark.parametrize("answer", [None, 7, "text", [], ["a", "b"]], ids=str)
async def test_a_malformed_result_is_an_error(computer: Peer, agent: Twin, answer: Any) -> None:
    computer.answers("client:tool_call", answer)
    with pytest.raises(SMCPError):
        await agent.emit_tool_call("laptop", "add")


@pytest.mark.covers("agent-asks", "peer-marks")
async def test_marks_of_the_published_generation_become_errors(computer: Peer, agent: Twin) -> None:
    marks: list[tuple[dict[str, Any], type[SMCPError]]] = [
        ({"a2c_timeout": True}, CallTimeout),
        ({"a2c_cancelled": True, "a2c_cancel_reason": "agent_requested"}, CallCancelled),
    ]
    for meta, raised in marks:
        marked = {"isError": True, "content": [{"type": "text", "text": "too slow"}], "meta": meta}
        computer.answers("client:tool_call", marked)
        with raises(raised, outcome="unknown"):
            await agent.emit_tool_call("laptop", "add")
        computer.answers("client:tool_call", {**marked, "isError": False})
        assert (await agent.emit_tool_call("laptop", "add")).text == "too slow"


@pytest.mark.covers("agent-asks")
@pytest.mark.parametrize(
    "answer",
    [
        '[{"content":[],"x":NaN}]',
        '[{"content":[],"x":1e999}]',
        '[{"content":[],"x":' + "9" * 5000 + "}]",
        '[{"content":[],"x":' + "[" * 5000 + "]" * 5000 + "}]",
        '[{"content":[],"x":' + "[" * 500_000 + "]" * 500_000 + "}]",
        '[{"content":[{"type":"text","text":"\\ud800"}]}]',
        '[{"content":[],"_meta":"nonsense","isError":true}]',
        '[{"content":"nonsense","structuredContent":7,"isError":"perhaps"}]',
        '[{"content":[],"error":{"code":"x"},"code":[],"message":7}]',
        "[]",
        '["one","two"]',
    ],
    ids=lambda answer: answer[:40],
)
async def test_an_unreadable_answer_costs_its_own_call_only(
    planning: Any, answer: str, office: str, connect_wire: Any
) -> None:
    wire: Wire = await connect_wire()
    await wire.join("computer", "laptop", office)
    calls = 0

    async def serve() -> None:
        nonlocal calls
        while frame := await wire.receive():
            if frame.startswith("42/smcp,"):
                number, _, body = frame.removeprefix("42/smcp,").partition("[")
                event = json.loads(f"[{body}")[0]
                calls += event == "client:tool_call"
                sound = '[{"content":[{"type":"text","text":"sound"}]}]' if calls > 1 else answer
                said = '[{"tools":[],"req_id":"x"}]' if event == "client:get_tools" else sound
                await wire.send(f"43/smcp,{number}{said}")

    serving = asyncio.create_task(serve())
    async with planning() as agent:
        calling = asyncio.create_task(agent.emit_tool_call("laptop", "odd", timeout=5))
        await asyncio.wait([calling])
        error = calling.exception()
        assert error is None or isinstance(error, SMCPError)
        assert not isinstance(error, CallTimeout)  # it is said, not waited for
        assert agent.is_connected
        assert (await agent.emit_tool_call("laptop", "add")).text == "sound"
    serving.cancel()


@pytest.mark.covers("agent-reacts")
async def test_binary_values_are_sent_and_returned(computer: Peer, agent: Twin) -> None:
    computer.answers("client:put_blob", lambda data: {"got": data["blob"][::-1]})
    computer.answers("client:get_blob", {"got": b"ab"})
    assert await agent.request("client:put_blob", "laptop", {"blob": b"ab"}) == {"got": b"ba"}
    assert await agent.request("client:get_blob", "laptop") == {"got": b"ab"}


@pytest.mark.covers("agent-desktop")
async def test_watching_a_computer_without_a_desktop_raises(computer: Peer, planner: Twin) -> None:
    computer.answers("client:get_desktop", BadRequest("this computer does not know 'client:get_desktop'").to_wire())
    async with asyncio.timeout(30):
        with pytest.raises(BadRequest, match="does not know"):
            await anext(planner.client.watch_desktop("laptop"))


@pytest.mark.covers("agent-desktop")
async def test_a_watch_ends_with_the_office_and_survives_an_absence_of_the_computer(
    computer: Peer, agent: Twin, office: str, connect: Any
) -> None:
    windows = ["window://a.b/one"]
    again: Peer = await connect()
    for peer in (computer, again):
        peer.answers("client:get_desktop", lambda _: {"desktops": list(windows), "req_id": "x"})
    frames = agent.watch_desktop("laptop")
    async with asyncio.timeout(60):
        assert await anext(frames) == ["window://a.b/one"]
        await computer.close()
        await until(lambda: agent.computers == [])
        windows[:] = ["window://a.b/two"]
        await again.join("computer", "laptop", office)
        assert await anext(frames) == ["window://a.b/two"]
        waiting = asyncio.ensure_future(anext(frames, "the end"))
        await agent.leave_office(office)
        assert await waiting == "the end"


PAY: dict[str, Any] = {
    "name": "pay",
    "description": "",
    "params_schema": {},
    "return_schema": None,
    "meta": {
        "a2c_tool_meta": json.dumps({"tags": ["safe"]}),
        "MCP_TOOL_ANNOTATION": json.dumps({"idempotentHint": True, "readOnlyHint": True}),
    },
}
FAILED = {"content": [{"type": "text", "text": "try again"}], "isError": True}
AT_ONCE = Retry(first_pause=0)


@pytest.fixture
def paid(computer: Peer) -> list[Any]:
    """The calls that reached the tool `pay`, which fails."""
    computer.answers("client:get_tools", {"tools": [PAY], "req_id": "x"})
    computer.answers("client:tool_call", lambda _: FAILED)
    return computer.asked


def calls(asked: list[Any]) -> int:
    return sum(event == "client:tool_call" for event, _ in asked)


@pytest.mark.covers("agent-registry")
@pytest.mark.parametrize(("trusted", "runs"), [((), 1), (["laptop"], 3)])
async def test_hints_allow_a_retry_only_for_trusted_computers(
    trusted: Any, runs: int, planning: Any, paid: list[Any]
) -> None:
    registry = MCPRegistry(retry=AT_ONCE)
    async with planning(registry=registry, trusted_computers=trusted) as agent:
        assert registry.describe("mcp")[0]["annotations"]["idempotentHint"] is True
        with pytest.raises(ToolFailed):
            await agent.use("pay")
    assert calls(paid) == runs


@pytest.mark.parametrize(
    ("policy", "trusted", "is_there"),
    [
        (Policy(allow_tags=["safe"]), (), False),
        (Policy(allow_tags=["safe"]), ["laptop"], True),
        (Policy(allow=["pay"]), (), True),
        (Policy(deny_tags=["safe"]), (), False),
    ],
)
@pytest.mark.covers("agent-registry")
async def test_tags_allow_a_tool_only_on_trusted_computers(
    policy: Policy, trusted: Any, is_there: bool, planning: Any, paid: list[Any]
) -> None:
    registry = MCPRegistry(policy=policy)
    async with planning(registry=registry, trusted_computers=trusted):
        assert ("pay" in registry) is is_there


@pytest.mark.covers("agent-registry", "tools-meta", "peer-tags")
async def test_tags_that_only_an_mcp_server_vouches_for_allow_nothing(planning: Any, computer: Peer) -> None:
    own = {**PAY, "meta": {**PAY["meta"], "a2c_tags_of_server": True}}
    computer.answers("client:get_tools", {"tools": [own, {**PAY, "name": "look"}], "req_id": "x"})
    registry = MCPRegistry(policy=Policy(allow_tags=["safe"]))
    async with planning(registry=registry, trusted_computers=["laptop"]):
        assert set(registry) == {"look"}


@pytest.mark.covers("agent-registry", "agent-rejoins")
async def test_an_outage_gives_the_name_of_a_tool_to_no_other_computer(
    relay: Line, planning: Any, office: str, computer: Peer, connect: Any
) -> None:
    tower: Peer = await connect()
    for peer in (computer, tower):
        peer.answers("client:get_tools", {"tools": [PAY], "req_id": "x"})
    await tower.join("computer", "tower", office)
    async with planning(url=relay.url) as agent:
        await until(lambda: set(agent.registry) == {"pay", "tower__pay"})
        relay.close()
        await computer.ask("server:leave_office", {"office_id": office})
        relay.reopen()
        await until(lambda: set(agent.registry) == {"tower__pay"})
        await computer.join("computer", "laptop", office)
        await until(lambda: set(agent.registry) == {"pay", "tower__pay"})
        assert agent.registry["pay"].seat.computer == "laptop"
