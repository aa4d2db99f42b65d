"""Skills of a Computer as an agent sees them through a real Server: requests, errors, notices."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted, ready
from tests.peer import Peer
from tests.skills.offered import Home, Offer, skill_text
from tests.waiting import until

SECRET = "sk-live-9f8e7d6c5b4a39281706"
MCP_SKILL = "mcp:skill_srv:code-review"
ROOT = "skill://srv/code-review"


@pytest.fixture
async def laptop(shared_hub: Any, office: str, home: Home, tmp_path: Path) -> AsyncIterator[Computer]:
    """A computer in the test's office, without MCP servers."""
    computer = Computer("laptop", skills=home.path)
    computer.skills.interval = 0.05
    async with hosted(computer, shared_hub.url, office, tmp_path / "state"):
        yield computer


async def listed(agent: Peer) -> dict[str, Any]:
    answer = await agent.request("client:get_skills", "laptop", req_id="mine")
    assert answer.keys() == {"skills", "req_id"}
    assert answer["req_id"] == "mine"
    return {skill["name"]: skill for skill in answer["skills"]}


async def get(agent: Peer, name: str, rel_path: str | None = None) -> Any:
    more = {} if rel_path is None else {"rel_path": rel_path}
    return await agent.request("client:get_skill", "laptop", name=name, **more)


async def drain(agent: Peer, handle: str) -> bytes:
    content, chunk = b"", {"eof": False}
    while not chunk["eof"]:
        chunk = await agent.request("client:get_blob", "laptop", blob_handle=handle, chunk_offset=len(content))
        content += b64decode(chunk["blob"])
    assert hashlib.sha256(content).hexdigest() == chunk["sha256"]
    return content


async def told(agent: Peer) -> None:
    """Wait for the next notice."""
    notice = await agent.hears("notify:update_skills", computer="laptop")
    agent.heard[:] = [each for each in agent.heard if each[0] != "notify:update_skills"]
    assert notice == {"computer": "laptop", "office_id": agent.office}


async def until_listed(agent: Peer, *names: str) -> dict[str, Any]:
    """The skills, when they are these."""
    async with asyncio.timeout(60):
        while (skills := await listed(agent)).keys() != {*names}:
            await told(agent)
    return skills


# The owner's skills


@pytest.mark.covers("9-get_skills")
async def test_the_owners_skills_are_listed_with_all_that_their_frontmatter_says(
    home: Home, office: str, laptop: Computer, agent: Peer
) -> None:
    assert await listed(agent) == {}
    more = {"license": "MIT", "compatibility": "3", "allowed-tools": "[read]", "tags": "[a]", "metadata": "{x: 1}"}
    home.put("code-review", "SKILL.md", skill_text("another", **more))
    home.put("no-description", "SKILL.md", "---\nname: x\n---\n")
    home.put("Not_A_Name", "SKILL.md", skill_text())
    home.put("empty", "README.md", "no skill")
    (home.path / "user" / "file.md").write_text("no folder")
    skills = await until_listed(agent, "code-review")
    assert skills == {
        "code-review": {
            "name": "code-review",
            "source": "user",
            "path": str(home.path / "user" / "code-review"),
            "description": "Reviews code.",
            "license": "MIT",
            "compatibility": "3",
            "allowed_tools": ["read"],
            "tags": ["a"],
            "skill_metadata": {"x": 1},
        }
    }
    await until(lambda: "no-description" in str(laptop.warnings) and "Not_A_Name" in str(laptop.warnings))


