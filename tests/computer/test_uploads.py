"""Files that agents send: each check of the protocol in its order, whose uploads they are, and what is on disk."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.blobs.landing import LandingFolder
from a2c_smcp.computer.blobs.limits import BlobLimits
from a2c_smcp.computer.blobs.uploads import Uploads
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import BlobWriteFailed
from tests.computer.hosted import hosted
from tests.conftest import Hub
from tests.on_disk import below, content_of, mode_of
from tests.peer import Peer
from tests.waiting import until

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LIMIT = 100_000


class Sender:
    """A raw agent that sends chunks."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def put(self, content: bytes | str, offset: Any, *, eof: bool = False, **more: Any) -> dict[str, Any]:
        blob = b64encode(content).decode() if isinstance(content, bytes) else content
        fields = {"chunk_offset": offset, "eof": eof, "blob": blob, **more}
        answer: dict[str, Any] = await self.peer.request("client:put_blob", "laptop", **fields)
        return answer

    async def begin(self, content: bytes = CONTENT[:100], **more: Any) -> dict[str, Any]:
        return await self.put(content, 0, **{"total_size": len(CONTENT), "sha256": SHA256, **more})

    async def whole(self, content: bytes = CONTENT, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        return await self.put(content, 0, eof=True, **{"total_size": len(content), "sha256": digest, **more})


@asynccontextmanager
async def sender_in(hub: Hub, office: str, name: str = "planner") -> AsyncIterator[Sender]:
    peer = await Peer.connect(hub.url, transports=["websocket"])
    await peer.join("agent", name, office)
    try:
        yield Sender(peer)
    finally:
        await peer.close()


@asynccontextmanager
async def landing_in(hub: Hub, office: str, folder: Path, **limits: Any) -> AsyncIterator[Path]:
    """A computer called laptop, joined, and the folder in which files land there."""
    landing = folder / "landing"
    computer = Computer("laptop", landing=landing, blob_limits=BlobLimits(**{"upload_size": LIMIT, **limits}))
    async with hosted(computer, hub.url, office, folder / "state"):
        yield landing


def fault(answer: dict[str, Any]) -> tuple[int, str, str]:
    return answer["code"], answer["details"]["reason"], answer["message"].removeprefix("Blob write failed: ")


def landed(folder: Path) -> list[str]:
    """The files in the folder; part files are not counted."""
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def links_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_symlink()]


def parts(folder: Path) -> list[Path]:
    return [*folder.glob(".a2c-upload/*")]


@pytest.mark.covers("9-put_blob")
async def test_a_file_in_one_chunk_or_in_several_lands_whole(shared_hub: Hub, office: str, tmp_path: Path) -> None:
    async with landing_in(shared_hub, office, tmp_path) as folder, sender_in(shared_hub, office) as agent:
        one = await agent.whole(name_hint="../My Report.PDF")
        path = Path(one["landing_path"])
        assert (one["total_size"], one["sha256"], one["chunk_offset"]) == (len(CONTENT), SHA256, 0)
        assert path == folder / f"{one['upload_id']}_My_Report.PDF"
        assert content_of(path) == CONTENT
        assert mode_of(path) == 0o600
        first = await agent.begin()
        upload_id = first["upload_id"]
        assert (first["chunk_offset"], "landing_path" in first) == (0, False)
        (part,) = parts(folder)
        assert (part.name, mode_of(part)) == (f"{upload_id}.part", 0o600)
        assert mode_of(part.parent) == 0o700
        second = await agent.put(CONTENT[100:5000], 100, upload_id=upload_id)
        assert second["chunk_offset"] == 100
        last = await agent.put(CONTENT[5000:], 5000, upload_id=upload_id, eof=True)
        assert content_of(last["landing_path"]) == CONTENT
        assert parts(folder) == []


