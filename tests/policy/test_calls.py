"""A policy decides on the calls of agents, over real sockets: what is denied is not listed, and nothing fails open."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Caller, CallOptions
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import OWNER, ApprovalRequest, DecisionFor, Grant
from a2c_smcp.errors import ApprovalRefused, BlobWriteFailed, ConfigError, RateLimited, SMCPError, ToolForbidden
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import SERVERS, script
from tests.stage.guides import example_server
from tests.waiting import until


def ledger(**more: Any) -> dict[str, Any]:
    return {"name": "ledger", "type": "stdio", "server_parameters": example_server("ledger"), **more}


Enter = Callable[..., Any]


@pytest.fixture
async def enter(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Enter]:
    """Puts a computer into the office, and then an agent."""
    async with AsyncExitStack() as stack:

        async def entering(computer: Computer, *servers: str) -> AsyncSMCPAgentClient:
            await stack.enter_async_context(hosted(computer, shared_hub.url, office, tmp_path))
            await ready(computer, *servers)
            planner = AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office)
            return await stack.enter_async_context(planner)

        yield entering


def running(computer: Computer) -> str:
    """What is used of the only budget."""
    assert computer.gate
    (used,) = [each.used for each in computer.gate.budgets]
    return used


async def refused(kind: type[SMCPError], call: Any) -> SMCPError:
    with pytest.raises(kind) as caught:
        await call
    return caught.value


async def listed(agent: AsyncSMCPAgentClient) -> dict[str, Any]:
    """The tools that an agent is shown, and the `auto_apply` of each."""
    answer = await agent.get_tools("laptop")
    tools = answer["tools"] if isinstance(answer, dict) else answer
    return {
        each["name"]: json.loads(str((each.get("meta") or {}).get("a2c_tool_meta") or "{}")).get("auto_apply")
        for each in tools
    }


SMALL = {"properties": {"amount": {"type": "number", "minimum": 0, "maximum": 100}}, "required": ["amount"]}
PAYING = {"agents": "planner", "servers": "ledger", "tools": "pay"}
FINANCE: dict[str, Any] = {
    "default": "deny",
    "servers": {"ledger": {"trust_hints": True}},
    "rules": [
        {"name": "reading", "servers": "ledger", "annotations": {"readOnlyHint": True}, "then": "allow"},
        {"name": "small payments", **PAYING, "arguments": SMALL, "then": "allow"},
        {"name": "payments", **PAYING, "then": "ask", "every_time": True},
    ],
}


@pytest.mark.covers("policy-rules", "policy-listed")
async def test_rules_decide_by_agent_annotation_and_argument_and_denied_tools_are_not_listed(
    enter: Enter, shared_hub: Any, office: str
) -> None:
    asked: list[ApprovalRequest] = []
    computer = Computer("laptop", approve=lambda request: asked.append(request) or "always", rules=FINANCE)
    computer.add_server(ledger(forbidden_tools=["render"]))
    planner = await enter(computer, "ledger")
    assert await listed(planner) == {"balance": None, "pay": None}
    assert "close_year" not in computer.agents.tools_for("planner", "t1", office).text
    assert computer.agents.tools_for("planner", "t2", office)["approved"] == ["balance"]
    assert (await planner.emit_tool_call("laptop", "balance", {"account": "rent"})).text == "rent: 1200.00"
    small = {"account": "rent", "amount": 99, "to": "ada"}
    assert (await planner.emit_tool_call("laptop", "pay", small)).text == "99.00 paid to ada"
    assert asked == []
    for count in (1, 2):
        await planner.emit_tool_call("laptop", "pay", {**small, "amount": 5000})
        assert (len(asked), asked[-1].rule, asked[-1].every_time) == (count, "payments", True)
    assert computer.approvals.grants == set()
    hidden = await refused(ToolForbidden, planner.emit_tool_call("laptop", "close_year", {"year": 2025}))
    forbidden = await refused(ToolForbidden, planner.emit_tool_call("laptop", "render", {"pages": 1}))
    assert hidden.details == {"toolId": "close_year", "outcome": "not_run"}
    assert hidden.message == forbidden.message.replace("render", "close_year")
    wrong = await refused(ToolForbidden, planner.emit_tool_call("laptop", "close_year", {"nonsense": 1}))
    assert wrong.message == hidden.message, "its schema is not told either"
    await planner.disconnect()
    async with AsyncSMCPAgentClient("clerk", url=shared_hub.url, office=office) as clerk:
        assert [*await listed(clerk)] == ["balance"]
        await refused(ToolForbidden, clerk.emit_tool_call("laptop", "pay", small))


@pytest.mark.covers("policy-rules")
async def test_a_call_denied_for_its_arguments_names_the_rule_and_says_why(enter: Enter) -> None:
    rule = {
        "name": "abroad",
        "arguments": {"properties": {"to": {"type": "string", "pattern": "^X"}}, "required": ["to"]},
        "then": "deny",
        "why": "ask the treasurer, whose token is s3cret-s3cret-s3cret",
    }
    computer = Computer("laptop", rules={"rules": [rule, {"then": "allow"}]})
    computer.mask.add(["s3cret-s3cret-s3cret"])
    computer.add_server(ledger())
    planner = await enter(computer, "ledger")
    pay = {"account": "rent", "amount": 1, "to": "Xenia"}
    denied = await refused(ToolForbidden, planner.emit_tool_call("laptop", "pay", pay))
    assert denied.details["rule"] == "abroad"
    assert denied.message.endswith("by the rule 'abroad': ask the treasurer, whose token is ***")
    assert not (await planner.emit_tool_call("laptop", "pay", {**pay, "to": "Ada"})).is_error
    assert [each["success"] for each in computer.history] == [False, True]


@pytest.mark.covers("policy-listed", "computer-approval")
async def test_what_a_rule_asks_about_is_not_listed_as_running_by_itself(enter: Enter) -> None:
    rules = {"rules": [{"tools": "guarded", "then": "ask"}, {"tools": "free", "then": "allow"}]}
    computer = Computer("laptop", rules=rules)
    computer.tool(lambda: "done", name="guarded", auto_apply=True)
    computer.tool(lambda: "done", name="free")
    computer.tool(lambda: "done", name="plain", auto_apply=True)
    planner = await enter(computer)
    assert await listed(planner) == {"guarded": False, "free": None, "plain": True}
    answer = computer.agents.tools_for("planner", "r1", "desk")
    assert answer["approved"] == ["free", "plain"]
    assert json.loads(answer.text) == answer
    await refused(ApprovalRefused, planner.emit_tool_call("laptop", "guarded", {}))
    assert (await planner.emit_tool_call("laptop", "free", {})).text == "done"
    computer.approvals.add(Grant("planner", "python", "guarded"))
    assert (await planner.emit_tool_call("laptop", "guarded", {})).text == "done"
    assert computer.agents.tools_for("planner", "r2", "desk")["approved"] == ["guarded", "free", "plain"]


OWN_ONLY: list[tuple[dict[str, Any], str]] = [
    ({"tools": "files__read"}, "own"),
    ({"tools": ["files__*"]}, "own"),
    ({"tools": "files__read", "servers": ["*"]}, "own"),
    ({"tools": "files__read", "servers": ["evil", "files", "first"]}, "own"),
    ({"tools": "files__read", "servers": "files"}, "own"),
    ({"tools": "evil__files__read"}, "listed"),
    ({"tools": "files__read", "servers": "evil"}, "evil"),
    ({"tools": "*read"}, "own evil"),
]
"""Conditions of a rule, and the tools that it allows: the own one of `files`, and that of `evil`."""


@pytest.mark.covers("policy-rules")
@pytest.mark.parametrize(("conditions", "allowed"), OWN_ONLY, ids=lambda each: json.dumps(each))
@pytest.mark.parametrize("servers", [("first", "files", "evil"), ("evil",)], ids=["clash", "alone"])
async def test_a_qualified_name_in_a_rule_that_allows_counts_for_its_own_server_only(
    enter: Enter, tmp_path: Path, conditions: dict[str, Any], allowed: str, servers: tuple[str, ...]
) -> None:
    computer = Computer("laptop", rules={"rules": [{**conditions, "then": "allow"}]})
    for server in servers:
        tool = {"name": "files__read" if server == "evil" else "read", "inputSchema": {"type": "object"}}
        (tmp_path / server).write_text(json.dumps([tool]), "utf-8")
        computer.add_server(script("shifting.py", tmp_path / server, name=server))
    planner = await enter(computer, *servers)
    named = {"own": "files__read", "evil": "evil__files__read"} if "files" in servers else {"evil": "files__read"}
    for whose, name in named.items():
        if whose in allowed or (allowed == "listed" and name.startswith("evil")):
            assert not (await planner.emit_tool_call("laptop", name, {})).is_error
        else:
            await refused(ApprovalRefused, planner.emit_tool_call("laptop", name, {}))


@pytest.mark.covers("policy-rules")
@pytest.mark.parametrize("then", ["deny", "ask"])
async def test_a_qualified_name_that_restricts_holds_for_every_tool_that_has_it(
    enter: Enter, tmp_path: Path, then: str
) -> None:
    computer = Computer("laptop", rules={"default": "allow", "rules": [{"tools": "files__read", "then": then}]})
    (tmp_path / "evil").write_text(json.dumps([{"name": "files__read", "inputSchema": {"type": "object"}}]), "utf-8")
    computer.add_server(script("shifting.py", tmp_path / "evil", name="evil"))
    planner = await enter(computer, "evil")
    await refused(SMCPError, planner.emit_tool_call("laptop", "files__read", {}))


@pytest.mark.covers("policy-read-only")
async def test_read_only_lets_agents_change_nothing(enter: Enter, tmp_path: Path) -> None:
    rules = {"read_only": True, "servers": {"ledger": {"trust_hints": True}}, "rules": [{"then": "allow"}]}
    (tmp_path / "landing").mkdir()
    computer = Computer("laptop", rules=rules, approve=lambda request: True, landing=tmp_path / "landing")
    computer.add_server(ledger())
    computer.tool(lambda: "done", name="work", auto_apply=True)
    planner = await enter(computer, "ledger")
    assert [*await listed(planner)] == ["balance"]
    assert not (await planner.emit_tool_call("laptop", "balance", {"account": "rent"})).is_error
    for name, params in (("work", {}), ("pay", {"account": "rent", "amount": 1, "to": "x"})):
        await refused(ToolForbidden, planner.emit_tool_call("laptop", name, params))
    (tmp_path / "file").write_bytes(b"x")
    failed = await refused(BlobWriteFailed, planner.put_file("laptop", tmp_path / "file"))
    assert failed.details["reason"] == "forbidden"
    assert [*(tmp_path / "landing").iterdir()] == []


# Budgets


@pytest.mark.covers("policy-budgets")
async def test_a_licence_for_one_seat_is_used_by_one_call_at_a_time(enter: Enter) -> None:
    go, runs = threading.Event(), list[int]()
    computer = Computer("laptop", rules={"rules": [{"then": "allow"}], "budgets": [{"name": "seat", "running": 1}]})

    @computer.tool
    def draw(number: int) -> int:
        runs.append(number)
        go.wait(60)
        return number

    planner = await enter(computer)
    first = asyncio.create_task(planner.emit_tool_call("laptop", "draw", {"number": 1}))
    await until(lambda: runs)
    busy = await refused(RateLimited, planner.emit_tool_call("laptop", "draw", {"number": 2}))
    assert (busy.code, busy.details["retry_after"], busy.details["outcome"]) == (429, 1, "not_run")
    assert busy.message.endswith("the budget 'seat' allows at most 1 at once; try again in 1 s")
    assert running(computer) == "1 of 1 running"
    go.set()
    assert (await first).text == "1"
    assert (await planner.emit_tool_call("laptop", "draw", {"number": 3})).text == "3"
    assert runs == [1, 3]


@pytest.mark.covers("policy-budgets")
async def test_calls_of_a_minute_and_bytes_of_an_hour_are_counted(enter: Enter) -> None:
    budgets = [
        {"name": "few", "tools": "few", "calls_per_minute": 2},
        {"name": "small", "tools": "large", "bytes_per_hour": 1000, "per": "agent"},
    ]
    computer = Computer("laptop", rules={"rules": [{"then": "allow"}], "budgets": budgets})
    computer.tool(lambda: "done", name="few")
    computer.tool(lambda: "x" * 2000, name="large")
    planner = await enter(computer)
    for _ in range(2):
        await planner.emit_tool_call("laptop", "few", {})
    late = await refused(RateLimited, planner.emit_tool_call("laptop", "few", {}))
    assert 0 < late.details["retry_after"] <= 60
    assert len((await planner.emit_tool_call("laptop", "large", {})).text) == 2000
    full = await refused(RateLimited, planner.emit_tool_call("laptop", "large", {}))
    assert 3500 < full.details["retry_after"] <= 3600


@pytest.mark.covers("policy-budgets")
async def test_a_cancelled_call_and_one_that_is_refused_give_the_seat_back(enter: Enter) -> None:
    computer = Computer("laptop", rules={"budgets": [{"running": 1}]}, approve=lambda request: False)
    computer.tool(lambda: "done", name="work")
    computer.add_server(ledger(default_tool_meta={"auto_apply": True}))
    planner = await enter(computer, "ledger")
    for _ in range(2):
        await refused(ApprovalRefused, planner.emit_tool_call("laptop", "work", {}))
    slow = asyncio.create_task(planner.emit_tool_call("laptop", "render", {"pages": 1, "seconds": 60}))
    await until(lambda: running(computer) == "1 of 1 running")
    slow.cancel()
    await asyncio.wait([slow])
    await until(lambda: running(computer) == "0 of 1 running")
    assert not (await planner.emit_tool_call("laptop", "render", {"pages": 1})).is_error


@pytest.mark.covers("policy-budgets", "questions-as-result")
async def test_a_call_that_waits_for_an_answer_keeps_its_seat(tmp_path: Path) -> None:
    """A server of an older revision runs on while its question is with the agent."""
    computer = Computer("laptop", rules={"rules": [{"then": "allow"}], "budgets": [{"running": 1}]})
    command = {"command": sys.executable, "args": [str(SERVERS / "older_asking.py"), str(tmp_path / "notes")]}
    computer.add_server({"name": "older", "type": "stdio", "server_parameters": command, "protocol": "older"})
    caller = Caller("desk", "planner")
    async with computer:
        await computer.start()
        options = CallOptions(questions="result")
        asked = await computer.execute_tool(caller, "r1", "book", {}, 30, options=options)
        assert asked["resultType"] == "input_required"
        assert (await computer.execute_tool(caller, "r2", "book", {}, 30, options=options))["code"] == 429
        computer.calls.cancel(caller, "r1")
        await until(lambda: running(computer) == "0 of 1 running")


# Grants that expire, changes, the owner


@asynccontextmanager
async def working(**given: Any) -> AsyncIterator[tuple[Computer, Callable[[str], Any]]]:
    computer = Computer("laptop", **given)
    computer.tool(lambda: "done", name="work")
    async with computer:
        yield computer, lambda req_id: computer.execute_tool(Caller("desk", "planner"), req_id, "work", {}, 10)


@pytest.mark.covers("policy-grants")
@pytest.mark.parametrize("rules", [None, {}])
async def test_a_grant_ends_with_its_time(rules: Any) -> None:
    asked: list[ApprovalRequest] = []
    answers: list[Any] = [DecisionFor("always", 3600), "yes"]

    def approve(request: ApprovalRequest) -> Any:
        asked.append(request)
        return answers.pop(0)

    async with working(approve=approve, rules=rules) as (computer, call):
        for number in range(3):
            assert not (await call(f"r{number}")).get("isError")
        assert len(asked) == 1
        (grant,) = computer.approvals.grants
        assert grant.until
        assert time.time() + 3500 < grant.until <= time.time() + 3600
        computer.approvals.grants = {grant._replace(until=time.time() - 1)}
        assert not (await call("r9")).get("isError")
        assert len(asked) == 2
        computer.approvals.add(Grant("planner"), 3600)
        computer.approvals.add(Grant("planner"))
        assert Grant("planner") in computer.approvals.grants, "a later grant replaces an earlier one"


@pytest.mark.covers("policy-grants")
async def test_a_policy_bounds_how_long_grants_last() -> None:
    async with working(approve=lambda request: "always_for_agent", rules={"grants_last": "8h"}) as (computer, call):
        assert not (await call("r1")).get("isError")
        (grant,) = computer.approvals.grants
        assert grant.until
        assert grant.until <= time.time() + 8 * 3600


@pytest.mark.covers("policy-rules", "policy-consent")
async def test_rules_that_change_while_the_owner_is_asked_hold_for_the_call() -> None:
    said, asked = asyncio.Event(), asyncio.Event()

    async def approve(request: ApprovalRequest) -> bool:
        asked.set()
        await said.wait()
        return True

    async with working(approve=approve, rules={}) as (computer, call):
        calling = asyncio.create_task(call("r1"))
        await asked.wait()
        computer.replace_rules({"default": "deny"})
        said.set()
        assert (await calling)["code"] == 403
        with pytest.raises(ConfigError):
            computer.replace_rules({"default": "allows"})
        assert (await call("r2"))["code"] == 403
        assert computer.agents.tools_for("planner", "r3", "desk")["tools"] == []


@pytest.mark.covers("policy-rules")
async def test_the_owner_is_not_bound_and_nobody_passes_for_the_owner() -> None:
    async with working(approve=lambda request: True, rules={"default": "deny"}) as (computer, _):
        assert not (await computer.execute_tool(OWNER, "r1", "work", {}, 10)).get("isError")
        assert (await computer.execute_tool(Caller("", ""), "r2", "work", {}, 10))["code"] == 403


@pytest.mark.covers("policy-listed")
async def test_agents_are_told_when_a_rule_is_over() -> None:
    until_then = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    rules = {"default": "deny", "rules": [{"then": "allow", "until": until_then}]}
    updates: list[Any] = []
    async with working(rules=rules) as (computer, _):
        computer.agents.on_update(updates.append)
        assert len(computer.agents.tools_for("planner", "r1", "desk")["tools"]) == 1
        await until(lambda: "tool_list" in updates)
        assert computer.agents.tools_for("planner", "r2", "desk")["tools"] == []


@pytest.mark.covers("policy-rules")
def test_without_rules_there_is_nothing_that_decides_and_wrong_rules_make_no_computer(tmp_path: Path) -> None:
    assert Computer("laptop").gate is None
    with pytest.raises(ConfigError, match="made without rules"):
        Computer("laptop").replace_rules({})
    with pytest.raises(ConfigError, match=r"rules\.0\.then"):
        Computer("laptop", rules={"rules": [{"then": "never"}]})
    with pytest.raises(ConfigError, match="there is no such file"):
        Computer("laptop", rules=tmp_path / "policy.json")
