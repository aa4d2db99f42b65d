"""Files that agents send: each check of the protocol in its order, whose uploads they are, and what is on disk."""

from __future__ import annotations

import asyncio
import hashlib
import os
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.blob_handles import BlobLimits
from a2c_smcp.computer.content.uploads import LandingFolder, Uploads
from a2c_smcp.errors import BlobWriteFailed
from tests.computer.hosted import Host, hosted
from tests.conftest import Hub
from tests.on_disk import below, content_of, mode_of, names_in, waiting_process
from tests.peer import Peer
from tests.waiting import until

pytestmark = pytest.mark.covers("9-put_blob", "uploads-inside")

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LIMIT = 100_000


class Sender:
    """A raw agent that sends chunks."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def put(self, content: Any, offset: Any, *, eof: bool = False, **more: Any) -> dict[str, Any]:
        """Bytes as base64, anything else as it is."""
        blob = b64encode(content).decode() if isinstance(content, bytes) else content
        fields = {"chunk_offset": offset, "eof": eof, "blob": blob, **more}
        return dict(await self.peer.request("client:put_blob", "laptop", **fields))

    async def begin(self, content: bytes = CONTENT[:100], **more: Any) -> dict[str, Any]:
        return await self.put(content, 0, **{"total_size": len(CONTENT), "sha256": SHA256, **more})

    async def whole(self, content: bytes = CONTENT, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        return await self.put(content, 0, eof=True, **{"total_size": len(content), "sha256": digest, **more})


@pytest.fixture
def sender(agent: Peer) -> Sender:
    """The agent of the office."""
    return Sender(agent)


def landing_in(folder: Path, **limits: Any) -> Computer:
    """A computer called laptop, whose files land in this folder."""
    return Computer("laptop", landing=folder, blob_limits=BlobLimits(**{"upload_size": LIMIT, **limits}))


@pytest.fixture
async def folder(host: Host, tmp_path: Path) -> Path:
    """The folder of such a computer, which has joined the office."""
    await host(landing_in(tmp_path / "landing"))
    return tmp_path / "landing"


def fault(answer: dict[str, Any]) -> tuple[int, str, str]:
    return answer["code"], answer["details"]["reason"], answer["message"].removeprefix("Blob write failed: ")


def landed(folder: Path) -> list[str]:
    """The files in the folder; part files are not counted."""
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def links_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_symlink()]


def parts(folder: Path) -> list[Path]:
    return [*folder.glob(".a2c-upload/*")]


async def test_a_file_in_one_chunk_or_in_several_lands_whole(folder: Path, sender: Sender) -> None:
    one = await sender.whole(name_hint="../My Report.PDF")
    path = Path(one["landing_path"])
    assert (one["total_size"], one["sha256"], one["chunk_offset"]) == (len(CONTENT), SHA256, 0)
    assert path == folder / f"{one['upload_id']}_My_Report.PDF"
    assert content_of(path) == CONTENT
    assert mode_of(path) == 0o600
    first = await sender.begin()
    upload_id = first["upload_id"]
    assert (first["chunk_offset"], "landing_path" in first) == (0, False)
    (part,) = parts(folder)
    assert (part.name, mode_of(part)) == (f"{upload_id}.part", 0o600)
    assert mode_of(part.parent) == 0o700
    second = await sender.put(CONTENT[100:5000], 100, upload_id=upload_id)
    assert second["chunk_offset"] == 100
    last = await sender.put(CONTENT[5000:], 5000, upload_id=upload_id, eof=True)
    assert content_of(last["landing_path"]) == CONTENT
    assert parts(folder) == []


@pytest.mark.covers("transfers-binary")
async def test_chunks_may_be_attachments_and_are_checked_as_others_are(folder: Path, sender: Sender) -> None:
    first = await sender.begin()
    upload_id = first["upload_id"]
    assert (first["binary"], first["in_flight"] > 1) == (True, True)

    async def attach(content: bytes, offset: int, *, eof: bool = False) -> dict[str, Any]:
        return await sender.put(bytearray(content), offset, eof=eof, upload_id=upload_id)

    assert (await attach(CONTENT[100:5000], 100)).keys() == {"upload_id", "chunk_offset", "req_id"}
    assert (await attach(b"x", 100))["details"] == {"reason": "range", "upload_id": upload_id, "received": 5000}
    last = await attach(CONTENT[5000:], 5000, eof=True)
    assert content_of(last["landing_path"]) == CONTENT
    upload_id = (await sender.begin())["upload_id"]
    assert fault(await attach(CONTENT, 100))[1:] == ("range", "received bytes exceed the declared total_size")
    assert parts(folder) == []


async def test_every_fault_has_its_reason_and_its_words_in_the_order_of_the_protocol(
    folder: Path, sender: Sender
) -> None:
    declared = "declaration fields must only appear on the first chunk"
    for size in (0, -1, "5", 2.5, True, None):
        expected = (4019, "invalid_declaration", "total_size must be an int >= 1")
        assert fault(await sender.begin(total_size=size, sha256="nor this")) == expected
    for digest in ("", "x" * 64, SHA256.upper(), SHA256[:-1], None, 7):
        expected = (4019, "invalid_declaration", "sha256 must be a 64-char hex string")
        assert fault(await sender.begin(sha256=digest, total_size=LIMIT + 1)) == expected
    refused = await sender.begin(total_size=LIMIT + 1)
    assert fault(refused)[:2] == (4019, "too_large")
    assert refused["details"]["total_size"] == LIMIT + 1
    assert names_in(folder.parent) == ["state"]

    upload_id = (await sender.begin())["upload_id"]
    for offset in (0, 99, 101, -1, "100", None):
        refused = await sender.put(b"", offset, upload_id=upload_id)
        assert fault(refused) == (4019, "range", "chunk_offset does not match received bytes")
        assert (refused["details"]["received"], refused["details"]["upload_id"]) == (100, upload_id)
    for blob in ("A", "AA=A", "?", "AAAA\n"):
        refused = await sender.put(blob, 100, upload_id=upload_id)
        assert fault(refused) == (4019, "invalid_declaration", "blob is not valid base64")
    refused = await sender.put([1], 100, upload_id=upload_id)
    assert fault(refused) == (4019, "invalid_declaration", "blob is not valid base64")
    for field, value in (("total_size", 5), ("sha256", SHA256), ("name_hint", "x")):
        refused = await sender.put(b"x", 100, upload_id=upload_id, **{field: value})
        assert fault(refused) == (4019, "invalid_declaration", declared)
    refused = await sender.put(CONTENT[100:200], 100, upload_id=upload_id, eof=True)
    assert fault(refused) == (4019, "range", "final chunk does not complete the declared total_size")
    last = await sender.put(CONTENT[100:], 100, upload_id=upload_id, eof=True)
    assert content_of(last["landing_path"]) == CONTENT

    for unknown in ("0" * 32, "", "../x", 7):
        refused = await sender.put(b"x", 0, upload_id=unknown)
        assert fault(refused) == (4019, "invalid_upload", "unknown or expired upload session")


@pytest.mark.covers("transfers-verified")
async def test_sizes_and_hashes_that_lie_end_the_upload_and_leave_nothing(folder: Path, sender: Sender) -> None:
    upload_id = (await sender.begin())["upload_id"]
    refused = await sender.put(CONTENT, 100, upload_id=upload_id)
    assert fault(refused) == (4019, "range", "received bytes exceed the declared total_size")
    assert fault(await sender.put(b"", 100, upload_id=upload_id))[1] == "invalid_upload"
    refused = await sender.whole(sha256="0" * 64)
    assert fault(refused) == (4019, "integrity", "sha256 mismatch; upload discarded")
    assert parts(folder) == []
    assert landed(folder) == []


@pytest.mark.covers("blobs-bounded")
async def test_only_so_many_uploads_at_a_time_and_one_that_stands_still_is_given_up(
    host: Host, sender: Sender, tmp_path: Path
) -> None:
    await host(landing_in(tmp_path, uploads=2, upload_idle=1.0))
    begun = [(await sender.begin())["upload_id"] for _ in range(2)]
    assert fault(await sender.begin()) == (4019, "busy", "too many concurrent uploads")
    assert fault(await sender.whole())[1] == "busy"
    await until(lambda: not parts(tmp_path))
    assert fault(await sender.put(b"x", 100, upload_id=begun[0]))[1] == "invalid_upload"
    await sender.whole()


def are_there(answers: list[dict[str, Any]]) -> list[bool]:
    return [Path(answer["landing_path"]).is_file() for answer in answers]


def of_size(size: int, first: int) -> bytes:
    return bytes([first]) * size


@pytest.mark.covers("blobs-budget")
async def test_an_agent_fills_no_disk_and_its_oldest_files_make_room_and_the_owner_is_told(
    host: Host, sender: Sender, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / ("0" * 31 + " of the owner")
    own.write_bytes(b"x" * LIMIT * 4)
    link = tmp_path / ("0" * 32 + "_link")
    link.symlink_to(own)
    await host(landing_in(tmp_path, landed_of_agent=3 * LIMIT, landed=4 * LIMIT))
    sent = [await sender.whole(of_size(LIMIT, number)) for number in range(3)]
    assert are_there(sent) == [True, True, True]
    assert "is full" not in caplog.text
    sent += [await sender.whole(of_size(LIMIT, 9), name_hint="new")]
    assert are_there(sent) == [False, True, True, True]
    (told,) = [line for line in caplog.messages if "the landing folder is full" in line]
    assert Path(sent[0]["landing_path"]).name in told
    for number in range(60):
        await sender.whole(of_size(LIMIT, number))
    assert len(landed(tmp_path)) == 3 + len([own, link])
    assert content_of(link) == b"x" * LIMIT * 4


@pytest.mark.covers("blobs-budget")
async def test_many_tiny_files_count_as_larger_ones(host: Host, sender: Sender, tmp_path: Path) -> None:
    await host(landing_in(tmp_path, landed_of_agent=5 * 64 * 1024))
    for number in range(12):
        await sender.whole(of_size(1, number))
    assert len(landed(tmp_path)) == 5


@pytest.mark.covers("blobs-budget")
async def test_what_an_agent_has_under_way_is_limited_too(host: Host, sender: Sender, tmp_path: Path) -> None:
    await host(landing_in(tmp_path, landed_of_agent=2 * LIMIT))
    begun = await asyncio.gather(*(sender.begin(total_size=LIMIT) for _ in range(4)))
    assert sorted(each["details"]["reason"] if "code" in each else "begun" for each in begun) == [
        "begun", "begun", "busy", "busy"
    ]  # fmt: skip
    assert fault(await sender.begin(total_size=1))[:2] == (4019, "busy")


@pytest.mark.covers("blobs-budget")
async def test_files_of_earlier_starts_count_for_the_folder_and_one_agent_takes_no_place_of_another_before_it_is_full(
    tmp_path: Path,
) -> None:
    limits = BlobLimits(landed_of_agent=2 * LIMIT, landed=4 * LIMIT)
    one, other = Caller("a", "agent"), Caller("b", "agent")

    def landing(folder: LandingFolder, sender: Caller, number: int) -> tuple[Path, list[str]]:
        upload_id = f"{number:032x}"
        file = folder.create(upload_id)
        file.write(of_size(LIMIT, number))
        path, removed = folder.land(upload_id, file, None, sender)
        os.utime(path, ns=(number, number))
        return path, removed

    folder = LandingFolder(tmp_path, limits)
    first = [landing(folder, one, number)[0] for number in (1, 2)]
    assert [landing(folder, other, number)[1] for number in (3, 4)] == [[], []]
    assert landing(folder, one, 5)[1] == [first[0].name]
    again = LandingFolder(tmp_path, limits)
    assert landing(again, one, 6)[1] == [first[1].name]


@pytest.mark.covers("blobs-bound")
async def test_an_upload_is_for_its_agent_and_its_office_alone_and_ends_with_them(
    folder: Path, sender: Sender, connect: Callable[..., Any], office: str
) -> None:
    upload_id = (await sender.begin())["upload_id"]
    assert len(parts(folder)) == 1
    await sender.peer.ask("server:leave_office", {"office_id": office})
    await until(lambda: not parts(folder))
    other = Sender(await connect())
    await other.peer.join("agent", "other", office)
    refused = await other.put(CONTENT[100:], 100, upload_id=upload_id, eof=True)
    assert fault(refused)[1] == "invalid_upload"
    kept = (await other.begin())["upload_id"]
    await other.peer.close()
    third = Sender(await connect())
    await third.peer.join("agent", "third", office)
    assert fault(await third.put(b"x", 100, upload_id=kept))[1] == "invalid_upload"
    await until(lambda: not parts(folder))
    assert landed(folder) == []


@pytest.mark.covers("blobs-bound")
async def test_an_agent_of_the_same_name_in_another_office_has_no_part_in_an_upload(tmp_path: Path) -> None:
    uploads, here, there = Uploads(tmp_path, BlobLimits()), Caller("desk", "planner"), Caller("elsewhere", "planner")
    first = {"req_id": "r1", "chunk_offset": 0, "eof": False, "blob": b64encode(CONTENT[:100]).decode()}
    begun = await uploads.put(here, {**first, "total_size": len(CONTENT), "sha256": SHA256})
    rest = {"req_id": "r2", "chunk_offset": 100, "eof": True, "blob": b64encode(CONTENT[100:]).decode()}
    with pytest.raises(BlobWriteFailed) as refused:
        await uploads.put(there, {**rest, "upload_id": begun["upload_id"]})
    assert refused.value.details == {"reason": "invalid_upload"}
    uploads.drop(lambda caller: caller.office == "elsewhere")
    assert len(parts(tmp_path)) == 1
    landing_path = (await uploads.put(here, {**rest, "upload_id": begun["upload_id"]}))["landing_path"]
    assert content_of(landing_path) == CONTENT
    with pytest.raises(BlobWriteFailed):
        await uploads.put(there, {**rest, "upload_id": begun["upload_id"]})
    await uploads.close()


@pytest.mark.covers("transfers-resumed")
async def test_chunks_that_are_sent_again_are_answered_again(folder: Path, sender: Sender) -> None:
    first = await sender.begin(req_id="the first")
    assert await sender.begin(req_id="the first") == first
    upload_id = first["upload_id"]
    assert len(parts(folder)) == 1
    await sender.put(CONTENT[100:200], 100, upload_id=upload_id)
    again = await sender.put(CONTENT[100:200], 100, upload_id=upload_id)
    assert (again["details"]["reason"], again["details"]["received"]) == ("range", 200)
    last = await sender.put(CONTENT[200:], 200, upload_id=upload_id, eof=True, req_id="the last")
    assert await sender.put(CONTENT[200:], 200, upload_id=upload_id, eof=True, req_id="the last") == last
    earlier = await sender.put(CONTENT[100:200], 100, upload_id=upload_id)
    assert (earlier["details"]["reason"], earlier["details"]["received"]) == ("range", 200)
    one = await sender.whole(req_id="all of it")
    assert await sender.whole(req_id="all of it") == one
    assert len(landed(folder)) == 2


async def test_without_a_landing_folder_all_is_forbidden(host: Host, sender: Sender) -> None:
    await host(Computer("laptop"))
    assert fault(await sender.whole()) == (4019, "forbidden", "landing root not configured")
    assert fault(await sender.begin(total_size="none"))[1] == "forbidden"


async def test_where_the_landing_folder_cannot_be_made_all_is_forbidden(
    host: Host, sender: Sender, tmp_path: Path
) -> None:
    (tmp_path / "landing").write_text("a file")
    await host(landing_in(tmp_path / "landing"))
    assert fault(await sender.whole())[1] == "forbidden"


HOSTILE = [
    *("../../escaped", "/etc/cron.d/job", "..", "a/../../b", "C:\\Windows\\system32\\x.dll", "name\x00.txt", "-rf"),
    *("\u202egnp.exe", "a" * 500, ".bashrc", "$(touch x)`id`;|&", "ü.pdf", 7, ["x"], None),
]


async def test_whatever_the_name_a_file_lands_in_the_folder_under_a_harmless_one(folder: Path, sender: Sender) -> None:
    before = below(folder.parent, but=folder)
    for name in HOSTILE:
        answer = await sender.whole(name_hint=name)
        path = Path(answer["landing_path"])
        assert path.parent == folder, name
        assert path.name.startswith(answer["upload_id"])
        assert set(path.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"), name
        assert len(path.name) <= 32 + 1 + 64
    assert len(landed(folder)) == len(HOSTILE)
    assert below(folder.parent, but=folder) == before


async def test_links_and_folders_of_others_in_the_landing_folder_are_not_followed(folder: Path, sender: Sender) -> None:
    uploads, outside = folder / ".a2c-upload", folder.with_name("outside")
    outside.mkdir(mode=0o700)
    uploads.parent.mkdir()
    uploads.symlink_to(outside)
    assert fault(await sender.whole())[1] == "forbidden"
    uploads.unlink()
    uploads.mkdir()
    uploads.chmod(0o777)
    assert fault(await sender.whole())[1] == "forbidden"
    uploads.rmdir()
    upload_id = (await sender.begin())["upload_id"]
    (folder / f"{upload_id}").symlink_to(outside / "target")
    last = await sender.put(CONTENT[100:], 100, upload_id=upload_id, eof=True)
    assert content_of(last["landing_path"]) == CONTENT
    assert links_in(folder) == []
    upload_id = (await sender.begin())["upload_id"]
    uploads.rename(outside / "taken")
    uploads.symlink_to(outside / "taken")
    refused = await sender.put(CONTENT[100:], 100, upload_id=upload_id, eof=True)
    assert fault(refused)[1] == "io_error"
    assert [path.name for path in outside.iterdir()] == ["taken"]


GROWING = """
from a2c_smcp.computer.content.blob_handles import BlobLimits
from a2c_smcp.computer.content.uploads import LandingFolder
file = LandingFolder(folder, BlobLimits()).create("0" * 32)
"""


@pytest.mark.covers("blobs-private")
async def test_part_files_of_a_killed_process_are_removed_at_the_next_start_and_those_of_others_stay(
    shared_hub: Hub, office: str, sender: Sender, tmp_path: Path
) -> None:
    folder = tmp_path / "landing"
    async with waiting_process(GROWING, folder):
        LandingFolder(folder, BlobLimits()).remove_left()
        assert len(parts(folder)) == 1
    async with hosted(landing_in(folder), shared_hub.url, office, tmp_path / "state"):
        assert not (folder / ".a2c-upload").exists()
        await sender.begin()
        assert len(parts(folder)) == 1
    assert not (folder / ".a2c-upload").exists()
