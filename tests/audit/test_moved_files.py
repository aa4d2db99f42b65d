"""Audit files that are renamed, deleted or cut while they are written: it is seen, and the chain goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from a2c_smcp.audit.file import AuditFile, AuditFileUnusable
from a2c_smcp.audit.reading import EntryFilter, entries, files_of, opened_after, verify
from tests.stage.place import Place
from tests.stage.program import Program
from tests.waiting import until


def put(file: AuditFile, *tools: str) -> None:
    for tool in tools:
        file.write({"event": "call", "tool": tool})
        file.flush()


def tools_in(path: Path) -> list[str]:
    return [entry["tool"] for entry in entries(path, EntryFilter({"event": "call"}))]


def first(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_bytes().splitlines()[0]))


@pytest.mark.covers("moved-audit")
def test_a_renamed_file_is_followed_by_a_new_one_that_names_it_and_all_lines_are_in_order(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = AuditFile(path, pause=0)
    caplog.set_level(logging.INFO)
    for day in ("20261117", "20261118"):
        put(file, f"before-{day}")
        path.rename(f"{path}-{day}")
    put(file, "after", "last")
    file.close()
    assert (file.trouble, file.gone) == ("", 0)
    assert [each.name for each in files_of(path)] == [f"{path.name}-20261117", f"{path.name}-20261118", path.name]
    assert verify(path)[0] == []
    assert tools_in(path) == ["before-20261117", "before-20261118", "after", "last"]
    last = json.loads(Path(f"{path}-20261118").read_bytes().splitlines()[-1])
    opened = first(path)
    assert opened["event"] == "audit opened"
    assert (opened["after"], opened["after_hash"]) == (last["n"], last["hash"])
    assert opened["after_file"] == f"{path.name}-20261118"
    assert f"{path.name}-20261118 now: a new one goes on after line {last['n']}" in caplog.text


@pytest.mark.covers("moved-audit")
def test_renamed_files_that_were_archived_are_named_and_a_change_in_what_is_left_is_found(path: Path) -> None:
    file = AuditFile(path, pause=0)
    put(file, "one")
    for day in ("20261117", "20261118"):
        path.rename(f"{path}-{day}")
        put(file, day)
    file.close()
    Path(f"{path}-20261117").unlink()
    assert verify(path)[0] == []
    before = opened_after(path)
    assert before
    assert (before.after, before.after_file) == (2, f"{path.name}-20261117")
    older = Path(f"{path}-20261118")
    older.write_bytes(older.read_bytes().replace(b'"20261117"', b'"20261116"'))
    assert [problem.file for problem in verify(path)[0]] == [older.name]


@pytest.mark.covers("moved-audit")
def test_files_that_are_counted_from_the_newest_on_are_one_chain(path: Path) -> None:
    file = AuditFile(path, pause=0)
    for turn in range(3):
        put(file, f"turn-{turn}")
        for number in range(turn, 0, -1):
            Path(f"{path}.{number}").rename(f"{path}.{number + 1}")
        path.rename(f"{path}.1")
        put(file, f"after-{turn}")
    file.close()
    assert [each.name for each in files_of(path)] == [f"{path.name}{ending}" for ending in (".3", ".2", ".1", "")]
    assert verify(path)[0] == []


@pytest.mark.covers("moved-audit")
def test_a_program_that_starts_after_its_file_was_renamed_goes_on_too(path: Path) -> None:
    for day in ("20261117", "20261118", ""):
        file = AuditFile(path)
        put(file, "call")
        file.close()
        if day:
            path.rename(f"{path}-{day}")
    assert verify(path)[0] == []
    assert first(path)["after_file"] == f"{path.name}-20261118"
    Path(f"{path}-20261117").unlink()
    Path(f"{path}-20261118").unlink()
    assert verify(path)[0] == []


def delete(path: Path) -> None:
    path.unlink()


def move_away(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    path.rename(path.parent / "elsewhere" / path.name)


def cut(path: Path) -> None:
    path.write_bytes(b"")


def replace(path: Path) -> None:
    path.with_suffix(".copy").touch(0o600)
    path.with_suffix(".copy").rename(path)


@pytest.mark.covers("moved-audit")
@pytest.mark.parametrize("harm", [delete, move_away, cut, replace])
def test_a_file_that_is_gone_is_trouble_that_stays_visible_and_nothing_more_is_lost(
    path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = AuditFile(path, pause=0)
    put(file, "before")
    harm(path)
    put(file, "after", "last")
    assert "was deleted, cut, or moved to another folder" in file.trouble
    assert file.gone == 1
    assert caplog.text.count("was deleted, cut, or moved to another folder. A new one goes on after line 2") == 1
    file.close()
    assert tools_in(path) == ["after", "last"]
    (problem,) = verify(path)[0]
    assert str(problem) == f"{path.name}:1: the file before it is missing, with its lines up to 2"
    AuditFile(path).close()
    assert verify(path)[0] == [problem]


@pytest.mark.covers("moved-audit")
def test_entries_that_wait_for_a_full_disk_are_not_lost_with_the_file_that_is_deleted_for_room(path: Path) -> None:
    file = AuditFile(path, pause=0)
    put(file, "before")
    folder = path.parent.rename(path.parent.with_name("away"))
    put(file, "one", "two")
    assert "there is no folder" in file.trouble
    folder.rename(path.parent)
    path.unlink()
    put(file, "three")
    file.close()
    assert tools_in(path) == ["one", "two", "three"]
    assert [entry["n"] for entry in entries(path, EntryFilter())] == [3, 4, 5, 6, 7]


@pytest.mark.covers("moved-audit")
def test_a_deleted_folder_is_trouble_until_it_is_there_again_and_entries_wait(path: Path) -> None:
    folder = path.parent / "audits"
    folder.mkdir(0o700)
    path = folder / path.name
    file = AuditFile(path, pause=0)
    known = file.hash(b"{}")
    shutil.rmtree(folder)
    put(file, "one", "two")
    assert "there is no folder" in file.trouble
    folder.mkdir(0o700)
    put(file, "three")
    assert file.hash(b"{}") == known
    file.close()
    assert tools_in(path) == ["one", "two", "three"]
    (problem,) = verify(path)[0]
    assert "the file before it is missing, with its lines up to 1" in str(problem)
    after = AuditFile(path)
    assert after.hash(b"{}") == known
    after.close()


@pytest.mark.covers("moved-audit")
def test_a_place_that_others_may_write_to_or_that_is_no_file_is_not_written_to(path: Path) -> None:
    file = AuditFile(path, pause=0)
    path.unlink()
    path.mkdir()
    put(file, "one")
    assert "is no regular file" in file.trouble
    path.rmdir()
    path.parent.chmod(0o777)
    put(file, "two")
    assert "can be changed by others" in file.trouble
    assert not path.exists()
    path.parent.chmod(0o700)
    put(file, "three")
    file.close()
    assert tools_in(path) == ["one", "two", "three"]


@pytest.mark.covers("moved-audit")
@pytest.mark.parametrize("ending", ["", ".key", ".state"])
def test_a_link_that_takes_the_place_of_a_file_is_not_followed(path: Path, ending: str) -> None:
    """Who may write in the folder would have lines put into any file of this user, and its permissions changed."""
    mine = path.with_name("mine")
    mine.write_text("mine")
    mine.chmod(0o644)
    file = AuditFile(path, pause=0)
    path.unlink()
    place = Path(f"{path}{ending}")
    place.unlink(missing_ok=True)
    place.symlink_to(mine)
    put(file, "one")
    assert "is no regular file" in file.trouble
    with pytest.raises(AuditFileUnusable, match="is no regular file"):
        AuditFile(path)
    assert (mine.read_text(), mine.stat().st_mode & 0o777) == ("mine", 0o644)
    place.unlink()
    put(file, "two")
    file.close()
    assert tools_in(path) == ["one", "two"]


@pytest.mark.covers("moved-audit")
def test_a_link_in_the_place_of_the_next_file_is_not_followed_and_the_present_one_grows(path: Path) -> None:
    mine, draft = path.with_name("mine"), Path(f"{path}.new")
    mine.write_text("mine")
    file = AuditFile(path, largest=200, pause=0)
    draft.symlink_to(mine)
    put(file, "one", "two")
    assert "cannot be rotated" in file.trouble
    draft.unlink()
    put(file, "three")
    file.close()
    assert mine.read_text() == "mine"
    assert tools_in(path) == ["one", "two", "three"]
    assert verify(path)[0] == []


@pytest.mark.covers("moved-audit")
@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_what_is_no_file_is_never_read_as_a_rotated_one(path: Path, kind: str) -> None:
    """Nobody writes to the pipe: whoever opens it would wait for ever. The other never ends."""
    place = Path(f"{path}.7")
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    file = AuditFile(path, largest=200, pause=0)
    put(file, "one", "two", "three")
    file.close()
    assert tools_in(path) == ["one", "two", "three"]
    assert verify(path)[0] == []


@pytest.mark.covers("moved-audit")
@pytest.mark.parametrize(
    "forged", [{"after_hash": "\ud800"}, {"after_hash": "\x1b[31m"}, {"after_hash": "0" * 32, "after_file": ["x"]}]
)
async def test_a_forged_beginning_is_a_fault_like_any_other(place: Place, forged: dict[str, object]) -> None:
    path = place.folder / "audit.jsonl"
    file = AuditFile(path, pause=0)
    put(file, "one")
    file.close()
    entry = {"n": 9, "event": "audit opened", "after": 8, **forged}
    path.write_text(f"{json.dumps(entry, separators=(',', ':'))}\n")
    printed = await place.run("audit", "verify", "audit.jsonl")
    assert printed.code == 1
    assert "audit.jsonl:1: the lines 1 to 8 are missing before it" in printed.out


@pytest.mark.covers("moved-audit")
def test_a_deleted_state_is_written_again(path: Path) -> None:
    file = AuditFile(path, pause=0)
    Path(f"{path}.state").unlink()
    put(file, "one")
    file.close()
    assert verify(path)[0] == []


async def health(url: str) -> dict[str, str]:
    async with httpx2.AsyncClient() as http:
        return dict((await http.get(f"{url}/healthz")).json())


@pytest.mark.covers("moved-audit")
@pytest.mark.parametrize("role", ["server", "computer"])
async def test_an_idle_program_notices_within_seconds_says_so_and_opens_a_new_file(place: Place, role: str) -> None:
    place.write({})
    path = place.folder / "audit.jsonl"
    audited = ("--audit", "audit.jsonl") if role == "server" else ()
    server = await place.start("server", "--port", "0", "--metrics", *audited)
    url = await server.listens()
    program: Program = server
    if role == "computer":
        words = ("--url", url, "--office", "desk", "--name", "laptop", "--config", "mcp.json", "--no-input")
        program = await place.start("computer", *words, "--audit", "audit.jsonl")
        await program.says("joined ")
    await asyncio.to_thread(path.rename, place.folder / "audit.jsonl-20261119")
    if role == "server":
        await program.says("is audit.jsonl-20261119 now: a new one goes on")
    await until(lambda: path.exists() and verify(path)[0] == [])
    if role == "server":
        assert await health(url) == {"status": "ok"}
    path.unlink()
    await program.says("was deleted, cut, or moved to another folder")
    if role == "server":
        assert "was deleted" in (await health(url))["audit"]
        async with httpx2.AsyncClient() as http:
            page = (await http.get(f"{url}/metrics")).text
        assert "a2c_audit_gone_total 1\n" in page
        assert "a2c_audit_failing 1\n" in page
    await program.stops()
    printed = await place.run("audit", "verify", "audit.jsonl")
    assert printed.code == 1
    assert "missing before it" in printed.out
    (place.folder / "audit.jsonl-20261119").unlink()
    printed = await place.run("audit", "verify", "audit.jsonl")
    assert "the file before it is missing" in printed.out


@pytest.mark.covers("moved-audit")
async def test_verify_names_the_file_before_one_that_was_archived(place: Place, path: Path) -> None:
    path = place.folder / "audit.jsonl"
    file = AuditFile(path, pause=0)
    path.rename(f"{path}-20261119")
    put(file, "one")
    file.close()
    (place.folder / "audit.jsonl-20261119").rename(place.folder / "archived")
    printed = await place.run("audit", "verify", "audit.jsonl")
    assert printed.code == 0
    assert "the lines up to 1, with the hash " in printed.out
    assert "are not here: they were in audit.jsonl-20261119" in printed.out
    printed = await place.run("audit", "verify", "audit.jsonl", "--json")
    assert json.loads(printed.out)["opened"]["after_file"] == "audit.jsonl-20261119"