@pytest.mark.covers("9-get_skill", "9-update_skills")
async def test_files_are_read_inline_or_by_a_handle(home: Home, laptop: Computer, agent: Peer) -> None:
    home.put("a", "SKILL.md", skill_text(body="body\n"))
    home.put("a", "conf.json", "{}")
    home.put("a", "scripts/run.py", "print('hi')\n")
    home.put("a", "large.md", "x" * 40_000)
    await until_listed(agent, "a")
    answer = await agent.request("client:get_skill", "laptop", name="a", req_id="mine")
    sha256 = hashlib.sha256(b"body\n").hexdigest()
    about = {"name": "a", "rel_path": "SKILL.md", "mime_type": "text/markdown", "total_size": 5, "sha256": sha256}
    assert answer == {**about, "body": "body\n", "req_id": "mine"}
    for rel_path in ("", None):
        again = await agent.request("client:get_skill", "laptop", name="a", rel_path=rel_path, req_id="mine")
        assert again == answer
    assert (await get(agent, "a", "conf.json"))["body"] == "{}"
    script = await get(agent, "a", "scripts/run.py")
    assert (script["mime_type"], script["total_size"], "body" in script) == ("application/octet-stream", 12, False)
    assert await drain(agent, script["blob_handle"]) == b"print('hi')\n"
    large = await get(agent, "a", "large.md")
    assert await drain(agent, large["blob_handle"]) == b"x" * 40_000
    assert large["sha256"] == hashlib.sha256(b"x" * 40_000).hexdigest()
    (home.path / "user" / "a" / "large.md").write_text("y" * 50_000)
    refused = await agent.request("client:get_blob", "laptop", blob_handle=large["blob_handle"])
    assert (refused["code"], refused["details"]["reason"]) == (4018, "gone")
    await told(agent)


@pytest.mark.covers("9-get_skill")
async def test_what_is_wrong_is_refused_in_the_order_of_the_checks(home: Home, laptop: Computer, agent: Peer) -> None:
    home.put("a", "SKILL.md", skill_text())
    home.put("a", ".skillenv", "KEY=1")
    (home.path / "user" / "a" / "out").symlink_to("/etc/passwd")
    os.mkfifo(home.path / "user" / "a" / "pipe")
    with home.put("a", "huge.bin", "").open("wb") as file:
        file.truncate(101 * 1024 * 1024)
    await until_listed(agent, "a")
    cases: list[tuple[str, str | None, int, dict[str, Any]]] = [
        *((name, "../x", 4016, {"name": name}) for name in ("a--b", "A", "", "x:y:z", "../a", "b" * 65)),
        *((name, "../x", 4014, {"name": name}) for name in ("b", "p:a", "mcp:x:a")),
        *(("a", path, 4017, {"reason": "traversal", "rel_path": path}) for path in ("../b", "/x", "a\\b", "c:", "out")),
        *(("a", path, 4017, {"reason": "forbidden", "rel_path": path}) for path in (".skillenv", "no/.SKILLENV")),
        *(("a", path, 4017, {"reason": "not_found", "rel_path": path}) for path in ("x", "pipe", ".", "a\0")),
        ("a", "huge.bin", 4017, {"reason": "too_large", "rel_path": "huge.bin", "total_size": 101 * 1024 * 1024}),
    ]
    for name, path, code, details in cases:
        answer = await get(agent, name, path)
        assert (answer["code"], answer["details"]) == (code, details), (name, path)
        assert answer["error"]["code"] == code
    for wrong in ({"name": 7}, {}, {"name": "a", "rel_path": 7}):
        assert (await agent.request("client:get_skill", "laptop", **wrong))["error"]["code"] == 400


@pytest.mark.covers("9-get_skill")
async def test_secrets_are_masked_in_lists_files_and_errors(home: Home, laptop: Computer, agent: Peer) -> None:
    laptop.mask.add([SECRET])
    home.put("a", "SKILL.md", skill_text(body=f"use {SECRET}", license=SECRET, metadata=f"{{{SECRET}: 1}}"))
    home.put("a", "run.sh", f"curl -H {SECRET}\n" * 3000)
    skill = (await until_listed(agent, "a"))["a"]
    assert (skill["license"], skill["skill_metadata"]) == ("***", {"***": 1})
    answer = await get(agent, "a")
    assert (answer["body"], answer["total_size"]) == ("use ***", 7)
    assert answer["sha256"] == hashlib.sha256(b"use ***").hexdigest()
    script = await get(agent, "a", "run.sh")
    assert await drain(agent, script["blob_handle"]) == b"curl -H ***\n" * 3000
    refused = await get(agent, "a", f"{SECRET}.md")
    assert SECRET not in str(refused)


