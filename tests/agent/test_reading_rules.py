"""The rules of an agent's cache and of its standing requests, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from a2c_smcp.agent.desktops import Seat
from a2c_smcp.agent.reading import requests
from a2c_smcp.agent.reading.requests import AnswerCache, CacheKey, is_part_of
from a2c_smcp.agent.standing_requests import LogSource, StandingRequests
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import Forbidden
from tests.waiting import until

SOON = Reconnect(first=0.01, longest=0.02)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def key(uri: str = "file:///a", office: str | None = "desk", computer: str = "laptop") -> CacheKey:
    return CacheKey(office, computer, "client:read_resource", "notes", uri)


def answer(text: str = "one", ttl: Any = 1000) -> dict[str, Any]:
    return {"contents": [{"uri": "file:///a", "text": text}], "ttlMs": ttl}


@pytest.mark.covers("agent-cache")
def test_an_answer_ends_with_its_time_and_says_what_is_left_of_it() -> None:
    clock = Clock()
    kept = AnswerCache(clock)
    kept.put(key(), answer(), kept.generation)
    clock.now = 0.4
    assert kept.get(key()) == answer(ttl=600)
    clock.now = 1.0
    assert kept.get(key()) is None
    assert len(kept) == 0
    kept.put(key(), answer(ttl=10**12), kept.generation)
    clock.now += requests.MAX_TTL
    assert kept.get(key()) is None, "no MCP server decides for longer than a day"


@pytest.mark.covers("agent-cache")
@pytest.mark.parametrize("ttl", [0, -5, None, "1000", True, 1000.0], ids=str)
def test_only_a_whole_number_of_milliseconds_is_a_time(ttl: Any) -> None:
    kept = AnswerCache(Clock())
    kept.put(key(), answer(ttl=ttl), kept.generation)
    assert len(kept) == 0


@pytest.mark.covers("agent-cache")
def test_the_cache_is_bounded_in_number_and_bytes_and_what_was_used_last_stays() -> None:
    kept = AnswerCache(Clock())
    for number in range(requests.MAX_ENTRIES):
        kept.put(key(str(number)), answer(), kept.generation)
    kept.get(key("0"))
    kept.put(key("more"), answer(), kept.generation)
    assert len(kept) == requests.MAX_ENTRIES
    assert kept.get(key("0"))
    assert kept.get(key("1")) is None
    large = "x" * (requests.MAX_ENTRY_BYTES - 1000)
    for number in range(5):
        kept.put(key(f"large-{number}"), answer(large), kept.generation)
    assert [bool(kept.get(key(f"large-{number}"))) for number in range(5)] == [False, True, True, True, True]
    kept.put(key("too large"), answer("x" * requests.MAX_ENTRY_BYTES), kept.generation)
    kept.put(key("too large as JSON"), answer('"' * (requests.MAX_ENTRY_BYTES - 1000)), kept.generation)
    assert kept.get(key("too large")) is None
    assert kept.get(key("too large as JSON")) is None
    kept.drop()
    assert (len(kept), kept._size) == (0, 0)


@pytest.mark.covers("agent-cache")
def test_a_drop_is_for_one_seat_and_for_answers_that_are_on_their_way() -> None:
    kept, desk = AnswerCache(Clock()), Seat("desk", "laptop")
    before = kept.generation
    for each in (key(), key(office=None), key(office="lab"), key(computer="tower")):
        kept.put(each, answer(), before)
    kept.drop(lambda each: each.is_at(desk))
    assert [bool(kept.get(each)) for each in (key(), key(office=None))] == [False, False]
    assert [bool(kept.get(each)) for each in (key(office="lab"), key(computer="tower"))] == [True, True]
    kept.put(key(), answer(), before)
    assert kept.get(key()) is None


@pytest.mark.covers("agent-subscribes")
def test_a_part_of_a_resource_is_recognised_by_its_uri() -> None:
    assert is_part_of("file:///a", "file:///a")
    assert is_part_of("file:///a/b", "file:///a")
    assert is_part_of("file:///a/b", "file:///a/")
    assert is_part_of("file:///a#b", "file:///a")
    assert not is_part_of("file:///ab", "file:///a")
    assert not is_part_of("file:///a", "file:///a/b")


class Sent:
    """What was sent, and the errors to answer with."""

    def __init__(self) -> None:
        self.all: list[tuple[LogSource, str]] = []
        self.errors: list[Exception] = []

    async def __call__(self, source: LogSource, level: str, seat: Mapping[str, str]) -> None:
        assert seat == {}
        self.all.append((source, level))
        if self.errors:
            raise self.errors.pop(0)


SOURCE = LogSource("desk", "laptop", None)


def nowhere(computer: object, office: object) -> str | None:
    """Behind a Server that tells no seats."""
    return None


@pytest.mark.covers("agent-logs", "agent-subscribes")
async def test_a_standing_request_is_sent_again_before_it_lapses_and_whenever_it_may_be_gone() -> None:
    sent = Sent()
    standing = StandingRequests(sent, nowhere, SOON, renewal=0.02)
    standing.open()
    await standing.set(SOURCE, "info")
    await until(lambda: len(sent.all) >= 3)
    await standing.close()
    standing = StandingRequests(sent, nowhere, SOON)
    standing.open()
    sent.all.clear()
    await standing.set(SOURCE, "info")
    standing.on_seated("lab")
    standing.on_enter(Seat("desk", "tower"))
    standing.on_change(Seat("desk", "laptop"))
    await asyncio.sleep(0)
    assert len(sent.all) == 1
    standing.on_seated("desk")
    await until(lambda: len(sent.all) == 2)
    standing.on_enter(Seat("desk", "laptop"))
    await until(lambda: len(sent.all) == 3)
    standing.leave("desk")
    standing.on_seated("desk")
    await asyncio.sleep(0)
    assert standing.all() == []
    await standing.close()
    assert len(sent.all) == 3


@pytest.mark.covers("agent-logs", "agent-subscribes")
async def test_a_renewal_that_is_refused_waits_for_a_change_and_another_failure_for_a_moment() -> None:
    sent = Sent()
    standing = StandingRequests(sent, nowhere, SOON)
    standing.open()
    await standing.set(SOURCE, "info")
    sent.errors = [RuntimeError("unexpected"), Forbidden("not now")]
    standing.on_enter(Seat("desk", "laptop"))
    await until(lambda: standing._refused)
    assert len(sent.all) == 3
    standing.on_change(Seat("lab", "laptop"))
    standing.on_change(Seat("desk", "laptop"))
    await until(lambda: len(sent.all) == 4)
    await until(lambda: not standing._refused)
    await standing.close()


@pytest.mark.covers("agent-logs", "agent-subscribes")
async def test_a_request_that_is_refused_changes_nothing() -> None:
    sent = Sent()
    standing = StandingRequests(sent, nowhere, SOON)
    sent.errors = [Forbidden("no")]
    with pytest.raises(Forbidden):
        await standing.set(SOURCE, "info")
    assert standing.all() == []
    await standing.set(SOURCE, "info")
    sent.errors = [Forbidden("no")]
    with pytest.raises(Forbidden):
        await standing.set(SOURCE, "debug")
    assert standing.all() == [(SOURCE, "info")]
    await standing.close()
