"""The skills of an office for MCP clients of both eras, and computers that say wrong things of theirs."""

from __future__ import annotations

import hashlib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ConfigDict

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge.skills import OfficeSkills
from a2c_smcp.computer import Computer
from tests.computer.hosted import hosted
from tests.skills.offered import Home, skill_text
from tests.stage.bridge import BridgedOffice, Heard
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("bridge-skills")

EXTENSION = "io.modelcontextprotocol/skills"


class Whole(BaseModel):
    """Any result."""

    model_config = ConfigDict(extra="allow")


async def asked(client: Client, method: str, **params: Any) -> dict[str, Any]:
    request = types.Request[dict[str, Any], str](method=method, params=params)
    return (await client.session.send_request(request, Whole)).model_dump(by_alias=True)


async def text_at(client: Client, uri: str) -> str:
    content: Any = (await client.read_resource(uri)).contents[0]
    return str(content.text)


async def test_skills_are_listed_read_and_followed(desk: BridgedOffice, tmp_path: Path) -> None:
    home = Home(tmp_path / "skills")
    home.put("review", "SKILL.md", skill_text("review"))
    home.put("review", "docs/style.md", "plain")
    computer = Computer("laptop", skills=home.path)
    computer.skills.interval = 0.05
    _, url = await desk.start_bridge()
    async with hosted(computer, desk.url, "desk", tmp_path / "laptop"), desk.client(url, "auto") as client:
        capabilities: Any = client.session.server_capabilities
        assert capabilities.extensions[EXTENSION] == {}

        async def listing() -> dict[str, Any]:
            found = await asked(client, "skills/list")
            assert found["skills"]
            return found

        listed = await until_it_goes(listing)
        (skill,) = listed["skills"]
        assert (listed["resultType"], listed["ttlMs"], listed["cacheScope"]) == ("complete", 0, "private")
        assert skill["uri"] == "skill://laptop/user/review/SKILL.md"
        assert skill["frontmatter"] == {"name": "review", "description": "Reviews code."}
        for file in skill["resources"]:
            content = (await text_at(client, file["uri"])).encode()
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            assert (digest, len(content)) == (file["digest"], file["size"])
        assert (await asked(client, "skills/get", uri=skill["uri"]))["skill"] == skill
        for uri in ("skill://laptop/user/none/SKILL.md", "skill://attic/user/review/SKILL.md", skill["uri"][:-9]):
            with pytest.raises(MCPError) as refused:
                await asked(client, "skills/get", uri=uri)
            assert refused.value.error.code == types.INVALID_PARAMS
        for path in ("none.md", "../review/SKILL.md", "%2e%2e/x", ".skillenv"):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(f"skill://laptop/user/review/{path}")
            assert refused.value.error.code == types.INVALID_PARAMS
        async with AsyncExitStack() as stack:
            news = await stack.enter_async_context(client.listen(resources_list_changed=True))
            home.put("review", "docs/style.md", "fancy")
            await anext(aiter(news))

        async def changes() -> None:
            assert (await asked(client, "skills/get", uri=skill["uri"]))["skill"] != skill

        await until_it_goes(changes)


async def test_a_client_of_an_older_revision_reads_files_and_is_told_of_changes(
    desk: BridgedOffice, tmp_path: Path
) -> None:
    home, heard = Home(tmp_path / "skills"), Heard()
    home.put("review", "SKILL.md", skill_text("review"))
    computer = Computer("laptop", skills=home.path)
    computer.skills.interval = 0.05
    _, url = await desk.start_bridge()
    async with hosted(computer, desk.url, "desk", tmp_path / "laptop"), desk.client(url, "legacy", heard) as client:
        with pytest.raises(MCPError) as refused:
            await asked(client, "skills/list")
        assert refused.value.error.code == types.METHOD_NOT_FOUND
        uri = "skill://laptop/user/review/SKILL.md"
        assert await text_at(client, uri) == skill_text("review")
        home.put("more", "SKILL.md", skill_text("more"))
        kind = types.ResourceListChangedNotification
        await until(lambda: any(isinstance(each, kind) for each in heard.messages))


GOOD = {"SKILL.md": {"total_size": 1, "sha256": "0" * 64}}
FRONTMATTER = {"name": "review", "description": "Reviews code."}
WRONG: dict[str, dict[str, Any]] = {
    "no name": {"frontmatter": {"description": "x"}, "files": GOOD},
    "a path as a name": {"frontmatter": {**FRONTMATTER, "name": "../x"}, "files": GOOD},
    "a long description": {"frontmatter": {**FRONTMATTER, "description": "x" * 1025}, "files": GOOD},
    "tools in a list": {"frontmatter": {**FRONTMATTER, "allowed-tools": ["x"]}, "files": GOOD},
    "no skill file": {"frontmatter": FRONTMATTER, "files": {}},
    "a path outside": {"frontmatter": FRONTMATTER, "files": {**GOOD, "../x": GOOD["SKILL.md"]}},
    "an absolute path": {"frontmatter": FRONTMATTER, "files": {**GOOD, "/x": GOOD["SKILL.md"]}},
    "another algorithm": {"frontmatter": FRONTMATTER, "files": {"SKILL.md": {"total_size": 1, "sha256": "0" * 32}}},
    "no size": {"frontmatter": FRONTMATTER, "files": {"SKILL.md": {"sha256": "0" * 64}}},
    "an older computer": {"rel_path": "SKILL.md", "body": "x"},
}


async def test_a_computer_that_answers_wrongly_costs_its_own_skill_only(
    seat: Any, shared_hub: Any, office: str
) -> None:
    computer = await seat("computer", "laptop", office, hub=shared_hub)
    answers = {f"s{number}": answer for number, answer in enumerate(WRONG.values())}
    answers["good"] = {"frontmatter": FRONTMATTER, "files": GOOD}
    listed = [{"name": name, "source": "user", "path": "/", "description": "x"} for name in (*answers, "Not A Name")]
    computer.answers("client:get_skills", lambda data: {"req_id": data["req_id"], "skills": listed})
    computer.answers("client:get_skill", lambda data: {"req_id": data["req_id"], **answers[data["name"]]})
    async with AsyncSMCPAgentClient("bridge", url=shared_hub.url, office=office) as agent:
        await until(lambda: agent.computers)
        page = await OfficeSkills(agent, office, lambda: None).page(None)
        assert [each["uri"] for each in page["skills"]] == ["skill://laptop/user/good/review/SKILL.md"]


async def test_a_long_list_comes_in_pages(seat: Any, shared_hub: Any, office: str) -> None:
    computer = await seat("computer", "laptop", office, hub=shared_hub)
    listed = [{"name": f"s{number}", "source": "user", "path": "/", "description": "x"} for number in range(30)]
    files = {**GOOD, **{f"{'x' * 80}{number}": GOOD["SKILL.md"] for number in range(500)}}
    computer.answers("client:get_skills", lambda data: {"req_id": data["req_id"], "skills": listed})
    entry = {"frontmatter": FRONTMATTER, "files": files}
    computer.answers("client:get_skill", lambda data: {"req_id": data["req_id"], **entry})
    async with AsyncSMCPAgentClient("bridge", url=shared_hub.url, office=office) as agent:
        await until(lambda: agent.computers)
        skills, cursor, uris, pages = OfficeSkills(agent, office, lambda: None), None, list[str](), 0
        while cursor is not None or not pages:
            page = await skills.page(cursor)
            uris += [each["uri"] for each in page["skills"]]
            cursor, pages = page.get("nextCursor"), pages + 1
        assert pages > 1
        assert (len(uris), len({*uris})) == (30, 30)
