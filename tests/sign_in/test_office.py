"""What an agent in an office learns of a sign-in: that one is needed, and nothing of its secrets."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted, ready
from tests.computer.recorded import Recorder
from tests.conftest import Hub
from tests.sign_in.authorization_server import Grant
from tests.sign_in.conftest import Scene, call, text_of
from tests.waiting import until

pytestmark = pytest.mark.covers("9-sign-in", "9-sign-in-results", "9-sign-in-secrets")


async def test_an_agent_is_told_and_no_secret_is_on_the_wire(
    shared_hub: Hub, office: str, scene: Scene, tmp_path: Path
) -> None:
    computer = Computer("laptop", open_url=scene.browser, approve=lambda _: True)
    auth = {"scopes": ["basic"], "issuer": scene.provider.issuer}
    computer.add_server({"name": "files", "url": scene.server.mcp_url, "auth": auth})
    recorder = Recorder(shared_hub.url)
    async with (
        recorder.open() as line,
        hosted(computer, line, office, tmp_path),
        AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent,
    ):
        await computer.sign_in("files")
        await ready(computer, "files")
        assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})).text == "3"
        assert (await agent.emit_tool_call("laptop", "write", {"text": "x"})).error_code == 4007
        await computer.sign_in("files")
        assert (await agent.emit_tool_call("laptop", "write", {"text": "x"})).text == "written: x"
        assert "Bearer ***" in (await agent.emit_tool_call("laptop", "tell_headers")).text
        await agent.get_config("laptop")
        await computer.sign_out("files")
        await until(lambda: computer.status()["files"].state == "auth_required")
        refused = await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})
        assert (refused.is_error, refused.error_code, refused.meta["mcp_server"]) == (True, 4006, "files")
        assert (refused.auth_hint or {})["action"] == "user_authorization_required"
        tools = [tool["name"] for tool in await agent.get_tools("laptop")]
        assert tools == ["add", "write", "tell_headers"]
    sent = "\n".join(recorder.sent)
    secrets = scene.provider.secrets()
    assert "written: x" in sent
    assert len(secrets) > 10
    assert [secret for secret in secrets if secret in sent] == []


async def test_a_server_with_a_credential_of_the_owner_refuses_a_call_and_stays(scene: Scene) -> None:
    """Whatever the credential: a 403 later in a session is a failed call, and the server goes on."""
    token = "a-token-of-the-owner"
    scene.provider.access[token] = Grant("owner", "basic", None, "", time.time() + 60)
    computer = await scene.ready(headers={"Authorization": f"Bearer {token}"})
    refused = await call(computer, "write", text="x")
    assert refused["_meta"]["error_code"] == 4007
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"
    del scene.provider.access[token]
    assert (await call(computer, "add", a=1, b=2))["_meta"]["error_code"] == 4006
    assert computer.status()["files"].reason.endswith("/mcp")
    assert scene.opened == []
