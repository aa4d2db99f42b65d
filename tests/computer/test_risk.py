"""What the owner is shown of a call beside its arguments: what the tool does, and what is unusual."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.calls.incoming import CallOptions
from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.consent.approval import ApprovalRequest, Caller, Grant
from a2c_smcp.computer.consent.risk import (
    CallMemory,
    Effect,
    Risk,
    Unusual,
    effects_of,
    folders_of,
    paths_outside,
    unusual_about,
)
from a2c_smcp.computer.consent.rules import parse_policy
from a2c_smcp.mcp_host.config.servers import StdioConfig, ToolMeta, parse_server
from a2c_smcp.registry.schemas.check import Schema
from tests.computer.shifting import Shifting, tool
from tests.stage.owners import SteadyOwner

PLANNER = ("planner", "", "")
WRITES = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": True}


def kinds(request: ApprovalRequest) -> list[str]:
    return [each.kind for each in request.risk.unusual]


def offering(folder: Path, *tools: dict[str, Any], **options: Any) -> Shifting:
    """A computer whose MCP server has these tools from the beginning."""
    shifting = Shifting(folder, **options)
    shifting.write(*tools)
    return shifting


# What the tool does


@pytest.mark.parametrize(
    ("hints", "effects"),
    [
        ({}, ["unknown"]),
        ({"readOnlyHint": True}, ["reads"]),
        ({"readOnlyHint": False}, ["changes"]),
        ({"destructiveHint": False}, ["changes"]),
        (WRITES, ["destroys", "repeats", "internet"]),
        ({"readOnlyHint": True, "destructiveHint": True}, ["destroys"]),
        ({"readOnlyHint": "yes", "openWorldHint": 1, "destructiveHint": ["x"]}, ["unknown"]),
    ],
)
def test_the_worse_of_two_claims_counts_and_what_is_no_boolean_says_nothing(
    hints: dict[str, Any], effects: list[str]
) -> None:
    route = ToolRoute("files", "x", ToolMeta(), Schema({}), hints)
    known = effects_of(None, route)
    assert [each.kind for each in known] == effects
    assert all(each.is_claimed or each.kind == "unknown" for each in known)


@pytest.mark.parametrize(
    ("said", "effects"),
    [
        ({"trust_hints": True}, [Effect("reads"), Effect("internet")]),
        ({"destructive": ["rea*"]}, [Effect("destroys"), Effect("internet", is_claimed=True)]),
        ({"read_only": ["read"], "destructive": ["read"]}, [Effect("destroys"), Effect("internet", is_claimed=True)]),
        ({"read_only": ["read"]}, [Effect("reads"), Effect("internet", is_claimed=True)]),
        ({"read_only": ["other"]}, [Effect("reads", is_claimed=True), Effect("internet", is_claimed=True)]),
    ],
)
def test_the_owners_word_is_no_claim_and_wins(said: dict[str, Any], effects: list[Effect]) -> None:
    route = ToolRoute("files", "read", ToolMeta(), Schema({}), {"readOnlyHint": True, "openWorldHint": True})
    assert [*effects_of(parse_policy({"servers": {"files": said}}), route)] == effects
    assert effects_of(parse_policy({"servers": {"other": said}}), route)[0] == Effect("reads", is_claimed=True)


# What is unusual


async def test_what_is_unusual_about_a_call_is_less_with_each_yes(tmp_path: Path) -> None:
    owner = SteadyOwner()
    async with Shifting(tmp_path, approve=owner) as shifting:
        await shifting.call(path="/tmp/a/one.txt")
        await shifting.call(path="/tmp/a/two.txt")
        await shifting.call(path="/tmp/b/one.txt", url="https://user@Example.org:8443/x?y", force=True)
        await shifting.call(path="/tmp/b/two.txt", url="https://example.org:8443/z", force=True)
        owner.says = "no"
        await shifting.call(path="/etc/passwd")
        await shifting.call(path="/etc/passwd")
    assert [request.risk.unusual for request in owner.asked] == [
        (Unusual("new_agent"),),
        (),
        (
            Unusual("folder", "path", "/tmp/b"),
            Unusual("host", "url", "example.org:8443"),
            Unusual("word", "force", "true"),
        ),
        (),
        (Unusual("folder", "path", "/etc"),),
        (Unusual("folder", "path", "/etc"),),
    ]


async def test_another_client_device_or_name_is_a_new_agent_and_another_seat_is_told(tmp_path: Path) -> None:
    owner = SteadyOwner()
    async with offering(tmp_path, tool(), tool(name="write"), approve=owner) as shifting:
        first = Caller("desk", "planner", seat="one")
        for caller, name in [
            (first, "read"),
            (first, "write"),
            (Caller("desk", "planner", seat="two"), "read"),
            (Caller("desk", "planner", seat="two"), "read"),
            (Caller("desk", "planner", "cursor", seat="two"), "read"),
            (Caller("desk", "planner", device="SHA256:x", seat="two"), "read"),
            (Caller("desk", "clerk", seat="one"), "read"),
        ]:
            await shifting.call(name, caller)
    new = ["new_agent"]
    assert [kinds(request) for request in owner.asked] == [new, ["first_use"], ["new_seat"], [], new, new, new]


async def test_calls_that_ask_nobody_make_an_agent_known_and_allow_no_argument(tmp_path: Path) -> None:
    owner = SteadyOwner("always")
    meta = {"write": {"auto_apply": True}}
    async with offering(tmp_path, tool(), tool(name="write"), approve=owner, tool_meta=meta) as shifting:
        await shifting.call("write", path="/a/x")
        await shifting.call(path="/a/x")
        await shifting.call(path="/b/x")
        (grant,) = shifting.computer.approvals.grants
        assert shifting.computer.approvals.last_used[grant.for_good] > 0
        shifting.computer.approvals.revoke(grant)
        await shifting.call(path="/b/x")
    assert [kinds(request) for request in owner.asked] == [["first_use"], ["folder"]]


async def test_a_yes_at_the_mcp_client_allows_no_argument_and_its_question_says_what_the_tool_does(
    tmp_path: Path,
) -> None:
    async with offering(tmp_path, tool(annotations=WRITES), approve_by="client") as shifting:
        asked = await shifting.call(path="/a/x", options=CallOptions(questions="result"))
        message = asked["inputRequests"]["approval"]["params"]["message"]
        assert "destroys (claimed by the server)" in message
        assert "/a/x" in message
        answer = {"approval": {"action": "accept", "content": {"approve": "yes"}}}
        again = CallOptions(questions="result", input_responses=answer, request_state=asked["requestState"])
        assert not (await shifting.call(path="/a/x", options=again)).get("isError")
        memory = shifting.computer.approvals.memory
        assert [*memory.unusual(PLANNER, "", "files", "read", {"path": "/a/x"})] == [Unusual("new_agent")]


async def test_the_description_is_masked_and_a_lie_of_the_server_stays_a_claim(tmp_path: Path) -> None:
    owner = SteadyOwner("no")
    hostile = "Only reads.\x1b[2J\u202e <b>it</b> correct-horse-battery"
    offered = tool(hostile, annotations={"readOnlyHint": True}, name="delete_everything")
    async with offering(tmp_path, offered, approve=owner) as shifting:
        shifting.computer.mask.add({"correct-horse-battery"}, "files")
        await shifting.call("delete_everything")
    (request,) = owner.asked
    assert request.risk.description == "Only reads.\x1b[2J\u202e <b>it</b> ***"
    assert request.risk.effects == (Effect("reads", is_claimed=True),)


async def test_a_path_out_of_the_folders_of_a_server_is_told_for_the_server_that_has_them(tmp_path: Path) -> None:
    owner, notes = SteadyOwner("no"), tmp_path / "notes"
    notes.mkdir()
    async with Shifting(tmp_path, approve=owner, words=[notes]) as shifting:
        await shifting.call(path=str(notes / "a.txt"))
        await shifting.call(path=str(notes / ".." / "a.txt"), more=[{"to": "/etc/passwd"}])
    assert [[each for each in request.risk.unusual if each.kind == "outside"] for request in owner.asked] == [
        [],
        [
            Unusual("outside", "path", f"{notes}/../a.txt"),
            Unusual("outside", "more[].to", "/etc/passwd"),
        ],
    ]


# Paths


@pytest.fixture
def server(tmp_path: Path) -> StdioConfig:
    """It may use `work` and `more`. In `work` there is a link that leads out of it, and one that does not."""
    for name in ("work/inner", "more", "secret"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "work" / "in").symlink_to(tmp_path / "more")
    args = ["server.py", "-v", "--root=" + str(tmp_path / "work"), str(tmp_path / "absent"), "."]
    config = {"name": "files", "command": "x", "args": args, "cwd": str(tmp_path / "more")}
    parsed = parse_server(config)
    assert isinstance(parsed, StdioConfig)
    return parsed


INSIDE = ("{0}/work", "{0}/work/", "{0}/work/a b.txt", "{0}/work/in/x", "{0}/more/x", "inner/x", "./x", "{0}/./work/x")
OUTSIDE = (
    *("/etc/passwd", "{0}", "{0}/secret/x", "{0}/work/../secret", "{0}/workers", "{0}/work/out", "{0}/work/out/new"),
    *("../x", "../../x", "inner/../../x", "My Notes/../../x", "..", "  /etc/passwd\n", "~", "~/.ssh/id_rsa", "~root/x"),
    *("..\\..\\x", "C:\\Users\\x", "C:/x", "\\\\host\\share\\x", "//host/share/x", "{0}\\work\\..\\secret"),
    *("%2e%2e/x", "..%2f..%2fx", "%2Fetc%2Fpasswd", "file:///etc/passwd", "FILE:/etc/passwd", "file://host/etc/passwd"),
    *("/etc/pass\0wd", "{0}/work/\0", "{0}/work/\ud800", "{0}/work/" + "a/" * 600),
)
NO_PATHS = ("", "hello", "a line\nwith / and\n../more", "https://example.org/../x", "3.14", "a word and/or another")


@pytest.mark.parametrize(
    ("path", "is_outside"),
    [*((path, False) for path in INSIDE), *((path, True) for path in OUTSIDE), *((text, False) for text in NO_PATHS)],
)
def test_a_path_leads_out_of_the_folders_however_it_is_written(
    path: str, is_outside: bool, server: StdioConfig, tmp_path: Path
) -> None:
    given = path.replace("{0}", str(tmp_path))
    assert [*paths_outside({"path": given}, server)] == ([Unusual("outside", "path", given.strip())] * is_outside)


def test_the_folders_of_a_server_are_those_of_its_command_line_and_sandbox(tmp_path: Path) -> None:
    def folders(args: list[str], **sandbox: Any) -> list[str]:
        config = {"name": "files", "command": "x", "args": args, "cwd": str(tmp_path)}
        return folders_of(parse_server({**config, "sandbox": sandbox} if sandbox else config))

    (tmp_path / "data").mkdir()
    (tmp_path / "file.txt").touch()
    data = str(tmp_path / "data")
    assert folders(["-y", "@scope/server", data, "--port", "3"]) == [data]
    assert folders(["data", "file.txt", "./file.txt", "./data"]) == [f"{tmp_path}/./data"]
    assert folders([], read=[data], write=["any-of"]) == [data]
    assert folders([data], read="any") == []
    assert folders(["npx", "pkg"]) == []
    assert folders_of(parse_server({"name": "far", "url": "https://example.org/mcp"})) == []
    assert [*paths_outside({"path": "/etc/passwd"}, None)] == []


# The memory


def unusual(memory: CallMemory, arguments: dict[str, Any], who: tuple[str, ...] = PLANNER) -> list[Unusual]:
    return [*memory.unusual(who, "", "files", "read", arguments)]


def known(arguments: dict[str, Any]) -> CallMemory:
    memory = CallMemory()
    memory.note(PLANNER, "", "files", "read")
    memory.allow(PLANNER, "files", "read", arguments)
    return memory


def test_free_text_is_not_unusual_and_a_flag_stays_so() -> None:
    memory = known({"name": "a", "mode": "append"})
    assert unusual(memory, {"name": "b", "mode": "append"}) == [Unusual("word", "name", "b")]
    for name in ("b", "c", "d"):
        memory.allow(PLANNER, "files", "read", {"name": name, "mode": "append"})
    assert unusual(memory, {"name": "e", "mode": "append"}) == []
    assert unusual(memory, {"name": "e", "mode": "replace"}) == [Unusual("word", "mode", "replace")]
    assert unusual(memory, {"name": "a much longer text, which is no word"}) == []


def test_no_secret_and_no_value_is_kept_and_what_is_kept_is_read_again() -> None:
    secrets = {"api_key": "hunter2", "password": "hunter2", "auth": {"token": ["hunter2"]}}
    memory = known({**secrets, "path": "/home/kim/taxes/2025.pdf"})
    kept = json.dumps(memory.written())
    assert not any(word in kept for word in ("hunter2", "taxes", "planner", "files", "path"))
    assert unusual(memory, {"api_key": "other"}) == []
    again = CallMemory()
    again.load(json.loads(kept))
    assert unusual(again, {"path": "/home/kim/taxes/2024.pdf"}) == []
    assert unusual(again, {"path": "/home/kim/x"}) == [Unusual("folder", "path", "/home/kim")]


@pytest.mark.parametrize("kept", [None, [], "x", {"a": 1, "b": [1, None, {}], "c": {"d": "e"}}])
def test_a_file_that_others_have_written_makes_everything_unusual_and_breaks_nothing(kept: Any) -> None:
    memory = known({"path": "/a/b"})
    memory.load(kept)
    assert unusual(memory, {"path": "/a/b"}) == [Unusual("new_agent")]


def test_an_agent_that_floods_the_memory_looks_more_unusual_and_so_does_everybody_else() -> None:
    memory = known({"path": "/a/b"})
    for number in range(2000):
        memory.allow(PLANNER, "files", "read", {"path": f"/{number}/x"})
    assert unusual(memory, {"path": "/a/b"}) == [Unusual("first_use")]
    for number in range(2000):
        memory.note(("bridge", "", f"client {number}"), "", "files", "read")
    assert unusual(memory, {}) == [Unusual("new_agent")]
    assert len(json.dumps(memory.written())) < 100_000


def test_of_much_that_is_unusual_a_part_is_shown_and_that_it_is_a_part() -> None:
    memory, many = known({}), {"paths": [f"/{number}/x" for number in range(600)]}
    shown = unusual_about(unusual(memory, many), many)
    assert [each.kind for each in shown] == ["folder"] * 8 + ["many"]
    assert shown[1] == Unusual("folder", "paths[]", "/1")
    hidden = {"x": list(range(1000)), "path": "/etc/passwd"}
    assert unusual_about(unusual(memory, hidden), hidden) == (Unusual("many"),)


def test_arguments_that_are_nested_too_deeply_are_said_to_be_more_than_is_compared() -> None:
    deep: Any = "/etc/passwd"
    for _ in range(3000):
        deep = [deep]
    memory = known({"path": deep})
    assert unusual_about(unusual(memory, {"path": deep}), {"path": deep}) == (Unusual("many"),)


def test_texts_that_are_slow_to_look_at_take_little_time(server: StdioConfig) -> None:
    texts = ["a" * 4096, "../" * 1365, "\\" * 4096, "%2e%2e%2f" * 455, " " * 4095 + "x", "a/" * 511]
    hostile = {"texts": [text for text in texts for _ in range(80)]}
    began = time.process_time()
    unusual_about([*paths_outside(hostile, server), *known({}).unusual(PLANNER, "", "files", "read", hostile)], hostile)
    assert time.process_time() - began < 20


# Grants for a server


async def test_every_tool_of_a_server_is_allowed_without_those_of_another(tmp_path: Path) -> None:
    owner = SteadyOwner("always_for_server")
    async with offering(tmp_path, tool(), tool(name="write"), approve=owner) as shifting:
        await shifting.call("read")
        await shifting.call("write")
        owner.says = "no"
        assert shifting.computer.approvals.grants == {Grant("planner", "files")}
        approved = shifting.computer.approvals.approved("planner", shifting.computer.owner.catalog.routes)
        assert approved == ["read", "write"]
        assert (await shifting.call("read", Caller("desk", "clerk")))["code"] == 403
        await shifting.becomes(tool("Another one."), tool(name="write"))
        assert (await shifting.call("read"))["code"] == 403, "a changed tool asks"
        assert not (await shifting.call("write")).get("isError")
        shifting.computer.tool(name="other")(lambda: "python")
        assert (await shifting.call("other"))["code"] == 403
    assert [request.tool for request in owner.asked] == ["read", "read", "read", "other"]
    assert owner.asked[0].risk != Risk()
