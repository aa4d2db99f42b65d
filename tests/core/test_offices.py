"""Joining, moving and leaving (WIRE §4), by example. `test_offices_machine.py` looks for the exceptions."""

from dataclasses import replace
from typing import Any

import pytest

from a2c_smcp.errors import NameTaken, NotInOffice, OfficeHasAgent, SMCPError, WrongRole
from a2c_smcp.protocol import Change, Member, Notice
from a2c_smcp.server.directory import MemoryDirectory
from a2c_smcp.server.offices.seating import Offices

PLANNER = Member("s1", "agent", "planner", "north", instance="i1", owner="ann")
LAPTOP = Member("c1", "computer", "laptop", "north", instance="i2", owner="ann", version="0.4.2")


@pytest.fixture
def directory() -> MemoryDirectory:
    return MemoryDirectory()


@pytest.fixture
def offices(directory: MemoryDirectory) -> Offices:
    return Offices(directory)


def enter(office_id: str, skip_sid: str, **who: str) -> Notice:
    return Notice("notify:enter_office", office_id, {"office_id": office_id, **who}, skip_sid)


def leave(office_id: str, skip_sid: str, **who: Any) -> Notice:
    return Notice("notify:leave_office", office_id, {"office_id": office_id, **who}, skip_sid)


async def test_a_join_tells_the_others_without_the_absent_roles_key(offices: Offices) -> None:
    assert (await offices.join(PLANNER)).notices == (enter("north", "s1", agent="planner"),)
    assert (await offices.join(LAPTOP)).notices == (enter("north", "c1", computer="laptop"),)


@pytest.mark.covers("office-one-agent", "office-refused-unchanged")
async def test_a_second_agent_is_refused_by_the_name_of_the_office_and_nothing_changes(
    offices: Offices, directory: MemoryDirectory
) -> None:
    await offices.join(PLANNER)
    before = await directory.office("north")
    with pytest.raises(OfficeHasAgent) as refusal:
        await offices.join(Member("s2", "agent", "planner", "north", instance="other"))
    assert str(refusal.value).startswith("403 Agent sid should be equal to office_id")
    assert "'north'" in str(refusal.value)
    assert await directory.office("north") == before
    assert (await directory.seats("s2"), await directory.holder("other")) == ((), None)


@pytest.mark.covers("office-several")
async def test_an_agent_sits_in_several_offices(offices: Offices, directory: MemoryDirectory) -> None:
    south = replace(PLANNER, office_id="south")
    await offices.join(PLANNER)
    assert (await offices.join(south)).notices == (enter("south", "s1", agent="planner"),)
    assert set(await directory.seats("s1")) == {PLANNER, south}


@pytest.mark.covers("office-switch")
async def test_a_computer_leaves_its_office_before_it_enters_another(
    offices: Offices, directory: MemoryDirectory
) -> None:
    await offices.join(LAPTOP)
    change = await offices.join(replace(LAPTOP, office_id="south"))
    assert change.notices == (leave("north", "c1", computer="laptop"), enter("south", "c1", computer="laptop"))
    assert (await directory.office("north")).members == ()


@pytest.mark.covers("office-switch", "office-refused-unchanged")
async def test_a_computer_that_the_new_office_refuses_stays_where_it_was(
    offices: Offices, directory: MemoryDirectory
) -> None:
    await offices.join(LAPTOP)
    await offices.join(Member("c2", "computer", "laptop", "south"))
    before = await directory.office("north")
    with pytest.raises(NameTaken):
        await offices.join(replace(LAPTOP, office_id="south"))
    assert await directory.office("north") == before
    assert await directory.seats("c1") == (LAPTOP,)


@pytest.mark.covers("office-rename")
@pytest.mark.parametrize("seat", [PLANNER, LAPTOP], ids=lambda seat: seat.role)
async def test_a_rename_is_announced_as_leave_and_enter(
    offices: Offices, directory: MemoryDirectory, seat: Member
) -> None:
    await offices.join(seat)
    change = await offices.join(replace(seat, name="renamed"))
    assert change.notices == (
        leave("north", seat.sid, **{seat.role: seat.name}),
        enter("north", seat.sid, **{seat.role: "renamed"}),
    )
    assert [member.name for member in (await directory.office("north")).members] == ["renamed"]


@pytest.mark.covers("office-refused-unchanged")
@pytest.mark.parametrize("office_id", ["north", "south"])
async def test_a_connection_keeps_its_role(offices: Offices, directory: MemoryDirectory, office_id: str) -> None:
    await offices.join(LAPTOP)
    with pytest.raises(WrongRole) as refusal:
        await offices.join(replace(LAPTOP, role="agent", office_id=office_id))
    assert refusal.value.code == 403
    assert await directory.seats("c1") == (LAPTOP,)


