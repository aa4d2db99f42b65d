"""Files on the command line: `agent call --save`, `agent put`, and computers with and without a landing folder."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from tests.computer.servers.contents import binary
from tests.computer.supervised import quick
from tests.on_disk import content_of, names_in
from tests.peer import Peer
from tests.program import run_program
from tests.stage.chunks import CONTENT, chunk, marks_of
from tests.stage.place import Ended

pytestmark = pytest.mark.covers("transfers-program")

MARKED = {"type": "image", "data": "", "mimeType": "image/png", "_meta": marks_of()}


def give(*items: tuple[str, int]) -> tuple[str, ...]:
    return ("call", "laptop", "give", json.dumps({"items": items}))


async def test_images_and_files_of_a_result_are_written_and_nothing_is_overwritten(
    landing: Path, run: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    call = give(("image", 200_000), ("blob", 40_000), ("image", 10), ("text", 20))
    seen: Ended = await run(*call)
    assert seen.code == 0
    assert "there is more, of type image: --save DIR writes it to a file" in seen.err
    assert len(seen.out) == 21
    names = ["blob_40000.bin", "image-1.png", "image-3.png"]
    for expected in (names, sorted([*names, "blob_40000-2.bin", "image-1-2.png", "image-3-2.png"])):
        saved: Ended = await run(*call, "--save", str(folder))
        assert (saved.code, saved.out) == (0, seen.out)
        assert names_in(folder) == expected
    assert f"saved {folder / 'image-1-2.png'} (200,000 bytes)" in saved.err
    assert "there is more" not in saved.err
    assert content_of(folder / "image-1.png") == content_of(folder / "image-1-2.png") == binary(200_000)
    assert content_of(folder / "blob_40000.bin") == binary(40_000)
    for options in (["--json"], ["--json", "--save", str(folder)]):
        found = json.loads((await run(*call, *options)).out)["content"][0]
        assert (found["data"] == b64encode(binary(200_000)).decode()) is (len(options) == 1)
        assert found["_meta"].get("a2c_saved_to") == (None if len(options) == 1 else str(folder / "image-1-3.png"))


async def test_a_long_text_goes_to_stdout_whole(landing: Path, run: Any) -> None:
    ended: Ended = await run(*give(("text", 5_000_000)))
    assert (ended.code, len(ended.out)) == (0, 5_000_001)


async def test_binary_never_goes_to_a_terminal(landing: Path, terminal: Any) -> None:
    async with terminal(*give(("image", 200_000)), "--json") as program:
        assert await program.ends() == 0
        await program.shows("(200,000 bytes: --save DIR writes them to a file)")
        assert b64encode(binary(200_000)).decode()[:100] not in program.screen.raw


async def test_binary_of_resources_prompts_and_skills_never_goes_to_a_terminal_either(
    computer: Peer, terminal: Any
) -> None:
    content = b64encode(binary(1000)).decode()
    image = {"type": "image", "mimeType": "image/png", "data": content}
    computer.answers("client:read_resource", {"contents": [{"uri": "x:y", "blob": content}], "req_id": "x"})
    computer.answers("client:get_prompt", {"messages": [{"role": "user", "content": image}], "req_id": "x"})
    about = {"name": "s", "rel_path": "f", "mime_type": "x/y", "total_size": 1000, "blob_handle": "h"}
    about["sha256"] = hashlib.sha256(binary(1000)).hexdigest()
    computer.answers("client:get_skill", {**about, "req_id": "x"})
    computer.answers("client:get_blob", lambda data: chunk(data, binary(1000)))
    for words, remedy in (
        (("read", "laptop", "files", "x:y"), "--output FILE saves them"),
        (("prompt", "laptop", "files", "p"), "a pipe or a file gets them"),
        (("skill", "laptop", "s", "f"), "--output FILE saves them"),
    ):
        async with terminal(*words, "--json") as program:
            assert await program.ends() == 0
            await program.shows(f"(1,000 bytes: {remedy})")
            assert content[:60] not in program.screen.raw


async def test_a_file_is_sent_and_its_place_is_printed(landing: Path, run: Any, tmp_path: Path) -> None:
    file = tmp_path / "my report.pdf"
    file.write_bytes(binary(700_000))
    sent: Ended = await run("put", "laptop", str(file))
    assert (sent.code, sent.err) == (0, "")
    place = sent.out.strip()
    assert re.fullmatch(rf"{re.escape(str(landing))}/[0-9a-f]{{32}}_my_report.pdf", place)
    assert content_of(place) == binary(700_000)
    named: Ended = await run("put", "laptop", str(file), "--as", "../other.txt", "--json")
    found = json.loads(named.out)
    assert (found["computer"], found["total_size"]) == ("laptop", 700_000)
    assert found["landing_path"].endswith("_other.txt")


async def test_what_cannot_be_sent_or_saved_is_said_with_what_to_do(
    landing: Path, run: Any, tmp_path: Path, connect: Any, office: str
) -> None:
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.write_bytes(b"")
    file.write_bytes(b"content")
    for arguments, words in (
        (("put", "laptop", str(tmp_path / "missing")), "does not exist"),
        (("put", "laptop", str(tmp_path)), "is not a file"),
        (("put", "laptop", str(empty)), "is empty"),
        ((*give(), "--save", str(file)), "is not a folder"),
    ):
        wrong: Ended = await run(*arguments)
        assert (wrong.code, wrong.out) == (2, ""), arguments
        assert words in wrong.err
    unknown: Ended = await run("put", "nobody", str(file))
    assert unknown.code == 1
    assert "laptop" in unknown.err
    other: Peer = await connect()
    await other.join("computer", "tower", office)
    other.answers("client:get_tools", {"tools": [], "req_id": "x"})
    for reason, remedy in (("forbidden", "without --read-only"), ("busy", "try again"), ("too_large", "smaller one")):
        other.answers("client:put_blob", {"code": 4019, "message": "no", "details": {"reason": reason}})
        refused: Ended = await run("put", "tower", str(file))
        assert refused.code == 1
        assert remedy in refused.err
    other.answers("client:tool_call", {"content": [MARKED], "isError": False})
    other.answers("client:get_blob", {"code": 4018, "message": "no", "details": {"reason": "gone"}})
    nowhere: Ended = await run("call", "tower", "show", "--save", str(file / "folder"))
    assert (nowhere.code, nowhere.out) == (1, "")
    assert "Not a directory. Correct that, or name another place." in nowhere.err
    assert "client:tool_call" not in dict(other.asked)
    lost: Ended = await run("call", "tower", "show", "--save", str(tmp_path / "new"))
    assert lost.code == 1
    assert "Ask again" in lost.err
    assert names_in(tmp_path / "new") == []


@pytest.mark.parametrize("is_read_only", [True, False])
async def test_a_refusal_says_why_a_computer_takes_no_files_and_what_its_owner_can_do(
    is_read_only: bool, run: Any, hosts: Any, tmp_path: Path
) -> None:
    folder, file = tmp_path / "landing", tmp_path / "file"
    file.write_bytes(b"content")
    if not is_read_only:
        folder.write_bytes(b"no folder")
    rules = {"read_only": True} if is_read_only else None
    computer = Computer("laptop", policy=quick(), landing=folder, rules=rules)
    async with hosts(computer, state_folder=tmp_path / "state"):
        refused: Ended = await run("put", "laptop", str(file))
    assert (refused.code, refused.out) == (1, "")
    why = "agents may only read on this computer" if is_read_only else "nothing can be written into the landing root"
    assert why in refused.err
    assert "Its owner has to start it with --landing DIR" in refused.err


async def test_ctrl_c_in_the_middle_of_a_transfer_leaves_no_half_file(
    computer: Peer, terminal: Any, tmp_path: Path
) -> None:
    async def first_only(data: dict[str, Any]) -> Any:
        if data["chunk_offset"]:
            await asyncio.Event().wait()
        return {"upload_id": "u", "chunk_offset": 0} if "eof" in data else chunk(data)

    computer.answers("client:tool_call", {"content": [MARKED], "isError": False})
    resource = {"uri": "x:y", "blob": "", "_meta": MARKED["_meta"]}
    computer.answers("client:read_resource", {"contents": [resource], "req_id": "x"})
    computer.answers("client:get_blob", first_only)
    computer.answers("client:put_blob", first_only)
    folder, file = tmp_path / "saved", tmp_path / "file"
    file.write_bytes(CONTENT)
    for arguments in (
        ("call", "laptop", "show", "--save", str(folder)),
        ("put", "laptop", str(file)),
        ("read", "laptop", "files", "x:y", "--output", str(folder / "y")),
    ):
        async with terminal(*arguments) as program:
            await program.shows(lambda screen: re.search(r"26%\s+0\.3 of 1\.0 MB", screen.text))
            program.types("\x03")
            assert await program.ends() == 1
            if arguments[0] == "call":
                await program.shows("show has run on laptop, its result was not fetched")
        assert names_in(tmp_path) == ["file", "saved"]
        assert names_in(folder) == []


def test_a_landing_folder_must_be_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    config = tmp_path / "a2c.json"
    config.write_text('{"servers": {}}')
    for command in ("computer", "up"):
        done = run_program(command, "--config", str(config), "--landing", str(file))
        assert done.returncode == 2
        assert f"--landing: {file} is not a folder" in " ".join(done.stderr.split())
