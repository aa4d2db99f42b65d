"""Images and files between ours and the published 0.4.2 package, as agent and as computer, through either Server."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.blob_handles import BlobLimits
from a2c_smcp.errors import AnswerTooLarge, BlobNotAccessible, BlobWriteFailed
from a2c_smcp.registry.calls.context import OnProgress
from tests.computer.hosted import Relay, hosted, ready
from tests.computer.servers.contents import binary
from tests.interop.conftest import KEY, a_server, computer_of, peer_command
from tests.interop.driver import Driver, PeerFailed
from tests.on_disk import content_of
from tests.stage.agent import SOON

SIZE = 700_001
LARGEST = 1_000_000
CONTENT = binary(SIZE)
KINDS = ("image", "audio", "resource")

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.covers("interop-0.4.2", "9-get_blob", "9-put_blob", "side-band"),
]


def content_in(item: dict[str, Any]) -> bytes:
    """The content of an item, in which no mark is left."""
    assert not any(key.startswith("a2c_") for key in item.get("_meta") or {})
    return b64decode(item["resource"]["blob"] if item["type"] == "resource" else item["data"])


@dataclass
class Offices:
    """In `ours` our computer and a published agent, in `theirs` a published computer and our agent.

    No two have the same name: to the published Server names are unique everywhere.
    """

    folder: Path
    computer: Computer
    published_agent: Driver
    agent: AsyncSMCPAgentClient

    def file(self, content: bytes = CONTENT) -> Path:
        path = self.folder / "My Report.PDF"
        path.write_bytes(content)
        return path


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["ours", "0.4.2"])
async def offices(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Offices]:
    folder = tmp_path_factory.mktemp("offices")
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(a_server(request.param, folder))
        seats = ("--url", url, "--api-key", KEY, "--name")
        agent_command = peer_command("0.4.2", "agent.py", *seats, "planner", "--office", "ours")
        planner = await _published(stack, folder / "planner", agent_command)
        tower = await _published(stack, folder / "tower", computer_of("0.4.2", *seats, "tower", "--office", "theirs"))
        await tower.ask("join")
        computer = _our_computer(folder)
        await stack.enter_async_context(hosted(computer, url, "ours", folder / "state", api_key=KEY))
        await ready(computer, "desk")
        await planner.ask("join")
        agent = AsyncSMCPAgentClient("director", url=url, office="theirs", api_key=KEY)
        await stack.enter_async_context(agent)
        yield Offices(folder, computer, planner, agent)


async def _published(stack: AsyncExitStack, home: Path, command: list[str]) -> Driver:
    settings = home / ".config" / "a2c"
    settings.mkdir(parents=True)
    (home / "landing").mkdir()
    (settings / "settings.json").write_text(json.dumps({"landingRoot": str(home / "landing")}))
    driver = await Driver.start(*command, home=home)
    stack.push_async_callback(driver.close)
    await driver.hears("ready")
    return driver


def _our_computer(folder: Path) -> Computer:
    program, *words = peer_command("0.4.2", "mcp_server.py")
    command = {"command": program, "args": words}
    computer = Computer("laptop", landing=folder / "landing", blob_limits=BlobLimits(upload_size=LARGEST))
    computer.add_server({"name": "desk", "server_parameters": command, "default_tool_meta": {"auto_apply": True}})
    return computer


async def test_our_agent_gets_images_of_a_published_computer_whole_and_sends_it_files(offices: Offices) -> None:
    agent = offices.agent
    for size, kind in product((32_768, 32_769, SIZE), KINDS):
        result = await agent.emit_tool_call("tower", "desk__picture", {"size": size, "kind": kind})
        assert content_in(result.content[0]) == bytes(size), (size, kind)
    saved = await agent.emit_tool_call("tower", "desk__picture", {"size": SIZE}, save_to=offices.folder / "saved")
    assert content_of(saved.files[0]) == bytes(SIZE)
    landed = await agent.put_file("tower", offices.file())
    assert content_of(landed) == CONTENT
    assert landed.endswith("_My_Report.PDF")
    with pytest.raises(BlobNotAccessible) as unknown:
        await agent.read_blob("tower", "no handle at all")
    assert unknown.value.details["reason"] == "invalid_handle"
    with pytest.raises(BlobWriteFailed) as large:
        await agent.put_bytes("tower", bytes(100 * 1024 * 1024 + 1))
    assert large.value.details["reason"] == "too_large"


async def test_a_published_agent_gets_images_of_our_computer_whole_and_sends_it_files(offices: Offices) -> None:
    agent = offices.published_agent
    for size, kind in product((32_769, 500_000, 5_000_000), KINDS):
        params = {"size": size, "kind": kind}
        result = await agent.ask("tool_call", computer="laptop", tool="picture", params=params)
        assert content_in(result["content"][0]) == bytes(size), (size, kind)
    sent = await agent.ask("put_blob", computer="laptop", path=str(offices.file()), name_hint="../My Report.PDF")
    assert content_of(sent["landing_path"]) == CONTENT
    assert sent["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert sent["landing_path"].startswith(f"{offices.folder / 'landing'}/")
    assert sent["landing_path"].endswith("_My_Report.PDF")
    too_large = str(offices.file(bytes(LARGEST + 1)))
    with pytest.raises(PeerFailed, match=r"BlobUploadError.*exceeds the upload cap"):
        await agent.ask("put_blob", computer="laptop", path=too_large)


@pytest.mark.covers("transfers-resumed", "large-text")
async def test_behind_a_published_server_long_texts_are_refused_and_a_lost_connection_ends_what_was_kept(
    tmp_path: Path,
) -> None:
    content, landing = binary(12_000_000), tmp_path / "landing"
    computer = Computer("laptop", landing=landing)

    @computer.tool(auto_apply=True)
    def write(size: int) -> str:
        return "x" * size

    async with a_server("0.4.2", tmp_path) as url, hosted(computer, url, "desk", tmp_path / "state", api_key=KEY):
        relay = Relay(url)

        def cutting() -> OnProgress:
            is_due = True

            def cut(done: float, total: float | None, message: str | None) -> None:
                nonlocal is_due
                if is_due and done > len(content) / 3:
                    is_due = False
                    relay.cut()

            return cut

        async with (
            relay.open() as agent_url,
            AsyncSMCPAgentClient("planner", url=agent_url, office="desk", api_key=KEY, reconnect=SOON) as agent,
        ):
            assert len((await agent.emit_tool_call("laptop", "write", {"size": 900_000})).text) == 900_000
            with pytest.raises(AnswerTooLarge):
                await agent.emit_tool_call("laptop", "write", {"size": 1_100_000})
            handle = (await computer.blobs.spool(Caller("desk", "planner"), content, "x/y")).handle
            with pytest.raises(BlobNotAccessible) as ended:
                await agent.save_blob("laptop", handle, tmp_path / "file", cutting())
            assert ended.value.details["reason"] == "gone"
            landed = await agent.put_bytes("laptop", content, None, cutting())
            assert content_of(landed) == content
