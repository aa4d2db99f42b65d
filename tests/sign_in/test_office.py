"""What an agent in an office learns of a sign-in: that one is needed, and nothing of its secrets."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted, ready
from tests.computer.recorded import Recorder
from tests.conftest import Hub
from tests.executables import executable
from tests.program import start_program
from tests.sign_in.authorization_server import Grant
from tests.sign_in.conftest import Browser, call, text_of
from tests.sign_in.guarded_server import GuardedServer
from tests.sign_in.served import PATIENCE
from tests.waiting import until

pytestmark = pytest.mark.covers("9-sign-in", "9-sign-in-results", "9-sign-in-secrets")


async def test_an_agent_is_told_and_no_secret_is_on_the_wire(
    shared_hub: Hub, office: str, guarded: GuardedServer, browser: Browser, tmp_path: Path
) -> None:
    computer = Computer("laptop", open_url=browser, approve=lambda _: True)
    computer.add_server({"name": "files", "url": guarded.mcp_url, "auth": {"scopes": ["basic"]}})
    recorder = Recorder(shared_hub.url)
    async with (
        recorder.open() as line,
        hosted(computer, line, office, tmp_path),
        AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent,
    ):
        await ready(computer, "files")
        assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})).text == "3"
        assert (await agent.emit_tool_call("laptop", "write", {"text": "x"})).text == "written: x"
        assert "Bearer ***" in (await agent.emit_tool_call("laptop", "tell_headers")).text
        await agent.get_config("laptop")
        await computer.sign_out("files")
        await until(lambda: computer.status()["files"].state == "auth_required")
        refused = await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})
        assert refused.is_error
        assert refused.error_code == 4006
        assert refused.meta["mcp_server"] == "files"
        assert (refused.auth_hint or {})["action"] == "user_authorization_required"
        tools = [tool["name"] for tool in await agent.get_tools("laptop")]
        assert tools == ["add", "write", "tell_headers"]
    sent = "\n".join(recorder.sent)
    secrets = guarded.provider.secrets()
    assert "written: x" in sent
    assert len(secrets) > 10
    assert [secret for secret in secrets if secret in sent] == []


async def test_a_server_with_a_credential_of_the_owner_refuses_a_call_and_stays(
    guarded: GuardedServer, tmp_path: Path
) -> None:
    """Whatever the credential: a 403 later in a session is a failed call, and the server goes on."""
    token = "a-token-of-the-owner"
    guarded.provider.access[token] = Grant("owner", "basic", None, "", time.time() + 60)
    computer = Computer("laptop", state_folder=tmp_path, approve=lambda _: True)
    computer.add_server({"name": "files", "url": guarded.mcp_url, "headers": {"Authorization": f"Bearer {token}"}})
    async with computer:
        await computer.start()
        refused = await call(computer, "write", text="x")
        assert refused["_meta"]["error_code"] == 4007
        assert text_of(await call(computer, "add", a=1, b=2)) == "3"
        del guarded.provider.access[token]
        assert (await call(computer, "add", a=1, b=2))["_meta"]["error_code"] == 4006
        assert computer.status()["files"].reason.endswith("/mcp")


async def test_the_program_signs_in_beside_a_running_computer(
    guarded: GuardedServer, meet: Callable[..., Any], tmp_path: Path
) -> None:
    """`a2c-smcp login` with `$BROWSER`, as a process of its own; a computer that is running notices it."""
    computer = await meet(guarded.mcp_url, state_folder=tmp_path / "a2c-smcp")
    servers = tmp_path / "servers.json"
    browser = executable(tmp_path / "browser", "import sys, urllib.request\nurllib.request.urlopen(sys.argv[1])\n")
    servers.write_text(json.dumps({"mcpServers": {"files": {"type": "http", "url": guarded.mcp_url}}}))
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "BROWSER": str(browser)}
    program = await start_program("login", "files", "--config", servers, env=environ)
    said, problems = await asyncio.wait_for(program.communicate(), PATIENCE)
    assert (program.returncode, said) == (0, b"Signed in to files.\n"), problems
    await until(lambda: computer.status()["files"].state == "ready")
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"
