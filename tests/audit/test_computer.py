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
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import ApprovalRequest, Approve, Caller, DecisionFor, Grant, approve_all
from a2c_smcp.computer.recording import ComputerMetrics, recorded
from a2c_smcp.protocol.questions import Answer
from tests.on_disk import content_of, full_disk
from tests.peer import Peer
from tests.sign_in.conftest import Browser, browser, guarded, meet, provider
from tests.sign_in.guarded_server import GuardedServer
from tests.stage.questions import OLDER, Start, ask, begin, both, start

__all__ = ["browser", "guarded", "meet", "provider", "start"]

AGENT = Caller("desk", "planner")


def lines(path: Path, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    return [line for line in found if line["event"] == event]


def facts(path: Path, event: str, *names: str) -> list[tuple[Any, ...]]:
    """What the lines of an event say."""
    return [tuple(line[name] for name in names) for line in lines(path, event)]


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


async def test_arguments_that_only_orjson_refuses_are_hashed_all_the_same(path: Path) -> None:
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
    path: Path, approve: Approve | None, outcome: str, by: str, *, is_asked: bool
) -> None:
    async with audited(path, approve) as computer:
        counted = ComputerMetrics(computer).metrics
        await computer.execute_tool(AGENT, "r1", "asks", {}, 10)
        assert counted.value("a2c_computer_approvals_waiting") == 0
        assert counted.value("a2c_computer_approvals_total", by=by, answer=outcome) == 1
    assert len(lines(path, "approval asked")) == is_asked
    told = facts(path, "approval", "outcome", "by", "tool", "req_id", "office", "agent")
    assert told == [(outcome, by, "asks", "r1", "desk", "planner")]


async def test_a_grant_answers_without_a_question(path: Path) -> None:
    async with audited(path, says) as computer:
        counted = ComputerMetrics(computer).metrics
        computer.approvals.add(Grant("planner"))
        await computer.execute_tool(AGENT, "r1", "asks", {}, 10)
        assert counted.value("a2c_computer_approvals_waiting") == 0
    assert facts(path, "approval", "outcome", "by") == [("yes", "grant")]
    assert lines(path, "approval asked") == []


async def test_a_cancel_names_its_office(path: Path) -> None:
    async with audited(path) as computer:
        computer.calls.cancel(AGENT, "r1")
    assert facts(path, "cancel", "office", "agent", "req_id") == [("desk", "planner", "r1")]


@both
async def test_questions_that_leave_as_a_result_are_recorded(
    start: Start, agent: Peer, office: str, path: Path, file: str
) -> None:
    asking = await start(file)
    counted = ComputerMetrics(asking.computer).metrics
    with recorded(asking.computer, path):
        first = await ask(agent, req_id="c1")
        second = await ask(agent, before=first, content={"city": "PEK"}, req_id="c2")
        await ask(agent, before=second, response={"action": "decline"}, req_id="c3")
    assert facts(path, "question asked", "of", "server", "tool") == [("agent", "asking", "book")] * 2
    assert facts(path, "question", "outcome", "by") == [
        ("accept", "agent"),
        ("decline", "agent"),
    ]
    assert {line["office"] for line in lines(path, "question")} == {office}
    assert len(lines(path, "call")) == 3
    assert counted.value("a2c_computer_questions_waiting") == 0


async def test_a_question_that_nobody_can_be_asked_says_so(start: Start, agent: Peer, path: Path) -> None:
    asking = await start(OLDER)
    with recorded(asking.computer, path):
        await begin(agent, "sign", questions=True)
    assert lines(path, "question asked") == []
    assert facts(path, "question", "outcome", "by") == [("none", "nobody")]


async def test_the_answer_of_an_owner_says_where_he_has_answered(start: Start, agent: Peer, path: Path) -> None:
    asking = await start(OLDER, on_question=lambda question: Answer("decline", by="terminal"))
    with recorded(asking.computer, path):
        await begin(agent, "book")
    assert [line["of"] for line in lines(path, "question asked")] == ["owner"] * len(lines(path, "question"))
    assert {(line["outcome"], line["by"]) for line in lines(path, "question")} == {("decline", "terminal")}


async def test_trouble_of_the_audit_file_is_in_the_metrics(path: Path) -> None:
    computer = Computer("laptop")
    with recorded(computer, path) as audit:
        counted = ComputerMetrics(computer, audit).metrics
        with full_disk(len(content_of(path))):
            for _ in range(3):
                computer.calls.cancel(Caller("desk", "x" * 600_000), "r1")
            assert counted.value("a2c_computer_audit_failing") == 1
            assert counted.value("a2c_computer_audit_lost_total") == 1
    assert counted.value("a2c_computer_audit_failing") == 0


async def test_each_sign_in_and_sign_out_is_recorded(
    path: Path, guarded: GuardedServer, browser: Browser, meet: Callable[..., Awaitable[Computer]]
) -> None:
    computer = await meet(guarded.mcp_url)
    with recorded(computer, path):
        await computer.sign_in("files", open_url=browser)
        await computer.sign_out("files")
        with pytest.raises(SignInFailed):
            await computer.sign_in("files", open_url=lambda url: False)
    assert facts(path, "sign-in", "server", "outcome") == [
        ("files", "ok"),
        ("files", "error"),
    ]
    assert facts(path, "sign-out", "server", "outcome") == [("files", "ok")]
