"""Names of tools for MCP clients: valid, distinct, and kept by the tool that has them."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.bridge.names import GivenNames, Owner, SharedTool, Target
from a2c_smcp.files import lock
from tests.on_disk import mode_of
from tests.program import forked
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("bridge-names")

VALID = re.compile(r"[A-Za-z0-9_-]{1,64}")
DAY = 86_400.0

texts = st.one_of(
    st.sampled_from(["a", "b", "a__b", "a_b", "a.b", "a b", "_", "__a", "搜索", "搜索文件", "é", "tool", "computer"]),
    st.text(min_size=1, max_size=12),
    st.text(alphabet="ab_", min_size=1, max_size=8),
    st.text(alphabet="ab_", min_size=60, max_size=70),
)
targets = st.builds(Target, texts, texts)
owners = st.one_of(targets, st.builds(SharedTool, texts, st.sampled_from(["", "0123456789abcdef", "01234567"])))
rounds = st.lists(st.lists(owners, unique=True, max_size=6), max_size=5)


def names_of(*given_to: Owner) -> list[str]:
    return [*GivenNames().names_of(given_to).values()]


READ, OTHER_READ = Target("laptop", "read"), Target("tower", "read")


def name_of(names: GivenNames, target: Target) -> str:
    return names.names_of([target])[target]


def in_turn(names: GivenNames, *targets: Target) -> list[str]:
    return [name_of(names, target) for target in targets]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "names.json"


# Spelling


def test_a_valid_name_that_is_free_is_not_changed() -> None:
    assert names_of(Target("laptop", "read_file"), Target("tower", "-write-")) == ["read_file", "-write-"]


def test_the_computer_is_put_in_front_only_where_the_name_is_taken() -> None:
    found = names_of(Target("laptop", "read"), Target("tower", "read"), Target("tower", "write"))
    assert found == ["read", "tower__read", "write"]


@cases(
    "tool, name",
    ("files.read", "files_read"),
    ("files/read me", "files_read_me"),
    ("files__read", "files_read"),
    ("résumé", "resume"),
    ("ｆｕｌｌ", "full"),
    ("搜索", "tool_x"),
    ("搜索_notes", "notes_x"),
    ("***", "tool_x"),
    ("a" * 65, "a" * 54 + "_x"),
)
def test_what_clients_do_not_accept_is_replaced(tool: str, name: str) -> None:
    [found] = names_of(Target("laptop", tool))
    assert VALID.fullmatch(found)
    assert found == name or (found.startswith(name) and len(found) == len(name) + 8)


def test_names_in_chinese_are_distinct_and_do_not_depend_on_other_tools() -> None:
    search, weather = Target("笔记本", "搜索文件"), Target("笔记本", "天气")
    assert names_of(search, weather) == [*names_of(search), *names_of(weather)]
    assert len({*names_of(search, weather)}) == 2


def test_long_names_are_cut_and_stay_distinct() -> None:
    long = "list_all_pull_requests_of_a_repository_that_wait_for_review_by_"
    given_to = [Target(computer, f"{long}{who}") for computer in ("laptop", "c" * 128) for who in ("me", "my_team")]
    found = names_of(*given_to)
    assert len({*found}) == 4
    assert all(VALID.fullmatch(name) for name in found)
    assert found[2].startswith("c" * 22 + "_x")


def test_a_tool_that_is_called_like_one_of_another_computer_does_not_get_that_name() -> None:
    found = in_turn(GivenNames(), Target("evil", "bank__pay"), Target("evil", "pay"), Target("bank", "pay"))
    assert found == ["bank_pay", "pay", "bank__pay"]


@given(st.lists(owners, unique=True, max_size=20))
def test_names_are_valid_and_distinct_whatever_the_tools_are_called(some: list[Owner]) -> None:
    found = GivenNames().names_of(some)
    assert all(VALID.fullmatch(name) for name in found.values())
    assert len({*found.values()}) == len(some)


@given(st.lists(targets, unique=True, max_size=20))
def test_what_stands_before_two_underscores_is_of_one_computer(some: list[Target]) -> None:
    names = GivenNames()
    computers = defaultdict(set)
    for target in some:
        front, between, _ = name_of(names, target).partition("__")
        if between:
            computers[front].add(target.computer)
            assert front == target.computer or front not in {other.computer for other in some}
    assert all(len(those) == 1 for those in computers.values())


# Names that stay


@given(rounds, st.booleans())
def test_a_name_once_given_stays_whoever_comes_and_goes_and_across_restarts(
    present: list[list[Owner]], restarts: bool
) -> None:
    with TemporaryDirectory() as folder:
        names, seen = GivenNames(Path(folder) / "names.json"), dict[Owner, str]()
        for some in present:
            if restarts:
                names = GivenNames(Path(folder) / "names.json")
            found = names.names_of(some)
            assert {owner: seen.get(owner, name) for owner, name in found.items()} == found
            seen |= found
            assert len({*seen.values()}) == len(seen)


def test_a_reserved_name_is_given_to_no_tool_and_taken_from_one_that_has_it() -> None:
    names, desktop = GivenNames(), Target("laptop", "get_desktop")
    assert names.names_of([desktop]) == {desktop: "get_desktop"}
    assert names.names_of([desktop], reserved={"get_desktop"}) == {desktop: "laptop__get_desktop"}
    assert names.names_of([desktop]) == {desktop: "laptop__get_desktop"}
    assert name_of(names, Target("tower", "get_desktop")) == "get_desktop"


def test_a_name_passes_on_only_where_the_caller_says_that_it_may() -> None:
    names, yielding, all_of_them = GivenNames(), GivenNames(), SharedTool("read")
    assert (name_of(names, READ), name_of(yielding, READ)) == ("read", "read")
    assert names.names_of([all_of_them]) == {all_of_them: "read_2"}
    assert yielding.names_of([all_of_them], yields=lambda holder, newcomer: holder == READ) == {all_of_them: "read"}
    assert name_of(yielding, READ) == "laptop__read"


def test_when_there_are_too_many_those_that_were_away_longest_go_first(file: Path) -> None:
    now = 1_800_000_000.0
    names = GivenNames(file, most=3, clock=lambda: now)
    for number in range(3):
        name_of(names, Target("laptop", f"tool{number}"))
        now += DAY
    in_turn(names, Target("laptop", "tool0"), Target("laptop", "tool3"))
    others = [Target("tower", f"tool{number}") for number in range(3)]
    assert in_turn(GivenNames(file, clock=lambda: now), *others) == ["tower__tool0", "tool1", "tower__tool2"]


def test_a_computer_that_renames_its_tools_all_the_time_pushes_out_no_other() -> None:
    names = GivenNames(most=10, most_of_one=3)
    in_turn(names, READ, *(Target("evil", f"tool{number}") for number in range(20)))
    assert in_turn(names, OTHER_READ, Target("tower", "tool15")) == ["tower__read", "tool15"]


def test_what_is_present_keeps_its_name_even_if_there_are_too_many() -> None:
    names = GivenNames(most=2)
    some = [Target("laptop", f"tool{number}") for number in range(5)]
    assert names.names_of(some) == names.names_of(some) == {target: target.tool for target in some}


# The file


def test_only_its_owner_can_read_the_file(file: Path) -> None:
    name_of(GivenNames(file), READ)
    assert (mode_of(file), mode_of(file.parent)) == (0o600, 0o700)


def test_a_file_is_written_only_when_there_is_something_new(file: Path) -> None:
    now = 1_800_000_000.0
    names = GivenNames(file, clock=lambda: now)
    name_of(names, Target("laptop", "read"))
    before = file.stat().st_ino, file.stat().st_mtime_ns
    name_of(names, Target("laptop", "read"))
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == before
    now += DAY
    name_of(names, Target("laptop", "read"))
    assert json.loads(file.read_text())["names"][0]["seen"] == "2027-01-16"


@cases(
    "content",
    "",
    "{",
    "[]",
    '{"names": 1}',
    '{"names": [1]}',
    '{"names": [{"name": "a", "tool": "a", "seen": "2027-01-16"}]}',
    '{"names": [{"name": "not valid", "tool": "a", "computer": "b", "seen": "2027-01-16"}]}',
    '{"names": [{"name": "a", "tool": "a", "computer": 1, "seen": "2027-01-16"}]}',
    "[" * 100_000,
)
def test_a_damaged_file_is_warned_of_and_begun_anew(file: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    file.parent.mkdir(mode=0o700)
    file.write_text(content)
    file.chmod(0o600)
    assert name_of(GivenNames(file), READ) == "read"
    assert warnings_in(caplog) == [f"{file} is damaged: names of tools are given anew, and may differ from before"]
    assert name_of(GivenNames(file), OTHER_READ) == "tower__read"


def test_a_file_that_others_may_change_is_not_used(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.parent.mkdir(mode=0o700)
    file.write_text('{"names": [{"name": "pay", "tool": "steal", "computer": "evil", "seen": "2027-01-16"}]}')
    file.chmod(0o666)
    assert in_turn(GivenNames(file), Target("bank", "pay"), Target("bank", "look")) == ["pay", "look"]
    assert "evil" in file.read_text()
    [warning] = warnings_in(caplog)
    assert "chmod go-w" in warning


def test_where_nothing_can_be_written_names_last_as_long_as_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    assert in_turn(GivenNames(tmp_path / "state" / "names.json"), READ, OTHER_READ) == ["read", "tower__read"]
    assert len(warnings_in(caplog)) == 1


def test_two_bridges_read_what_the_other_has_given(file: Path) -> None:
    one, other = GivenNames(file), GivenNames(file)
    assert in_turn(one, READ) == ["read"]
    assert in_turn(other, OTHER_READ, Target("tower", "write")) == ["tower__read", "write"]
    assert in_turn(one, Target("laptop", "write")) == ["laptop__write"]
    assert in_turn(other, READ) == ["read"]


def test_a_bridge_that_stands_still_with_the_lock_stops_no_other(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = GivenNames(file), GivenNames(file)
    name_of(one, Target("laptop", "read"))
    descriptor = os.open(file.with_name("names.json.lock"), os.O_RDWR)
    try:
        assert lock(descriptor)
        assert name_of(other, Target("tower", "read")) == "tower__read"
    finally:
        os.close(descriptor)
    assert len(warnings_in(caplog)) == 1
    name_of(other, Target("tower", "write"))
    assert {entry["name"] for entry in json.loads(file.read_text())["names"]} == {"read", "tower__read", "write"}


GIVE = """
import sys
from pathlib import Path
from a2c_smcp.bridge.names import GivenNames
from a2c_smcp.bridge.names import Target

file, computer = Path(sys.argv[1]), sys.argv[2]
names = GivenNames(file)
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    for target in (Target(computer, f"tool{number}"), Target("shared", f"tool{number}")):
        print(target.computer, target.tool, names.names_of([target])[target], flush=True)
"""


def test_processes_that_share_a_file_give_no_name_twice_and_lose_none(file: Path) -> None:
    script = file.parent.with_name("give.py")
    script.write_text(GIVE, "utf-8")
    processes: list[Any] = [
        subprocess.Popen(forked(script, file, computer), stdin=-1, stdout=-1, text=True)
        for computer in ("laptop", "tower", "shed")
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=120)[0].split("\n")[:-1] for process in processes]
    owners_of = defaultdict(set)
    for computer, tool, name in (line.split() for lines in told for line in lines):
        owners_of[name].add((computer, tool))
    assert all(len(those) == 1 for those in owners_of.values())
    assert len(owners_of) == 4 * 40
    assert {entry["name"] for entry in json.loads(file.read_text())["names"]} == owners_of.keys()
