"""Sealed requests between a real agent and a real computer, through a real Server that sees only who and how large."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.devices.identity import Identity
from a2c_smcp.devices.known import KnownDevices, KnownPeer
from a2c_smcp.errors import DeviceMismatch, SealingRequired
from a2c_smcp.registry import AsyncToolContext
from tests.computer.hosted import hosted

pytestmark = pytest.mark.covers("9-get_device", "9-sealed", "signed")

SECRET = "a text that the Server must not see"


def computer_of(folder: Path, **options: Any) -> Computer:
    computer = Computer("laptop", state_folder=folder / "computer", **options)

    @computer.tool(auto_apply=True)
    async def echo(text: str) -> str:
        """Say it again"""
        return text[::-1]

    @computer.tool(auto_apply=True)
    async def slow(context: AsyncToolContext) -> str:
        """Report progress"""
        for step in range(3):
            context.progress(step + 1, 3, f"{SECRET} {step}")
            await asyncio.sleep(0.3)
        return "over"

    return computer


@asynccontextmanager
async def at_work(hub: Any, office: str, folder: Path, **options: Any) -> AsyncIterator[AsyncSMCPAgentClient]:
    options = {"url": hub.url, "office": office, "state_folder": folder / "agent", **options}
    async with AsyncSMCPAgentClient("planner", **options) as agent:
        yield agent


@pytest.mark.parametrize("agents", ["prefer", "off"])
@pytest.mark.parametrize("computers", ["prefer", "off"])
async def test_a_call_works_whoever_prefers_to_seal(
    shared_hub: Any, office: str, tmp_path: Path, agents: Any, computers: Any
) -> None:
    async with (
        hosted(computer_of(tmp_path, e2e=computers), shared_hub.url, office, tmp_path / "computer"),
        at_work(shared_hub, office, tmp_path, e2e=agents) as agent,
    ):
        result = await agent.emit_tool_call("laptop", "echo", {"text": SECRET})
        assert result.text == SECRET[::-1]
        assert "echo" in [tool["name"] for tool in await agent.get_tools("laptop")]


async def test_progress_arrives_sealed(shared_hub: Any, office: str, tmp_path: Path) -> None:
    heard: list[Any] = []
    async with (
        hosted(computer_of(tmp_path, e2e="prefer"), shared_hub.url, office, tmp_path / "computer"),
        at_work(shared_hub, office, tmp_path, e2e="prefer") as agent,
    ):
        result = await agent.emit_tool_call("laptop", "slow", on_progress=lambda *report: heard.append(report))
        assert result.text == "over"
    assert heard[-1][:2] == (3, 3)


async def test_require_serves_only_agents_that_were_trusted(shared_hub: Any, office: str, tmp_path: Path) -> None:
    identities = {"agent": Identity.generate(), "computer": Identity.generate()}
    computer = computer_of(tmp_path, e2e="require", identity=identities["computer"])
    async with hosted(computer, shared_hub.url, office, tmp_path / "computer"):
        async with at_work(shared_hub, office, tmp_path) as agent:
            with pytest.raises(SealingRequired):
                await agent.emit_tool_call("laptop", "echo", {"text": SECRET})
        options = {"e2e": "require", "identity": identities["agent"]}
        async with at_work(shared_hub, office, tmp_path, **options) as agent:
            with pytest.raises(DeviceMismatch, match="a2c-smcp device trust"):
                await agent.emit_tool_call("laptop", "echo", {"text": SECRET})
        known = KnownDevices(tmp_path / "agent")
        known.trust(KnownPeer(shared_hub.url, office, "computer", "laptop"), identities["computer"].fingerprint)
        async with at_work(shared_hub, office, tmp_path, **options) as agent:
            with pytest.raises(DeviceMismatch, match=r"is not known.* run on the computer: a2c-smcp device trust"):
                await agent.emit_tool_call("laptop", "echo", {"text": SECRET})
        known = KnownDevices(tmp_path / "computer")
        known.trust(KnownPeer(shared_hub.url, office, "agent", "planner"), identities["agent"].fingerprint)
        async with at_work(shared_hub, office, tmp_path, **options) as agent:
            assert (await agent.emit_tool_call("laptop", "echo", {"text": SECRET})).text == SECRET[::-1]


async def test_answers_are_signed_and_checked(shared_hub: Any, office: str, tmp_path: Path) -> None:
    async with (
        hosted(computer_of(tmp_path, sign=True), shared_hub.url, office, tmp_path / "computer"),
        at_work(shared_hub, office, tmp_path, verify=True) as agent,
    ):
        assert (await agent.emit_tool_call("laptop", "echo", {"text": SECRET})).text == SECRET[::-1]
        big = "x" * 500_000
        assert (await agent.emit_tool_call("laptop", "echo", {"text": big})).text == big


async def test_an_unsigned_answer_is_refused(shared_hub: Any, office: str, tmp_path: Path) -> None:
    async with (
        hosted(computer_of(tmp_path), shared_hub.url, office, tmp_path / "computer"),
        at_work(shared_hub, office, tmp_path, verify=True) as agent,
    ):
        with pytest.raises(DeviceMismatch):
            await agent.emit_tool_call("laptop", "echo", {"text": SECRET})
