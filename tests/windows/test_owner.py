"""The owner's side of a Computer in Windows' own Python: the prompt on a terminal, and the console in a browser."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from tests.computer.pseudo_terminal import on_a_terminal
from tests.computer.supervised import SERVERS
from tests.stage.prompt import CTRL_C, CTRL_D, ENTER, Dialogue
from tests.stage.web import fetch
from tests.waiting import until_it_goes
from tests.windows.conftest import PYTHON, OnWindows, is_clean, on_windows, surroundings, windows_processes

LONG = 240.0


def configured(folder: Path) -> list[str]:
    good = {"command": PYTHON, "args": [on_windows(SERVERS / "good.py"), str(folder)]}
    (folder / "servers.json").write_text(json.dumps({"servers": {"good": good}}))
    return ["--name", "laptop", "--config", "servers.json"]


@pytest.mark.covers("windows-owner")
async def test_the_owner_answers_requests_at_the_prompt(windows: OnWindows, shared_hub: Any, office: str) -> None:
    words = ["computer", *configured(windows.folder), "--url", shared_hub.url, "--office", office]
    env = surroundings(XDG_STATE_HOME=on_windows(windows.folder / "state"), TERM="xterm")
    command = ["wine", PYTHON, "-m", "a2c_smcp", *words]
    async with on_a_terminal(*command, env=env, columns=120, lines=40, cwd=windows.folder) as terminal:
        owner = Dialogue(terminal)
        await owner.shows(re.compile("laptop>"))
        async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent:
            call = asyncio.create_task(agent.emit_tool_call("laptop", "add", {"a": 40, "b": 2}, timeout=LONG))
            await owner.shows("add")
            owner.types("y" + ENTER)
            assert (await call).text == "42"
        owner.types("call good fail ü")
        owner.types(CTRL_C)
        owner.types("status" + ENTER)
        await owner.shows("ready")
        owner.types(CTRL_D)
        assert await owner.exit_code() == 0, owner.screen.text
        assert is_clean(owner.screen.text)
    assert windows_processes(str(windows.folder)) == []


@pytest.mark.covers("windows-owner")
async def test_the_owner_answers_requests_in_the_console(windows: OnWindows, shared_hub: Any, office: str) -> None:
    words = [*configured(windows.folder), "--url", shared_hub.url, "--office", office, "--console", "--no-browser"]
    computer = await windows.a2c("computer", *words)
    link = (await computer.says("console, opens once", LONG)).split()[-1]
    await computer.says("good: ready", LONG)
    url = urlsplit(link)
    place, own = f"{url.scheme}://127.0.0.1:{url.port}", {"Host": url.netloc, "Origin": f"{url.scheme}://{url.netloc}"}
    (secret,) = parse_qs(url.query)["link"]
    opened = await fetch(f"{place}/open", "POST", data={"link": secret}, headers=own)
    session = {"X-A2C-Session": opened.json["secret"], **own}
    assert "good" in (await fetch(f"{place}/servers", headers=session)).text
    async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent:
        call = asyncio.create_task(agent.emit_tool_call("laptop", "add", {"a": 40, "b": 2}, timeout=LONG))

        async def decide() -> None:
            decision = {"number": "1", "decision": "yes"}
            answered = await fetch(f"{place}/requests/decide", "POST", data=decision, headers=session)
            assert answered.status == 204, answered

        await until_it_goes(decide, LONG)
        assert (await call).text == "42"