@pytest.mark.covers("office-idempotent")
@pytest.mark.parametrize("seat", [PLANNER, LAPTOP], ids=lambda seat: seat.role)
async def test_joining_again_changes_nothing_and_tells_nobody(
    offices: Offices, directory: MemoryDirectory, seat: Member
) -> None:
    await offices.join(seat)
    before = await directory.office("north")
    change = await offices.join(seat)
    assert (change.leaves, change.enters, change.notices, change.replaces) == ((), (), (), None)
    assert await directory.office("north") == before


@pytest.mark.covers("office-resume")
async def test_the_same_instance_takes_over_all_seats_without_notices(
    offices: Offices, directory: MemoryDirectory
) -> None:
    for office_id in ("north", "south", "east"):
        await offices.join(replace(PLANNER, office_id=office_id))
    change = await offices.join(replace(PLANNER, sid="s9", office_id="south"))
    assert (change.notices, change.replaces) == ((), "s1")
    assert {seat.office_id for seat in await directory.seats("s9")} == {"north", "south", "east"}
    assert (await directory.seats("s1"), await directory.holder("i1")) == ((), "s9")


@pytest.mark.covers("office-resume", "office-switch")
async def test_a_computer_that_comes_back_into_another_office_leaves_the_old_one(offices: Offices) -> None:
    await offices.join(LAPTOP)
    change = await offices.join(replace(LAPTOP, sid="c9", office_id="south"))
    assert change.notices == (leave("north", "c9", computer="laptop"), enter("south", "c9", computer="laptop"))


@pytest.mark.covers("office-resume")
@pytest.mark.parametrize("instance", [None, "other"])
async def test_a_name_does_not_resume_without_its_instance(offices: Offices, instance: str | None) -> None:
    for seat in (PLANNER, LAPTOP):
        await offices.join(seat)
        with pytest.raises(SMCPError, match="403"):
            await offices.join(replace(seat, sid="x9", instance=instance))


@pytest.mark.covers("office-resume")
def test_a_seat_does_not_show_its_instance() -> None:
    assert "i1" not in repr(PLANNER)
    assert "i1" not in repr(Change(enters=(PLANNER,)))


@pytest.mark.covers("office-refused-unchanged")
async def test_leaving_an_office_one_is_not_in_is_forbidden(offices: Offices, directory: MemoryDirectory) -> None:
    await offices.join(LAPTOP)
    for sid, office_id in (("c1", "south"), ("s1", "north"), ("nobody", "nowhere")):
        with pytest.raises(NotInOffice) as refusal:
            await offices.leave(sid, office_id)
        assert refusal.value.code == 403
    assert (await directory.office("north")).members == (LAPTOP,)


async def test_a_connection_that_is_gone_leaves_all_offices(offices: Offices, directory: MemoryDirectory) -> None:
    await offices.join(PLANNER)
    await offices.join(replace(PLANNER, office_id="south"))
    change = await offices.vacate("s1")
    lost = {"agent": "planner", "lost": True}
    assert change.notices == (leave("north", "s1", **lost), leave("south", "s1", **lost))
    assert (await directory.seats("s1"), await directory.holder("i1")) == ((), None)
    assert await offices.vacate("s1") == Change(is_lost=True)


async def test_a_change_is_committed_whole_or_not_at_all(offices: Offices, directory: MemoryDirectory) -> None:
    """A move between two offices, of which only the second has moved on since."""
    await offices.join(LAPTOP)
    expects = {"north": (await directory.office("north")).version, "south": 0}
    await offices.join(replace(PLANNER, office_id="south"))
    before = [await directory.office(office_id) for office_id in ("north", "south")]
    move = Change(expects, leaves=(LAPTOP,), enters=(replace(LAPTOP, office_id="south"),))
    assert await directory.commit(move) is False
    assert [await directory.office(office_id) for office_id in ("north", "south")] == before
    assert (await directory.seats("c1"), await directory.holder("i2")) == ((LAPTOP,), "c1")


async def test_a_version_never_comes_back_while_anybody_could_be_meant_by_it(
    offices: Offices, directory: MemoryDirectory
) -> None:
    await offices.join(LAPTOP)
    stale = Change({"north": (await directory.office("north")).version}, leaves=(LAPTOP,))
    await offices.leave("c1", "north")
    await offices.join(LAPTOP)
    assert await directory.commit(stale) is False
    assert await directory.seats("c1") == (LAPTOP,)
