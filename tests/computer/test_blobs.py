"""Handles of a computer's contents: who may read them, in which chunks, for how long, and what is left on disk."""

from __future__ import annotations

import asyncio
import hashlib
import stat
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.blobs.limits import BlobLimits
from a2c_smcp.computer.blobs.offers import Blobs
from a2c_smcp.computer.blobs.sources import FileBlob
from a2c_smcp.computer.blobs.spool import Spool
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import AnswerTooLarge, BlobNotAccessible
from tests.computer.hosted import hosted
from tests.conftest import Hub
from tests.peer import Peer
from tests.waiting import until

CHUNK = 262_144
CONTENT = bytes(range(256)) * 2500
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


@pytest.mark.covers("9-get_blob", "blobs-bound", "transfers-binary")
async def test_chunks_over_the_wire_are_those_of_the_protocol_and_for_their_agent_alone(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    computer = Computer("laptop")
    async with hosted(computer, shared_hub.url, office, tmp_path):
        agent = await Peer.connect(shared_hub.url, transports=["websocket"])
        await agent.join("agent", "planner", office)
        handle, total = computer.blobs.offer(Caller(office, "planner"), Memory()), len(CONTENT)
        foreign = [
            computer.blobs.offer(Caller(office, "other"), Memory()),
            computer.blobs.offer(Caller("elsewhere", "planner"), Memory()),
        ]

        async def ask(handle: object = handle, **more: Any) -> Any:
            return await agent.request("client:get_blob", "laptop", blob_handle=handle, **more)

        first = await ask()
        assert {key: value for key, value in first.items() if key not in ("blob", "req_id")} == {
            "blob_handle": handle,
            "mime_type": "text/plain",
            "total_size": total,
            "sha256": hashlib.sha256(CONTENT).hexdigest(),
            "chunk_offset": 0,
            "eof": False,
        }
        for offset, size, length in (
            (0, None, CHUNK),
            (0, 0, CHUNK),
            (0, -5, CHUNK),
            (0, 10_000_000, CHUNK),
            (7, 1000, 1000),
            (total - 10, 1000, 10),
            (total, None, 0),
        ):
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
        for offset in (total + 1, -1, "0", 1.5, True):
            refused = await ask(chunk_offset=offset)
            assert (refused["code"], refused["details"]) == (4018, {"reason": "range"}), offset
        for garbage in ("", "x", "../../etc/passwd", handle.upper() + "x", "é" * 32):
            assert (await ask(garbage))["details"] == {"reason": "invalid_handle"}, garbage
        for other in (*foreign, "0" * 32):
            refused = await ask(other)
            assert (refused["code"], refused["details"]) == (4018, {"reason": "gone"})
        await agent.ask("server:leave_office", {"office_id": office})
        await agent.join("agent", "planner", office)
        assert (await ask())["details"] == {"reason": "gone"}
        await agent.close()


async def test_a_source_checks_every_chunk_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as blobs:
        for source, reason in (
            (Memory(), None),
            (Memory(refusal="forbidden"), "forbidden"),
            (Memory(refusal="gone"), "gone"),
            (Memory(refusal="os"), "gone"),
            (Memory(lost=1), "gone"),
        ):
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


@pytest.mark.covers("blobs-bound")
async def test_equal_sources_of_one_agent_have_one_handle(tmp_path: Path) -> None:
    async with opened(tmp_path) as blobs:
        handle = blobs.offer(PLANNER, Memory())
        assert blobs.offer(PLANNER, Memory()) == handle
        others = {blobs.offer(Caller("desk", "other"), Memory()), blobs.offer(Caller("elsewhere", "planner"), Memory())}
        assert len({handle, *others, blobs.offer(PLANNER, Memory(b"else"))}) == 4


@pytest.mark.covers("blobs-bounded")
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


@pytest.mark.covers("blobs-bounded")
async def test_what_nobody_reads_is_removed_without_anybody_asking(tmp_path: Path) -> None:
    async with opened(tmp_path, age=0.05) as blobs:
        await blobs.spool(PLANNER, CONTENT, "text/plain")
        await until(lambda: not files(tmp_path))


@pytest.mark.covers("blobs-bounded")
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


@pytest.mark.covers("blobs-bound")
async def test_handles_end_with_their_agent_and_files_with_their_handles(tmp_path: Path) -> None:
    office, other = Caller("desk", "planner"), Caller("desk", "other")
    async with opened(tmp_path) as blobs:
        marks = {caller: await blobs.spool(caller, CONTENT, "x/y") for caller in (office, other)}
        blobs.forget("elsewhere")
        blobs.forget("desk", "nobody")
        blobs.keep_only("desk", "planner")
        assert await reason_for(blobs, marks[other].handle, other) == "gone"
        assert await reason_for(blobs, marks[office].handle, office) is None
        blobs.forget("desk", "planner")
        assert await reason_for(blobs, marks[office].handle, office) == "gone"
        assert files(tmp_path) == []


@pytest.mark.covers("blobs-private")
async def test_spooled_files_are_their_owners_alone_and_are_removed_at_the_end(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(CONTENT)
    state = tmp_path / "state"
    async with opened(state) as blobs:
        marks = [await blobs.spool(PLANNER, each, "x/y") for each in (CONTENT, source, b"else")]
        assert marks[0] == marks[1]
        assert (marks[0].total_size, marks[0].sha256) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
        assert len(files(state)) == 2
        modes = {stat.S_IMODE(path.stat().st_mode) for path in state.rglob("*") if path.is_file()}
        assert modes == {0o600}
        assert {stat.S_IMODE(path.stat().st_mode) for path in state.rglob("*") if path.is_dir()} == {0o700}
    assert [*(state / "blobs").iterdir()] == []
    assert source.read_bytes() == CONTENT


@pytest.mark.covers("blobs-private")
async def test_a_cancelled_spooling_leaves_no_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as blobs:
        spooling = asyncio.create_task(blobs.spool(PLANNER, bytes(20_000_000), "x/y"))
        await until(lambda: files(tmp_path))
        spooling.cancel()
        await until(lambda: not files(tmp_path))


CRASHING = """
import sys, time
from pathlib import Path
from a2c_smcp.computer.blobs.spool import Spool
spool = Spool()
spool.open(Path(sys.argv[1]))
spool.add(b"left behind")
print("spooled", flush=True)
time.sleep(600)
"""


@pytest.mark.covers("blobs-private")
async def test_the_next_start_removes_what_a_killed_process_has_left_and_nothing_of_others(tmp_path: Path) -> None:
    spool = Spool()
    spool.open(tmp_path)
    spool.add(b"mine")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CRASHING, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    assert await process.stdout.readline() == b"spooled\n"
    later = Spool()
    later.open(tmp_path)
    assert sorted(path.read_bytes() for path in files(tmp_path)) == [b"left behind", b"mine"]
    process.kill()
    await process.communicate()
    later.open(tmp_path)
    assert [path.read_bytes() for path in files(tmp_path)] == [b"mine"]
    spool.close()
    assert [*(tmp_path / "blobs").iterdir()] == []
    with pytest.raises(OSError, match="not running"):
        spool.add(b"too late")