@pytest.mark.covers("9-put_blob", "transfers-binary")
async def test_chunks_may_be_attachments_and_are_checked_as_others_are(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    async with landing_in(shared_hub, office, tmp_path) as folder, sender_in(shared_hub, office) as agent:
        first = await agent.begin()
        upload_id = first["upload_id"]
        assert (first["binary"], first["in_flight"] > 1) == (True, True)

        async def attach(content: bytes, offset: int, *, eof: bool = False) -> dict[str, Any]:
            fields = {"upload_id": upload_id, "chunk_offset": offset, "eof": eof, "blob": content}
            answer: dict[str, Any] = await agent.peer.request("client:put_blob", "laptop", **fields)
            return answer

        assert (await attach(CONTENT[100:5000], 100)).keys() == {"upload_id", "chunk_offset", "req_id"}
        assert (await attach(b"x", 100))["details"] == {"reason": "range", "upload_id": upload_id, "received": 5000}
        last = await attach(CONTENT[5000:], 5000, eof=True)
        assert content_of(last["landing_path"]) == CONTENT
        upload_id = (await agent.begin())["upload_id"]
        assert fault(await attach(CONTENT, 100))[1:] == ("range", "received bytes exceed the declared total_size")
        assert parts(folder) == []


@pytest.mark.covers("9-put_blob")
async def test_every_fault_has_its_reason_and_its_words_in_the_order_of_the_protocol(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    declared = "declaration fields must only appear on the first chunk"
    async with landing_in(shared_hub, office, tmp_path) as folder, sender_in(shared_hub, office) as agent:
        for size in (0, -1, "5", 2.5, True, None):
            expected = (4019, "invalid_declaration", "total_size must be an int >= 1")
            assert fault(await agent.begin(total_size=size, sha256="nor this")) == expected
        for digest in ("", "x" * 64, SHA256.upper(), SHA256[:-1], None, 7):
            expected = (4019, "invalid_declaration", "sha256 must be a 64-char hex string")
            assert fault(await agent.begin(sha256=digest, total_size=LIMIT + 1)) == expected
        refused = await agent.begin(total_size=LIMIT + 1)
        assert fault(refused)[:2] == (4019, "too_large")
        assert refused["details"]["total_size"] == LIMIT + 1
        assert not folder.exists()

        upload_id = (await agent.begin())["upload_id"]
        for offset in (0, 99, 101, -1, "100", None):
            refused = await agent.put(b"", offset, upload_id=upload_id)
            assert fault(refused) == (4019, "range", "chunk_offset does not match received bytes")
            assert (refused["details"]["received"], refused["details"]["upload_id"]) == (100, upload_id)
        for blob in ("A", "AA=A", "?", "AAAA\n"):
            refused = await agent.put(blob, 100, upload_id=upload_id)
            assert fault(refused) == (4019, "invalid_declaration", "blob is not valid base64")
        refused = await agent.peer.request(
            "client:put_blob", "laptop", upload_id=upload_id, chunk_offset=100, eof=False, blob=[1]
        )
        assert fault(refused) == (4019, "invalid_declaration", "blob is not valid base64")
        for field, value in (("total_size", 5), ("sha256", SHA256), ("name_hint", "x")):
            refused = await agent.put(b"x", 100, upload_id=upload_id, **{field: value})
            assert fault(refused) == (4019, "invalid_declaration", declared)
        refused = await agent.put(CONTENT[100:200], 100, upload_id=upload_id, eof=True)
        assert fault(refused) == (4019, "range", "final chunk does not complete the declared total_size")
        last = await agent.put(CONTENT[100:], 100, upload_id=upload_id, eof=True)
        assert content_of(last["landing_path"]) == CONTENT

        for unknown in ("0" * 32, "", "../x", 7):
            refused = await agent.put(b"x", 0, upload_id=unknown)
            assert fault(refused) == (4019, "invalid_upload", "unknown or expired upload session")


@pytest.mark.covers("9-put_blob", "transfers-verified")
async def test_sizes_and_hashes_that_lie_end_the_upload_and_leave_nothing(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    async with landing_in(shared_hub, office, tmp_path) as folder, sender_in(shared_hub, office) as agent:
        upload_id = (await agent.begin())["upload_id"]
        refused = await agent.put(CONTENT, 100, upload_id=upload_id)
        assert fault(refused) == (4019, "range", "received bytes exceed the declared total_size")
        assert fault(await agent.put(b"", 100, upload_id=upload_id))[1] == "invalid_upload"
        refused = await agent.whole(sha256="0" * 64)
        assert fault(refused) == (4019, "integrity", "sha256 mismatch; upload discarded")
        assert parts(folder) == []
        assert landed(folder) == []


@pytest.mark.covers("9-put_blob", "blobs-bounded")
async def test_only_so_many_uploads_at_a_time_and_one_that_stands_still_is_given_up(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    async with (
        landing_in(shared_hub, office, tmp_path, uploads=2, upload_idle=1.0) as folder,
        sender_in(shared_hub, office) as agent,
    ):
        begun = [(await agent.begin())["upload_id"] for _ in range(2)]
        assert fault(await agent.begin()) == (4019, "busy", "too many concurrent uploads")
        assert fault(await agent.whole())[1] == "busy"
        await until(lambda: not parts(folder))
        assert fault(await agent.put(b"x", 100, upload_id=begun[0]))[1] == "invalid_upload"
        await agent.whole()


@pytest.mark.covers("9-put_blob", "blobs-bound")
async def test_an_upload_is_for_its_agent_and_its_office_alone_and_ends_with_them(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    async with landing_in(shared_hub, office, tmp_path) as folder:
        async with sender_in(shared_hub, office) as agent:
            upload_id = (await agent.begin())["upload_id"]
            assert len(parts(folder)) == 1
            await agent.peer.ask("server:leave_office", {"office_id": office})
            await until(lambda: not parts(folder))
        async with sender_in(shared_hub, office, "other") as other:
            refused = await other.put(CONTENT[100:], 100, upload_id=upload_id, eof=True)
            assert fault(refused)[1] == "invalid_upload"
            kept = (await other.begin())["upload_id"]
        async with sender_in(shared_hub, office, "third") as third:
            assert fault(await third.put(b"x", 100, upload_id=kept))[1] == "invalid_upload"
        await until(lambda: not parts(folder))
        assert landed(folder) == []


@pytest.mark.covers("9-put_blob", "blobs-bound")
async def test_an_agent_of_the_same_name_in_another_office_has_no_part_in_an_upload(tmp_path: Path) -> None:
    uploads, here, there = Uploads(tmp_path, BlobLimits()), Caller("desk", "planner"), Caller("elsewhere", "planner")
    first = {"req_id": "r1", "chunk_offset": 0, "eof": False, "blob": b64encode(CONTENT[:100]).decode()}
    begun = await uploads.put(here, {**first, "total_size": len(CONTENT), "sha256": SHA256})
    rest = {"req_id": "r2", "chunk_offset": 100, "eof": True, "blob": b64encode(CONTENT[100:]).decode()}
    with pytest.raises(BlobWriteFailed) as refused:
        await uploads.put(there, {**rest, "upload_id": begun["upload_id"]})
    assert refused.value.details == {"reason": "invalid_upload"}
    uploads.forget("elsewhere")
    assert len(parts(tmp_path)) == 1
    landing_path = (await uploads.put(here, {**rest, "upload_id": begun["upload_id"]}))["landing_path"]
    assert content_of(landing_path) == CONTENT
    with pytest.raises(BlobWriteFailed):
        await uploads.put(there, {**rest, "upload_id": begun["upload_id"]})
    await uploads.close()


@pytest.mark.covers("9-put_blob", "transfers-resumed")
async def test_chunks_that_are_sent_again_are_answered_again(shared_hub: Hub, office: str, tmp_path: Path) -> None:
    async with landing_in(shared_hub, office, tmp_path) as folder, sender_in(shared_hub, office) as agent:
        first = await agent.begin(req_id="the first")
        assert await agent.begin(req_id="the first") == first
        upload_id = first["upload_id"]
        assert len(parts(folder)) == 1
        await agent.put(CONTENT[100:200], 100, upload_id=upload_id)
        again = await agent.put(CONTENT[100:200], 100, upload_id=upload_id)
        assert (again["details"]["reason"], again["details"]["received"]) == ("range", 200)
        last = await agent.put(CONTENT[200:], 200, upload_id=upload_id, eof=True, req_id="the last")
        assert await agent.put(CONTENT[200:], 200, upload_id=upload_id, eof=True, req_id="the last") == last
        earlier = await agent.put(CONTENT[100:200], 100, upload_id=upload_id)
        assert (earlier["details"]["reason"], earlier["details"]["received"]) == ("range", 200)
        one = await agent.whole(req_id="all of it")
        assert await agent.whole(req_id="all of it") == one
        assert len(landed(folder)) == 2


@pytest.mark.covers("9-put_blob", "uploads-inside")
async def test_without_a_landing_folder_or_where_it_cannot_be_made_all_is_forbidden(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    computer = Computer("laptop")
    async with hosted(computer, shared_hub.url, office, tmp_path), sender_in(shared_hub, office) as agent:
        assert fault(await agent.whole()) == (4019, "forbidden", "landing root not configured")
        assert fault(await agent.begin(total_size="none"))[1] == "forbidden"
    (tmp_path / "landing").write_text("a file")
    async with landing_in(shared_hub, office, tmp_path), sender_in(shared_hub, office) as agent:
        assert fault(await agent.whole())[1] == "forbidden"


HOSTILE = (
    "../../escaped",
    "/etc/cron.d/job",
    "..",
    "a/../../b",
    "C:\\Windows\\system32\\x.dll",
    "name\x00.txt",
    "\u202egnp.exe",
    "a" * 500,
    ".bashrc",
    "-rf",
    "$(touch x)`id`;|&",
    "ü.pdf",
    7,
    ["x"],
    None,
)


@pytest.mark.covers("uploads-inside")
async def test_whatever_the_name_a_file_lands_in_the_folder_under_a_harmless_one(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    async with landing_in(shared_hub, office, tmp_path) as folder, sender_in(shared_hub, office) as agent:
        before = below(tmp_path, but=folder)
        for name in HOSTILE:
            answer = await agent.whole(name_hint=name)
            path = Path(answer["landing_path"])
            assert path.parent == folder, name
            assert path.name.startswith(answer["upload_id"])
            assert set(path.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"), name
            assert len(path.name) <= 32 + 1 + 64
        assert len(landed(folder)) == len(HOSTILE)
        assert below(tmp_path, but=folder) == before


@pytest.mark.covers("uploads-inside")
async def test_links_and_folders_of_others_in_the_landing_folder_are_not_followed(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    async with landing_in(shared_hub, office, tmp_path) as folder, sender_in(shared_hub, office) as agent:
        folder.mkdir()
        (folder / ".a2c-upload").symlink_to(outside)
        assert fault(await agent.whole())[1] == "forbidden"
        (folder / ".a2c-upload").unlink()
        (folder / ".a2c-upload").mkdir()
        (folder / ".a2c-upload").chmod(0o777)
        assert fault(await agent.whole())[1] == "forbidden"
        (folder / ".a2c-upload").rmdir()
        upload_id = (await agent.begin())["upload_id"]
        (folder / f"{upload_id}").symlink_to(outside / "target")
        last = await agent.put(CONTENT[100:], 100, upload_id=upload_id, eof=True)
        assert content_of(last["landing_path"]) == CONTENT
        assert links_in(folder) == []
        upload_id = (await agent.begin())["upload_id"]
        (folder / ".a2c-upload").rename(outside / "taken")
        (folder / ".a2c-upload").symlink_to(outside / "taken")
        refused = await agent.put(CONTENT[100:], 100, upload_id=upload_id, eof=True)
        assert fault(refused)[1] == "io_error"
        assert [path.name for path in outside.iterdir()] == ["taken"]


GROWING = """
import sys, time
from pathlib import Path
from a2c_smcp.computer.blobs.landing import LandingFolder
file = LandingFolder(Path(sys.argv[1])).create("0" * 32)
print("growing", flush=True)
time.sleep(600)
"""


@pytest.mark.covers("blobs-private")
async def test_part_files_of_a_killed_process_are_removed_at_the_next_start_and_those_of_others_stay(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    folder = tmp_path / "landing"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GROWING, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    assert await process.stdout.readline() == b"growing\n"
    LandingFolder(folder).remove_left()
    assert len(parts(folder)) == 1
    process.kill()
    await process.communicate()
    async with landing_in(shared_hub, office, tmp_path), sender_in(shared_hub, office) as agent:
        assert parts(folder) == []
        assert not (folder / ".a2c-upload").exists()
        await agent.begin()
        assert len(parts(folder)) == 1
    assert not (folder / ".a2c-upload").exists()
