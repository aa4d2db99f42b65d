"""Names of tools in an agent's registry: short, unique, and the same whatever the order."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.agent.naming import Names, Offer, names_of
from a2c_smcp.agent.types import Seat

LAPTOP, TOWER = Seat("desk", "laptop"), Seat("desk", "tower")
ELSEWHERE = Seat("home", "laptop")

words = st.sampled_from(["a", "b", "a__b", "a__a", "b__a__b"])
offers = st.dictionaries(st.builds(Seat, words, words), st.lists(words, unique=True), max_size=6)


def named(offered: dict[Seat, list[str]], *local: str) -> dict[str, str]:
    return {name: f"{seat}/{tool}" for (seat, tool), name in names_of(offered, local).items()}


@pytest.mark.covers("agent-registry")
def test_a_name_that_is_nobody_elses_stays_as_it_is() -> None:
    assert named({LAPTOP: ["add"], TOWER: ["sub"]}) == {"add": "desk/laptop/add", "sub": "desk/tower/sub"}


@pytest.mark.covers("agent-registry")
def test_tools_of_two_computers_are_told_apart_by_the_computer() -> None:
    assert set(named({LAPTOP: ["add"], TOWER: ["add"]})) == {"laptop__add", "tower__add"}


@pytest.mark.covers("agent-registry")
def test_a_local_tool_keeps_its_name() -> None:
    assert set(named({LAPTOP: ["add", "sub"]}, "add")) == {"laptop__add", "sub"}


@pytest.mark.covers("agent-registry")
def test_computers_of_one_name_are_told_apart_by_the_office() -> None:
    assert set(named({LAPTOP: ["add"], ELSEWHERE: ["add"]})) == {"desk__laptop__add", "home__laptop__add"}


@pytest.mark.covers("agent-registry")
def test_a_tool_that_is_called_like_the_longer_name_of_another_keeps_it() -> None:
    names = named({LAPTOP: ["add"], TOWER: ["add", "laptop__add"]})
    assert names["laptop__add"] == "desk/tower/laptop__add"
    assert names["desk__laptop__add"] == "desk/laptop/add"


@pytest.mark.covers("agent-registry")
@given(offers, st.sets(words), st.randoms())
def test_names_are_unique_never_local_and_the_same_in_any_order(
    offered: dict[Seat, list[str]], local: set[str], chance: random.Random
) -> None:
    names = names_of(offered, local)
    assert len(set(names.values())) == len(names)
    assert not set(names.values()) & local
    seats = list(offered)
    chance.shuffle(seats)
    assert names_of({seat: offered[seat] for seat in seats}, local) == names


@pytest.mark.covers("agent-registry")
@given(st.lists(st.tuples(offers, st.sets(words)), min_size=1, max_size=5))
def test_names_after_any_changes_are_those_of_a_fresh_start(
    history: list[tuple[dict[Seat, list[str]], set[str]]],
) -> None:
    names, here, held = Names(), set(), {}
    for offered, local in history:
        now = {Offer(seat, tool) for seat, tools in offered.items() for tool in tools}
        renaming = names.change(come=now - here, gone=here - now, local=local)
        here, held = now, {name: offer for name, offer in held.items() if name not in renaming.lost} | renaming.won
        assert {offer: name for name, offer in held.items()} == names_of(offered, local) == plainly(now, local)
        assert all(names.of(offer) == name for name, offer in held.items())


def plainly(offers: set[Offer], local: set[str]) -> dict[Offer, str]:
    """The rule, word for word: at each length those who are alone with a name that is free get it."""
    named: dict[Offer, str] = {}
    for length in (1, 2, 3):
        full = {offer: (*offer.seat, offer.tool) for offer in offers - named.keys()}
        claims = {offer: "__".join(parts[-length:]) for offer, parts in full.items()}
        taken, counts = local | {*named.values()}, Counter(claims.values())
        named |= {offer: name for offer, name in claims.items() if counts[name] == 1 and name not in taken}
    return named


@pytest.mark.covers("agent-registry")
def test_a_change_among_many_computers_renames_only_what_it_concerns() -> None:
    names = Names()
    for number in range(200):
        names.change(come=[Offer(Seat("desk", f"computer-{number}"), f"tool-{tool}") for tool in range(50)])
    mine = [Offer(Seat("desk", "computer-7"), f"tool-{tool}") for tool in range(50)]
    assert names.change(gone=mine).lost == {f"computer-7__tool-{tool}" for tool in range(50)}
    assert names.change(come=mine).won == {f"computer-7__{offer.tool}": offer for offer in mine}
    assert names.change(local=["tool-0"]) == (set(), {})
