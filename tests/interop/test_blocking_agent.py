"""The blocking agent of the published 0.4.2, and all that our Computer has for it, through either Server."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted, ready
from tests.computer.servers.contents import binary
from tests.interop.conftest import peer_command
from tests.interop.driver import Driver
from tests.interop.test_our_agent import KEY, a_server
from tests.on_disk import content_of
from tests.skills.offered import Home, skill_text
from tests.waiting import until

SIZE = 600_001
TEXT = "Read the code.\n" * 5000
NOTES = "window://org.example.desk/notes?priority=50"


@pytest.mark.covers("interop-0.4.2", "side-band", "9-get_blob", "9-put_blob", "9-get_resources", "9-get_skill")
@pytest.mark.parametrize("make", ["ours", "0.4.2"])
async def test_it_gets_pictures_files_resources_and_skills_whole(make: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "skills")
    home.put("notes", "SKILL.md", skill_text("notes", TEXT))
    home.put("notes", "data.bin", binary(SIZE))
    computer = Computer("laptop", landing=tmp_path / "landing", skills=home.path)
    program, *words = peer_command("0.4.2", "mcp_server.py")
    command = {"command": program, "args": words}
    computer.add_server({"name": "my desk!", "server_parameters": command, "default_tool_meta": {"auto_apply": True}})
    async with a_server(make, tmp_path) as url, hosted(computer, url, "studio", tmp_path / "state", api_key=KEY):
        await ready(computer, "my desk!")
        await until(lambda: computer.skills.references())
        seat = ("--url", url, "--api-key", KEY, "--name", "planner", "--office", "studio")
        options = ("--computer", "laptop", "--size", str(SIZE))
        agent = await Driver.start(*peer_command("0.4.2", "blocking_agent.py", *seat, *options), home=tmp_path)
        try:
            used = await agent.hears("used")
        finally:
            await agent.close()
    assert used["pictures"] == {"image": SIZE, "audio": SIZE, "resource": SIZE}
    assert (used["resources"], used["skills"], used["text"]) == ([NOTES], ["notes"], TEXT)
    assert used["skill"] == sha256(binary(SIZE)).hexdigest()
    assert content_of(used["landed"]) == binary(SIZE)
    assert Path(used["landed"]).name.endswith("_a_b.bin")
