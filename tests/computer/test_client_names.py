"""The MCP client behind an agent: which names are valid, where they are shown, and what is granted to whom."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.computer.approval import ApprovalRequest, Caller, Decision, Grant
from a2c_smcp.computer.computer import Computer
from a2c_smcp.protocol.names import client_field, fault_in_client
from a2c_smcp.protocol.questions import Answer, Question
from a2c_smcp.protocol.visible import shown_caller
from tests.computer.test_client_approval import Guard, guard
from tests.computer.test_questions import Start, begin, both, start
from tests.peer import Peer

__all__ = ["guard", "start"]

pytestmark = pytest.mark.covers("client-names")

FAULTY: list[Any] = [
    "claude",
    {},
    {"name": ""},
    {"name": 7},
    {"name": "x" * 129},
    {"name": " claude"},
    {"name": "claude\u202e"},
    {"name": "claude", "version": 2},
    {"name": "claude", "version": ""},
]


@pytest.mark.parametrize("client", FAULTY, ids=repr)
async def test_a_faulty_client_is_400(guard: Guard, agent: Peer, client: Any) -> None:
    guarded = await guard(approve=lambda request: True)
    requests = (
        agent.call_tool("laptop", "wipe", client=client),
        agent.request("client:read_resource", "laptop", mcp_server="python", uri="file:///a", client=client),
        agent.request("client:get_prompt", "laptop", mcp_server="python", name="greet", client=client),
    )
    for request in requests:
        refused = await request
        assert (refused["code"], refused["details"]["field"]) == (400, "client")
    assert guarded.runs == []


async def test_a_client_may_say_more_than_its_name(guard: Guard, agent: Peer) -> None:
    guarded = await guard(approve=lambda request: True)
    more = {"name": "claude desktop", "version": "1.2", "title": "Claude", "icons": []}
    assert not (await agent.call_tool("laptop", "wipe", client=more)).get("isError")
    assert not (await agent.call_tool("laptop", "wipe", client=None)).get("isError")
    assert [each["caller"] for each in guarded.computer.history] == ["planner (claude desktop)", "planner"]


@both
async def test_the_owner_sees_for_whom_a_tool_asks(
    start: Start, agent: Peer, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Question] = []

    def on_question(question: Question) -> Answer | None:
        seen.append(question)
        return None

    await start(file, on_question=on_question)
    await begin(agent, client={"name": "claude-desktop"})
    assert [(each.agent, each.client) for each in seen][:1] == [("planner", "claude-desktop")]
    assert "runs for planner (claude-desktop)" in caplog.text


class Owner:
    """Says the same to everything, and counts."""

    def __init__(self, says: Decision) -> None:
        self.says: Decision = says
        self.asked: list[str] = []

    def __call__(self, request: ApprovalRequest) -> Decision:
        self.asked.append(request.caller.who)
        return self.says


@pytest.mark.parametrize("says", ["always", "always_for_agent"])
async def test_what_is_allowed_for_good_is_allowed_to_one_client_of_the_agent(says: Decision) -> None:
    owner = Owner(says)
    computer = Computer("laptop", approve=owner)
    computer.tool(lambda: "done", name="work")
    claude, cursor, plain = (Caller("desk", "bridge", client) for client in ("claude", "cursor", ""))
    async with computer:

        async def calls(caller: Caller, req_id: str) -> bool:
            return not (await computer.execute_tool(caller, req_id, "work", {}, 10)).get("isError")

        assert await calls(claude, "r1")
        owner.says = "no"
        assert await calls(claude, "r2")
        assert owner.asked == ["bridge (claude)"]
        assert not await calls(cursor, "r3")
        assert not await calls(plain, "r4")
        assert owner.asked == ["bridge (claude)", "bridge (cursor)", "bridge"]
        (grant,) = computer.approvals.grants
        assert (grant.agent, grant.client) == ("bridge", "claude")
        assert computer.approvals.approved("bridge", {}) == []
        computer.approvals.revoke(grant)
        assert not await calls(claude, "r5")


async def test_what_was_allowed_without_a_client_is_for_calls_without_one() -> None:
    owner = Owner("no")
    computer = Computer("laptop", approve=owner)
    computer.tool(lambda: "done", name="work")
    computer.approvals.grants.add(Grant("bridge", "python", "work"))
    async with computer:
        plain = await computer.execute_tool(Caller("desk", "bridge"), "r1", "work", {}, 10)
        named = await computer.execute_tool(Caller("desk", "bridge", "claude"), "r2", "work", {}, 10)
        assert not plain.get("isError")
        assert named["code"] == 403


async def test_a_call_is_the_same_call_whatever_client_it_names(guard: Guard, agent: Peer) -> None:
    guarded = await guard(approve=lambda request: True)
    for client in ({"name": "claude"}, {"name": "cursor"}, None):
        await agent.call_tool("laptop", "wipe", req_id="c1", client=client)
    assert len(guarded.runs) == 1


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("", "bridge"),
        ("claude-desktop", "bridge (claude-desktop)"),
        ("Visual Studio Code", "bridge (Visual Studio Code)"),
        ("通义", "bridge (通义)"),
        ("x) in desk wants ls (y", 'bridge ("x) in desk wants ls (y")'),
        ('"quoted"', r'bridge ("\"quoted\"")'),
        ("a     b", 'bridge ("a [5 blanks] b")'),
        ("a\u202eb", r'bridge ("a\u202eb")'),
    ],
)
def test_a_name_cannot_be_taken_for_more_than_a_name(name: str, shown: str) -> None:
    assert shown_caller("bridge", name) == shown


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (("claude", "1.2"), {"name": "claude", "version": "1.2"}),
        ((" claude\u202e\n", ""), {"name": "claude"}),
        (("x" * 127 + " y", "v" * 500), {"name": "x" * 127, "version": "v" * 128}),
        (("\u200b ", "1"), None),
        (("", ""), None),
    ],
)
def test_any_name_of_a_client_is_made_to_fit(given: tuple[str, str], field: dict[str, str] | None) -> None:
    made = client_field(*given)
    assert made == field
    assert made is None or fault_in_client(made) is None
