"""The audit file of a Computer: a line for each call whatever its arguments are, and who has decided about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from a2c_smcp.audit.reading import verify
from a2c_smcp.computer import SignInFailed
from a2c_smcp.computer.approval import ApprovalRequest, Approve, Caller, DecisionFor, Grant, approve_all
from a2c_smcp.computer.audit import recorded
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.metrics import ComputerMetrics
from a2c_smcp.protocol.questions import Answer
from tests.audit.test_files import full_disk
from tests.computer.test_question_results import ask
from tests.computer.test_questions import OLDER, Start, begin, both, start
from tests.peer import Peer
from tests.sign_in.conftest import Browser, browser, guarded, meet, provider
from tests.sign_in.guarded_server import GuardedServer

__all__ = ["browser", "guarded", "meet", "provider", "start"]

AGENT = Caller("desk", "planner")


def lines(path: Path, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    return [line for line in found if line["event"] == event]


class Deep(NamedTuple):
    """Stands for so many lists in each other, which hypothesis could not print."""

    depth: int

    def made(self) -> list[Any]:
        found: list[Any] = []
        for _ in range(self.depth):
            found = [found]
        return found


_HOSTILE = st.recursive(
    st.one_of(
        st.none(),
        st.integers(min_value=-(10**30), max_value=10**30),
        st.floats(),
        st.text(st.characters(categories=["Cs", "Cc", "L", "Zl", "Zp"])),
        st.sampled_from(["\ud800", "\udfff x", '"}\n{"n":9,"event":"call"}']),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
) | st.sampled_from([200, 254, 255, 300, 1100]).map(Deep)


@asynccontextmanager
async def audited(
    path: Path, approve: Approve | None = None, *, with_arguments: bool = False, **options: Any
) -> AsyncIterator[Computer]:
    computer = Computer("laptop", approve=approve, **options)
    computer.tool(lambda value=None: "done", name="free", auto_apply=True)
    computer.tool(lambda value=None: "done", name="asks")
    with recorded(computer, path, with_arguments=with_arguments):
        async with computer:
            yield computer


@pytest.mark.parametrize("with_arguments", [False, True], ids=["hashed", "as they are"])
@settings(max_examples=25)
@given(values=st.lists(_HOSTILE, min_size=1, max_size=4))
@example(values=["\ud800", 2**70, Deep(255), Deep(300), Deep(1100)])
def test_a_call_is_one_line_whatever_its_arguments_are(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], *, with_arguments: bool
) -> None:
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    ids = [f"r{number}" for number in range(len(values))]

    async def call_all() -> None:
        async with audited(path, with_arguments=with_arguments) as computer:
            for req_id, value in zip(ids, values, strict=True):
                made = value.made() if isinstance(value, Deep) else value
                await computer.execute_tool(AGENT, req_id, "free", {"value": made}, 10)

    asyncio.run(call_all())
    assert [line["req_id"] for line in lines(path, "call")] == ids
    assert verify(path)[0] == []


async def test_arguments_that_only_orjson_refuses_are_hashed_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with audited(path) as computer:
        for number, value in enumerate(("\ud800", 2**70)):
            await computer.execute_tool(AGENT, f"r{number}", "free", {"value": value}, 10)
    first, second = (line["arguments"] for line in lines(path, "call"))
    assert len(first) == len(second) == 32
    assert first != second


async def says(request: ApprovalRequest) -> DecisionFor:
    return DecisionFor("no", by="terminal")


def fails(request: ApprovalRequest) -> bool:
    raise RuntimeError("the terminal is gone")


DECIDERS: list[tuple[Approve | None, str, str, bool]] = [
    (None, "none", "nobody", False),
    (approve_all, "yes", "configuration", False),
    (says, "no", "terminal", True),
    (lambda request: "yes", "yes", "owner", True),
    (fails, "none", "owner", True),
]


@pytest.mark.parametrize(("approve", "outcome", "by", "is_asked"), DECIDERS)
async def test_an_approval_says_who_has_decided_and_whether_anybody_was_asked(
    tmp_path: Path, approve: Approve | None, outcome: str, by: str, *, is_asked: bool
) -> None:
    path = tmp_path / "audit.jsonl"
    async with audited(path, approve) as computer:
        counted = ComputerMetrics(computer).metrics
        await computer.execute_tool(AGENT, "r1", "asks", {}, 10)
        assert counted.value("a2c_computer_approvals_waiting") == 0
        assert counted.value("a2c_computer_approvals_total", by=by, answer=outcome) == 1
    assert len(lines(path, "approval asked")) == is_asked
    (line,) = lines(path, "approval")
    assert (line["outcome"], line["by"], line["tool"], line["req_id"]) == (outcome, by, "asks", "r1")
    assert (line["office"], line["agent"]) == ("desk", "planner")


async def test_a_grant_answers_without_a_question(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with audited(path, says) as computer:
        counted = ComputerMetrics(computer).metrics
        computer.approvals.add(Grant("planner"))
        await computer.execute_tool(AGENT, "r1", "asks", {}, 10)
        assert counted.value("a2c_computer_approvals_waiting") == 0
    assert [(line["outcome"], line["by"]) for line in lines(path, "approval")] == [("yes", "grant")]
    assert lines(path, "approval asked") == []


async def test_a_cancel_names_its_office(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with audited(path) as computer:
        computer.cancel("planner", "r1", "desk")
    (line,) = lines(path, "cancel")
    assert (line["office"], line["agent"], line["req_id"]) == ("desk", "planner", "r1")


@both
async def test_questions_that_leave_as_a_result_are_recorded(
    start: Start, agent: Peer, office: str, tmp_path: Path, file: str
) -> None:
    path = tmp_path / "audit" / "audit.jsonl"
    path.parent.mkdir(0o700)
    asking = await start(file)
    counted = ComputerMetrics(asking.computer).metrics
    with recorded(asking.computer, path):
        first = await ask(agent, req_id="c1")
        second = await ask(agent, before=first, content={"city": "PEK"}, req_id="c2")
        await ask(agent, before=second, response={"action": "decline"}, req_id="c3")
    assert [(line["of"], line["server"], line["tool"]) for line in lines(path, "question asked")] == [
        ("agent", "asking", "book")
    ] * 2
    assert [(line["outcome"], line["by"]) for line in lines(path, "question")] == [
        ("accept", "agent"),
        ("decline", "agent"),
    ]
    assert {line["office"] for line in lines(path, "question")} == {office}
    assert len(lines(path, "call")) == 3
    assert counted.value("a2c_computer_questions_waiting") == 0


async def test_a_question_that_nobody_can_be_asked_says_so(start: Start, agent: Peer, tmp_path: Path) -> None:
    path = tmp_path / "audit" / "audit.jsonl"
    path.parent.mkdir(0o700)
    asking = await start(OLDER)
    with recorded(asking.computer, path):
        await begin(agent, "sign", questions=True)
    assert lines(path, "question asked") == []
    assert [(line["outcome"], line["by"]) for line in lines(path, "question")] == [("none", "nobody")]


async def test_the_answer_of_an_owner_says_where_he_has_answered(start: Start, agent: Peer, tmp_path: Path) -> None:
    path = tmp_path / "audit" / "audit.jsonl"
    path.parent.mkdir(0o700)
    asking = await start(OLDER, on_question=lambda question: Answer("decline", by="terminal"))
    with recorded(asking.computer, path):
        await begin(agent, "book")
    assert [line["of"] for line in lines(path, "question asked")] == ["owner"] * len(lines(path, "question"))
    assert {(line["outcome"], line["by"]) for line in lines(path, "question")} == {("decline", "terminal")}


async def test_trouble_of_the_audit_file_is_in_the_metrics(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    computer = Computer("laptop")
    with recorded(computer, path) as audit:
        counted = ComputerMetrics(computer, audit).metrics
        with full_disk(path.stat().st_size):
            for _ in range(3):
                computer.cancel("x" * 600_000, "r1")
            assert counted.value("a2c_computer_audit_failing") == 1
            assert counted.value("a2c_computer_audit_lost_total") == 1
    assert counted.value("a2c_computer_audit_failing") == 0


async def test_each_sign_in_and_sign_out_is_recorded_also_one_that_begins_by_itself(
    guarded: GuardedServer, browser: Browser, meet: Callable[..., Awaitable[Computer]], tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    computer = await meet(guarded.mcp_url)
    with recorded(computer, path):
        await computer.sign_in("files", open_url=browser)
        await computer.sign_out("files")
        with pytest.raises(SignInFailed):
            await computer.sign_in("files", open_url=lambda url: False)
    assert [(line["server"], line["outcome"]) for line in lines(path, "sign-in")] == [
        ("files", "ok"),
        ("files", "error"),
    ]
    assert [(line["server"], line["outcome"]) for line in lines(path, "sign-out")] == [("files", "ok")]

    computer = Computer("other", state_folder=tmp_path / "other", open_url=browser)
    computer.add_server({"name": "files", "url": guarded.mcp_url})
    with recorded(computer, tmp_path / "other.jsonl"):
        async with computer:
            await computer.start()
    assert [line["outcome"] for line in lines(tmp_path / "other.jsonl", "sign-in")] == ["ok"]
