"""Large contents at the agent: whole or one error, with computers that lie, lines that are cut, and files on disk."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp import errors
from a2c_smcp.agent.blobs.files import _named, file_name, safe_name, write_file
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from tests.computer.servers.contents import binary, item, text
from tests.conftest import Hub
from tests.on_disk import below, content_of, names_in
from tests.peer import Peer
from tests.stage.agent import SOON, Line, Twin
from tests.stage.chunks import CHUNK, CONTENT, SHA256, chunk, marks_of
from tests.stage.raising import raises
from tests.waiting import until

MIB = 1024 * 1024
Answer = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.mark.covers("results-whole", "9-get_blob", "9-put_blob")
async def test_results_are_whole_and_files_go_both_ways(landing: Path, agent: Twin, tmp_path: Path) -> None:
    items = [("image", 40_000), ("blob", 500_000), ("text", 5 * MIB), ("inner_text", 5 * MIB), ("image", 10)]
    progress: list[Any] = []
    result = await agent.emit_tool_call(
        "laptop", "give", {"items": items, "structured": 5 * MIB}, on_transfer=lambda *told: progress.append(told)
    )
    assert [_without_marks(each) for each in result.content] == [_without_marks(item(*each)) for each in items]
    assert result.text == text(5 * MIB)
    assert result.structured_content == {"words": text(5 * MIB)}
    assert not any(key.startswith("a2c_") for key in result.meta)
    assert progress[-1][:2] == (40_000 + 500_000 + 10 * MIB, 40_000 + 500_000 + 10 * MIB)
    value = await agent.use("give", items=[("image", 40_000)])
    assert value == [_without_marks(item("image", 40_000))] or binary(40_000) in _bytes_in(value)

    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    told: list[Any] = []
    landed = await agent.put_file("laptop", path, on_progress=lambda *each: told.append(each))
    assert content_of(landed) == CONTENT
    assert Path(landed).name.endswith("_file.bin")
    assert told[-1][:2] == (len(CONTENT), len(CONTENT))
    assert content_of(await agent.put_bytes("laptop", b"small", "name.txt")) == b"small"
    with pytest.raises(errors.BadRequest, match="empty"):
        await agent.put_bytes("laptop", b"")
    with pytest.raises(FileNotFoundError):
        await agent.put_file("laptop", tmp_path / "missing")


def _bytes_in(value: Any) -> list[bytes]:
    """Binary contents of a registry's value, however it shows them."""
    found = value if isinstance(value, list) else [value]
    return [b64decode(each["data"]) for each in found if isinstance(each, dict) and "data" in each]