@pytest.mark.covers("9-get_skills")
async def test_a_folder_that_others_may_change_is_not_used(home: Home, laptop: Computer, agent: Peer) -> None:
    home.put("a", "SKILL.md", skill_text())
    await until_listed(agent, "a")
    (home.path / "user").chmod(0o777)
    await until_listed(agent)
    assert "chmod go-w" in laptop.skills.warnings[0]
    (home.path / "user").chmod(0o700)
    await until_listed(agent, "a")


@pytest.mark.covers("9-update_skills")
async def test_many_changes_are_one_notice_and_a_removed_skill_is_gone(
    home: Home, laptop: Computer, agent: Peer
) -> None:
    names = [f"s{number}" for number in range(20)]
    for name in names:
        home.put(name, "SKILL.md", skill_text())
    await until_listed(agent, *names)
    for name in names:
        shutil.rmtree(home.path / "user" / name)
    await until_listed(agent)
    assert (await get(agent, "s1"))["code"] == 4014
    assert sum(event == "notify:update_skills" for event, _ in await agent.heard_until_now()) < 10


# Skills of MCP servers


@pytest.fixture
async def staging(shared_hub: Any, office: str, home: Home, offer: Offer, tmp_path: Path) -> AsyncIterator[Computer]:
    """A computer with an MCP server that offers skills."""
    offer.skill(ROOT, "code-review", "from mcp", version="1.2").file(f"{ROOT}/docs/a b.bin", b"\0\1").write()
    computer = Computer("laptop", skills=home.path)
    computer.add_server(offer.config)
    async with hosted(computer, shared_hub.url, office, tmp_path / "state"):
        await ready(computer, "skill srv!")
        await until(lambda: computer.skills.references())
        yield computer


@pytest.mark.covers("9-get_skills", "9-get_skill")
async def test_skills_of_an_mcp_server_are_staged_and_read(home: Home, staging: Computer, agent: Peer) -> None:
    place = home.staged("skill_srv/code-review")
    assert await listed(agent) == {
        MCP_SKILL: {
            "name": MCP_SKILL,
            "source": "mcp:skill_srv",
            "uri": ROOT,
            "path": str(place),
            "description": "Reviews code.",
            "version": "1.2",
        }
    }
    assert (await get(agent, MCP_SKILL))["body"] == "from mcp"
    binary = await get(agent, MCP_SKILL, "docs/a b.bin")
    assert await drain(agent, binary["blob_handle"]) == b"\0\1"
    modes = {path.stat().st_mode & 0o077 for path in (home.path / "mcp").rglob("*")}
    assert modes == {0}


@pytest.mark.covers("9-update_skills")
async def test_a_server_that_changes_its_skills_is_read_again(
    home: Home, offer: Offer, staging: Computer, agent: Peer
) -> None:
    offer.skill("skill://srv/other", "other")
    await offer.change(staging)
    await until_listed(agent, MCP_SKILL, "mcp:skill_srv:other")
    offer.file(f"{ROOT}/SKILL.md", skill_text("code-review", "changed"))
    await offer.tell(staging, "notifications/resources/updated", uri=f"{ROOT}/SKILL.md")
    await until_body(agent, "changed")
    offer.remove(ROOT)
    await offer.change(staging)
    await until_listed(agent, "mcp:skill_srv:other")
    assert (await get(agent, MCP_SKILL))["code"] == 4014
    await until(lambda: not home.staged("skill_srv/code-review").exists())
    offer.skill(ROOT, "code-review", "back")
    await offer.change(staging)
    await until_body(agent, "back")


