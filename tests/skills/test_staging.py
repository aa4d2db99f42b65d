"""Skills of MCP servers: which resources are skills, the folders they are staged in, and what is bounded."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.server_skills import StagingLimits, check_staged_path, root_of, skills_in
from a2c_smcp.computer.content.skill import NotASkill
from a2c_smcp.computer.content.user_skills import Staging
from a2c_smcp.errors import NotPrivate, SkillNotFound
from tests.computer.hosted import ready
from tests.computer.supervised import quick
from tests.skills.offered import Home, Offer
from tests.waiting import until

SERVER = "skill srv!"
ASKING = Caller("desk", "planner")


def resource(uri: str, **meta: Any) -> dict[str, Any]:
    return {"uri": uri, "name": uri, "_meta": meta}


# Which resources are skills


def test_roots_are_marked_and_not_below_other_roots() -> None:
    found = skills_in(
        [
            resource("skill://h/a", source="resources", version=2),
            resource("skill://h/a/SKILL.md"),
            resource("skill://h/a/docs/x.md"),
            resource("skill://h/a/inner", source="resources"),
            resource("skill://h/a/inner/SKILL.md"),
            resource("skill://h/ab", source="mounted"),
            resource("skill://h/ab/SKILL.md"),
            resource("skill://h/plain/SKILL.md"),
            resource("skill://h", source="resources"),
            resource("skill://h/", source="resources"),
            resource("skill://h/odd", source=["resources"]),
            resource("file:///h/b", source="resources"),
            {"uri": "skill://h/none", "_meta": None},
            {"uri": 7},
            7,
            resource("skill://h/a", source="archive"),
        ]
    )
    assert found.keys() == {"skill://h/a", "skill://h/ab"}
    assert found["skill://h/a"].files == {
        "SKILL.md": "skill://h/a/SKILL.md",
        "docs/x.md": "skill://h/a/docs/x.md",
        "inner/SKILL.md": "skill://h/a/inner/SKILL.md",
    }
    assert (found["skill://h/a"].version, found["skill://h/a"].kind) == ("2", "resources")
    assert found["skill://h/ab"].kind == "mounted"
    assert root_of("skill://h/a", found) == root_of("skill://h/a/x/y", found) == "skill://h/a"
    assert root_of("skill://h/abc", found) is None


def test_thousands_of_hostile_uris_take_no_time() -> None:
    deep = "skill://h" + "/a" * 1000
    listed = [resource(f"{deep}{number}", source="resources") for number in range(2000)]
    listed += [resource(f"skill://h/{'/'.join('a' * 28)}/{number}", source="resources") for number in range(2000)]
    began = time.process_time()
    assert len(skills_in(listed)) == 2000
    assert time.process_time() - began < 5


@pytest.mark.parametrize("path", ["a", "a/b.md", "a b", "é.md", "a%2e%2e", "...", "a..b", "a/" * 15 + "a"])
def test_these_paths_are_staged(path: str) -> None:
    check_staged_path(path)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/a", "a//b", "a/", ".", "..", "a/../b", "a/.", "a\\b", "C:a", "a\0", "a\nb", "\u202ea", "\ud800"),
        *("x" * 256, "a/" * 16 + "a"),
    ],
)
def test_these_are_refused(path: str) -> None:
    with pytest.raises(NotASkill):
        check_staged_path(path)


# Folders


def test_a_second_user_of_the_folder_has_one_of_its_own(tmp_path: Path) -> None:
    first, second = Staging(tmp_path), Staging(tmp_path)
    for staging, text in ((first, b"first"), (second, b"second")):
        draft = staging.draft()
        draft.write("a/SKILL.md", text)
        staging.install(draft, staging.place_of("srv", "x"))
    assert first.place_of("srv", "x") == tmp_path / "mcp" / "srv" / "x"
    assert (first.place_of("srv", "x") / "a" / "SKILL.md").read_bytes() == b"first"
    assert (second.place_of("srv", "x") / "a" / "SKILL.md").read_bytes() == b"second"
    assert second.place_of("srv", "x").parents[2] == tmp_path
    modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in tmp_path.rglob("*")}
    assert modes == {0}
    second.close()
    assert [each.name for each in tmp_path.iterdir()] == ["mcp"]
    first.remove(first.place_of("srv", "x"))
    first.close()
    assert [each.name for each in (tmp_path / "mcp").iterdir()] == [".lock"]


def test_what_a_crash_left_is_removed_and_a_skill_is_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "mcp" / ".draft-1").mkdir(mode=0o700, parents=True)
    (tmp_path / "mcp" / "srv" / "x").mkdir(mode=0o700, parents=True)
    (tmp_path / "mcp" / "srv" / "x" / "old.md").write_text("old")
    for folder in (tmp_path, tmp_path / "mcp", tmp_path / "mcp" / "srv"):
        folder.chmod(0o700)
    staging = Staging(tmp_path)
    draft = staging.draft()
    draft.write("new.md", b"new")
    staging.install(draft, staging.place_of("srv", "x"))
    assert [each.name for each in (tmp_path / "mcp" / "srv" / "x").iterdir()] == ["new.md"]
    assert {each.name for each in (tmp_path / "mcp").iterdir()} == {".lock", "srv"}
    staging.close()


def test_a_home_that_others_may_change_is_not_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(NotPrivate):
        Staging(tmp_path).draft()


# Servers


Start = Callable[..., Awaitable[Computer]]


@pytest.fixture
def told() -> list[Any]:
    """The updates that agents are told of."""
    return []


@pytest.fixture
async def start(home: Home, offer: Offer, told: list[Any]) -> AsyncIterator[Start]:
    """Starts a computer with the MCP server, and waits until agents are told that it has staged so many skills."""
    async with AsyncExitStack() as stack:

        async def start(expected: int, limits: StagingLimits | None = None, **policy: Any) -> Computer:
            offer.write()
            computer = Computer("laptop", skills=home.path, policy=quick(**policy))
            computer.skills.servers.limits = limits or StagingLimits()
            computer.add_server(offer.config)
            computer.agents.on_update(told.append)
            await stack.enter_async_context(computer)
            await computer.start()
            await ready(computer, SERVER)
            await until(lambda: len(computer.skills.references()) == expected)
            await until(lambda: "skills" in told or not expected)
            told.clear()
            return computer

        yield start


@pytest.mark.covers("9-get_skills", "peer-skills")
async def test_thousands_of_resources_and_too_many_skills_files_and_bytes(
    start: Start, offer: Offer, home: Home
) -> None:
    for number in range(3000):
        offer.file(f"file:///{number}", "x")
    offer.skill("skill://h/crowd", "crowd").skill("skill://h/large", "large").skill("skill://h/next", "next")
    for number in range(20):
        offer.file(f"skill://h/crowd/{number}", "x")
    offer.file("skill://h/large/1", b"\0" * 9000).file("skill://h/large/2", b"\0" * 9000)
    offer.file("skill://h/next/1", b"\0" * 9000)
    for number in range(5):
        offer.skill(f"skill://h/{number}", f"s{number}")
    offer.more = {"page": 400}
    limits = StagingLimits(skills=6, files=10, skill_bytes=10_000, all_bytes=9500)
    computer = await start(4, limits)
    warnings = "\n".join(computer.skills.warnings)
    assert "only 6 of its 8 skills are used" in warnings
    assert "skill://h/crowd: it has 21 files, at most 10 are taken" in warnings
    assert "skill://h/large: it has more than" in warnings
    assert home.names(home.staged("skill_srv")) == {"next", "s0", "s1", "s2"}
    await until(lambda: home.names(home.staged("")) == {"skill_srv", ".lock"})


@pytest.mark.covers("9-get_skills")
async def test_a_server_that_crashes_and_returns_keeps_its_skills(start: Start, offer: Offer, told: list[Any]) -> None:
    offer.skill("skill://h/a", "a")
    computer = await start(1)
    pid = computer.status()[SERVER].diagnostics["pid"]
    os.kill(int(str(pid)), 9)
    await until(lambda: computer.status()[SERVER].starts == 2 and computer.status()[SERVER].state == "ready")
    assert [each["name"] for each in computer.skills.references()] == ["mcp:skill_srv:a"]
    offer.skill("skill://h/b", "b")
    await offer.change(computer)
    await until(lambda: len(computer.skills.references()) == 2)
    await until(lambda: "skills" in told)
    assert told.count("skills") == 1


@pytest.mark.covers("9-get_skills")
async def test_an_idle_server_keeps_its_skills_while_it_sleeps(start: Start, offer: Offer) -> None:
    offer.skill("skill://h/a", "a", "asleep")
    computer = await start(1, idle_stop=0.3)
    await until(lambda: computer.status()[SERVER].state == "asleep")
    answer = await computer.skills.get(ASKING, "mcp:skill_srv:a", None)
    assert answer["body"] == "asleep"


@pytest.mark.covers("9-get_skills")
async def test_a_server_without_resources_has_no_skills_and_a_failing_list_hides_nothing(
    start: Start, offer: Offer, caplog: pytest.LogCaptureFixture
) -> None:
    offer.skill("skill://h/a", "a")
    offer.more = {"capabilities": {"tools": {}}}
    computer = await start(0)
    assert computer.skills.warnings == []
    with pytest.raises(SkillNotFound):
        await computer.skills.get(ASKING, "mcp:skill_srv:a", None)
    offer.more = {}
    offer.write()
    await computer.restart(SERVER)
    await until(lambda: len(computer.skills.references()) == 1)
    offer.more = {"resources": "no list"}
    await offer.change(computer)
    await until(lambda: computer.skills.references() == [])
