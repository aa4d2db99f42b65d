"""Names of tools in an agent's registry: short, unique, and the same whatever the order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.agent.naming import names_of
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
