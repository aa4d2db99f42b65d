"""Sealed requests between a real agent and a real computer, through a real Server that sees only who and how large."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.devices.identity import Identity, KnownDevices, KnownPeer
from a2c_smcp.errors import DeviceMismatch, SealingRequired
from tests.computer.hosted import hosted

pytestmark = pytest.mark.covers("9-get_device", "9-sealed", "signed")

SECRET = "a text that the Server must not see"


def computer_of(folder: Path, **options: Any) -> Computer:
    computer = Computer("laptop", state_folder=folder / "computer", **options)

    @computer.tool(auto_apply=True)
    async def echo(text: str) -> str:
        """Say it again"""
        return text[::-1]

    return computer


class Place:
    """An office, and the folders of its two members."""

    def __init__(self, url: str, office: str, folder: Path) -> None:
        self.url, self.office, self.folder = url, office, folder

    def computer(self, **options: Any) -> AbstractAsyncContextManager[Any]:
        return hosted(computer_of(self.folder, **options), self.url, self.office, self.folder / "computer")

    def agent(self, **options: Any) -> AsyncSMCPAgentClient:
        options = {"url": self.url, "office": self.office, "state_folder": self.folder / "agent", **options}
        return AsyncSMCPAgentClient("planner", **options)

    def trust(self, by: str, role: Any, name: str, identity: Identity) -> None:
        KnownDevices(self.folder / by).trust(KnownPeer(self.url, self.office, role, name), identity.fingerprint)


@pytest.fixture
def place(shared_hub: Any, office: str, tmp_path: Path) -> Place:
    return Place(shared_hub.url, office, tmp_path)


async def echoed(agent: AsyncSMCPAgentClient) -> bool:
    return (await agent.emit_tool_call("laptop", "echo", {"text": SECRET})).text == SECRET[::-1]


@pytest.mark.parametrize("agents", ["prefer", "off"])
@pytest.mark.parametrize("computers", ["prefer", "off"])
async def test_a_call_works_whoever_prefers_to_seal(place: Place, agents: Any, computers: Any) -> None:
    async with place.computer(e2e=computers), place.agent(e2e=agents) as agent:
        assert await echoed(agent)
        assert "echo" in [tool["name"] for tool in await agent.get_tools("laptop")]


async def test_require_serves_only_agents_that_were_trusted(place: Place) -> None:
    laptop, planner = Identity.generate(), Identity.generate()
    sealing = {"e2e": "require", "identity": planner}
    async with place.computer(e2e="require", identity=laptop):
        async with place.agent() as agent:
            with pytest.raises(SealingRequired):
                await echoed(agent)
        async with place.agent(**sealing) as agent:
            with pytest.raises(DeviceMismatch, match="a2c-smcp device trust"):
                await echoed(agent)
        place.trust("agent", "computer", "laptop", laptop)
        async with place.agent(**sealing) as agent:
            with pytest.raises(DeviceMismatch, match=r"is not known.* run on the computer: a2c-smcp device trust"):
                await echoed(agent)
        place.trust("computer", "agent", "planner", planner)
        async with place.agent(**sealing) as agent:
            assert await echoed(agent)


async def test_an_unsigned_answer_is_refused(place: Place) -> None:
    async with place.computer(), place.agent(verify=True) as agent:
        with pytest.raises(DeviceMismatch):
            await echoed(agent)
