"""The language of the prompt, without a terminal: lines, completion, arguments, answers, and what is kept."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.cli.options import default_agent_name
from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.grants import Grants
from a2c_smcp.cli.prompt.language import (
    BadLine,
    CompletionSource,
    find_command,
    missing_parameters,
    parameters_of,
    proposals,
    read_arguments,
    split_words,
)
from a2c_smcp.cli.prompt.prompt import COMMANDS
from a2c_smcp.computer.consent.approval import (
    OWNER,
    ApprovalRequest,
    Approvals,
    Caller,
    Grant,
    NothingToAnswer,
    PendingApprovals,
)
from a2c_smcp.loops import cancel_and_wait
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("prompt")

SCHEMA = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "description": "What to say\nat length"},
        "size": {"type": "integer"},
        "colour": {"enum": ["red", "dark green"]},
        "loud": {"type": "boolean"},
        "key": {"type": "string", "format": "password"},
        "any": {},
    },
    "required": ["size", "key"],
}
KNOWN = CompletionSource(
    commands=COMMANDS,
    names={
        "SERVER": lambda: {"good": "ready", "my files": "failed"},
        "TOOL": lambda: {"paint": "good"},
        "AGENT": lambda: {"planner": ""},
    },
    schema=lambda tool: SCHEMA if tool == "paint" else {},
)


@cases(
    "line, words",
    ("", []),
    ("logs 'my files'", ["logs", "my files"]),
    ('call paint {"size": 1, "note": "a b"}', ["call", "paint", '{"size": 1, "note": "a b"}']),
    ('call paint note="a {b}"', ["call", "paint", "note=a {b}"]),
)
def test_a_line_is_words_as_in_a_shell_and_json_to_its_end(line: str, words: list[str]) -> None:
    assert split_words(line) == words


def test_every_command_is_found_by_its_name_and_checks_its_arguments() -> None:
    for command in COMMANDS:
        arguments = ["x"] * len([place for place in command.takes.split() if not place.startswith("[")])
        assert find_command([*command.name.split(), *arguments], COMMANDS) == (command, arguments)
        if "…" not in command.takes:
            with pytest.raises(BadLine, match="usage"):
                find_command([*command.name.split(), *["x"] * 9], COMMANDS)
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)


@cases(
    "line, candidates",
    *((line, []) for line in ("logs 'm", "mcp restart good ", "call unknown ", "nonsense ")),
    ("st", ["status"]),
    ("mcp st", ["start", "stop"]),
    ("mc", ["mcp"]),
    ("logs ", ["good", "'my files'"]),
    ("logs m", ["'my files'"]),
    ("mcp restart g", ["good"]),
    ("call p", ["paint"]),
    ("call paint ", ["size=", "key=", "note=", "colour=", "loud=", "any="]),
    ("call paint size=1 k", ["key="]),
    ("call paint colour=", ["colour=red", "colour='dark green'"]),
    ("call paint loud=t", ["loud=true"]),
    ("approve ", ["forget"]),
    ("approve forget p", ["planner"]),
    ("always ", ["tool", "server", "agent"]),
)
def test_completion_proposes_names_that_exist(line: str, candidates: list[str]) -> None:
    found = proposals(line, KNOWN)
    assert [each.text for each in found] == candidates
    assert {each.typed for each in found} <= {len(line.rpartition(" ")[2])}


def test_arguments_are_read_as_the_schema_has_them() -> None:
    words = ["note=12", "size=12", "colour=red", "loud=true", "any=[1]", "other=x"]
    read = {"note": "12", "size": 12, "colour": "red", "loud": True, "any": [1], "other": "x"}
    assert read_arguments(words, SCHEMA) == read
    assert read_arguments(['{"size": 1}'], SCHEMA) == {"size": 1}
    assert read_arguments([], SCHEMA) == {}


@pytest.mark.parametrize(
    ("word", "problem"), [("size", "is no argument"), ("size=big", "size must be integer"), ("{1}", "JSON")]
)
def test_wrong_arguments_are_answered_with_a_message(word: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_arguments([word], SCHEMA)


def test_only_missing_arguments_are_asked_for() -> None:
    assert [each.name for each in missing_parameters(SCHEMA, {})] == ["size", "key", "note", "colour", "loud", "any"]
    assert [each.name for each in missing_parameters(SCHEMA, {"size": 1})] == ["key"]
    assert missing_parameters({}, {}) == []


def test_a_question_says_what_is_wanted_and_hides_secrets() -> None:
    known = {each.name: each for each in parameters_of(SCHEMA)}
    assert known["note"].question == "What to say\nnote (string, Enter leaves it out): "
    assert known["colour"].question == "colour (red or dark green, Enter leaves it out): "
    assert known["size"].question == "size (integer): "
    assert [name for name, each in known.items() if each.is_secret] == ["key"]


# What agents ask for


def request(tool: str = "paint", agent: str = "planner") -> ApprovalRequest:
    return ApprovalRequest(Caller("desk", agent), tool, "good", tool, {})


async def waiting_for(requests: PendingApprovals, *wanted: ApprovalRequest) -> list[asyncio.Task[Any]]:
    asking = [asyncio.create_task(requests(each)) for each in wanted]
    await asyncio.sleep(0)
    return asking


@pytest.mark.covers("prompt-approvals")
async def test_an_answer_is_for_the_oldest_request_at_the_time_its_line_was_begun() -> None:
    requests = PendingApprovals()
    requests.remember_oldest()
    first, second = await waiting_for(requests, request(), request("crash"))
    with pytest.raises(NothingToAnswer):
        requests.find()
    requests.remember_oldest()
    assert requests.find().number == 1
    first.cancel()
    await asyncio.wait([first])
    with pytest.raises(NothingToAnswer, match="withdrawn"):
        requests.find()
    requests.answer(requests.find("#2"), "no")
    assert await second == "no"
    with pytest.raises(NothingToAnswer):
        requests.find("2")


@pytest.mark.covers("prompt-approvals")
@pytest.mark.parametrize(
    ("decision", "answered"), [("yes", 1), ("always", 2), ("always_for_server", 3), ("always_for_agent", 4)]
)
async def test_a_permanent_grant_answers_all_pending_requests_that_it_covers(decision: Any, answered: int) -> None:
    requests = PendingApprovals()
    elsewhere = replace(request(), server="other")
    asking = await waiting_for(requests, request(), request(), request("crash"), elsewhere, request(agent="other"))
    requests.answer(requests.find("1"), decision)
    assert [await each for each in asking[:answered]] == [decision] + ["yes"] * (answered - 1)
    assert len([*requests]) == len(asking) - answered
    await cancel_and_wait(*asking[answered:])


@pytest.mark.covers("prompt-approvals")
async def test_the_owner_needs_no_approval_and_no_agent_can_pass_for_the_owner() -> None:
    requests = PendingApprovals()
    assert await requests(ApprovalRequest(OWNER, "paint", "good", "paint", {})) == "yes"
    (impostor,) = await waiting_for(requests, ApprovalRequest(Caller("", ""), "paint", "good", "paint", {}))
    assert len([*requests]) == 1
    impostor.cancel()


@pytest.mark.covers("prompt-approvals", "pinned-tools")
async def test_a_permanent_grant_answers_no_request_that_shows_another_change() -> None:
    requests = PendingApprovals()
    changed = replace(request(), changed="description:\n  + evil")
    asking = await waiting_for(requests, request(), changed, replace(request("crash"), changed="other"), changed)
    requests.answer(requests.find("1"), "always_for_agent")
    assert await asking[0] == "always_for_agent"
    assert [pending.number for pending in requests] == [2, 3, 4]
    requests.answer(requests.find("2"), "always")
    assert [await asking[1], await asking[3]] == ["always", "yes"]
    assert [pending.number for pending in requests] == [3]
    await cancel_and_wait(asking[2])


@pytest.mark.covers("prompt-approvals", "pinned-tools")
async def test_a_long_change_is_cut_and_shown_in_full_on_request() -> None:
    lines = ["description:", *(f"  + line {number}" for number in range(60)), "  + " + "x" * 5000]
    requests = PendingApprovals()
    (asking,) = await waiting_for(requests, replace(request(), changed="\n".join(lines)))
    (pending,) = requests
    short, full = views.request(pending), views.request(pending, in_full=True)
    assert "line 30" in short
    assert "line 59" not in short
    assert "`approve` shows the change in full" in short
    assert all(line in full for line in lines)
    asking.cancel()


# What is kept

PLANNER = Grant("planner")


class Kept:
    """The grants of a computer in an office, and what is said about them."""

    def __init__(self, folder: Path, url: str = "http://hub", office: str = "desk") -> None:
        self.approvals, self.said = Approvals(), list[str]()
        self.grants = Grants(self.approvals, "laptop", folder, lambda text, style: self.said.append(text))
        self.grants.enter(url, office)

    def allow(self, *grants: Grant) -> None:
        for grant in grants:
            self.approvals.grants.add(grant)
            self.approvals.on_grant(grant)


@pytest.mark.covers("prompt-approvals")
def test_grants_hold_for_one_office_of_one_server(tmp_path: Path) -> None:
    kept, tool, everything = Kept(tmp_path, "http://user:password@hub:1/"), Grant("planner", "good", "paint"), PLANNER
    kept.allow(tool)
    kept.grants.enter("http://hub:1", "other")
    assert [*kept.grants] == []
    kept.allow(everything)
    again = Kept(tmp_path, "http://hub:1")
    assert [*again.grants] == [tool]
    again.grants.forget([tool])
    kept.grants.enter("http://hub:1", "desk")
    assert [*kept.grants] == []
    kept.grants.enter("http://hub:1", "other")
    assert [*kept.grants] == [everything]
    assert "password" not in "".join(file.read_text() for file in (tmp_path / "approvals").iterdir())


@pytest.mark.covers("prompt-approvals", "pinned-tools")
def test_what_was_allowed_for_a_tool_that_has_changed_is_forgotten_in_all_offices(tmp_path: Path) -> None:
    kept, tool, others = Kept(tmp_path), Grant("planner", "good", "paint"), [Grant("planner"), Grant("a", "good", "b")]
    for office in ("desk", "other"):
        kept.grants.enter("http://hub", office)
        kept.allow(tool, Grant("another", "good", "paint", "claude"), *others)
    kept.approvals.withdraw("good", "paint")
    assert kept.said == ["paint of good has changed: what was allowed for good is asked again"]
    kept.approvals.withdraw("good", "paint")
    assert len(kept.said) == 1
    for office in ("desk", "other"):
        kept.grants.enter("http://hub", office)
        assert {*kept.grants} == {*others}


@pytest.mark.covers("prompt-approvals", "client-names")
def test_grants_without_a_client_are_read_and_written_as_before(tmp_path: Path) -> None:
    kept, older = Kept(tmp_path), [["planner", None, None], ["planner", "good", "paint"]]
    kept.allow(PLANNER, Grant("planner", "good", "paint"))
    (file,) = (tmp_path / "approvals").iterdir()
    assert json.loads(file.read_text()) == {"http://hub desk": older}
    kept.allow(Grant("planner", "good", "paint", "claude"), Grant("planner", client="claude"))
    again = {*Kept(tmp_path).grants}
    assert (again, len(again)) == ({*kept.grants}, 4)


@pytest.mark.covers("prompt-approvals")
def test_a_grant_for_a_server_is_kept_with_its_last_use_and_what_is_usual(tmp_path: Path) -> None:
    kept, grant = Kept(tmp_path), Grant("planner", "good", until=time.time() + 3600)
    kept.allow(grant, Grant("planner"))
    kept.approvals.last_used[grant.for_good] = 1.5
    kept.approvals.memory.note(("planner", "", ""), "", "good", "paint")
    kept.approvals.on_allowed()
    again, elsewhere = Kept(tmp_path), Kept(tmp_path, office="other")
    assert [*again.grants] == [Grant("planner"), grant]
    assert again.approvals.last_used == {grant.for_good: 1.5}
    assert again.approvals.memory.written() == kept.approvals.memory.written() != {}
    assert (elsewhere.approvals.last_used, elsewhere.approvals.memory.written()) == ({}, {})


@pytest.mark.covers("prompt-approvals", "private-files")
@pytest.mark.parametrize(
    "content",
    [
        "nonsense",
        "[]",
        '{"http://hub desk": []}',
        '{"http://hub desk": {"agents": [1], "used": [1, [], ["x"], [2, 3]]}}',
    ],
)
def test_a_file_of_what_is_usual_that_is_damaged_costs_no_grant(tmp_path: Path, content: str) -> None:
    Kept(tmp_path).allow(PLANNER)
    (file,) = (tmp_path / "approvals").iterdir()
    file.with_suffix(".seen.json").write_text(content, "utf-8")
    again = Kept(tmp_path)
    assert ([*again.grants], again.approvals.last_used, again.approvals.memory.written()) == ([PLANNER], {}, {})


@pytest.mark.covers("prompt-approvals", "private-files")
def test_a_grants_file_that_others_can_write_grants_nothing(tmp_path: Path) -> None:
    Kept(tmp_path).allow(PLANNER)
    (file,) = (tmp_path / "approvals").iterdir()
    file.chmod(0o620)
    again = Kept(tmp_path)
    assert [*again.grants] == []
    assert "can be changed by others on this machine; run: chmod go-w" in again.said[0]


@pytest.mark.covers("prompt-approvals")
@pytest.mark.parametrize(
    "content", ["nonsense", "[]", '{"http://hub desk": [["planner"], "x", ["planner", null, "paint"]]}']
)
def test_an_unreadable_grants_file_grants_nothing_and_is_not_changed(tmp_path: Path, content: str) -> None:
    Kept(tmp_path, office="other").allow(PLANNER)
    (file,) = (tmp_path / "approvals").iterdir()
    file.write_text(content)
    kept = Kept(tmp_path)
    assert [*kept.grants] == []
    if not content.startswith("{"):
        kept.allow(PLANNER)
        assert file.read_text() == content
        assert len(kept.said) == 2


def test_without_a_terminal_the_line_editor_is_not_imported() -> None:
    code = "import sys, a2c_smcp.cli.commands.computer; sys.exit('prompt_toolkit' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_grants_to_names_with_a_process_id_are_forgotten_with_a_message(tmp_path: Path) -> None:
    name, before = default_agent_name(), Kept(tmp_path)
    grants = {Grant(name, "files", "read"), PLANNER, Grant(f"other@{name}-7"), Grant(f"{name}-x")}
    before.approvals.grants = grants | {Grant(f"{name}-4711", "files", "read"), Grant(f"{name}-4712")}
    before.grants.forget([])
    first, second = Kept(tmp_path), Kept(tmp_path)
    assert first.approvals.grants == second.approvals.grants == grants
    (words,) = [*before.said, *first.said, *second.said]
    assert "2 earlier runs of a2c-smcp agent" in words
