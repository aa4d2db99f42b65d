"""Both clients read skills: of a real Computer, and of computers of other makes that answer anything."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp import errors
from a2c_smcp.agent import AgentEvents, AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted
from tests.peer import Peer
from tests.skills.offered import Home, skill_text
from tests.stage.agent import KINDS, Twin, at_work
from tests.stage.chunks import chunk

BODY = "Read the code.\n" * 5000


class Listener(AgentEvents):
    """Remembers the skills that it was given."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[tuple[str, list[Any], str]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def on_skills_received(self, computer: str, skills: list[Any], office: str) -> None:
        self._loop.call_soon_threadsafe(self.received.put_nowait, (computer, skills, office))

    async def hears(self, *names: str) -> None:
        """Waits until these are the skills."""
        async with asyncio.timeout(60):
            while {skill["name"] for skill in (await self.received.get())[1]} != {*names}:
                pass


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "skills")
    found.put("large", "SKILL.md", skill_text(body=BODY))
    found.put("large", "data.bin", bytes(range(256)) * 3000)
    found.put("large", "latin.txt", b"caf\xe9")
    return found


@pytest.fixture(params=KINDS, ids=["async", "blocking"])
async def agent(request: Any, shared_hub: Any, office: str, home: Home, tmp_path: Path) -> AsyncIterator[Twin]:
    computer = Computer("laptop", skills=home.path)
    computer.skills.interval = 0.05
    listener = Listener()
    async with (
        hosted(computer, shared_hub.url, office, tmp_path / "state"),
        at_work(request.param, url=shared_hub.url, office=office, event_handler=listener) as twin,
    ):
        twin.listener = listener
        yield twin


@pytest.mark.covers("9-get_skills", "9-get_skill", "9-update_skills")
async def test_an_agent_lists_reads_and_hears_of_skills(agent: Twin, home: Home) -> None:
    (skill,) = await agent.get_skills("laptop")
    assert (skill["name"], skill["source"], skill["description"]) == ("large", "user", "Reviews code.")
    text = await agent.get_skill("laptop", "large")
    assert text["body"] == BODY
    assert "blob_handle" not in text
    latin = await agent.get_skill("laptop", "large", "latin.txt")
    assert latin.keys() >= {"blob_handle"}
    assert "body" not in latin
    data = await agent.get_skill("laptop", "large", "data.bin")
    assert await agent.read_blob("laptop", data["blob_handle"]) == bytes(range(256)) * 3000
    for name, rel_path, error in (
        ("A", None, errors.InvalidSkillName),
        ("missing", None, errors.SkillNotFound),
        ("large", "../x", errors.SkillFileNotAccessible),
    ):
        with pytest.raises(error):
            await agent.get_skill("laptop", name, rel_path)
    home.put("second", "SKILL.md", skill_text())
    await agent.listener.hears("large", "second")


# Computers of other makes


FILE = {
    "name": "a",
    "rel_path": "SKILL.md",
    "mime_type": "text/markdown",
    "total_size": 4,
    "sha256": hashlib.sha256(b"body").hexdigest(),
    "req_id": "x",
}


@pytest.fixture
async def client(shared_hub: Any, office: str, computer: Peer) -> AsyncIterator[AsyncSMCPAgentClient]:
    computer.answers("client:get_tools", {"tools": [], "req_id": "x"})
    async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as client:
        yield client


@pytest.mark.covers("9-get_skills", "9-get_skill")
async def test_malformed_answers_are_clear_errors(client: AsyncSMCPAgentClient, computer: Peer) -> None:
    sound = {"name": "a", "source": "user", "path": "/a", "description": "d"}
    lists: list[Any] = [7, [], {}, {"skills": {}}, {"skills": [sound, 7]}]
    lists += [{"skills": [{**sound, field: None}]} for field in sound]
    for answer in lists:
        computer.answers("client:get_skills", answer)
        with pytest.raises(errors.SMCPError, match="the answer has"):
            await client.get_skills("laptop")
    files: list[Any] = [7, {}, FILE, {**FILE, "body": "body", "blob_handle": "h"}, {**FILE, "body": 7}]
    files += [{**FILE, "body": "body", field: [7]} for field in FILE if field != "req_id"]
    files += [{**FILE, "body": "body", "total_size": True}, {**FILE, "blob_handle": "h", "total_size": -1}]
    for answer in files:
        computer.answers("client:get_skill", answer)
        with pytest.raises(errors.SMCPError, match="the answer is no file of a skill"):
            await client.get_skill("laptop", "a")
    for lie in ({"body": "bodY"}, {"body": "bod"}, {"body": "body", "total_size": 5}):
        computer.answers("client:get_skill", {**FILE, **lie})
        with pytest.raises(errors.SMCPError, match="not the one that its size and hash announce"):
            await client.get_skill("laptop", "a")
    computer.answers("client:get_skill", {**FILE, "body": "body", "blob_handle": None})
    assert (await client.get_skill("laptop", "a"))["body"] == "body"
    for code, error in (
        (400, errors.BadRequest),
        (4014, errors.SkillNotFound),
        (4016, errors.InvalidSkillName),
        (4017, errors.SkillFileNotAccessible),
    ):
        computer.answers("client:get_skill", {"code": code, "message": error.title, "details": {"reason": "x"}})
        with pytest.raises(error):
            await client.get_skill("laptop", "a")
    computer.answers("client:get_skill", None)
    with pytest.raises((errors.NotCarried, errors.UnsupportedEvent)):
        await client.get_skill("laptop", "a")


@pytest.mark.covers("9-get_skill")
async def test_a_file_that_changes_while_it_is_fetched_is_asked_for_again(
    client: AsyncSMCPAgentClient, computer: Peer
) -> None:
    gone = {"code": 4018, "message": "Blob not accessible", "details": {"reason": "gone"}}
    blobs: list[Any] = [gone, b"body"]

    def give(data: dict[str, Any]) -> dict[str, Any]:
        blob = blobs.pop(0)
        return chunk(data, blob) if isinstance(blob, bytes) else blob

    computer.answers("client:get_skill", {**FILE, "blob_handle": "h"})
    computer.answers("client:get_blob", give)
    assert (await client.get_skill("laptop", "a"))["body"] == "body"
    assert blobs == []
    blobs += [b"bodY"] * 20
    with pytest.raises(errors.BlobNotAccessible):
        await client.get_skill("laptop", "a")
    blobs[:] = [{**gone, "details": {"reason": "forbidden"}}]
    with pytest.raises(errors.BlobNotAccessible):
        await client.get_skill("laptop", "a")


@pytest.mark.covers("9-update_skills")
async def test_skills_are_fetched_only_for_a_program_that_wants_them(
    client: AsyncSMCPAgentClient, computer: Peer, office: str
) -> None:
    await computer.ask("server:update_skills", {"computer": "laptop"})
    await client.get_tools("laptop")  # the notice was handled before this answer
    assert "client:get_skills" not in [event for event, _ in computer.asked]
