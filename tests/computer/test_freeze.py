"""A computer that its owner has frozen: what runs is cancelled, and nothing passes until a person releases it."""

from __future__ import annotations

import asyncio
import json
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.setup_files import set_freeze
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import OWNER, PendingApprovals
from a2c_smcp.computer.consent.freeze import FreezeFile, FreezeState
from a2c_smcp.computer.recording import ComputerMetrics, recorded
from a2c_smcp.errors import CallFrozen, ConfigError, Frozen, SMCPError
from a2c_smcp.protocol.operations import OPERATIONS
from tests.computer.hosted import Host, Relay, hosted, joins, ready
from tests.computer.supervised import naughty, quick, script, text_of
from tests.on_disk import mode_of
from tests.peer import Peer
from tests.stage.agent import SOON
from tests.stage.guarded_computer import Guard
from tests.stage.questions import Start, answer, ask, asked, begin
from tests.stage.worker import Worker
from tests.waiting import until

pytestmark = pytest.mark.covers("computer-freeze")

RUNS = {"default_tool_meta": {"auto_apply": True}}
TOLD = ("notify:tell_progress", "notify:tell_question", "notify:tell_resource", "notify:tell_log")


class Noting:
    """A computer with MCP servers that obey no cancel, and what they have noted."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder = folder
        self.approvals = PendingApprovals()
        limits = quick(calls_at_once=options.pop("calls_at_once", 32))
        self.computer = Computer("laptop", policy=limits, approve=self.approvals, **options)
        for name in ("one", "two"):
            self.computer.add_server(
                script("noting.py", folder / name, name=name, tool_meta={"work": {"alias": name}}, **RUNS)
            )

    @property
    def notes(self) -> list[str]:
        files = [self._folder / name for name in ("one", "two")]
        return [line for file in files if file.exists() for line in file.read_text().splitlines()]

    def noted(self, what: str) -> list[str]:
        return sorted(line.partition(" ")[2] for line in self.notes if line.startswith(what))


@pytest.fixture
async def noting(host: Host, tmp_path: Path) -> Noting:
    noting = Noting(tmp_path)
    await host(noting.computer, "one", "two")
    return noting


def call(agent: Peer, name: str, tool: str = "one", **more: Any) -> asyncio.Task[Any]:
    params = {"params": {"name": name}, "timeout": 60, "req_id": name, **more}
    return asyncio.create_task(agent.call_tool("laptop", tool, **params))


def is_refused(answer: dict[str, Any], reason: str = "") -> bool:
    """True if the owner has frozen the computer, as the whole answer tells."""
    told = {"by": "owner", **({"reason": reason} if reason else {})}
    return answer["error"]["code"] == 423 and told.items() <= answer["error"]["details"].items()


def frozen_calls(answers: list[dict[str, Any]], reason: str) -> bool:
    marks = {"a2c_cancelled": True, "a2c_cancel_reason": "frozen"}
    return all(
        (answer["code"], answer["_meta"], answer["details"].get("reason", "")) == (499, marks, reason)
        for answer in answers
    )


# What runs


@pytest.mark.covers("computer-cancel")
async def test_every_call_that_runs_is_cancelled_at_its_tool_and_says_why(noting: Noting, agent: Peer) -> None:
    calls = [call(agent, f"{tool}-{number:02}", tool) for tool in ("one", "two") for number in range(30)]
    await until(lambda: len(noting.noted("begin")) == 60)
    noting.computer.owner.freeze("the agent has gone mad")
    answers = await asyncio.gather(*calls)
    assert frozen_calls(answers, "the agent has gone mad")
    assert {answer["details"]["outcome"] for answer in answers} == {"unknown"}
    await until(lambda: noting.noted("cancel") == noting.noted("begin"))
    assert isinstance(SMCPError.from_wire(answers[0]), CallFrozen)


async def test_nothing_of_a_server_that_obeys_no_cancel_is_told_until_the_release(noting: Noting, agent: Peer) -> None:
    await agent.request("client:subscribe_resource", "laptop", mcp_server="one", uri="note:quick")
    await agent.request("client:set_log_level", "laptop", mcp_server="one", level="debug")
    running = call(agent, "work", progress=True, questions=True)
    await until(lambda: noting.noted("begin"))
    noting.computer.owner.freeze()
    assert frozen_calls([await running], "")
    await until(lambda: "reply" in noting.notes)
    assert not [name for name, _ in await agent.heard_until_now() if name in TOLD]
    assert [*noting.approvals] == []
    noting.computer.owner.thaw()
    assert (await agent.hears("notify:tell_resource"))["uri"] == "note:quick"
    assert not [name for name, _ in await agent.heard_until_now() if name in TOLD and name != "notify:tell_resource"]


READS: dict[str, dict[str, Any]] = {
    "resource": {"event": "client:read_resource", "uri": "note:slow"},
    "prompt": {"event": "client:get_prompt", "name": "slow"},
    "completion": {
        "event": "client:complete",
        "ref": {"type": "ref/prompt", "name": "slow"},
        "argument": {"name": "a", "value": "slow"},
    },
}


@pytest.mark.parametrize("name", READS)
async def test_a_request_that_is_being_answered_ends_too(noting: Noting, agent: Peer, name: str) -> None:
    request = dict(READS[name])
    reading = asyncio.create_task(agent.request(request.pop("event"), "laptop", mcp_server="one", **request))
    await until(lambda: noting.noted("begin"))
    noting.computer.owner.freeze("enough")
    error = (await reading)["error"]
    assert (error["code"], error["details"]["reason"], error["details"]["by"]) == (499, "enough", "owner")
    await until(lambda: noting.noted("cancel") == [name])


async def test_what_waits_never_starts(host: Host, agent: Peer, tmp_path: Path) -> None:
    noting = Noting(tmp_path, calls_at_once=1)
    noting.computer.add_server(naughty("hangs_at_initialize", name="late", **RUNS))

    @noting.computer.tool
    def asks() -> None:
        (tmp_path / "one").write_text("begin asks")

    await host(noting.computer, "one", "two")
    queued = [call(agent, f"queued-{number}") for number in range(5)]
    await until(lambda: noting.noted("begin"))
    queued += [call(agent, "approval", "asks", params={}), call(agent, "starting", "echo")]
    await until(lambda: [*noting.approvals])
    await agent.heard_until_now()
    noting.computer.owner.freeze()
    answers = await asyncio.gather(*queued)
    assert frozen_calls(answers, "")
    assert sorted(answer["details"]["outcome"] for answer in answers) == ["not_run"] * 6 + ["unknown"]
    assert [*noting.approvals] == []
    await until(lambda: noting.noted("cancel"))
    noting.computer.owner.thaw()
    assert text_of(await agent.call_tool("laptop", "two")) == "did nothing"
    assert len(noting.noted("begin")) == 1


async def test_calls_that_arrive_in_the_turn_of_the_freeze_do_not_run(agent: Peer) -> None:
    worker = Worker()
    async with worker.computer as computer:
        before = asyncio.create_task(computer.execute_tool(OWNER, "before", "work", {}, 9))
        duplicate = asyncio.create_task(computer.execute_tool(OWNER, "before", "work", {}, 9))
        after = asyncio.create_task(computer.execute_tool(OWNER, "after", "work", {}, 9))
        await asyncio.sleep(0)  # all three have arrived, and no tool has begun
        computer.owner.freeze()
        assert frozen_calls([await before, await duplicate, await after], "")
        assert is_refused(await computer.execute_tool(OWNER, "later", "work", {}, 9))
        computer.owner.thaw()
        assert worker.runs == {}


async def test_a_tool_that_swallows_its_cancel_gives_no_result(agent: Peer) -> None:
    computer, begun = Computer("laptop"), asyncio.Event()

    @computer.tool(auto_apply=True)
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "a secret plan"
        return ""

    async with computer:
        running = asyncio.create_task(computer.execute_tool(OWNER, "r1", "stubborn", {}, 60))
        await begun.wait()
        computer.owner.freeze()
        assert frozen_calls([await running], "")


@pytest.mark.covers("questions-result")
async def test_rounds_of_questions_end_and_are_not_gone_on_with(start: Start, agent: Peer) -> None:
    asking = await start()
    told = begin(agent, "book", questions=True, req_id="c1")
    question = await asked(agent, "Which city?")
    asking.computer.owner.freeze()
    assert frozen_calls([await told], "")
    assert (await agent.hears("notify:tell_question_ended"))["question_id"] == question["question_id"]
    asking.computer.owner.thaw()
    parked = await ask(agent, req_id="c2")
    asking.computer.owner.freeze()
    asking.computer.owner.thaw()
    late = await ask(agent, before=parked, content={"city": "PEK"}, req_id="c3")
    assert (late["code"], late["details"]["outcome"]) == (410, "not_run")
    assert (await answer(agent, question, city="PEK"))["code"] == 410
    await until(lambda: asking.notes == ["book", "cancelled"] * 2)


@pytest.mark.covers("approval-by-client")
async def test_an_approval_at_the_client_ends(guard: Guard, agent: Peer) -> None:
    guarded = await guard()
    asking = {"params": {"path": "/tmp/a"}, "questions": "result"}
    put = await agent.call_tool("laptop", "wipe", **asking)
    guarded.computer.owner.freeze()
    guarded.computer.owner.thaw()
    late = await ask(agent, "wipe", put, params={"path": "/tmp/a"}, content={"approve": "yes"})
    assert (late["code"], guarded.runs) == (410, [])


# What comes

SHARED = {"mcp_server": "one"}
REQUESTS: dict[str, dict[str, Any]] = {
    "client:tool_call": {"tool_name": "one", "params": {}, "timeout": 9},
    "client:withdraw_call": {"call": "r1"},
    "client:sealed": {"kid": "k", "sealed": "c2VhbGVk", "timeout": 9},
    "client:get_device": {"nonce": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="},
    "client:get_tools": {},
    "client:get_config": {},
    "client:get_desktop": {},
    "client:answer_question": {"question_id": "0" * 32, "action": "decline"},
    "client:get_questions": {},
    "client:set_log_level": {"level": "debug"},
    "client:get_servers": {},
    "client:get_resources": SHARED,
    "client:get_resource_templates": SHARED,
    "client:subscribe_resource": {**SHARED, "uri": "note:quick"},
    "client:unsubscribe_resource": {**SHARED, "uri": "note:quick"},
    "client:get_prompts": {},
    "client:read_resource": {**SHARED, "uri": "note:quick"},
    "client:get_prompt": {**SHARED, "name": "other"},
    "client:complete": {
        **SHARED,
        "ref": {"type": "ref/prompt", "name": "slow"},
        "argument": {"name": "a", "value": "b"},
    },
    "client:get_skills": {},
    "client:get_skill": {"name": "any"},
    "client:get_blob": {"blob_handle": "0" * 32, "chunk_offset": 0},
    "client:put_blob": {"chunk_offset": 0, "chunk": "YQ==", "eof": True, "total_size": 1},
}


async def test_every_request_is_refused_and_passes_again_after_the_release(noting: Noting, agent: Peer) -> None:
    assert REQUESTS.keys() == {row.event for row in OPERATIONS}
    noting.computer.owner.freeze("lunch")
    for event, fields in REQUESTS.items():
        agents = {"office_id": agent.office} if event == "client:sealed" else {}
        answer = await agent.request(event, "laptop", **fields, **agents)
        assert is_refused(answer, "lunch"), (event, answer)
        if event == "client:tool_call":
            assert (answer["details"]["outcome"], answer["isError"]) == ("not_run", True)
            assert isinstance(SMCPError.from_wire(answer), Frozen)
    assert await agent.seat()  # the Server still lists who is there
    noting.computer.owner.thaw()
    for event, fields in REQUESTS.items():
        agents = {"office_id": agent.office} if event == "client:sealed" else {}
        assert (await agent.request(event, "laptop", **fields, **agents)).get("code") != 423, event


async def test_the_owner_calls_no_tool_either(noting: Noting) -> None:
    noting.computer.owner.freeze("mine")
    assert is_refused(await noting.computer.execute_tool(OWNER, "r1", "one", {}, 9), "mine")


async def test_an_agent_of_ours_gets_the_error_and_calls_again_after_the_release(
    noting: Noting, shared_hub: Any, office: str
) -> None:
    async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent:
        running = asyncio.create_task(agent.emit_tool_call("laptop", "one", {"name": "work"}, 60))
        await until(lambda: noting.noted("begin"))
        noting.computer.owner.freeze("stop")
        with pytest.raises(CallFrozen):
            await running
        with pytest.raises(Frozen) as refusal:
            await agent.emit_tool_call("laptop", "one", {}, 60)
        assert (refusal.value.details["reason"], refusal.value.outcome) == ("stop", "not_run")
        noting.computer.owner.thaw()
        assert (await agent.emit_tool_call("laptop", "one", {}, 60)).text == "did nothing"


# Calls that are sent again


@pytest.mark.covers("computer-dedup")
async def test_a_call_that_the_freeze_has_cancelled_never_runs_again(
    shared_hub: Any, office: str, agent: Peer, tmp_path: Path
) -> None:
    first = Noting(tmp_path)
    async with hosted(first.computer, shared_hub.url, office, tmp_path / "state"):
        await ready(first.computer, "one")
        running, joined = call(agent, "work"), call(agent, "work")
        await until(lambda: first.noted("begin"))
        first.computer.owner.freeze()
        assert frozen_calls([await running, await joined], "")
        assert await outcomes(agent, "work", "fresh") == ["unknown", "not_run"]
        first.computer.owner.thaw()
        assert frozen_calls([await call(agent, "work")], "")
        first.computer.owner.freeze()
    second = Noting(tmp_path)
    async with hosted(second.computer, shared_hub.url, office, tmp_path / "state"):
        await ready(second.computer, "one")
        assert await outcomes(agent, "work", "fresh") == ["unknown", "not_run"]
        second.computer.owner.thaw()
        gone = await call(agent, "work")
        assert (gone["code"], gone["details"]["outcome"]) == (410, "unknown")
    assert second.noted("begin") == ["work"]


async def outcomes(agent: Peer, *req_ids: str) -> list[str]:
    """What a frozen computer says of calls with these ids."""
    answers = [await call(agent, req_id) for req_id in req_ids]
    assert all(map(is_refused, answers))
    return [answer["details"]["outcome"] for answer in answers]


@pytest.mark.covers("computer-dedup", "computer-recovers")
async def test_a_call_that_is_sent_again_after_a_lost_line_meets_the_freeze(
    shared_hub: Any, agent: Peer, host: Host, tmp_path: Path
) -> None:
    noting, relay = Noting(tmp_path), Relay(shared_hub.url)
    async with relay.open() as url:
        said = await host(noting.computer, "one", url=url, reconnect=SOON)
        running = call(agent, "work")
        await until(lambda: noting.noted("begin"))
        relay.close()
        noting.computer.owner.freeze("offline")
        await until(lambda: noting.noted("cancel"))
        relay.reopen()
        await until(lambda: joins(said) == 2)
        answer = await running
        assert is_refused(answer, "offline")
        assert answer["details"]["outcome"] == "unknown"
        assert (await agent.hears("notify:update_state"))["frozen"] is True
        assert noting.noted("begin") == ["work"]


# What others see


@pytest.mark.covers("9-update_state")
async def test_the_office_is_told_of_each_change_and_again_at_each_join(
    shared_hub: Any, agent: Peer, host: Host
) -> None:
    worker, relay = Worker(), Relay(shared_hub.url)

    def told() -> list[bool]:
        return [data["frozen"] for name, data in agent.heard if name == "notify:update_state"]

    async with relay.open() as url:
        said = await host(worker.computer, url=url, reconnect=SOON)
        worker.computer.owner.freeze()
        notice = await agent.hears("notify:update_state")
        assert notice == {"computer": "laptop", "frozen": True, "office_id": agent.office}
        relay.cut()
        await until(lambda: joins(said) == 2)
        await until(lambda: told() == [True, True])
        worker.computer.owner.thaw()
        await until(lambda: told() == [True, True, False])
        relay.cut()
        await until(lambda: joins(said) == 3)
        assert (await agent.call_tool("laptop", "work", params={"seconds": 0}))["isError"] is False
        assert told() == [True, True, False]


def test_the_gauge_and_the_audit_say_who_has_stopped_it_and_why(tmp_path: Path) -> None:
    computer = Computer("laptop")
    counted = ComputerMetrics(computer)
    with recorded(computer, tmp_path / "audit"):
        assert counted.metrics.value("a2c_computer_frozen") == 0
        computer.mask.add(["hunter2hunter2"])
        computer.owner.freeze("it reads hunter2hunter2", "console")
        assert counted.metrics.value("a2c_computer_frozen") == 1
        computer.owner.thaw("prompt")
        computer.owner.thaw("prompt")
        assert counted.metrics.value("a2c_computer_frozen") == 0
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    told = [{key: line.get(key) for key in ("event", "reason", "by", "where")} for line in lines if "where" in line]
    assert told == [
        {"event": "freeze", "reason": "it reads ***", "by": "owner", "where": "console"},
        {"event": "thaw", "reason": None, "by": "owner", "where": "prompt"},
    ]


# How long it lasts


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Computer]:
    async with Worker(state_folder=folder).computer as computer:
        yield computer


async def test_it_lasts_over_restarts_in_a_private_file(tmp_path: Path) -> None:
    async with started(tmp_path) as computer:
        computer.owner.freeze("  over\nnight \u202e")
        file = FreezeFile(tmp_path, "laptop").path
        assert (mode_of(file), mode_of(file.parent)) == (0o600, 0o700)
        assert json.loads(file.read_text())["is_frozen"] is True
    for _ in range(2):
        async with started(tmp_path) as computer:
            frozen = computer.owner.frozen
            assert frozen
            assert (frozen.reason, frozen.where) == ("over night \\u202e", "program")
            assert is_refused(await computer.execute_tool(OWNER, "r1", "work", {}, 9), "over night \\u202e")
    async with started(tmp_path) as computer:
        computer.owner.thaw()
    async with started(tmp_path) as computer:
        assert computer.owner.frozen is None


async def test_fields_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    told = {"is_frozen": True, "reason": "", "where": "command", "since": 1.0, "newer": 1}
    FreezeFile(tmp_path, "laptop").path.write_text(json.dumps(told))
    async with started(tmp_path) as computer:
        assert computer.owner.frozen
        assert computer.owner.frozen.where == "command"


async def test_one_that_was_frozen_before_it_was_started_is_frozen(tmp_path: Path) -> None:
    FreezeFile(tmp_path, "laptop").write(FreezeState(where="command"))
    worker = Worker(state_folder=tmp_path)
    worker.computer.owner.freeze("early")
    async with worker.computer:
        pass
    async with started(tmp_path) as computer:
        assert computer.owner.frozen


NOT_READ = [
    "",
    "{",
    "[]",
    "{}",
    '{"is_frozen": false}',
    "\x00" * 4096,
    '{"is_frozen": 0, "reason": "", "where": "", "since": 1.0}',
]
NOT_READ += [
    '{"is_frozen": false, "reason": "", "where": "", "since": -1e300}',
    '{"is_frozen": false, "reason": "", "where": "", "since": 1e300}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", NOT_READ, ids=range(len(NOT_READ)))
async def test_a_file_that_cannot_be_read_freezes_until_a_person_releases_it(tmp_path: Path, text: str) -> None:
    file = FreezeFile(tmp_path, "laptop")
    file.path.write_text(text)
    async with started(tmp_path) as computer:
        assert computer.owner.frozen
        computer.owner.thaw()
        assert computer.owner.frozen is None
        file.path.write_text(text)
        await until(lambda: computer.owner.frozen)
        file.write(FreezeState(where="command"))
        await until(lambda: not computer.owner.frozen)


async def test_a_file_that_others_may_change_freezes(tmp_path: Path) -> None:
    file = FreezeFile(tmp_path, "laptop")
    file.write(FreezeState())
    file.path.chmod(0o666)
    async with started(tmp_path) as computer:
        assert computer.owner.frozen
        computer.owner.thaw()
    assert mode_of(file.path) == 0o600


async def test_another_process_freezes_and_releases_a_running_computer(tmp_path: Path) -> None:
    async with started(tmp_path) as computer:
        file = FreezeFile(tmp_path, "laptop")
        running = asyncio.create_task(computer.execute_tool(OWNER, "r1", "work", {}, 60))
        file.write(FreezeState(True, "from afar", "command"))
        assert frozen_calls([await running], "from afar")
        assert str(computer.owner.frozen).endswith("(command): from afar")
        file.write(FreezeState(where="command"))
        await until(lambda: not computer.owner.frozen)


async def test_removing_the_file_releases_nothing_that_runs(tmp_path: Path) -> None:
    async with started(tmp_path) as computer:
        file = FreezeFile(tmp_path, "laptop")
        computer.owner.freeze("stays")
        file.path.unlink()
        await until(file.path.exists)
        assert computer.owner.frozen
    async with started(tmp_path) as computer:
        assert computer.owner.frozen
    file.path.unlink()
    async with started(tmp_path) as computer:
        assert computer.owner.frozen is None


async def test_a_freeze_counts_although_it_cannot_be_kept_and_a_release_does_not(tmp_path: Path) -> None:
    async with started(tmp_path) as computer:
        folder = FreezeFile(tmp_path, "laptop").path.parent
        away = folder.rename(tmp_path / "away")
        folder.write_text("no folder")
        computer.owner.freeze()
        assert computer.owner.frozen
        with pytest.raises(ConfigError):
            computer.owner.thaw()
        assert computer.owner.frozen
        folder.unlink()
        away.rename(folder)
        await until(lambda: FreezeFile(tmp_path, "laptop").read().is_frozen)
        computer.owner.thaw()
        assert computer.owner.frozen is None


async def test_the_last_of_several_words_counts(tmp_path: Path) -> None:
    async with started(tmp_path) as computer:
        file = FreezeFile(tmp_path, "laptop")
        for number in range(10):
            computer.owner.freeze(f"here {number}")
            file.write(FreezeState(where="command"))
            computer.owner.thaw()
            file.write(FreezeState(True, f"there {number}", "command"))
        await until(lambda: computer.owner.frozen and computer.owner.frozen.reason == "there 9")
        computer.owner.freeze("again")
        assert computer.owner.frozen
        assert computer.owner.frozen.reason == "again"
        computer.owner.thaw()
    assert not FreezeFile(tmp_path, "laptop").read().is_frozen


# From the command line

FREEZE, THAW = FreezeState(True, "why", "command"), FreezeState(where="command")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "a2c-smcp"


@pytest.mark.parametrize("name", [None, "laptop"])
async def test_the_command_reaches_a_computer_that_runs_and_one_that_starts_later(
    state: Path, name: str | None
) -> None:
    async with started(state) as computer:
        assert set_freeze(name, FREEZE) == ["laptop"]
        await until(lambda: computer.owner.frozen)
    assert set_freeze(name, FREEZE) == ["laptop"]
    async with started(state) as computer:
        assert computer.owner.frozen
        assert set_freeze(name, THAW) == ["laptop"]
        await until(lambda: not computer.owner.frozen)
    assert set_freeze(name, THAW) == []


def test_without_a_name_it_freezes_all_and_releases_one(state: Path) -> None:
    (this_machine,) = set_freeze(None, FREEZE)
    assert this_machine == platform.node()
    set_freeze("a", FREEZE)
    set_freeze("b", FREEZE)
    names = sorted(["a", "b", this_machine])
    assert set_freeze(None, FREEZE) == names
    with pytest.raises(WrongUse):
        set_freeze(None, THAW)
    assert set_freeze("b", THAW) == ["b"]
    FreezeFile(state, "a").path.write_text("nonsense")
    assert set_freeze(this_machine, THAW) == [this_machine]
    assert set_freeze(None, THAW) == ["a"]
    assert set_freeze(None, THAW) == []


def test_one_whose_file_cannot_be_used_stops_none_of_the_others(state: Path) -> None:
    broken = FreezeFile(state, "broken").path
    (broken / "folder").mkdir(parents=True)
    broken.with_name("bad.name").write_bytes(b"\xff")
    set_freeze("laptop", THAW)
    with pytest.raises(Failed, match="broken"):
        set_freeze(None, FREEZE)
    assert FreezeFile(state, "laptop").read().is_frozen


def test_a_reason_is_one_line_that_shows_all_of_it(state: Path) -> None:
    set_freeze("laptop", FreezeState(True, "a\n b\x1b[2J" + "x" * 5000, "command"))
    reason = FreezeFile(state, "laptop").read().reason
    assert (reason[:14], len(reason)) == ("a b\\u001b[2Jxx", 200)


async def test_a_folder_that_cannot_be_looked_into_means_frozen(tmp_path: Path) -> None:
    (tmp_path / "freezes").touch()
    async with started(tmp_path) as computer:
        assert computer.owner.frozen
        computer.owner.thaw()
        assert not computer.owner.frozen


def test_a_state_folder_that_cannot_be_used_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(Failed):
        set_freeze("laptop", FREEZE)
