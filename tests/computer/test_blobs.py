"""Handles of a computer's contents: who may read them, in which chunks, for how long, and what is left on disk."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.blob_handles import BlobLimits, Blobs, FileBlob, Spool
from a2c_smcp.errors import AnswerTooLarge, BlobNotAccessible
from tests.computer.hosted import Host
from tests.on_disk import mode_of, waiting_process
from tests.peer import Peer
from tests.waiting import until

pytestmark = pytest.mark.covers("blobs-bound", "blobs-bounded", "blobs-private")

CHUNK = 262_144
CONTENT = bytes(range(256)) * 2500
OTHER_AGENT = Caller("desk", "other")
PLANNER = Caller("desk", "planner")


@dataclass(frozen=True)
class Memory:
    """A source that is not a file, and may say no."""

    content: bytes = CONTENT
    mime_type: str = "text/plain"
    refusal: str = ""
    lost: int = 0

    @property
    def total_size(self) -> int:
        return len(self.content)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def read(self, offset: int, size: int) -> bytes:
        if self.refusal == "os":
            raise OSError(None, "the disk is gone")
        if self.refusal:
            raise BlobNotAccessible("not for you", reason=self.refusal)
        return self.content[offset : offset + size - self.lost]


def asked(handle: object, **more: Any) -> dict[str, Any]:
    return {"agent": "planner", "req_id": "r1", "computer": "laptop", "blob_handle": handle, **more}


@asynccontextmanager
async def opened(folder: Path, clock: Any = None, **limits: Any) -> AsyncIterator[Blobs]:
    blobs = Blobs(BlobLimits(**limits), **({"clock": clock} if clock else {}))
    blobs.open(folder)
    try:
        yield blobs
    finally:
        blobs.close()


async def reason_for(blobs: Blobs, handle: object, caller: Caller = PLANNER, **more: Any) -> str | None:
    """Why a handle cannot be read; `None` if it can."""
    try:
        await blobs.chunk(caller, asked(handle, **more))
    except BlobNotAccessible as error:
        return str(error.details["reason"])
    return None


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.covers("9-get_blob", "transfers-binary")
async def test_chunks_over_the_wire_are_those_of_the_protocol_and_for_their_agent_alone(
    host: Host, agent: Peer, office: str
) -> None:
    computer = Computer("laptop")
    await host(computer)
    mine, total = Caller(office, "planner", seat=await agent.seat()), len(CONTENT)
    handle = computer.blobs.offer(mine, Memory())
    others = Caller(office, "planner"), Caller(office, "other"), Caller("elsewhere", "planner")
    foreign = [computer.blobs.offer(who, Memory()) for who in others]

    async def ask(handle: object = handle, **more: Any) -> Any:
        return await agent.request("client:get_blob", "laptop", blob_handle=handle, **more)

    first = await ask()
    about = {"blob_handle": handle, "mime_type": "text/plain", "sha256": hashlib.sha256(CONTENT).hexdigest()}
    about |= {"total_size": total, "chunk_offset": 0, "eof": False}
    assert {key: value for key, value in first.items() if key not in ("blob", "req_id")} == about
    chunks = [(0, size, CHUNK) for size in (None, 0, -5, 10_000_000)]
    for offset, size, length in (*chunks, (7, 1000, 1000), (total - 10, 1000, 10), (total, None, 0)):
        chunk = await ask(chunk_offset=offset, max_chunk_bytes=size)
        assert b64decode(chunk["blob"]) == CONTENT[offset : offset + length]
        assert chunk["eof"] is (offset + length == total)
    attached = await ask(chunk_offset=7, binary=True)
    assert attached["blob"] == CONTENT[7 : 7 + CHUNK]
    assert attached.keys() == first.keys()
    assert b64decode((await ask(binary=False))["blob"]) == CONTENT[:CHUNK]
    for wrong in (1, "true"):
        refused = await ask(binary=wrong)
        assert refused["code"] == 4018
        assert refused["message"].endswith("binary: must be true or false"), refused
    ranges = [({"chunk_offset": offset}, "range") for offset in (total + 1, -1, "0", 1.5, True)]
    garbage = ("", "x", "../../etc/passwd", handle.upper() + "x", "é" * 32)
    invalid = [({"handle": each}, "invalid_handle") for each in garbage]
    for wrong, reason in (*ranges, *invalid, *(({"handle": other}, "gone") for other in (*foreign, "0" * 32))):
        refused = await ask(**wrong)
        assert (refused["code"], refused["details"]) == (4018, {"reason": reason}), wrong
    await agent.ask("server:leave_office", {"office_id": office})
    await agent.join("agent", "planner", office)
    assert (await ask())["details"] == {"reason": "gone"}


async def test_a_source_checks_every_chunk_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as blobs:
        gone = [Memory(refusal="gone"), Memory(refusal="os"), Memory(lost=1)]
        sources = {Memory(): None, Memory(refusal="forbidden"): "forbidden", **dict.fromkeys(gone, "gone")}
        for source, reason in sources.items():
            assert await reason_for(blobs, blobs.offer(PLANNER, source)) == reason
        path = tmp_path / "file"
        path.write_bytes(CONTENT)
        file = FileBlob(path, "text/plain", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
        handle = blobs.offer(PLANNER, file)
        assert await reason_for(blobs, handle, chunk_offset=5) is None
        path.write_bytes(CONTENT[1:])
        assert await reason_for(blobs, handle) == "gone"
        path.unlink()
        assert await reason_for(blobs, handle) == "gone"


async def test_equal_sources_of_one_agent_have_one_handle(tmp_path: Path) -> None:
    async with opened(tmp_path) as blobs:
        handle = blobs.offer(PLANNER, Memory())
        assert blobs.offer(PLANNER, Memory()) == handle
        others = {blobs.offer(Caller("desk", "other"), Memory()), blobs.offer(Caller("elsewhere", "planner"), Memory())}
        assert len({handle, *others, blobs.offer(PLANNER, Memory(b"else"))}) == 4


async def test_a_handle_ends_when_it_is_not_used_and_at_the_latest_after_its_longest_time(tmp_path: Path) -> None:
    now = 1000.0
    async with opened(tmp_path, lambda: now, age=10.0, longest=25.0) as blobs:
        handle = (await blobs.spool(PLANNER, CONTENT, "text/plain")).handle
        for seconds in (9, 9, 6):
            now += seconds
            assert await reason_for(blobs, handle) is None
        now += 2
        assert await reason_for(blobs, handle) == "gone"
        assert files(tmp_path) == []


async def test_what_nobody_reads_is_removed_without_anybody_asking(tmp_path: Path) -> None:
    async with opened(tmp_path, age=0.05) as blobs:
        await blobs.spool(PLANNER, CONTENT, "text/plain")
        await until(lambda: not files(tmp_path))


async def test_the_least_recently_used_make_room_for_new_ones(tmp_path: Path) -> None:
    async with opened(tmp_path, most=3, most_bytes=3000, largest=2000) as blobs:
        one, two = [(await blobs.spool(PLANNER, bytes([n]) * 1000, "x/y")).handle for n in (1, 2)]
        assert await reason_for(blobs, one) is None
        three = (await blobs.spool(PLANNER, bytes(1500), "x/y")).handle
        assert [await reason_for(blobs, each) for each in (one, two, three)] == [None, "gone", None]
        offers = [blobs.offer(PLANNER, Memory(bytes([n]))) for n in range(3)]
        assert [await reason_for(blobs, each) for each in (one, three, *offers)] == ["gone", "gone", None, None, None]
        assert files(tmp_path) == []
        with pytest.raises(AnswerTooLarge):
            await blobs.spool(PLANNER, bytes(2001), "x/y")


@pytest.mark.covers("blobs-budget")
async def test_one_agent_takes_no_place_of_another(tmp_path: Path) -> None:
    async with opened(tmp_path, most_bytes=3000, most_of_agent=2000) as blobs:
        kept = (await blobs.spool(OTHER_AGENT, bytes(1000), "x/y")).handle
        own = [(await blobs.spool(PLANNER, bytes([n]) * 1000, "x/y")).handle for n in range(5)]
        assert [await reason_for(blobs, each) for each in own] == ["gone"] * 3 + [None] * 2
        assert await reason_for(blobs, kept, OTHER_AGENT) is None
        with pytest.raises(AnswerTooLarge):
            await blobs.spool(PLANNER, bytes(2001), "x/y")


async def test_handles_end_with_their_agent_and_files_with_their_handles(tmp_path: Path) -> None:
    office, other = Caller("desk", "planner"), Caller("desk", "other")
    async with opened(tmp_path) as blobs:
        marks = {caller: await blobs.spool(caller, CONTENT, "x/y") for caller in (office, other)}
        blobs.drop(lambda caller: caller.office == "elsewhere" or caller.agent == "nobody")
        blobs.drop(lambda caller: caller.office == "desk" and caller.agent != "planner")
        assert await reason_for(blobs, marks[other].handle, other) == "gone"
        assert await reason_for(blobs, marks[office].handle, office) is None
        blobs.drop(lambda caller: (caller.office, caller.agent) == ("desk", "planner"))
        assert await reason_for(blobs, marks[office].handle, office) == "gone"
        assert files(tmp_path) == []


async def test_spooled_files_are_their_owners_alone_and_are_removed_at_the_end(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(CONTENT)
    state = tmp_path / "state"
    async with opened(state) as blobs:
        marks = [await blobs.spool(PLANNER, each, "x/y") for each in (CONTENT, source, b"else")]
        assert marks[0] == marks[1]
        assert (marks[0].total_size, marks[0].sha256) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
        assert len(files(state)) == 2
        assert {(path.is_dir(), mode_of(path)) for path in state.rglob("*")} == {(False, 0o600), (True, 0o700)}
    assert [*(state / "blobs").iterdir()] == []
    assert source.read_bytes() == CONTENT


async def test_a_cancelled_spooling_leaves_no_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as blobs:
        spooling = asyncio.create_task(blobs.spool(PLANNER, bytes(20_000_000), "x/y"))
        await until(lambda: files(tmp_path))
        spooling.cancel()
        await until(lambda: not files(tmp_path))


CRASHING = """
from a2c_smcp.computer.content.blob_handles import Spool
spool = Spool()
spool.open(folder)
spool.add(b"left behind")
"""


async def test_the_next_start_removes_what_a_killed_process_has_left_and_nothing_of_others(tmp_path: Path) -> None:
    spool = Spool()
    spool.open(tmp_path)
    spool.add(b"mine")
    later = Spool()
    async with waiting_process(CRASHING, tmp_path):
        later.open(tmp_path)
        assert sorted(path.read_bytes() for path in files(tmp_path)) == [b"left behind", b"mine"]
    later.open(tmp_path)
    assert [path.read_bytes() for path in files(tmp_path)] == [b"mine"]
    spool.close()
    assert [*(tmp_path / "blobs").iterdir()] == []
    with pytest.raises(OSError, match="not running"):
        spool.add(b"too late")
