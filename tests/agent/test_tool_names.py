"""Names of tools in an agent's registry: short, unique, and kept by the first computer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.agent.tool_names import Offer, ToolNames
from a2c_smcp.agent.types import Seat

LAPTOP, TOWER = Seat("desk", "laptop"), Seat("desk", "tower")
ELSEWHERE = Seat("home", "laptop")

words = st.sampled_from(["a", "b", "a__b", "a__a", "b__a__b"])
offers = st.dictionaries(st.builds(Seat, words, words), st.lists(words, unique=True), max_size=6)


def names_of(offered: Mapping[Seat, list[str]], *local: str) -> dict[str, str]:
    """Each name with its tool, where computers came in the order of the mapping."""
    names = ToolNames()
    names.change(local=local)
    for number, (seat, tools) in enumerate(offered.items()):
        names.enter(seat)
        names.change(come=[Offer(seat, tool) for tool in tools], number=number)
    all_offers = [Offer(seat, tool) for seat, tools in offered.items() for tool in tools]
    return {name: f"{offer.seat}/{offer.tool}" for offer in all_offers if (name := names.of(offer))}


@pytest.mark.covers("agent-registry")
def test_a_unique_name_is_not_qualified() -> None:
    assert names_of({LAPTOP: ["add"], TOWER: ["sub"]}) == {"add": "desk/laptop/add", "sub": "desk/tower/sub"}


@pytest.mark.covers("agent-registry")
def test_the_first_computer_keeps_the_name_and_the_second_is_qualified() -> None:
    assert names_of({TOWER: ["add"], LAPTOP: ["add"]}) == {"add": "desk/tower/add", "laptop__add": "desk/laptop/add"}


@pytest.mark.covers("agent-registry")
def test_a_tool_that_is_offered_later_takes_no_name_of_another() -> None:
    names = ToolNames()
    for seat in (LAPTOP, TOWER):
        names.enter(seat)
    mail, late = Offer(TOWER, "send_mail"), Offer(LAPTOP, "send_mail")
    names.change(come=[mail], number=1)
    assert names.change(come=[late], number=2) == (set(), {"laptop__send_mail": late})
    assert names.change(gone=[mail]) == ({"send_mail", "laptop__send_mail"}, {"send_mail": late})


@pytest.mark.covers("agent-registry")
def test_a_local_tool_keeps_its_name() -> None:
    assert set(names_of({LAPTOP: ["add", "sub"]}, "add")) == {"laptop__add", "sub"}


@pytest.mark.covers("agent-registry")
def test_computers_of_one_name_are_told_apart_by_the_office() -> None:
    assert names_of({TOWER: ["add"], LAPTOP: ["add"], ELSEWHERE: ["add"]}) == {
        "add": "desk/tower/add",
        "laptop__add": "desk/laptop/add",
        "home__laptop__add": "home/laptop/add",
    }


@pytest.mark.covers("agent-registry")
def test_a_name_with_the_prefix_of_a_computer_belongs_to_that_computer() -> None:
    names = ToolNames()
    names.enter(TOWER)
    lookalike = Offer(TOWER, "laptop__add")
    assert names.change(come=[lookalike]).won == {"laptop__add": lookalike}
    assert names.enter(LAPTOP) == ({"laptop__add"}, {"tower__laptop__add": lookalike})
    assert names.leave(LAPTOP) == ({"tower__laptop__add"}, {"laptop__add": lookalike})


@pytest.mark.covers("agent-registry")
@given(st.lists(st.tuples(offers, st.sets(words)), min_size=1, max_size=5))
def test_names_follow_the_rule_after_any_changes(history: list[tuple[dict[Seat, list[str]], set[str]]]) -> None:
    names, here, held, numbers = ToolNames(), set[Offer](), dict[str, Offer](), dict[Offer, int]()
    for number, (offered, local) in enumerate(history):
        now = {Offer(seat, tool) for seat, tools in offered.items() for tool in tools}
        seats, seats_before = {offer.seat for offer in now}, {offer.seat for offer in here}
        numbers = {offer: numbers.get(offer, number) for offer in now}
        for renaming in (
            *map(names.enter, seats - seats_before),
            names.change(come=now - here, number=number, gone=here - now, local=local),
            *map(names.leave, seats_before - seats),
        ):
            held = {name: offer for name, offer in held.items() if name not in renaming.lost} | renaming.won
        here = now
        assert {offer: name for name, offer in held.items()} == plainly(numbers, local)
        assert all(names.of(offer) == name for name, offer in held.items())


def plainly(numbers: dict[Offer, int], local: set[str]) -> dict[Offer, str]:
    """The rule, word for word: at each length a name goes to the first of those who may have it."""
    named: dict[Offer, str] = {}
    seats = {offer.seat for offer in numbers}
    for length in (1, 2, 3):
        taken = local | {*named.values()}
        for offer in sorted(numbers.keys() - named.keys(), key=lambda offer: (numbers[offer], offer)):
            name = "__".join((*offer.seat, offer.tool)[-length:])
            if name not in taken and may_have(offer, name, seats):
                named[offer] = name
                taken.add(name)
    return named


def may_have(offer: Offer, name: str, seats: set[Seat]) -> bool:
    begins = [(len(start), seat) for seat in seats for start in beginnings(seat) if name.startswith(f"{start}__")]
    longest = max((length for length, _ in begins), default=0)
    return not begins or offer.seat in {seat for length, seat in begins if length == longest}


def beginnings(seat: Seat) -> tuple[str, str]:
    return seat.computer, f"{seat.office}__{seat.computer}"


@pytest.mark.covers("agent-registry")
def test_a_change_among_many_computers_renames_only_what_it_concerns() -> None:
    names = ToolNames()
    for number in range(200):
        seat = Seat("desk", f"computer-{number}")
        names.enter(seat)
        names.change(come=[Offer(seat, f"tool-{tool}") for tool in range(50)], number=number)
    mine = [Offer(Seat("desk", "computer-7"), f"tool-{tool}") for tool in range(50)]
    assert names.change(gone=mine) == ({f"computer-7__tool-{tool}" for tool in range(50)}, {})
    assert names.change(come=mine, number=200).won == {f"computer-7__{offer.tool}": offer for offer in mine}
    first = Offer(Seat("desk", "computer-0"), "tool-0")
    assert names.change(local=["tool-0"]) == ({"tool-0"}, {"computer-0__tool-0": first})
