"""Skills as MCP's extension has them, with FastMCP on both sides: its server on a computer, its client at a bridge."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.errors import SkillFileNotAccessible
from tests.clients.bridged import BridgedOffice, found_by, over_http, target
from tests.computer.hosted import hosted, ready
from tests.skills.offered import Home, skill_text
from tests.stage.installed import environment
from tests.waiting import until

pytestmark = pytest.mark.covers("clients", "mcp-skills", "bridge-skills")

PROGRAMS = Path(__file__).with_name("programs")
ASKING = Caller("desk", "planner")
LOGO = bytes(range(256)) * 500


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The folder of FastMCP's server."""
    folder = tmp_path / "published"
    (folder / "review" / "docs").mkdir(parents=True)
    (folder / "review" / "SKILL.md").write_text(skill_text(license="MIT"))
    (folder / "review" / "docs" / "a b.md").write_text("a b")
    (folder / "review" / "logo.png").write_bytes(LOGO)
    return folder


def computer_with(published: Path, home: Home, name: str = "laptop") -> Computer:
    computer = Computer(name, skills=home.path)
    program = [str(PROGRAMS / "fastmcp_skills_server.py"), str(published)]
    computer.add_server({"name": "docs", "command": str(environment("frameworks")), "args": program})
    return computer


async def test_the_skills_of_a_fastmcp_server_are_read_and_followed(published: Path, tmp_path: Path) -> None:
    computer = computer_with(published, Home(tmp_path / "skills"))
    async with computer:
        await computer.start()
        await ready(computer, "docs")
        await until(lambda: computer.skills.references())
        (reference,) = computer.skills.references()
        assert (reference["name"], reference["license"]) == ("mcp:docs:review", "MIT")
        assert (await computer.skills.get(ASKING, "mcp:docs:review", None))["body"] == "Read the code."
        assert (await computer.skills.get(ASKING, "mcp:docs:review", "docs/a b.md"))["body"] == "a b"
        (published / "review" / "logo.png").write_bytes(LOGO[1:])
        (published / "review" / "SKILL.md").write_text(skill_text(body="Newer."))
        (published / "more").mkdir()
        (published / "more" / "SKILL.md").write_text(skill_text("more"))
        with pytest.raises(SkillFileNotAccessible):  # this server announces no changes: they are found out
            await computer.skills.get(ASKING, "mcp:docs:review", "logo.png")
        await until(lambda: len(computer.skills.references()) == 2)
        logo = await computer.skills.get(ASKING, "mcp:docs:review", "logo.png")
        assert logo["total_size"] == len(LOGO) - 1
        assert (await computer.skills.get(ASKING, "mcp:docs:review", None))["body"] == "Newer."
        assert computer.skills.warnings == []


@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_fastmcps_client_lists_and_verifies_the_skills_of_all_computers(
    over: str, published: Path, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    homes = [Home(tmp_path / name) for name in ("one", "two")]
    homes[0].put("notes", "SKILL.md", "---\ndescription: Notes.\n---\nRead style.md.")
    homes[0].put("notes", "style.md", "plain\r\n")
    homes[0].put("notes", ".skillenv", "KEY=1")
    homes[1].put("review", "SKILL.md", skill_text("review", body="Another one."))
    homes[1].put("nested", "SKILL.md", "---\nname: nested\ndescription: x\nmetadata: {a: [1]}\n---\n")
    laptop, studio = computer_with(published, homes[0]), Computer("my studio", skills=homes[1].path)
    async with (
        hosted(laptop, shared_hub.url, office, tmp_path / "laptop"),
        hosted(studio, shared_hub.url, office, tmp_path / "studio"),
    ):
        await ready(laptop, "docs")
        await until(lambda: len(laptop.skills.references()) == 2)
        place = BridgedOffice(shared_hub.url, office, asyncio.Event(), tmp_path)
        program = [environment("frameworks"), PROGRAMS / "fastmcp_skills_client.py"]
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(over_http(place)) if over == "http" else None
            found = await found_by(place, [*program, json.dumps(target(place, url)), "3"])
    assert found.pop("unknown") == -32602
    assert {uri: each["files"] for uri, each in found.items()} == {
        "skill://laptop/user/notes/SKILL.md": {"SKILL.md": True, "style.md": True},
        "skill://laptop/mcp/docs/review/SKILL.md": {"SKILL.md": True, "docs/a%20b.md": True, "logo.png": True},
        "skill://my%20studio/user/review/SKILL.md": {"SKILL.md": True},
    }
    frontmatter = found["skill://laptop/mcp/docs/review/SKILL.md"]["frontmatter"]
    assert frontmatter == {"name": "review", "description": "Reviews code.", "license": "MIT"}