def _without_marks(found: dict[str, Any]) -> dict[str, Any]:
    meta = {key: value for key, value in found.get("_meta", {}).items() if not key.startswith("a2c_")}
    rest = {key: value for key, value in found.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


HOSTILE_URIS = (
    "file:///../../etc/passwd",
    "file:///a/..%2f..%2fescaped",
    "file:///a/%2e%2e",
    "file:///.bashrc",
    "file:///a/..%5C..%5Cescaped.exe",
    "file:///a/name%00.txt",
    f"file:///{'a' * 500}",
    "x:",
)


@pytest.mark.covers("results-whole")
async def test_whatever_the_uri_a_file_is_written_into_the_folder(
    computer: Peer, planner: Twin, tmp_path: Path
) -> None:
    folder = tmp_path / "inner" / "saved"
    resources = [{"uri": uri, "mimeType": "x/y", "blob": b64encode(b"hostile").decode()} for uri in HOSTILE_URIS]
    computer.answers("client:tool_call", {"content": [{"type": "resource", "resource": each} for each in resources]})
    result = await planner.emit_tool_call("laptop", "show", save_to=folder)
    assert [Path(each).parent for each in result.files] == [folder] * len(HOSTILE_URIS)
    assert [content_of(each) for each in result.files] == [b"hostile"] * len(HOSTILE_URIS)
    assert not any(Path(each).name.startswith((".", "-")) for each in result.files)
    assert below(tmp_path, but=folder) == {folder.parent}


@pytest.mark.covers("results-whole")
async def test_more_than_the_agent_takes_into_memory_is_refused_before_a_byte_is_fetched(
    computer: Peer, planning: Any, tmp_path: Path
) -> None:
    async with planning(max_result=1000) as planner:
        image = {"type": "image", "data": "", "mimeType": "image/png", "_meta": marks_of(a2c_total_size=600)}
        computer.answers("client:tool_call", {"content": [image, image], "isError": False})
        with raises(errors.AnswerTooLarge, match="save_to", outcome="done"):
            await planner.emit_tool_call("laptop", "show")
        assert not [event for event, _ in computer.asked if event == "client:get_blob"]
        computer.answers("client:get_blob", chunk)
        with pytest.raises(errors.AnswerTooLarge):
            await planner.read_blob("laptop", "h")
        assert len(await computer.was_asked("client:get_blob")) == 1
        assert (await planner.save_blob("laptop", "h", tmp_path / "file")).read_bytes() == CONTENT


LIES: dict[str, Answer] = {
    "another hash from the middle on": lambda data: chunk(data, sha256="0" * 64 if data["chunk_offset"] else SHA256),
    "another size from the middle on": lambda data: chunk(
        data, total_size=len(CONTENT) + (5 if data["chunk_offset"] else 0)
    ),
    "other bytes than the hash": lambda data: chunk(data, bytes(len(CONTENT)), sha256=SHA256),
    "fewer bytes than the size": lambda data: chunk(data, total_size=len(CONTENT) + 1, sha256=SHA256),
    "an empty chunk": lambda data: chunk(data, blob="" if data["chunk_offset"] else chunk(data)["blob"]),
}
NO_CHUNKS: dict[str, Answer] = {
    "more bytes than asked for": lambda data: chunk(data, blob=b64encode(CONTENT).decode()),
    "more bytes than the size": lambda data: chunk(data, total_size=10),
    "another chunk": lambda data: chunk(data, chunk_offset=data["chunk_offset"] + 1),
    "no base64": lambda data: chunk(data, blob="?" * 8),
    "no size": lambda data: chunk(data, total_size="1000001"),
    "a negative size": lambda data: chunk(data, total_size=-1),
    "no chunk at all": lambda data: {"req_id": data["req_id"]},
}


@pytest.mark.covers("transfers-verified")
async def test_a_computer_that_lies_is_found_out_and_nothing_half_is_taken_for_whole(
    computer: Peer, planner: Twin, tmp_path: Path
) -> None:
    target = tmp_path / "file"
    for lie, answer in LIES.items():
        computer.answers("client:get_blob", answer)
        for fetch in (planner.read_blob("laptop", "h"), planner.save_blob("laptop", "h", target)):
            with pytest.raises(errors.BlobNotAccessible) as refused:
                await fetch
            assert refused.value.details["reason"] == "integrity", lie
    for answer in NO_CHUNKS.values():
        computer.answers("client:get_blob", answer)
        with pytest.raises(errors.SMCPError):
            await planner.save_blob("laptop", "h", target)
    assert names_in(tmp_path) == []
    for marks in ({"a2c_total_size": 5}, {"a2c_sha256": "0" * 64}):
        computer.answers("client:get_blob", chunk)
        computer.answers("client:tool_call", {"content": [{"type": "image", "data": "", "_meta": marks_of(**marks)}]})
        with raises(errors.BlobNotAccessible, reason="integrity", outcome="done"):
            await planner.emit_tool_call("laptop", "show")


@pytest.mark.covers("transfers-verified", "results-whole")
async def test_computers_of_other_makes_may_have_smaller_chunks_and_change_their_minds_once(
    computer: Peer, planner: Twin
) -> None:
    computer.answers("client:get_blob", lambda data: chunk(data, most=100_000))
    assert await planner.read_blob("laptop", "h") == CONTENT
    computer.answers("client:get_blob", lambda data: chunk(data, most=70_000 if data["chunk_offset"] else CHUNK))
    assert await planner.read_blob("laptop", "h") == CONTENT
    answers = 0

    def changing(data: dict[str, Any]) -> dict[str, Any]:
        nonlocal answers
        answers += 1
        return chunk(data, CONTENT if answers > 2 else CONTENT[1:])

    computer.answers("client:get_blob", changing)
    assert await planner.read_blob("laptop", "h") == CONTENT
    computer.answers("client:get_blob", lambda data: chunk(data, b""))
    assert await planner.read_blob("laptop", "h") == b""
    for reason in ("gone", "forbidden", "invalid_handle", "range"):
        error = {"code": 4018, "message": "no", "details": {"reason": reason}}
        computer.answers("client:get_blob", lambda data, error=error: error)
        with raises(errors.BlobNotAccessible, reason=reason):
            await planner.read_blob("laptop", "h")


@pytest.mark.covers("transfers-resumed")
async def test_a_transfer_that_stands_still_for_long_ends_with_one_error(
    computer: Peer, planner: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2c_smcp.agent.blobs.downloads._STANDSTILL", 0.0)
    asked: list[int] = []

    def late(data: dict[str, Any]) -> dict[str, Any]:
        asked.append(data["chunk_offset"])
        if data["chunk_offset"]:
            return {"code": 408, "message": "late"}
        return {**chunk({"blob_handle": "h", "max_chunk_bytes": CHUNK, **data}), "upload_id": "u"}

    computer.answers("client:get_blob", late)
    computer.answers("client:put_blob", late)
    for transfer in (planner.save_blob("laptop", "h", tmp_path / "file"), planner.put_bytes("laptop", CONTENT)):
        with pytest.raises(errors.CallTimeout):
            await transfer
        assert asked.count(CHUNK) == 1
        asked.clear()
    assert names_in(tmp_path) == []


@pytest.mark.covers("results-whole")
async def test_a_computer_that_knows_no_blobs_is_told_apart(computer: Peer, planner: Twin) -> None:
    with pytest.raises(errors.UnsupportedEvent):
        await planner.read_blob("laptop", "h")
    with pytest.raises(errors.UnsupportedEvent):
        await planner.put_bytes("laptop", b"x")


class Receiver:
    """A computer of another make: no `in_flight`, no `received`, one chunk after the other."""

    def __init__(self) -> None:
        self.uploads: dict[str, bytes] = {}
        self.faults: list[dict[str, Any]] = []
        self.concurrent = self.most_concurrent = 0

    async def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        self.concurrent += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        await asyncio.sleep(0)
        self.concurrent -= 1
        if self.faults:
            return self.faults.pop(0)
        upload_id = data.get("upload_id") or f"u{len(self.uploads)}"
        received = self.uploads.setdefault(upload_id, b"")
        if len(received) != data["chunk_offset"]:
            return fault("range")
        self.uploads[upload_id] += b64decode(data["blob"])
        answer = {"upload_id": upload_id, "chunk_offset": data["chunk_offset"], "req_id": data["req_id"]}
        if not data["eof"]:
            return answer
        digest = hashlib.sha256(self.uploads[upload_id]).hexdigest()
        return {**answer, "landing_path": f"/landing/{upload_id}", "sha256": digest}


def fault(reason: str, **details: Any) -> dict[str, Any]:
    return {"code": 4019, "message": reason, "details": {"reason": reason, **details}}


@pytest.mark.covers("transfers-resumed", "9-put_blob")
async def test_to_other_makes_chunks_go_one_by_one_and_an_upload_that_is_lost_begins_again(
    computer: Peer, planner: Twin
) -> None:
    receiver = Receiver()
    computer.answers("client:put_blob", receiver)
    assert await planner.put_bytes("laptop", CONTENT) == "/landing/u0"
    assert (receiver.most_concurrent, receiver.uploads["u0"]) == (1, CONTENT)

    def forget(data: dict[str, Any]) -> Any:
        if data["chunk_offset"] == CHUNK and len(receiver.uploads) == 2:
            return fault("invalid_upload")
        return receiver(data)

    computer.answers("client:put_blob", forget)
    assert await planner.put_bytes("laptop", CONTENT) == "/landing/u2"
    assert receiver.uploads["u2"] == CONTENT
    for reason in ("forbidden", "too_large", "busy", "invalid_declaration"):
        receiver.faults = [fault(reason)]
        with raises(errors.BlobWriteFailed, reason=reason):
            await planner.put_bytes("laptop", CONTENT)
    computer.answers("client:put_blob", lambda data: fault("invalid_upload"))
    with pytest.raises(errors.BlobWriteFailed):
        await planner.put_bytes("laptop", CONTENT)


@pytest.mark.covers("transfers-binary")
async def test_chunks_are_attachments_if_both_sides_say_so(computer: Peer, planner: Twin) -> None:
    got: list[bytes | str] = []

    async def receive(data: dict[str, Any]) -> dict[str, Any]:
        got.append(data["blob"])
        answer = {"upload_id": "u", "chunk_offset": data["chunk_offset"], "req_id": data["req_id"]}
        return {**answer, "binary": True, "landing_path": "/landing/u", "sha256": SHA256}

    def give(data: dict[str, Any]) -> dict[str, Any]:
        offset, most = data["chunk_offset"], data["max_chunk_bytes"]
        return chunk(data, blob=CONTENT[offset : offset + most] if data["binary"] is True else "")

    computer.answers("client:put_blob", receive)
    computer.answers("client:get_blob", give)
    assert await planner.put_bytes("laptop", CONTENT) == "/landing/u"
    first, *others = got
    assert isinstance(first, str)
    assert b64decode(first) + b"".join(map(_bytes, others)) == CONTENT
    assert await planner.read_blob("laptop", "h") == CONTENT
    computer.answers("client:get_blob", lambda data: {**give(data), "blob": CONTENT[1:] + CONTENT})
    with pytest.raises(errors.SMCPError, match="larger"):
        await planner.read_blob("laptop", "h")


def _bytes(content: bytes | str) -> bytes:
    assert isinstance(content, bytes)
    return content


@pytest.mark.covers("transfers-verified")
async def test_a_computer_that_lies_about_what_it_received_ends_an_upload_with_an_error(
    computer: Peer, planner: Twin
) -> None:
    def always_elsewhere(data: dict[str, Any]) -> dict[str, Any]:
        if data["chunk_offset"] == 0 and "upload_id" not in data:
            return {"upload_id": "u", "chunk_offset": 0, "in_flight": 10**9}
        return fault("range", received=10**12 if data["chunk_offset"] % 2 else 7)

    lies: list[Any] = [
        lambda data: {"upload_id": "u", "landing_path": "/x", "sha256": "0" * 64},
        lambda data: {"upload_id": "u", "landing_path": 7},
        lambda data: {"landing_path": "/x", "sha256": SHA256},
        lambda data: ["not", "an", "object"],
        always_elsewhere,
    ]
    for lie in lies:
        computer.answers("client:put_blob", lie)
        with pytest.raises(errors.SMCPError):
            await planner.put_bytes("laptop", CONTENT)


@pytest.mark.covers("transfers-verified")
@pytest.mark.parametrize("size", [CHUNK, 2_000_000], ids=["shorter", "longer"])
async def test_a_file_that_becomes_longer_is_sent_as_it_was_and_one_that_becomes_shorter_is_an_error(
    computer: Peer, planner: Twin, tmp_path: Path, size: int
) -> None:
    file, received = tmp_path / "log", bytearray()
    file.write_bytes(CONTENT)

    def take(data: dict[str, Any]) -> dict[str, Any]:
        if not received:
            os.truncate(file, size)
        received.extend(b64decode(data["blob"]))
        answer = {"upload_id": "u", "chunk_offset": data["chunk_offset"], "req_id": data["req_id"]}
        landed = {"landing_path": "/landed", "total_size": len(received), "sha256": SHA256}
        return answer | landed if data["eof"] else answer

    computer.answers("client:put_blob", take)
    if size > len(CONTENT):
        assert await planner.put_file("laptop", file) == "/landed"
        assert received == CONTENT
    else:
        with pytest.raises(OSError, match=r"become shorter while it was sent: '.*/log'"):
            await planner.put_file("laptop", file)


@pytest.mark.covers("transfers-resumed")
async def test_transfers_go_on_where_they_were_after_lost_connections_of_either_side(
    kind: Any, planning: Any, hosts: Any, relay: Line, shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    content = binary(12_000_000)
    computer = Computer("laptop", landing=tmp_path / "landing")
    async with (
        Line.opened(shared_hub.url) as theirs,
        hosts(computer, theirs.url, state_folder=tmp_path / "state", reconnect=SOON),
        planning(kind, url=relay.url) as agent,
    ):
        (seat,) = (row["seat"] for row in await agent.list_room() if row["role"] == "agent")  # type: ignore[typeddict-item]
        handle = (await computer.blobs.spool(Caller(office, "planner", seat=seat), content, "x/y")).handle
        loop = asyncio.get_running_loop()

        def cutting(*relays: Line) -> Callable[..., None]:
            waiting = [(size, relay) for size, relay in zip((2_000_000, 6_000_000), relays, strict=True)]

            def cut(done: float, total: float, message: object) -> None:
                while waiting and done >= waiting[0][0]:
                    loop.call_soon_threadsafe(waiting.pop(0)[1].cut)  # an agent calls this in a thread

            return cut

        target = tmp_path / "fetched"
        await agent.save_blob("laptop", handle, target, on_progress=cutting(relay, theirs))
        assert target.read_bytes() == content
        landed = await agent.put_bytes("laptop", content, on_progress=cutting(theirs, relay))
        assert content_of(landed) == content
        assert len([path for path in (tmp_path / "landing").iterdir() if path.is_file()]) == 1


@pytest.mark.covers("transfers-resumed")
async def test_a_cancelled_transfer_leaves_no_file_on_either_side(
    planning: Any, hosts: Any, office: str, tmp_path: Path
) -> None:
    content = binary(12_000_000)
    computer = Computer("laptop", landing=tmp_path / "landing")
    async with hosts(computer, state_folder=tmp_path / "state"):
        begun = asyncio.Event()
        folder = tmp_path / "saved"
        folder.mkdir()
        async with planning() as agent:
            (seat,) = (row["seat"] for row in await agent.list_room() if row["role"] == "agent")  # type: ignore[typeddict-item]
            handle = (await computer.blobs.spool(Caller(office, "planner", seat=seat), content, "x/y")).handle
            for work in (
                agent.save_blob("laptop", handle, folder / "file", lambda *_: begun.set()),
                agent.put_bytes("laptop", content, None, lambda *_: begun.set()),
            ):
                begun.clear()
                transfer = asyncio.create_task(work)
                await begun.wait()
                transfer.cancel()
                await asyncio.wait([transfer])
                assert transfer.cancelled()
            assert [*folder.iterdir()] == []
        await until(lambda: not [*(tmp_path / "landing").glob(".a2c-upload/*")])


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd", "etc_passwd"),
        ("..", ""),
        (".bashrc", "bashrc"),
        ("con", "_con"),
        ("NUL.txt", "_NUL.txt"),
        ("a\x00b\n.png", "a_b_.png"),
        ("报告.pdf", "报告.pdf"),
        ("x" * 300 + ".png", "x" * 96 + ".png"),
    ],
)
def test_names_of_files_are_harmless(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_an_item_gets_a_name_after_its_uri_or_its_kind_and_place() -> None:
    resource = {"uri": "file:///a/b%2Fc%20d", "mimeType": "application/pdf"}
    assert file_name({"type": "image", "mimeType": "image/jpeg"}, 3) == "image-3.jpg"
    assert file_name({"type": "image", "mimeType": "x/unknown"}, 1) == "image-1.bin"
    assert file_name({"type": "resource", "resource": resource}, 1) == "b_c_d.pdf"
    assert file_name({"type": "resource", "resource": {"uri": "data:,x"}}, 2).startswith("x")
    assert file_name({"type": "resource", "resource": {"uri": 7, "mimeType": 7}}, 2) == "file-2.bin"


async def test_a_file_is_there_when_it_is_complete_and_replaces_another_only_if_it_shall(tmp_path: Path) -> None:
    async def write(file: Any) -> None:
        file.write(b"new")

    async def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError(None, "the disk is full")

    path = tmp_path / "name.txt"
    path.write_bytes(b"old")
    assert await write_file(path, write) == tmp_path / "name-2.txt"
    with pytest.raises(OSError, match=r"full: '.*/name\.txt'"):
        await write_file(path, fail, replace=True)
    assert path.read_bytes() == b"old"
    assert await write_file(path, write, replace=True) == path
    assert names_in(tmp_path) == ["name-2.txt", "name.txt"]
    assert {content_of(tmp_path / name) for name in names_in(tmp_path)} == {b"new"}


async def test_a_link_is_followed_and_a_pipe_is_written_to_and_both_stay(tmp_path: Path) -> None:
    async def write(file: Any) -> None:
        file.write(CONTENT)

    link, pipe, folder = tmp_path / "link", tmp_path / "pipe", tmp_path / "folder"
    link.symlink_to("file")
    os.mkfifo(pipe)
    folder.mkdir()
    await write_file(link, write, replace=True)
    assert (link.is_symlink(), content_of(tmp_path / "file")) == (True, CONTENT)
    reading = asyncio.create_task(asyncio.to_thread(content_of, pipe))
    await write_file(pipe, write, replace=True)
    assert (pipe.is_fifo(), await reading) == (True, CONTENT)
    with pytest.raises(IsADirectoryError):
        await write_file(folder, write, replace=True)
    assert names_in(tmp_path) == ["file", "folder", "link", "pipe"]


def test_where_a_file_cannot_be_given_a_name_it_is_copied(tmp_path: Path) -> None:
    """A file of another file system cannot be linked."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    with tempfile.TemporaryFile(dir=other) as file:
        file.write(CONTENT)
        file.flush()
        named = _named(file, tmp_path)
    assert content_of(named) == CONTENT
    assert names_in(tmp_path) == [named.name]
