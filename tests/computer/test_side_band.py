"""Large contents of results: what goes by the side band for whom, what stays, and what is an error with its size."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted, joined_agent, ready
from tests.computer.servers.contents import binary, item, text
from tests.computer.supervised import quick, script
from tests.conftest import SharedHubs
from tests.peer import Peer

MIB = 1024 * 1024
LIMIT = 4 * MIB
SMALL, LARGE = 32_768, 32_769
SECRET = "hunter2-hunter2-hunter2"

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.covers("side-band", "large-text")]


@asynccontextmanager
async def giving(url: str, folder: Path) -> AsyncIterator[Peer]:
    """A raw agent whose office has a computer with the server of `contents.py`. The server was given a secret."""
    office = f"office-{uuid4().hex[:12]}"
    computer = Computer("laptop", policy=quick(largest_message=4 * LIMIT))
    allowed = {"default_tool_meta": {"auto_apply": True}, "env": {"TOKEN": SECRET}}
    computer.add_server(script("contents.py", name="contents", **allowed))
    async with hosted(computer, url, office, folder):
        await ready(computer, "contents")
        peer = await joined_agent(url, office)
        yield peer
        await peer.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(shared_hubs: SharedHubs, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Peer]:
    async with giving(shared_hubs.hub("program").url, tmp_path_factory.mktemp("computer")) as peer:
        yield peer


async def give(agent: Peer, *items: tuple[str, int], more: dict[str, Any] | None = None, **fields: Any) -> Any:
    params = {"items": items, **(more or {})}
    return await agent.call_tool("laptop", "give", timeout=30, params=params, **fields)


async def drained(agent: Peer, mark: dict[str, Any]) -> bytes:
    """The content of a mark, read as the protocol describes it, and checked."""
    content = b""
    while True:
        about = {"blob_handle": mark["a2c_blob_handle"], "chunk_offset": len(content)}
        chunk = await agent.request("client:get_blob", "laptop", **about)
        assert (chunk["total_size"], chunk["sha256"]) == (mark["a2c_total_size"], mark["a2c_sha256"])
        content += b64decode(chunk["blob"], validate=True)
        if chunk["eof"]:
            break
    assert len(content) == mark["a2c_total_size"]
    assert hashlib.sha256(content).hexdigest() == mark["a2c_sha256"]
    return content


@pytest.mark.covers("9-get_blob")
async def test_binary_over_32_kib_is_moved_for_an_agent_that_says_blobs(agent: Peer) -> None:
    kinds = ("image", "audio", "blob")
    result = await give(agent, *((kind, size) for size in (SMALL, LARGE) for kind in kinds), blobs=True)
    small, large = result["content"][:3], result["content"][3:]
    for found, kind in zip(small, kinds, strict=True):
        assert found == _without_own_keys(item(kind, SMALL))
    for found, kind in zip(large, kinds, strict=True):
        expected = _without_own_keys(item(kind, LARGE))
        holder = found["resource"] if kind == "blob" else found
        assert holder.pop("blob" if kind == "blob" else "data") == ""
        mark = {key: found["_meta"].pop(key) for key in [*found["_meta"]] if key.startswith("a2c_")}
        assert await drained(agent, mark) == binary(LARGE)
        assert found["_meta"] == expected.get("_meta", {})


async def test_an_agent_that_does_not_say_blobs_gets_binary_inline_while_it_fits(agent: Peer) -> None:
    result = await give(agent, ("image", 2 * MIB))
    assert b64decode(result["content"][0]["data"]) == binary(2 * MIB)
    result = await give(agent, ("image", SMALL), ("image", 2 * MIB), ("audio", 2 * MIB), ("text", 100))
    first, *moved, last = result["content"]
    assert first == _without_own_keys(item("image", SMALL))
    assert [each["data"] for each in moved] == ["", ""]
    assert [await drained(agent, each["_meta"]) for each in moved] == [binary(2 * MIB)] * 2
    assert last == item("text", 100)


async def test_a_text_over_the_limit_is_413_with_its_size_unless_the_agent_says_blobs(agent: Peer) -> None:
    size = 5 * MIB
    for fields in ({}, {"blobs": False}):
        refused = await give(agent, ("text", size), **fields)
        assert (refused["code"], refused["isError"]) == (413, True)
        assert refused["details"]["size"] >= size
    result = await give(agent, ("text", size), ("text", SMALL), ("inner_text", size), blobs=True)
    large, small, inner = result["content"]
    assert small == item("text", SMALL)
    assert (large["text"], inner["resource"]["text"]) == ("", "")
    assert (await drained(agent, large["_meta"])).decode() == text(size)
    assert (await drained(agent, inner["_meta"])).decode() == text(size)
    fits = await give(agent, ("text", 3 * MIB), blobs=True)
    assert fits["content"] == [item("text", 3 * MIB)]


async def test_structured_content_over_the_limit_is_marked_in_the_result(agent: Peer) -> None:
    size = 5 * MIB
    result = await give(agent, ("text", 10), more={"structured": size}, blobs=True)
    assert result["content"] == [item("text", 10)]
    assert result["structuredContent"] == {}
    assert json.loads(await drained(agent, result["_meta"])) == {"words": text(size)}
    refused = await give(agent, more={"structured": size})
    assert refused["code"] == 413


async def test_what_is_not_base64_is_no_binary_and_stays_where_it_is(agent: Peer) -> None:
    result = await give(agent, ("no_base64", LARGE * 2), blobs=True)
    assert result["content"] == [item("no_base64", LARGE * 2)]


@pytest.mark.covers("secrets-masked")
async def test_texts_are_masked_before_they_are_spooled(agent: Peer) -> None:
    size = 5 * MIB
    result = await give(agent, ("text", size), more={"text": SECRET, "structured": size}, blobs=True)
    assert (await drained(agent, result["content"][0]["_meta"])).decode() == "***" + text(size)
    assert json.loads(await drained(agent, result["_meta"])) == {"words": "***" + text(size)}


@pytest.mark.covers("computer-dedup")
async def test_a_duplicate_gets_the_same_handles_and_equal_contents_are_kept_once(agent: Peer) -> None:
    first, again = [await give(agent, ("image", LARGE), blobs=True, req_id="same") for _ in range(2)]
    assert first == again
    assert await drained(agent, again["content"][0]["_meta"]) == binary(LARGE)
    other = await give(agent, ("image", LARGE), blobs=True, req_id="other")
    assert other["content"] == first["content"]


async def test_without_a_place_to_keep_them_contents_stay_inline_or_are_413(
    shared_hubs: SharedHubs, tmp_path: Path
) -> None:
    async with giving(shared_hubs.hub("program").url, tmp_path) as peer:
        (tmp_path / "blobs").write_text("not a folder")
        assert (await give(peer, ("image", LARGE), blobs=True))["content"] == [_without_own_keys(item("image", LARGE))]
        assert (await give(peer, ("image", 5 * MIB), blobs=True))["code"] == 413


def _without_own_keys(found: dict[str, Any]) -> dict[str, Any]:
    if "_meta" not in found:
        return found
    return {**found, "_meta": {key: value for key, value in found["_meta"].items() if not key.startswith("a2c_")}}
