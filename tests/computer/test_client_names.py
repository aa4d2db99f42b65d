"""The MCP client behind an agent: which names are valid, where they are shown, and what is granted to whom."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.computer.consent.approval import Caller, Decision, Grant
from a2c_smcp.protocol.escaping import shown_caller
from a2c_smcp.protocol.names import client_field, fault_in_client
from a2c_smcp.protocol.questions import Question
from tests.peer import Peer
from tests.stage.guarded_computer import Guard, Guarded
from tests.stage.owners import SteadyOwner
from tests.stage.questions import Start, begin, both

pytestmark = pytest.mark.covers("client-names")

FAULTY: list[Any] = [
    *("claude", {}, {"name": "claude", "version": 2}, {"name": "claude", "version": ""}),
    *({"name": name} for name in ("", 7, "x" * 129, " claude", "claude\u202e")),
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
    await start(file, on_question=seen.append)
    await begin(agent, client={"name": "claude-desktop"})
    assert [(each.agent, each.client) for each in seen][:1] == [("planner", "claude-desktop")]
    assert "runs for planner (claude-desktop)" in caplog.text


async def is_allowed(guarded: Guarded, client: str) -> bool:
    caller = Caller("desk", "bridge", client)
    return not (await guarded.computer.execute_tool(caller, uuid4().hex, "wipe", {}, 10)).get("isError")


@pytest.mark.parametrize("says", ["always", "always_for_agent"])
async def test_what_is_allowed_for_good_is_allowed_to_one_client_of_the_agent(says: Decision) -> None:
    owner = SteadyOwner(says)
    guarded = Guarded(approve=owner, approve_by="owner")
    async with guarded.computer:
        assert await is_allowed(guarded, "claude")
        owner.says = "no"
        assert await is_allowed(guarded, "claude")
        assert owner.callers == ["bridge (claude)"]
        assert not await is_allowed(guarded, "cursor")
        assert not await is_allowed(guarded, "")
        assert owner.callers == ["bridge (claude)", "bridge (cursor)", "bridge"]
        (grant,) = guarded.computer.approvals.grants
        assert (grant.agent, grant.client) == ("bridge", "claude")
        assert guarded.computer.approvals.approved("bridge", {}) == []
        guarded.computer.approvals.revoke(grant)
        assert not await is_allowed(guarded, "claude")


async def test_what_was_allowed_without_a_client_is_for_calls_without_one() -> None:
    guarded = Guarded(approve=SteadyOwner("no"), approve_by="owner")
    guarded.computer.approvals.grants.add(Grant("bridge", "python", "wipe"))
    async with guarded.computer:
        assert await is_allowed(guarded, "")
        assert not await is_allowed(guarded, "claude")


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
