"""The journal of begun calls: what is left of a process that ended, and what happens where it cannot be kept."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.calls.journal import Journal, JournalFailed, Key, journal_of
from a2c_smcp.errors import RateLimited
from tests.on_disk import full_disk, mode_of
from tests.stage.place import Place

pytestmark = pytest.mark.covers("computer-dedup")

CALL, OTHER = b"a" * 32, b"b" * 32


def key(number: object = 1) -> Key:
    return "desk", "planner", "", f"r{number}"


def outcomes(journal: Journal, *numbers: object) -> list[str | None]:
    found = [journal.find(key(number)) for number in numbers]
    return [record and (record.outcome or "begun") for record in found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "instances" / "x.calls"


def opened(path: Path, **limits: Any) -> closing[Journal]:
    return closing(Journal(path, **limits))


def test_the_next_process_knows_which_calls_were_begun_and_how_they_ended(path: Path) -> None:
    with opened(path) as journal:
        for number in (1, 2, 3):
            journal.begin(key(number), CALL)
        journal.end(key(1), "done")
        journal.end(key(2), "unknown")
    for _ in range(2):
        with opened(path) as journal:
            assert outcomes(journal, 1, 2, 3, 4) == ["done", "unknown", "begun", None]
            found = journal.find(key(3))
            assert found
            assert (found.is_of(CALL), found.is_of(OTHER)) == (True, False)


@pytest.mark.parametrize("lost", range(1, 120, 7))
def test_a_torn_end_of_the_file_costs_no_line_but_the_torn_one(path: Path, lost: int) -> None:
    with opened(path) as journal:
        journal.begin(key(1), CALL)
        journal.begin(key(2), CALL)
        journal.end(key(2), "done")
    path.write_bytes(path.read_bytes()[:-lost])
    with opened(path) as journal:
        assert outcomes(journal, 1) == ["begun"]
        journal.begin(key(3), CALL)
    with opened(path) as journal:
        assert outcomes(journal, 1, 3) == ["begun", "begun"]


@pytest.mark.parametrize("odd", [b"", b"\n\n", b"\x00" * 200, b"B x y\n", b"D " + b"0" * 32 + b"\n", "é\n".encode()])
def test_whatever_else_stands_in_the_file_is_passed_over(path: Path, odd: bytes) -> None:
    with opened(path) as journal:
        journal.begin(key(1), CALL)
    path.write_bytes(odd + b"\n" + path.read_bytes() + odd)
    with opened(path) as journal:
        assert outcomes(journal, 1, 2) == ["begun", None]


def test_a_second_process_begins_no_call_until_the_first_has_ended_and_then_knows_its_calls(path: Path) -> None:
    with opened(path) as second:
        with opened(path) as first:
            first.begin(key(1), CALL)
            for attempt in (lambda: second.find(key(1)), lambda: second.begin(key(2), CALL)):
                with pytest.raises(JournalFailed) as refused:
                    attempt()
                assert refused.value.outcome == "not_run"
        assert outcomes(second, 1) == ["begun"]
        second.begin(key(2), CALL)


def test_a_call_that_cannot_be_written_down_does_not_begin_and_the_journal_stays_intact(
    path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with opened(path) as journal:
        journal.begin(key(1), CALL)
        with full_disk(path.stat().st_size + 10), capfd.disabled():
            for _ in range(3):
                with pytest.raises(JournalFailed):
                    journal.begin(key(2), CALL)
            journal.end(key(1), "done")
        assert [str(path) in record.getMessage() for record in caplog.records] == [True]
        journal.begin(key(3), CALL)
        assert outcomes(journal, 1, 2, 3) == ["done", None, "begun"]
    with opened(path) as journal:
        assert outcomes(journal, 1, 2, 3) == ["begun", None, "begun"]


def test_a_failing_journal_is_logged_with_its_path_which_agents_do_not_see(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "instances").write_text("not a folder")
    with journal_of("laptop", "http://127.0.0.1:7000", "desk", tmp_path) as journal:
        assert str(tmp_path) in caplog.text
        with pytest.raises(JournalFailed) as refused:
            journal.begin(key(1), CALL)
        assert str(tmp_path) not in str(refused.value)
        (tmp_path / "instances").unlink()
        journal.begin(key(1), CALL)


async def test_a_second_process_of_a_computer_ends_at_once_and_names_the_first(
    place: Place, shared_hub: Any, office: str
) -> None:
    words = ("computer", "--name", "laptop", "--url", shared_hub.url, "--office", office)
    first = await place.start(*words)
    await first.says(f"joined {office}")
    second = await place.run(*words)
    assert (second.code, f"this computer runs already as process {first.process.pid}" in second.err) == (1, True)
    assert "joined" not in second.err
    elsewhere = await place.start(*words[:-1], f"{office}-2")
    await elsewhere.says("joined")
    await first.kill()
    third = await place.start(*words)
    await third.says(f"joined {office}")


def test_it_is_for_its_owner_alone_and_holds_no_names(path: Path) -> None:
    with opened(path) as journal:
        journal.begin(key("secret"), CALL)
        assert {mode_of(file) for file in path.parent.iterdir()} == {0o600}
        assert not any(word in path.read_bytes() for word in (b"secret", b"desk", b"planner", CALL))


def test_a_full_journal_drops_ended_calls_and_then_refuses_new_ones(path: Path) -> None:
    with opened(path, most=3) as journal:
        for number in (1, 2, 3):
            journal.begin(key(number), CALL)
        with pytest.raises(RateLimited) as refused:
            journal.begin(key(4), CALL)
        assert refused.value.outcome == "not_run"
        journal.end(key(2), "done")
        journal.begin(key(4), CALL)
        assert outcomes(journal, 1, 2, 3, 4) == ["begun", None, "begun", "begun"]
    with opened(path, most=3) as journal:
        assert outcomes(journal, 1, 3, 4) == ["begun", "begun", "begun"]
        with pytest.raises(RateLimited):
            journal.begin(key(5), CALL)


def test_calls_are_forgotten_in_time_also_across_processes(path: Path) -> None:
    now = [1000.0]
    for seconds, expected in ((0, [None]), (90, ["begun"]), (20, [None])):
        now[0] += seconds
        with opened(path, keep=100, clock=lambda: now[0]) as journal:
            assert outcomes(journal, 1) == expected
            if not seconds:
                journal.begin(key(1), CALL)


def test_the_file_does_not_grow_with_forgotten_calls_and_keeps_all_others(path: Path) -> None:
    with opened(path, most=100) as journal:
        journal.begin(key("first"), CALL)
        for number in range(6000):
            journal.begin(key(number), CALL)
            journal.end(key(number), "done")
        assert path.stat().st_size < 300_000
    with opened(path, most=100) as journal:
        assert outcomes(journal, "first", 5999) == ["begun", "done"]
        assert path.stat().st_size < 20_000
