"""Audit files: what `verify` sees of them, and what becomes of them on a full disk, after a crash and by rotation."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
import time
from hashlib import blake2s, sha256
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from a2c_smcp.audit.chain import ChainState, KeptState
from a2c_smcp.audit.file import AuditFile, AuditFileUnusable
from a2c_smcp.audit.reading import EntryFilter, entries, follow, rotated, verify
from a2c_smcp.errors import ConfigError, NotPrivate
from tests.on_disk import content_of, full_disk
from tests.waiting import until


def written(path: Path, count: int = 8, **limits: int) -> list[bytes]:
    """The lines of a file with so many entries, and two more for its begin and end."""
    file = AuditFile(path, **limits)
    put(file, count)
    file.close()
    return path.read_bytes().splitlines(keepends=True)


def put(file: AuditFile, count: int) -> None:
    for number in range(count):
        file.write({"event": "call", "tool": f"tool-{number}", "outcome": "ok"})
        file.flush()


def written_in_blocks(path: Path, *sizes: int) -> list[bytes]:
    """The lines of a file with blocks of so many entries, and two more of one line."""
    file = AuditFile(path)
    for size in sizes:
        for number in range(size):
            file.write({"event": "call", "tool": f"tool-{number}", "outcome": "ok"})
        file.flush()
    file.close()
    return path.read_bytes().splitlines(keepends=True)


def places(path: Path) -> list[tuple[str, int]]:
    return [(problem.file, problem.line) for problem in verify(path)[0]]


def test_a_file_that_nobody_touched_is_in_order_and_private(path: Path, tmp_path: Path) -> None:
    lines = written(path)
    problems, end = verify(path)
    assert not problems
    assert (end.number, len(lines)) == (10, 10)
    assert json.loads(lines[-1])["hash"] == end.hash
    assert verify(path, wanted=json.loads(lines[3])["hash"])[0] == []
    assert "no line has the hash" in str(verify(path, wanted="0" * 32)[0][0])
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_line_that_was_changed_removed_moved_or_cut_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    lines = written_in_blocks(path, *data.draw(st.sampled_from([(1,) * 5, (5,), (1, 3, 2), (2, 2)])))
    at = data.draw(st.integers(0, len(lines) - 1))
    kind = data.draw(st.sampled_from(["change", "remove", "move", "repeat", "cut", "put in", "without hash"]))
    if kind == "change":
        where = data.draw(st.integers(0, len(lines[at]) - 2))
        changed = bytearray(lines[at])
        changed[where] = data.draw(st.sampled_from([each for each in b'a0"}{' if each != changed[where]]))
        lines[at] = bytes(changed)
    elif kind == "remove":
        del lines[at]
    elif kind == "move":
        other = data.draw(st.integers(0, len(lines) - 1).filter(lambda other: other != at))
        lines.insert(other, lines.pop(at))
    elif kind == "repeat":
        lines.insert(at, lines[at])
    elif kind == "put in":
        lines.insert(at, b'{"n":%d,"time":"","event":"call","tool":"forged"}\n' % (at + 1))
    elif kind == "without hash":
        at = data.draw(st.sampled_from([at for at, line in enumerate(lines) if b'"hash":' in line]))
        lines[at] = lines[at].rpartition(b',"hash":')[0] + b"}\n"
    else:
        lines = lines[:at]
    path.write_bytes(b"".join(lines))
    assert verify(path)[0]


def test_the_place_of_a_change_is_named(path: Path) -> None:
    lines = written(path)
    path.write_bytes(b"".join(lines).replace(b"tool-3", b"tool-X"))
    assert places(path) == [("audit.jsonl", 5)]
    path.write_bytes(b"".join(lines[:4] + lines[5:]))
    assert places(path) == [("audit.jsonl", 5)]
    path.write_bytes(b"".join(lines[:-2]))
    assert places(path) == [("audit.jsonl", 8)]


def test_a_block_has_one_hash_and_a_change_in_it_is_named_with_all_its_lines(path: Path) -> None:
    lines = written_in_blocks(path, 1, 4, 1)
    assert [b'"hash":' in line for line in lines] == [True, True, False, False, False, True, True, True]
    assert verify(path)[0] == []
    path.write_bytes(b"".join([*lines[:3], lines[3].replace(b"tool-1", b"tool-X"), *lines[4:]]))
    (problem,) = verify(path)[0]
    assert str(problem) == "audit.jsonl:6: one of the lines 3 to 6 was changed, or a line before them was"
    path.write_bytes(b"".join(lines[:3] + lines[4:]))
    (problem,) = verify(path)[0]
    assert str(problem) == "audit.jsonl:4: the lines 4 to 4 are missing before it"


def test_a_file_of_an_earlier_version_is_read_and_goes_on(tmp_path: Path) -> None:
    """In which each line had its hash."""
    path, before = tmp_path / "audit.jsonl", "0" * 32
    with path.open("wb") as file:
        for number in range(1, 4):
            text = b'{"n":%d,"time":"2026-11-18T06:35:36.246Z","event":"call","tool":"add"' % number
            before = sha256(before.encode() + text).hexdigest()[:32]
            file.write(b'%b,"hash":"%b"}\n' % (text, before.encode()))
    (tmp_path / "audit.jsonl.state").write_bytes(KeptState(ChainState(3, before)).to_bytes())
    path.chmod(0o600)
    assert verify(path) == ([], (3, before))
    written_in_blocks(path, 3)
    problems, end = verify(path)
    assert (problems, end.number) == ([], 8)
    path.write_bytes(path.read_bytes().replace(b'"n":2,"time":"2026', b'"n":2,"time":"2025'))
    assert places(path) == [("audit.jsonl", 2)]


def test_the_chain_goes_on_over_rotated_files_and_restarts(path: Path, tmp_path: Path) -> None:
    for _ in range(2):
        written(path, 20, largest=500, kept=100)
    assert len(list(tmp_path.glob("audit.jsonl.*[0-9]"))) > 5
    problems, end = verify(path)
    assert (problems, end.number) == ([], 44)
    found = list(entries(path, EntryFilter({"event": "call"})))
    assert [each["n"] for each in found] == sorted(each["n"] for each in found)
    assert len(found) == 40
    (tmp_path / "audit.jsonl.3").unlink()
    assert [problem.file for problem in verify(path)[0]] == ["audit.jsonl.4"]


def test_only_so_many_rotated_files_are_kept(path: Path, tmp_path: Path) -> None:
    written(path, 40, largest=500, kept=3)
    assert len(list(tmp_path.glob("audit.jsonl.*[0-9]"))) == 3
    assert verify(path)[0] == []
    written(path, 1, largest=500, kept=3)
    assert verify(path)[0] == []


@pytest.mark.parametrize("kind", ["change", "remove", "file"])
def test_the_first_line_that_rotation_has_kept_is_checked_too(path: Path, tmp_path: Path, kind: str) -> None:
    written(path, 40, largest=500, kept=3)
    oldest = min(tmp_path.glob("audit.jsonl.*[0-9]"), key=lambda each: int(each.suffix[1:]))
    first, *others = oldest.read_bytes().splitlines(keepends=True)
    if kind == "file":
        oldest.unlink()
        oldest = oldest.with_suffix(f".{int(oldest.suffix[1:]) + 1}")
    else:
        oldest.write_bytes(b"".join([*([first.replace(b"tool-", b"TOOL-")] if kind == "change" else []), *others]))
    assert places(path) == [(oldest.name, 1)]


def test_a_missing_state_is_found_and_stays_so_after_the_next_start(path: Path, tmp_path: Path) -> None:
    lines = written(path)
    path.write_bytes(b"".join(lines[:6]))
    (tmp_path / "audit.jsonl.state").unlink()
    assert places(path) == [("audit.jsonl.state", 1)]
    written(path, 1)
    assert places(path) == [("audit.jsonl", 7)]
    assert "the state was missing" in str(verify(path)[0][0])
    written(path, 1)
    assert places(path) == [("audit.jsonl", 7)]


def test_a_last_line_that_was_made_anew_is_found_before_and_after_the_next_start(path: Path) -> None:
    lines = written(path)
    text, _, _ = lines[-1].replace(b"audit closed", b"audit CLOSED").rpartition(b',"hash":')
    before = json.loads(lines[-2])["hash"]
    digest = sha256(before.encode() + text).hexdigest()[:32]
    path.write_bytes(b"".join(lines[:-1]) + text + f',"hash":"{digest}"}}\n'.encode())
    assert places(path) == [("audit.jsonl", 10)]
    written(path, 1)
    assert places(path) == [("audit.jsonl", 11)]


def test_lines_go_on_into_the_same_file_if_a_new_one_cannot_be_opened(path: Path) -> None:
    file = AuditFile(path, largest=500, pause=0)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
    try:
        put(file, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert "cannot be rotated: Too many open files" in file.trouble
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        put(file, 10)
        for end in (near, far):
            with pytest.raises(BlockingIOError):
                end.recv(1)
    assert not file.trouble
    file.close()
    assert len(list(entries(path, EntryFilter({"event": "call"})))) == 20
    assert verify(path)[0] == []


def test_a_file_stays_in_its_place_if_the_new_one_cannot_take_it(path: Path, tmp_path: Path) -> None:
    file = AuditFile(path, largest=500, pause=0)
    (tmp_path / "audit.jsonl.new").mkdir()
    put(file, 10)
    assert "cannot be rotated" in file.trouble
    assert (rotated(path), path.read_bytes().count(b"\n")) == ([], 11)
    (tmp_path / "audit.jsonl.new").rmdir()
    put(file, 1)
    assert not file.trouble
    assert len(rotated(path)) == 1
    file.close()
    assert verify(path)[0] == []


def test_an_entry_that_would_be_two_lines_is_refused(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.jsonl")
    with pytest.raises(ValueError, match="one line"):
        file.write({"event": "call", "arguments": msgspec.Raw(b"{\n}")})
    file.close()


def test_what_cannot_be_encoded_is_left_out_and_the_line_is_kept(path: Path) -> None:
    file = AuditFile(path)
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    for arguments in ("\ud800", 2**70, [float("nan"), "\ud800"], deep):
        file.write({"event": "call", "tool": "\udfff", "arguments": arguments})
    file.close()
    found = list(entries(path, EntryFilter({"event": "call"})))
    *recorded, deepest = [each.get("arguments", "none") for each in found]
    assert recorded == ["\ud800", 2**70, "none"]
    assert deepest == "none" or len(json.dumps(deepest)) == 10_002, "some versions of Python write it as it is"
    assert {each["tool"] for each in found} == {"\udfff"}
    assert verify(path)[0] == []


def test_a_long_torn_line_is_dropped(path: Path, tmp_path: Path) -> None:
    file = AuditFile(path)
    file.write({"event": "call", "tool": "x" * 3_000_000})
    file.close()
    os.truncate(path, path.stat().st_size - 10)
    state = tmp_path / "audit.jsonl.state"
    state.write_bytes(KeptState(ChainState(2, json.loads(path.read_bytes().splitlines()[1])["hash"])).to_bytes())
    with path.open("ab") as torn:
        torn.write(b"y" * 2_000_000)
    written(path, 1)
    assert verify(path)[0] == []
    assert [each["n"] for each in entries(path, EntryFilter())] == [1, 2, 3, 4, 5]


def test_files_that_were_there_become_private(tmp_path: Path) -> None:
    for name in ("audit.jsonl", "audit.jsonl.key", "audit.jsonl.state"):
        (tmp_path / name).touch(0o644)
        (tmp_path / name).chmod(0o644)
    AuditFile(tmp_path / "audit.jsonl").close()
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


def test_two_processes_never_share_a_file(tmp_path: Path) -> None:
    first = AuditFile(tmp_path / "audit.jsonl")
    with pytest.raises(ConfigError, match="another process"):
        AuditFile(tmp_path / "audit.jsonl")
    first.close()
    AuditFile(tmp_path / "audit.jsonl").close()


@pytest.mark.parametrize("name", ["audit.jsonl", "audit.jsonl.key", "audit.jsonl.state"])
def test_what_is_no_regular_file_is_refused_and_nothing_is_left_behind(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name, 0o600)
    with pytest.raises(AuditFileUnusable, match=f"audit.jsonl cannot be written: .*/{name} is no regular file"):
        AuditFile(tmp_path / "audit.jsonl")
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_file_that_cannot_be_opened_leaves_nothing_behind_and_no_lock(path: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with path.parent.joinpath("other").open("w") as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 2, hard))  # the state can be opened, and no more
        try:
            with pytest.raises(AuditFileUnusable, match="cannot be written: Too many open files"):
                AuditFile(path)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [each.name for each in tmp_path.iterdir()] == ["other"]
    AuditFile(path).close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(AuditFileUnusable, match=f"there is no folder {tmp_path}/nowhere for the audit file a.jsonl"):
        AuditFile(tmp_path / "nowhere" / "a.jsonl")


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(NotPrivate, match="chmod go-w"):
        AuditFile(tmp_path / "audit.jsonl")


def test_a_place_for_all_users_is_refused_and_not_made_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    for path in (tmp_path / "audit.jsonl", Path(os.devnull)):
        with pytest.raises(NotPrivate, match="use a folder of your own") as caught:
            AuditFile(path)
        assert "chmod" not in str(caught.value)


def test_a_line_that_a_crash_has_cut_is_dropped_and_the_chain_goes_on(path: Path) -> None:
    written(path)
    with path.open("ab") as file:
        file.write(b'{"n":11,"time":"2026')
    written(path, 1)
    assert verify(path)[0] == []


@pytest.mark.parametrize("cut", [0, 10], ids=["between lines", "in a line"])
@pytest.mark.parametrize("left", [1, 3])
def test_a_block_that_a_crash_has_cut_is_ended_by_the_next_process(tmp_path: Path, left: int, cut: int) -> None:
    path, state = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.state"
    written(path, 1)
    before = path.read_bytes(), state.read_bytes()
    block = written_in_blocks(path, 4)[len(before[0].splitlines()) + 1 :][:4]
    opened = written_in_blocks(path)[len(before[0].splitlines())]
    path.write_bytes(b"".join([before[0], opened, *block[:left]])[: -cut or None])
    state.write_bytes(KeptState(ChainState(4, json.loads(opened)["hash"])).to_bytes())
    assert verify(path)[0]
    written(path, 1)
    assert verify(path)[0] == []
    kept = left - bool(cut)
    assert [each["n"] for each in entries(path, EntryFilter())] == list(range(1, 8 + kept))


def test_a_block_whose_end_was_cut_off_stays_visible_after_the_next_start(path: Path) -> None:
    lines = written_in_blocks(path, 4)
    path.write_bytes(b"".join(lines[:3]))
    assert "the end of its block is missing" in str(verify(path)[0][0])
    written(path, 1)
    (problem,) = verify(path)[0]
    assert str(problem) == "audit.jsonl:4: the lines 4 to 6 are missing before it"


def test_a_cut_stays_visible_after_the_next_start(path: Path) -> None:
    lines = written(path)
    path.write_bytes(b"".join(lines[:6]))
    written(path, 1)
    (problem,) = verify(path)[0]
    assert str(problem) == "audit.jsonl:7: the lines 7 to 10 are missing before it"


def test_entries_wait_while_the_disk_is_full_and_no_half_line_is_left(path: Path) -> None:
    file = AuditFile(path, pause=0)
    with full_disk(path.stat().st_size + 40):
        put(file, 3)
        assert "File too large" in file.trouble
        assert path.read_bytes().count(b"\n") == 1
    put(file, 1)
    assert not file.trouble
    file.close()
    assert verify(path)[0] == []
    found = [each["tool"] for each in entries(path, EntryFilter({"event": "call"}))]
    assert found == ["tool-0", "tool-1", "tool-2", "tool-0"]


async def test_on_a_full_disk_writing_is_tried_by_a_timer_and_not_by_each_entry(path: Path) -> None:
    file = AuditFile(path, pause=0.2)
    with full_disk(len(content_of(path))):
        put(file, 1)
    put(file, 5)
    assert file.trouble
    assert content_of(path).count(b"\n") == 1
    await until(lambda: not file.trouble)
    assert content_of(path).count(b"\n") == 7
    file.close()
    assert verify(path)[0] == []


def test_entries_that_were_lost_are_counted(path: Path) -> None:
    file = AuditFile(path)
    with full_disk(path.stat().st_size):
        for _ in range(5):
            file.write({"event": "call", "tool": "x" * 600_000})
            file.flush()
        assert file.lost == 3
    file.close()
    assert verify(path)[0] == []
    assert [each["entries"] for each in entries(path, EntryFilter({"event": "audit lost"}))] == [3]


def test_arguments_can_be_checked_with_the_key_of_the_file(path: Path) -> None:
    file = AuditFile(path)
    known = file.hash(b'{"a":1}')
    file.close()
    key = path.with_name("audit.jsonl.key").read_bytes()
    assert blake2s(b'{"a":1}', key=key, digest_size=16).hexdigest() == known


def test_no_line_is_missed_by_one_who_follows_rotated_files(path: Path) -> None:
    file = AuditFile(path, largest=40_000, kept=10_000)
    found: list[str] = []

    def read() -> None:
        for entry in follow(path, EntryFilter({"event": "call"})):
            found.append(entry["tool"])
            if entry["tool"] == "end":
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    deadline = time.monotonic() + 30
    while not found and time.monotonic() < deadline:
        put(file, 1)
    found.clear()
    for number in range(3000):
        file.write({"event": "call", "tool": f"line-{number}"})
        file.flush()
    file.write({"event": "call", "tool": "end"})
    file.flush()
    reader.join(30)
    file.close()
    assert [each for each in found if each.startswith("line-")] == [f"line-{number}" for number in range(3000)]
