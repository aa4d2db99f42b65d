"""The desktop of 004: which windows, in which order, as what text, and how few have to be read for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import get_type_hints

from a2c_smcp.computer.content.agent_requests import read_desktop
from a2c_smcp.computer.desktop.organize import Contents, Ranking, Window, blobs_in, organize_desktop, rank, render
from a2c_smcp.computer.types import ToolCallRecord
from a2c_smcp.errors import CallTimeout
from a2c_smcp.protocol.window_uri import WindowURI

pytestmark = pytest.mark.covers("desktop-organize", "desktop-render")

TEXT = [{"uri": "window://h", "mimeType": "text/plain", "text": "hello"}]
BLOB = [{"uri": "window://h", "blob": "aGVsbG8="}]
EMPTY: list[Any] = []


def record(server: str) -> ToolCallRecord:
    call: Any = {"timestamp": "2026-02-14T10:30:01Z", "req_id": "r", "tool": "t", "parameters": {}, "timeout": None}
    return ToolCallRecord(**call, server=server, success=True, error=None)


def windows(server: str, *uris: str, contents: Contents = TEXT) -> list[tuple[Window, Contents]]:
    return [(Window(server, f"window://{uri}", index), contents) for index, uri in enumerate(uris)]


def shown(given: list[tuple[Window, Contents]], size: int | None = None, used: tuple[str, ...] = ()) -> list[str]:
    """What is on the desktop, as URIs without their scheme."""
    desktops = organize_desktop(given, size, [record(server) for server in used])
    return [desktop.partition("\n\n")[0].removeprefix("window://") for desktop in desktops]


def annotated(server: str, *resources: tuple[str, Any, Any]) -> list[tuple[Window, Contents]]:
    """Windows whose servers say in annotations and `_meta` what the URI may say."""
    keys = ("name", "annotations", "_meta")
    listed = [dict(zip(keys, each, strict=True), uri=f"window://{each[0]}") for each in resources]
    return [(Window.listed(server, resource, index), TEXT) for index, resource in enumerate(listed)]


@pytest.mark.covers("peer-windows")
def test_annotations_count_where_the_uri_says_nothing() -> None:
    low, high = {"priority": 0.2}, {"priority": 0.9}
    given = annotated("s", ("a", low, None), ("b", high, None), ("c?priority=50", high, None), ("d", None, {}))
    assert shown(given) == ["b", "c?priority=50", "a", "d"]
    full = {"fullscreen": True}
    assert shown(annotated("s", ("a", high, None), ("b", low, full), ("c", None, full))) == ["b"]
    assert shown(annotated("s", ("a", None, None), ("b?fullscreen=false", None, full))) == ["a", "b?fullscreen=false"]
    given = annotated("s", ("a?fullscreen=true", None, {"fullscreen": False}), ("b", high, None))
    assert shown(given) == ["a?fullscreen=true"]


@pytest.mark.covers("peer-windows")
@pytest.mark.parametrize("priority", [1.01, -0.1, float("nan"), float("inf"), True, "0.9", None, [1], 10**400])
def test_a_priority_that_is_none_counts_as_zero(priority: Any) -> None:
    given = annotated("s", ("a", {"priority": priority}, {"fullscreen": "true"}), ("b", {"priority": 0.01}, "x"))
    assert shown(given) == ["b", "a"]
    given = annotated("s", ("a", [], {"fullscreen": 1}), ("b?priority=0", {"priority": 1}, None))
    assert shown(given) == ["a", "b?priority=0"]


def test_a_record_of_a_call_has_the_fields_of_004() -> None:
    texts = dict.fromkeys(("timestamp", "req_id", "server", "tool"), str)
    others = {"parameters": dict[str, Any], "timeout": float | None, "success": bool, "error": str | None}
    assert get_type_hints(ToolCallRecord) == {**texts, **others}


# Rendering


@pytest.mark.parametrize(
    ("contents", "desktop"),
    [
        ([{"text": "hello"}], "window://h/p\n\nhello"),
        ([{"text": "a"}, {"text": "b\n"}], "window://h/p\n\na\n\nb\n"),
        ([{"text": "a"}, {"blob": "eA=="}, {"text": "b"}], "window://h/p\n\na\n\nb"),
        ([{"text": ""}], "window://h/p"),
        ([{"text": ""}, {"text": ""}], "window://h/p"),
        ([{"text": ""}, {"text": "b"}], "window://h/p\n\n\n\nb"),
    ],
)
def test_a_window_is_its_uri_and_its_texts(contents: Contents, desktop: str) -> None:
    window = Window("s", "window://h/p", 0)
    assert render(window, contents) == desktop
    assert organize_desktop([(window, contents)], None, []) == [desktop]


def test_the_example_of_004() -> None:
    texts = {
        "window://com.example.browser/main?priority=80": "<html>当前页面内容...</html>",
        "window://com.example.logger": "[2026-02-14 10:30:01] INFO: 操作完成",
    }
    given: list[tuple[Window, Contents]] = [(Window(uri, uri, 0), [{"text": text}]) for uri, text in texts.items()]
    assert organize_desktop(given, None, []) == [f"{uri}\n\n{text}" for uri, text in texts.items()]


def test_the_uri_is_shown_as_it_was_listed() -> None:
    assert shown(windows("s", "h/a%2fb?fullscreen=ON&x")) == ["h/a%2fb?fullscreen=ON&x"]


def test_binary_parts_are_counted_for_a_warning() -> None:
    assert [blobs_in(contents) for contents in (TEXT, BLOB, [*TEXT, *BLOB, *BLOB], EMPTY, None)] == [0, 1, 2, 0, 0]


# Organizing


@pytest.mark.parametrize("contents", [EMPTY, None, BLOB, [*BLOB, *BLOB], [{}], [{"text": None}]])
def test_a_window_with_nothing_to_show_is_left_out(contents: Contents) -> None:
    assert shown([*windows("s", "a", contents=contents), *windows("t", "b")]) == ["b"]


@pytest.mark.parametrize("uri", ["http://h", "window://", "window://h?priority=101", "window://h?fullscreen=maybe", ""])
def test_a_uri_that_is_no_window_is_left_out(uri: str) -> None:
    assert organize_desktop([(Window("s", uri, 0), TEXT)], None, []) == []
    assert rank([Window("s", uri, 0)], None, []).take() == []


def test_servers_stand_by_last_use_and_then_by_name() -> None:
    given = [window for server in "dbca" for window in windows(server, server)]
    assert shown(given) == ["a", "b", "c", "d"]
    assert shown(given, used=("c", "d", "gone", "c")) == ["c", "d", "a", "b"]
    assert shown(given, used=("d", "c", "d")) == ["d", "c", "a", "b"]


def test_windows_of_a_server_stand_by_priority_and_then_as_listed() -> None:
    uris = ["h/low?priority=1", "h/none", "h/high?priority=90", "h/zero?priority=0", "h/same?priority=90"]
    assert shown(windows("s", *uris)) == [uris[2], uris[4], uris[0], uris[1], uris[3]]


def test_priority_is_not_compared_between_servers() -> None:
    given = [*windows("a", "low?priority=1"), *windows("b", "high?priority=99")]
    assert shown(given) == ["low?priority=1", "high?priority=99"]


def test_the_first_fullscreen_window_as_listed_is_all_that_a_server_shows() -> None:
    given = [
        *windows("a", "a/1?priority=99", "a/2?fullscreen=1", "a/3?fullscreen=1&priority=100", "a/4?fullscreen=0"),
        *windows("b", "b/1", "b/2?fullscreen=yes"),
        *windows("c", "c/1"),
    ]
    assert shown(given) == shown(given[::-1]) == ["a/2?fullscreen=1", "b/2?fullscreen=yes", "c/1"]


def test_an_empty_fullscreen_window_gives_way_to_the_next_and_then_to_the_others() -> None:
    full = windows("s", "a?fullscreen=1", "b?fullscreen=1", "c?priority=1", "d?priority=2")
    assert shown([(full[0][0], EMPTY), *full[1:]]) == ["b?fullscreen=1"]
    assert shown([(full[0][0], EMPTY), (full[1][0], BLOB), *full[2:]]) == ["d?priority=2", "c?priority=1"]


@pytest.mark.parametrize(("size", "count"), [(None, 5), (-1, 0), (0, 0), (1, 1), (3, 3), (5, 5), (6, 5)])
def test_size_is_for_all_servers_together(size: int | None, count: int) -> None:
    assert len(shown([*windows("a", "1", "2"), *windows("b", "3", "4", "5")], size)) == count


# Rank first, read after


def read_through(ranking: Ranking, contents: dict[Window, Contents], at_once: int | None = None) -> list[Window]:
    """Reads what is wanted until nothing is, at most so many at once."""
    read: list[Window] = []
    while taken := ranking.take(at_once):
        for window in taken:
            assert window not in read
            ranking.put(window, contents[window])
        read += taken
    assert ranking.is_known
    return read


def test_no_more_windows_are_read_than_are_shown() -> None:
    uris = [f"{server}/{n}?priority={n}" for server in "abcde" for n in range(10)]
    given = dict(each for uri in uris for each in windows(uri[0], uri))
    ranking = rank(given, 3, [record("c")])
    assert [each.uri for each in read_through(ranking, given)] == [f"window://c/{n}?priority={n}" for n in (9, 8, 7)]
    assert ranking.desktops() == organize_desktop(given.items(), 3, [record("c")])


def test_behind_a_fullscreen_window_nothing_is_read() -> None:
    given = dict([*windows("a", "a/1?priority=9", "a/2?fullscreen=1"), *windows("b", "b/1")])
    read = read_through(rank(given, None, []), given)
    assert [window.uri for window in read] == ["window://a/2?fullscreen=1", "window://b/1"]


def test_many_empty_windows_are_passed_over_in_few_rounds() -> None:
    given: dict[Window, Contents] = dict(windows("s", *(f"s/{n}" for n in range(100)), contents=EMPTY))
    ranking, rounds = rank(given, 1, []), 0
    while taken := ranking.take():
        rounds += 1
        for window in taken:
            ranking.put(window, EMPTY)
    assert rounds < 20
    assert ranking.desktops() == []


@pytest.mark.parametrize("size", [0, -1])
def test_nothing_is_read_for_an_empty_desktop(size: int) -> None:
    ranking = rank(dict(windows("s", "a")), size, [])
    assert ranking.is_known
    assert ranking.take() == []


def test_a_window_that_is_not_read_yet_is_not_shown() -> None:
    given = windows("s", "a", "b")
    ranking = rank(dict(given), None, [])
    ranking.put(*given[1])
    assert ranking.desktops() == ["window://b\n\nhello"]
    assert not ranking.is_known
    assert ranking.take() == [given[0][0]]


uris = st.one_of(
    st.builds(
        lambda host, priority, fullscreen: str(WindowURI(host, (), priority, fullscreen)),
        st.sampled_from(["h", "i", "j"]),
        st.none() | st.sampled_from([0, 1, 2, 50, 100]),
        st.sampled_from([None, None, None, False, True]),
    ),
    st.sampled_from(["http://h", "window://"]),
)
contents = st.sampled_from(
    [TEXT, TEXT, [{"text": "other"}], [{"text": ""}], EMPTY, None, BLOB, [*BLOB, {"text": "mixed"}]]
)
desktops = st.dictionaries(st.sampled_from("abcd"), st.lists(st.tuples(uris, contents), max_size=8)).map(
    lambda servers: {
        Window(server, uri, index): read
        for server, listed in servers.items()
        for index, (uri, read) in enumerate(listed)
    }
)
histories = st.lists(st.sampled_from("abcdx").map(record), max_size=6)
sizes = st.none() | st.integers(-1, 12)


@given(desktops, histories, sizes, st.none() | st.integers(1, 4), st.randoms())
def test_reading_on_demand_shows_the_same_as_reading_everything(
    given: dict[Window, Contents], history: list[ToolCallRecord], size: int | None, at_once: int | None, chance: Any
) -> None:
    expected = organize_desktop(given.items(), size, history)
    ranking = rank(given, size, history)
    read_through(ranking, given, at_once)
    assert ranking.desktops() == expected
    scrambled = list(given.items())
    chance.shuffle(scrambled)
    assert organize_desktop(scrambled, size, history) == expected
    ranking = rank([window for window, _ in scrambled], size, history)
    reading: list[Window] = []
    while not ranking.is_known:
        reading += ranking.take(at_once)
        window = reading.pop(chance.randrange(len(reading)))  # answers come in any order
        ranking.put(window, given[window])
    assert ranking.desktops() == expected


@given(desktops, histories, sizes)
def test_without_empty_windows_exactly_those_shown_are_read(
    given: dict[Window, Contents], history: list[ToolCallRecord], size: int | None
) -> None:
    full: dict[Window, Contents] = dict.fromkeys(given, TEXT)
    read = read_through(rank(full, size, history), full)
    assert [render(window, TEXT) for window in read] == organize_desktop(full.items(), size, history)


# Reading


class Shelf:
    """Windows that are read, how many at the same time of each server, and which were given up."""

    def __init__(self, contents: Contents = TEXT) -> None:
        self.contents = contents
        self.reading: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.all_at_once = asyncio.Event()
        self.wanted_at_once = 0

    async def read(self, window: Window, limit: float) -> Contents:
        self.reading[window.server] += 1
        self.most |= self.reading
        if self.reading.total() >= self.wanted_at_once:
            self.all_at_once.set()
        try:
            await self.all_at_once.wait()
        finally:
            self.reading[window.server] -= 1
        return self.contents


async def test_all_servers_are_read_at_the_same_time_each_a_little() -> None:
    shelf = Shelf()
    shelf.wanted_at_once = 3 * 8
    given = dict(each for server in "abc" for each in windows(server, *(f"{server}/{n}" for n in range(12))))
    async with asyncio.timeout(30):
        read = await read_desktop(given, None, [], shelf.read)
    assert read == organize_desktop(given.items(), None, [])
    assert shelf.most == {"a": 8, "b": 8, "c": 8}


async def test_a_server_that_is_too_slow_once_is_not_waited_for_again_and_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: Counter[str] = Counter()

    async def read(window: Window, limit: float) -> Contents:
        asked[window.server] += 1
        if window.server == "slow":
            raise CallTimeout("it took too long")
        return TEXT

    uris = [f"h/{n}" for n in range(20)]
    given = [window for window, _ in (*windows("fine", *uris), *windows("slow", *uris))]
    shown = await read_desktop(given, None, [], read)
    assert len(shown) == 20
    assert asked == {"fine": 20, "slow": 1}
    assert caplog.text.count("of slow cannot be read") == 1
