"""A bridge is the end of a seal: a computer that requires sealing serves it if it seals, and its key is trusted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp import Client

from tests.stage.place import Place, good, place_in

pytestmark = pytest.mark.covers("sealed-bridge")


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Place]:
    async with place_in(tmp_path / "operator") as place:
        yield place


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Place]:
    async with place_in(tmp_path / "owner") as place:
        yield place


CASES = {
    "inside the Server, in plain": ((), None, True, False),
    "inside the Server, not trusted": (("--mcp-e2e", "prefer"), None, False, False),
    "inside the Server": (("--mcp-e2e", "prefer"), None, True, True),
    "in plain": ((), (), True, False),
    "not trusted": ((), ("--e2e", "prefer"), False, False),
    "beside the Server": ((), ("--e2e", "prefer"), True, True),
}


@pytest.mark.parametrize(("server", "bridge", "is_trusted", "is_served"), CASES.values(), ids=CASES)
async def test_a_bridge_is_served_if_it_seals_and_is_trusted(
    operator: Place,
    owner: Place,
    server: tuple[str, ...],
    bridge: tuple[str, ...] | None,
    is_trusted: bool,
    is_served: bool,
) -> None:
    running = await operator.start("server", "--port", "0", "--mcp", *server)
    url = await running.listens()
    shown = json.loads((await operator.run("device", "show", "--json")).out)
    fingerprint = next(each["fingerprint"] for each in shown["devices"] if each["role"] == "agent")
    if is_trusted:
        name = "mcp:anonymous" if bridge is None else "bridge"
        trusted = await owner.run("device", "trust", fingerprint, "agent", name, "--office", "desk", "--url", url)
        assert trusted.code == 0
    config = str(owner.write({"good": good()}))
    words = ("--name", "laptop", "--office", "desk", "--url", url, "--config", config, "--yes", "--e2e", "require")
    computer = await owner.start("computer", *words)
    await computer.says("ready")
    where = f"{url}/mcp/desk"
    if bridge is not None:
        serving = await operator.start("bridge", "--port", "0", "--no-key", "--office", "desk", "--url", url, *bridge)
        where = await serving.listens()
    async with Client(where) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        assert ("add" in listed) is is_served
        if is_served:
            answer = await client.call_tool("add", {"a": 1, "b": 2})
            assert "3" in str(answer.content)