@pytest.mark.covers("9-update_skills")
async def test_skills_of_a_server_that_stops_are_hidden_and_come_back(
    home: Home, offer: Offer, staging: Computer, agent: Peer
) -> None:
    await staging.stop("skill srv!")
    await until_listed(agent)
    assert (await get(agent, MCP_SKILL))["code"] == 4014
    offer.file(f"{ROOT}/SKILL.md", skill_text("code-review", "changed meanwhile")).write()
    await staging.start("skill srv!")
    await until_body(agent, "changed meanwhile")
    await staging.remove_server("skill srv!")
    await until_listed(agent)
    await until(lambda: not home.staged("skill_srv").exists())


async def until_body(agent: Peer, body: str) -> None:
    async with asyncio.timeout(60):
        while (await get(agent, MCP_SKILL)).get("body") != body:
            await told(agent)


@pytest.mark.covers("9-get_skills", "peer-skills")
async def test_hostile_skills_cost_only_themselves(
    home: Home, offer: Offer, staging: Computer, agent: Peer, tmp_path: Path
) -> None:
    hostile = {
        "leaves": "/../../x.md",
        "absolute": "//etc/x.md",
        "dots": "/./x.md",
        "backslash": "/a\\..\\x.md",
        "drive": "/C:x.md",
        "zero": "/a\0b.md",
        "long": f"/{'x' * 300}.md",
        "deep": "/a" * 20 + ".md",
        "clash": "/SKILL.md/x.md",
    }
    for name, path in hostile.items():
        offer.skill(f"skill://h/{name}", name).file(f"skill://h/{name}{path}", "hostile")
    offer.skill("skill://h/mounted", "mounted", source="mounted", mount_dir=str(tmp_path))
    offer.skill("skill://h/archive", "archive", source="archive", archive_uri="http://127.0.0.1:1/x.zip")
    offer.root("skill://h/empty").root("skill://nopath").root("skill://h/gone").file("skill://h/gone/SKILL.md", "x")
    offer.contents("skill://h/gone/SKILL.md", None)
    offer.skill("skill://h/liar", "liar").file("skill://h/liar/big.bin", b"\0" * 3, size=10**15)
    offer.skill("skill://h/garbled", "garbled").file("skill://h/garbled/a", "")
    offer.contents("skill://h/garbled/a", [{"uri": "x", "blob": "no base64!"}])
    offer.skill("skill://h/odd", "odd").file("skill://h/odd/a", "").contents("skill://h/odd/a", {"text": "no list"})
    offer.skill("skill://h/unnamed", "Not A Name").skill("skill://h/twin", "code-review", "another")
    offer.skill(f"{ROOT}/nested", "nested").skill("skill://h/code-review", "code-review")
    offer.skill("skill://h/several", "several").contents(
        "skill://h/several/SKILL.md", [{"text": skill_text("several", "one ")}, {"blob": "dHdv"}]
    )
    offer.more = {"page": 7}
    await offer.change(staging)
    await until_listed(agent, MCP_SKILL, "mcp:skill_srv:liar", "mcp:skill_srv:several")
    assert (await get(agent, MCP_SKILL))["body"] == "from mcp"
    assert (await get(agent, MCP_SKILL, "nested/SKILL.md"))["body"] == "Read the code."
    assert (await get(agent, "mcp:skill_srv:several"))["body"] == "one two"
    assert (await get(agent, "mcp:skill_srv:liar", "big.bin"))["total_size"] == 3
    faults = "\n".join(staging.skills.warnings)
    for name in (*hostile, "mounted", "archive", "empty", "gone", "garbled", "odd", "unnamed", "twin"):
        assert f"skill://h/{name}:" in faults, name
    assert home.names(home.staged("skill_srv")) == {"code-review", "liar", "several"}
    assert home.names(home.path) == {"user", "mcp"}
    assert home.names(tmp_path) == {"skills", "state", "offer.json"}
