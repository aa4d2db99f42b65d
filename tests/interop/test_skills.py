"""Skills between ours and the published 0.4.2: either computer, the other's agent, through either Server."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64decode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AgentEvents, AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import InvalidSkillName, SkillFileNotAccessible, SkillNotFound
from tests.computer.hosted import hosted, ready
from tests.interop.conftest import KEY, a_server, computer_of, driven, published_agent
from tests.interop.driver import Driver, PeerFailed
from tests.skills.offered import SERVER, Home, Offer, skill_text
from tests.waiting import until, until_it_goes

PEERS = Path(__file__).with_name("peers")
ROOT = "skill://srv/code-review"
MCP_SKILL = "mcp:skill_srv:code-review"
LARGE = "Read the code.\n" * 5000
BINARY = bytes(range(256)) * 2000

Start = Callable[..., Awaitable[Driver]]
pytestmark = pytest.mark.covers("interop-0.4.2", "9-get_skills", "9-get_skill", "9-update_skills")


def fill(home: Home, offer: Offer) -> None:
    """The owner's skill `notes`, and the skill of an MCP server."""
    home.put("notes", "SKILL.md", skill_text("notes", LARGE))
    home.put("notes", "conf.json", "{}")
    home.put("notes", "data.bin", BINARY)
    home.put("notes", ".skillenv", "KEY=1")
    offer.skill(ROOT, "code-review", "from mcp", version="1.2")
    offer.file(f"{ROOT}/docs/a%20b.txt", "a b").file(f"{ROOT}/logo.png", b"\x89PNG").write()


@pytest.fixture
def offer(tmp_path: Path) -> Offer:
    return Offer(tmp_path / "offer.json")


servers = pytest.mark.parametrize("server", ["ours", "0.4.2"])


@servers
async def test_a_published_agent_reads_our_skills(
    server: str, drive: Start, offer: Offer, office: str, tmp_path: Path
) -> None:
    home = Home(tmp_path / "skills")
    fill(home, offer)
    computer = Computer("laptop", skills=home.path)
    computer.skills.interval = 0.05
    computer.add_server(offer.config)
    async with a_server(server, tmp_path) as url:
        agent = await drive(*published_agent("0.4.2", url, office, "--api-key", KEY))
        await agent.hears("ready")
        await agent.ask("join")
        async with hosted(computer, url, office, tmp_path / "state", api_key=KEY):
            await ready(computer, "skill srv!")
            await until(lambda: len(computer.skills.references()) == 2)
            await the_agent_reads(agent)
            home.put("more", "SKILL.md", skill_text())
            async with asyncio.timeout(60):
                while "more" not in [skill["name"] for skill in (await agent.hears("skills"))["skills"]]:
                    pass
            await the_agent_is_refused(agent)


async def the_agent_reads(agent: Driver) -> None:
    skills = {skill["name"]: skill for skill in (await agent.ask("get_skills", computer="laptop"))["skills"]}
    assert skills.keys() == {"notes", MCP_SKILL}
    assert (skills[MCP_SKILL]["uri"], skills[MCP_SKILL]["version"]) == (ROOT, "1.2")
    text = await agent.ask("get_skill", computer="laptop", name="notes")
    assert text["body"] == LARGE
    assert text["total_size"] == len(LARGE)
    assert (await agent.ask("get_skill", computer="laptop", name=MCP_SKILL))["body"] == "from mcp"
    assert (await agent.ask("get_skill", computer="laptop", name="notes", rel_path="conf.json"))["body"] == "{}"
    binary = await agent.ask("get_skill", computer="laptop", name="notes", rel_path="data.bin")
    content = b""
    while len(content) < binary["total_size"]:
        chunk = await agent.ask(
            "get_blob", computer="laptop", blob_handle=binary["blob_handle"], chunk_offset=len(content)
        )
        content += b64decode(chunk["blob"])
    assert content == BINARY
    assert binary["sha256"] == hashlib.sha256(BINARY).hexdigest()


async def the_agent_is_refused(agent: Driver) -> None:
    for name, rel_path, code in (
        ("A", None, "4016"),
        ("missing", None, "4014"),
        ("notes", "../x", "4017"),
        ("notes", ".skillenv", "4017"),
        ("notes", "missing", "4017"),
    ):
        with pytest.raises(PeerFailed, match=code):
            await agent.ask("get_skill", computer="laptop", name=name, rel_path=rel_path)
    with pytest.raises(PeerFailed, match="4018"):
        await agent.ask("get_blob", computer="laptop", blob_handle="garbage")


class Listener(AgentEvents):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_skills_received(self, computer: str, skills: list[Any], office: str) -> None:
        self.names = {skill["name"] for skill in skills}


@servers
async def test_our_agent_reads_published_skills(server: str, offer: Offer, office: str, tmp_path: Path) -> None:
    owner = tmp_path / "owner"
    fill(Home(owner / ".a2c" / "skills"), offer)
    listener = Listener()
    async with a_server(server, tmp_path) as url:
        seat = ("--url", url, "--name", "laptop", "--office", office, "--api-key", KEY)
        program = computer_of("0.4.2", *seat, "--also", SERVER, tmp_path / "offer.json")
        agent = AsyncSMCPAgentClient("planner", url=url, office=office, event_handler=listener, api_key=KEY)
        async with driven(program, home=owner) as (computer, _):
            await computer.ask("join")
            async with agent:
                await our_agent_reads(agent)
                await our_agent_hears(agent, offer, listener)


async def our_agent_reads(agent: AsyncSMCPAgentClient) -> None:
    async def both() -> None:
        assert {skill["name"] for skill in await agent.get_skills("laptop")} == {"notes", MCP_SKILL}

    await until_it_goes(both)
    assert (await agent.get_skill("laptop", "notes"))["body"] == LARGE
    assert (await agent.get_skill("laptop", MCP_SKILL))["body"] == "from mcp"
    assert (await agent.get_skill("laptop", MCP_SKILL, "docs/a%20b.txt"))["body"] == "a b"
    assert "blob_handle" in await agent.get_skill("laptop", MCP_SKILL, "logo.png")
    data = await agent.get_skill("laptop", "notes", "data.bin")
    assert await agent.read_blob("laptop", data["blob_handle"]) == BINARY
    for name, rel_path, error in (
        ("A", None, InvalidSkillName),
        ("missing", None, SkillNotFound),
        ("notes", "../x", SkillFileNotAccessible),
        ("notes", ".skillenv", SkillFileNotAccessible),
    ):
        with pytest.raises(error):
            await agent.get_skill("laptop", name, rel_path)


async def our_agent_hears(agent: AsyncSMCPAgentClient, offer: Offer, listener: Listener) -> None:
    offer.skill("skill://srv/other", "other").write()
    told = {"method": "notifications/resources/list_changed", "params": {}}
    await agent.emit_tool_call("laptop", "skill_srv__tell", told)
    await until(lambda: "mcp:skill_srv:other" in listener.names)
