"""Audit files of real programs: what each records, before its answers leave, and what `a2c-smcp audit` says of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.audit.file import AuditFile
from a2c_smcp.audit.reading import EntryFilter, entries, verify
from tests.computer.shifting import tool
from tests.computer.supervised import SERVERS
from tests.peer import Peer
from tests.stage.calls import Gate, both, running_call
from tests.stage.place import Place, good
from tests.stage.program import Program, meets
from tests.stage.questions import accepted, answer, asked
from tests.waiting import until

__all__ = ["meets"]

KEY = "canary-key-0123456789abcdef"
TOKEN = "canary-token-0123456789"
AUDITED = ("server", "--port", "0", "--api-key", KEY, "--audit")
POLICY = {
    "rules": [
        {"name": "never", "tools": ["fail"], "then": "deny"},
        {"name": "careful", "tools": ["read"], "then": "ask"},
        {"name": "usual", "then": "allow"},
    ]
}


class Office:
    """A Server and a computer, each with an audit file, and an agent."""

    def __init__(self, place: Place, stack: AsyncExitStack) -> None:
        self.place, self._stack = place, stack
        self.files = {role: place.folder / f"{role}.jsonl" for role in ("server", "computer")}
        self.programs: dict[str, Program] = {}
        self.agent: Peer

    async def start(self, *options: str) -> None:
        server = self.programs["server"] = await self.place.start(*AUDITED, "server.jsonl")
        url = await server.listens()
        where = ("--url", url, "--office", "desk", "--name", "laptop", "--api-key", KEY, "--config", "mcp.json")
        words = ("computer", *where, "--no-input", "--audit", "computer.jsonl", *options)
        self.programs["computer"] = await self.place.start(*words)
        await self.programs["computer"].says("joined ")
        self.agent = await Peer.connect(url, auth={"token": KEY})
        self._stack.push_async_callback(self.agent.client.disconnect)
        await self.agent.join("agent", "planner", "desk")

    def lines(self, role: str, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.files[role].read_text("utf-8").splitlines()]
        return [line for line in found if line["event"] == event]

    def asked_for(self, role: str) -> set[str]:
        """The requests of which a file has a line."""
        return {line["req_id"] for line in self.lines(role, "call")}


@pytest.fixture
async def desk(place: Place) -> AsyncIterator[Office]:
    async with AsyncExitStack() as stack:
        yield Office(place, stack)


def python(script: str, *arguments: Path, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SERVERS / script), *map(str, arguments)], **more}


async def test_a_computer_records_everything_that_it_is_asked_once(desk: Office) -> None:
    tools = desk.place.folder / "tools.json"
    tools.write_text(json.dumps([tool()]), "utf-8")
    desk.place.write(
        {
            "good": good(),
            "asking": python("older_asking.py", desk.place.folder / "notes"),
            "files": python("shifting.py", tools, env={"API_TOKEN": TOKEN}),
        }
    )
    (desk.place.folder / "policy.json").write_text(json.dumps(POLICY), "utf-8")
    await desk.start("--policy", "policy.json", "--approve-by", "client", "--audit-arguments")
    agent = desk.agent

    assert not (await agent.call_tool("laptop", "add", params={"a": 1, "b": 2}, req_id="r1"))["isError"]
    assert (await agent.call_tool("laptop", "fail", req_id="r2"))["code"] == 403
    call = asyncio.create_task(
        agent.call_tool("laptop", "read", params={"text": TOKEN}, req_id="r3", questions=True, timeout=60)
    )
    assert accepted(await answer(agent, await asked(agent, "planner wants to run read"), approve="yes"))
    await call
    call = asyncio.create_task(agent.call_tool("laptop", "book", req_id="r4", questions=True, timeout=60))
    for begins, content in (("Which city?", {"city": "BER"}), ("How many seats", {"count": 2})):
        assert accepted(await answer(agent, await asked(agent, begins), **content))
    await call
    await agent.request("client:get_config", "laptop")
    tools.write_text(json.dumps([tool("Reads every file.")]), "utf-8")
    await agent.call_tool("laptop", "announce", req_id="r5")
    await until(lambda: desk.lines("computer", "tool changed"))
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r9"})
    await until(lambda: desk.lines("computer", "cancel"))
    await desk.agent.call_tool("laptop", "add", req_id="r6", timeout=0)
    desk.programs["computer"].signal(signal.SIGTERM)
    assert await desk.programs["computer"].ends() == 0

    calls = desk.lines("computer", "call")
    assert [(line["req_id"], line["tool"], line["outcome"]) for line in calls] == [
        ("r1", "add", "ok"),
        ("r2", "fail", "denied"),
        ("r3", "read", "ok"),
        ("r4", "book", "ok"),
        ("r5", "announce", "ok"),
    ]
    assert calls[0]["arguments"] == {"a": 1, "b": 2}
    assert {(line["office"], line["agent"]) for line in calls} == {("desk", "planner")}
    facts = {
        "approval asked": ("req_id", "tool", "of", "rule"),
        "approval": ("req_id", "tool", "outcome", "by"),
        "question asked": ("req_id", "tool", "of"),
        "question": ("req_id", "tool", "outcome", "by"),
        "tool changed": ("server", "tool", "fields"),
        "config read": ("office", "agent"),
        "cancel": ("office", "agent", "req_id"),
        "connection": ("office", "outcome"),
    }
    found = {
        event: [tuple(line.get(name) for name in names) for line in desk.lines("computer", event)]
        for event, names in facts.items()
    }
    assert found == {
        "approval asked": [("r3", "read", "client", "careful")],
        "approval": [("r3", "read", "yes", "client")],
        "question asked": [("r4", "book", "agent")] * 2,
        "question": [("r4", "book", "accept", "agent")] * 2,
        "tool changed": [("files", "read", ["description"])],
        "config read": [("desk", "planner")],
        "cancel": [("desk", "planner", "r9")],
        "connection": [("desk", "joined")],
    }
    policy = [(line["req_id"], line["outcome"], line["rule"]) for line in desk.lines("computer", "policy")]
    assert policy[:3] == [("r1", "allow", "usual"), ("r2", "deny", "never"), ("r3", "ask", "careful")]
    assert "canary" not in desk.files["computer"].read_text("utf-8")
    assert verify(desk.files["computer"])[0] == []
    assert desk.asked_for("server") == {"r1", "r2", "r3", "r4", "r5", "r6"}
    assert [line["req_id"] for line in desk.lines("server", "call")] == ["r1", "r2", "r3", "r4", "r5", "r6"]


async def test_a_computer_that_is_refused_records_it(place: Place) -> None:
    place.write({})
    url = await (await place.start(*AUDITED, "server.jsonl")).listens()
    where = ("--url", url, "--office", "desk", "--name", "laptop", "--config", "mcp.json", "--no-input")
    ended = await place.run("computer", *where, "--api-key", "canary-of-another-server", "--audit", "computer.jsonl")
    assert ended.code == 1
    found = {role: (place.folder / f"{role}.jsonl").read_text("utf-8") for role in ("server", "computer")}
    lines = [json.loads(line) for line in found["computer"].splitlines()]
    assert [(line["outcome"], line["code"]) for line in lines if line["event"] == "connection"] == [("refused", 401)]
    assert [json.loads(line)["event"] for line in found["server"].splitlines()] == ["audit opened", "refused"]
    assert "canary" not in found["server"] + found["computer"]


MANY = 300


async def answered_until_killed(desk: Office, role: str) -> set[str]:
    """Makes many calls at once, and kills a program when the first answer is seen. The calls that were answered."""
    seen: set[str] = set()
    is_seen = asyncio.Event()

    async def call(number: int) -> None:
        result = await desk.agent.call_tool("laptop", params={"a": number, "b": 1}, req_id=f"r{number}", timeout=20)
        if not result.get("isError"):
            seen.add(f"r{number}")
            is_seen.set()

    calls = [asyncio.create_task(call(number)) for number in range(MANY)]
    async with asyncio.timeout(60):
        await is_seen.wait()
    await desk.programs[role].kill()
    if role == "server":
        await until(lambda: not desk.agent.client.connected)
        for each in calls:
            each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    return seen


@pytest.mark.parametrize("role", ["server", "computer"])
async def test_the_line_of_a_call_is_there_before_its_answer_leaves_also_if_the_process_is_killed(
    desk: Office, role: str
) -> None:
    desk.place.write({"good": good()})
    await desk.start()
    seen = await answered_until_killed(desk, role)
    path = desk.files[role]
    assert seen
    assert seen <= desk.asked_for(role)
    assert verify(path)[0] == []


async def test_a_call_that_is_running_when_the_server_is_stopped_at_once_is_answered_and_recorded(
    place: Place, meets: Callable[..., Awaitable[Peer]]
) -> None:
    program = await place.start(*AUDITED, "audit.jsonl")
    program.url = await program.listens()
    agent, computer = await both(partial(meets, auth={"token": KEY}), program, "desk")
    never = Gate()
    call = await running_call(agent, computer, never, req_id="r1", timeout=60)
    program.signal(signal.SIGTERM)
    await program.says("stopping")
    program.signal(signal.SIGTERM)
    assert (await call)["code"] == 503
    never.open()
    await program.ends()
    (line,) = entries(place.folder / "audit.jsonl", EntryFilter({"event": "call"}))
    assert (line["req_id"], line["outcome"], line["ran"]) == ("r1", "unavailable", "unknown")
    assert verify(place.folder / "audit.jsonl")[0] == []


async def test_each_worker_writes_a_file_of_its_own_and_goes_on_with_it_when_it_is_started_again(place: Place) -> None:
    program = await place.start(*AUDITED, "audit.jsonl", "--workers", "2", "--node", "w")
    url, names = await program.listens(), [f"computer-{number}" for number in range(8)]
    async with AsyncExitStack() as stack:
        for name in names:
            peer = await Peer.connect(url, auth={"token": KEY})
            stack.push_async_callback(peer.client.disconnect)
            await peer.join("computer", name, "desk")
    files = [place.folder / f"audit-{number}.jsonl" for number in (1, 2)]
    os.kill(opened(files[0])[0], signal.SIGKILL)
    await program.says("was killed by SIGKILL")
    await until(lambda: len(opened(files[0])) == 2)
    program.signal(signal.SIGTERM)
    assert await program.ends() == 0
    assert sorted(place.folder.glob("audit*.jsonl")) == files
    assert [verify(path)[0] for path in files] == [[], []]
    joined = [line["name"] for path in files for line in entries(path, EntryFilter({"event": "joined"}))]
    assert sorted(joined) == names


def opened(path: Path) -> list[int]:
    """The processes that have opened a file."""
    return [line["pid"] for line in entries(path, EntryFilter({"event": "audit opened"}))]


def entry(event: str, **facts: Any) -> dict[str, Any]:
    return {"event": event, **facts}


ENTRIES = [
    entry("joined", office="desk", role="agent", name="planner", principal="ci"),
    entry("call", office="desk", agent="planner", computer="laptop", req_id="r1", tool="add", outcome="ok"),
    entry("call", office="desk", agent="planner", computer="laptop", req_id="r2", tool="rm", outcome="denied"),
    entry("call", office="lab", agent="\x1b[31mred", computer="laptop", req_id="r3", tool="add", outcome="ok"),
    entry("call", office="lab", agent="a", computer="laptop", req_id="r4", tool=None, sealed=True, outcome="answered"),
    entry("cancel", offices=["desk"], req_id="r1", principal="ci"),
]


@pytest.fixture
def audit(place: Place) -> Callable[[], AuditFile]:
    """An audit file with some entries, which is still open."""
    file = AuditFile(place.folder / "audit.jsonl")
    for each in ENTRIES:
        file.write(each)
        file.flush()
    return lambda: file


FILTERS: list[tuple[tuple[str, ...], list[str]]] = [
    (("--event", "call"), ["r1", "r2", "r3", "r4"]),
    (("--office", "desk"), ["", "r1", "r2", "r1"]),
    (("--agent", "planner"), ["", "r1", "r2"]),
    (("--computer", "laptop", "--tool", "add"), ["r1", "r3"]),
    (("--outcome", "denied"), ["r2"]),
    (("--principal", "ci"), ["", "r1"]),
    (("--req-id", "r1"), ["r1", "r1"]),
    (("--event", "call", "--since", "1h"), ["r1", "r2", "r3", "r4"]),
    (("--until", "1h"), []),
    (("--since", "2001-01-01", "--until", "2001-01-02T06:30"), []),
]


async def test_show_prints_what_is_asked_for(place: Place, audit: Callable[[], AuditFile]) -> None:
    for options, ids in FILTERS:
        shown = await place.run("audit", "show", "audit.jsonl", "--json", *options)
        found = [json.loads(line).get("req_id", "") for line in shown.out.splitlines()]
        assert (shown.code, found) == (0, ids), options
    table = (await place.run("audit", "show", "audit.jsonl")).out
    assert "\x1b" not in table
    assert "laptop/(sealed)" in table
    assert len(table.splitlines()) == len(ENTRIES) + 2
    audit().close()


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("show", "missing.jsonl"), 1, "missing.jsonl cannot be read: No such file"),
    (("follow", "missing.jsonl"), 1, "missing.jsonl cannot be read: No such file"),
    (("verify", "missing.jsonl"), 1, "missing.jsonl cannot be read: No such file"),
    (("show", "."), 2, "is a directory"),
    (("show", "audit.jsonl", "--since", "yesterday"), 2, "'yesterday' is no time"),
    (("show", "audit.jsonl", "--until", "2026-13-01"), 2, "'2026-13-01' is no time"),
    (("show", "audit.jsonl", "--since", "999999999d"), 2, "is no time"),
    (("show", "audit.jsonl", "--since", "0001-01-01T00:00+14:00"), 2, "is no time"),
    (("verify", "audit.jsonl", "--hash", "abc"), 2, "32 hexadecimal digits"),
    (("show",), 2, "Missing argument"),
]


@pytest.mark.parametrize(("words", "code", "says"), WRONG)
async def test_wrong_input_gets_a_clear_error(
    place: Place, audit: Callable[[], AuditFile], words: tuple[str, ...], code: int, says: str
) -> None:
    ended = await place.run("audit", *words)
    assert (ended.code, "Traceback" in ended.err) == (code, False), ended
    assert says in " ".join(ended.err.split())
    audit().close()


@pytest.mark.parametrize("word", ["show", "follow", "verify"])
async def test_the_file_of_workers_is_named_if_that_of_all_is_asked_for(place: Place, word: str) -> None:
    AuditFile(place.folder / "audit-1.jsonl").close()
    ended = await place.run("audit", word, "audit.jsonl")
    assert ended.code == 1
    assert "has written audit-1.jsonl" in " ".join(ended.err.split())


async def test_verify_says_whether_a_file_was_changed(place: Place, audit: Callable[[], AuditFile]) -> None:
    audit().close()
    path = place.folder / "audit.jsonl"
    well = await place.run("audit", "verify", "audit.jsonl", "--json")
    said = json.loads(well.out)
    assert (well.code, said["ok"], said["lines"]) == (0, True, len(ENTRIES) + 2)
    assert (await place.run("audit", "verify", "audit.jsonl", "--hash", said["hash"])).code == 0
    path.write_text(path.read_text("utf-8").replace("denied", "ok", 1), "utf-8")
    changed = await place.run("audit", "verify", "audit.jsonl")
    assert changed.code == 1
    assert "audit.jsonl:4: was changed" in changed.out
    (place.folder / "audit.jsonl.state").unlink()
    changed = await place.run("audit", "verify", "audit.jsonl", "--json")
    assert [each["file"] for each in json.loads(changed.out)["problems"]] == ["audit.jsonl.state", "audit.jsonl"]


async def test_follow_prints_entries_as_they_are_written(place: Place, audit: Callable[[], AuditFile]) -> None:
    program = await place.start("audit", "follow", "audit.jsonl", "--json", "--event", "call")
    file = audit()

    def follows() -> bool:
        file.write(entry("call", tool="first"))
        file.flush()
        return bool(program.out)

    await until(follows)
    file.write(entry("cancel", req_id="r8"))
    file.write(entry("call", req_id="r9", tool="last"))
    file.flush()
    assert json.loads(await program.says("r9"))["tool"] == "last"
    assert "r8" not in program.said
    program.signal(signal.SIGINT)
    assert await program.ends() == 1
    assert "Traceback" not in program.said
    file.close()
