"""The rules of offices (DESIGN, "Properties") against anything that several clients may do in any order.

The model knows seats as a set and says who should sit where afterwards. What the others are told must be exactly
the difference between the names they saw before and those they see now.
"""

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from a2c_smcp import errors
from a2c_smcp.protocol import offices
from a2c_smcp.protocol.events import lookup
from a2c_smcp.protocol.offices import Change, Member, Notice, Office
from a2c_smcp.server.cluster.memory import MemoryDirectory
from a2c_smcp.server.seating import Offices
from tests.stage.members import AGENTS, COMPUTERS, INSTANCES, NAMES, OFFICES, seats

CALL = lookup("client:get_tools")

Seats = frozenset[Member]


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Steps through a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the directory in memory must not wait")


def joined(held: Seats, newcomer: Member) -> Seats:
    """The model: who sits where once `newcomer` has joined."""
    mine = {other for other in held if other.sid == newcomer.sid}
    if any(other.role != newcomer.role for other in mine):
        raise errors.WrongRole
    ghosts = {other.sid for other in held if newcomer.instance and other.instance == newcomer.instance}
    mine |= {other for other in held if other.sid in ghosts}
    others = held - mine
    neighbours = [other for other in others if (other.office_id, other.role) == (newcomer.office_id, newcomer.role)]
    if newcomer.role == "agent":
        if neighbours:
            raise errors.OfficeHasAgent
        kept = {replace(other, sid=newcomer.sid) for other in mine if other.office_id != newcomer.office_id}
        return others | kept | {newcomer}
    if newcomer.name in {other.name for other in neighbours}:
        raise errors.NameTaken
    return others | {newcomer}


Seen = tuple[str, str, str, str | None]


def seen(held: Seats) -> Counter[Seen]:
    """What the others in an office know of a seat."""
    return Counter((member.office_id, member.role, member.name, member.instance) for member in held)


class Contended(MemoryDirectory):
    """Lets a rival in between a decision and its commit, once, and watches what becomes of the decision."""

    rival: Callable[[], object] | None = None

    def snapshot(self) -> tuple[Any, ...]:
        return (
            [run(self.office(office_id)) for office_id in OFFICES],
            [run(self.seats(sid)) for sid in AGENTS + COMPUTERS],
            [run(self.holder(instance)) for instance in INSTANCES],
        )

    async def commit(self, change: Change) -> bool:
        rival, self.rival = self.rival, None
        if rival is None:
            return await super().commit(change)
        rival()
        stale = any(run(self.office(office_id)).version != version for office_id, version in change.expects.items())
        before = self.snapshot()
        committed = await super().commit(change)
        assert committed is not stale
        assert committed or self.snapshot() == before
        return committed


class OfficesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Contended()
        self.offices = Offices(self.directory)
        self.held: Seats = frozenset()
        self.entered: Counter[Seen] = Counter()
        self.left: Counter[Seen] = Counter()
        self.settled = self.directory.snapshot()

    # What clients do

    @rule(newcomer=seats)
    def join(self, newcomer: Member) -> None:
        self.attempt(newcomer)

    @rule(newcomer=seats)
    def join_with_the_other_role(self, newcomer: Member) -> None:
        turned = replace(newcomer, role="computer" if newcomer.role == "agent" else "agent", instance=None)
        if any(other.sid == newcomer.sid for other in self.held):
            self.attempt(turned)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def join_again(self, data: st.DataObject) -> None:
        change = run(self.offices.join(self.one_of(data, self.held)))
        assert (change.leaves, change.enters, change.notices, change.replaces) == ((), (), (), None)
        assert self.directory.snapshot() == self.settled

    @precondition(lambda self: self.held)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def rename(self, data: st.DataObject, name: str) -> None:
        newcomer = replace(self.one_of(data, self.held), name=name, instance=None)
        self.attempt(newcomer)

    @precondition(lambda self: any(member.role == "computer" for member in self.held))
    @rule(data=st.data(), office_id=st.sampled_from(OFFICES))
    def switch_office(self, data: st.DataObject, office_id: str) -> None:
        computers = [member for member in self.held if member.role == "computer"]
        newcomer = replace(self.one_of(data, computers), office_id=office_id)
        self.attempt(newcomer)

    @rule(data=st.data())
    def come_back_on_another_connection(self, data: st.DataObject) -> None:
        """Nobody notices, and all seats of the older connection have moved."""
        busy = {member.sid for member in self.held}
        resumable = [member for member in self.held if member.instance]
        if not resumable:
            return
        ghost = self.one_of(data, resumable)
        free = sorted(set(AGENTS if ghost.role == "agent" else COMPUTERS) - busy)
        if not free:
            return
        newcomer = replace(ghost, sid=data.draw(st.sampled_from(free)))
        change = self.attempt(newcomer)
        assert change
        assert (change.notices, change.replaces) == ((), ghost.sid)
        assert run(self.directory.seats(ghost.sid)) == ()

    @rule(sid=st.sampled_from(AGENTS + COMPUTERS), office_id=st.sampled_from(OFFICES))
    def leave(self, sid: str, office_id: str) -> None:
        gone = {member for member in self.held if (member.sid, member.office_id) == (sid, office_id)}
        if gone:
            self.settle(run(self.offices.leave(sid, office_id)), self.held - gone, sid)
        else:
            with pytest.raises(errors.NotInOffice):
                run(self.offices.leave(sid, office_id))
            assert self.directory.snapshot() == self.settled

    @rule(sid=st.sampled_from(AGENTS + COMPUTERS))
    def vacate(self, sid: str) -> None:
        gone = {member for member in self.held if member.sid == sid}
        self.settle(run(self.offices.vacate(sid)), self.held - gone, sid)

    @rule(newcomer=seats)
    def leave_undoes_join(self, newcomer: Member) -> None:
        newcomer = replace(newcomer, instance=None)
        already = {member.office_id for member in self.held if member.sid == newcomer.sid}
        if newcomer.office_id in already or (already and newcomer.role == "computer"):
            return
        before = self.held
        if self.attempt(newcomer):
            self.leave(newcomer.sid, newcomer.office_id)
        assert self.held == before

    @rule(newcomer=seats, rival=seats)
    def somebody_is_faster(self, newcomer: Member, rival: Member) -> None:
        """A decision made on a snapshot that no longer holds is not committed, not even in part, but made anew."""
        rival = replace(rival, instance=None)
        if rival.sid not in {newcomer.sid, *self.ghosts_of(newcomer)}:
            self.contend(newcomer, lambda: self.attempt(rival))

    @rule(newcomer=seats)
    def the_ghost_is_given_up_while_its_client_comes_back(self, newcomer: Member) -> None:
        for ghost in self.ghosts_of(newcomer) - {newcomer.sid}:
            self.contend(newcomer, lambda ghost=ghost: self.vacate(ghost))

    @rule(
        sid=st.sampled_from(AGENTS + COMPUTERS),
        computer=st.sampled_from(NAMES),
        office_id=st.none() | st.sampled_from(OFFICES),
    )
    def forward(self, sid: str, computer: str, office_id: str | None) -> None:
        """A request stays in the sender's offices, even if the decision is shown all others."""
        mine = run(self.directory.seats(sid))
        reach = {member.office_id for member in mine} & ({office_id} if office_id else set(OFFICES))
        found = [member for member in self.held if member.role == "computer" and member.name == computer]
        found = [member for member in found if member.office_id in reach]
        data = {"req_id": "r", "computer": computer, "office_id": office_id}
        shown: list[Office] = [run(self.directory.office(each)) for each in OFFICES]
        try:
            decision = offices.forward(CALL, mine, shown, data)
        except errors.NotInOffice:
            assert not reach
        except errors.WrongRole:
            assert sid in COMPUTERS
        except errors.ComputerNotFound:
            assert not found
        except errors.AmbiguousComputer:
            assert len(found) > 1
        else:
            assert [decision.target] == found
            assert (decision.caller.sid, decision.caller.office_id) == (sid, decision.target.office_id)

    # What must be true all the time

    @invariant()
    def one_agent_to_an_office_one_computer_to_a_name_one_office_to_a_computer(self) -> None:
        sitting = [member for sid in AGENTS + COMPUTERS for member in run(self.directory.seats(sid))]
        agents = Counter(member.office_id for member in sitting if member.role == "agent")
        computers = [member for member in sitting if member.role == "computer"]
        names = Counter((member.office_id, member.name) for member in computers)
        places = Counter(member.sid for member in computers)
        assert all(count == 1 for count in chain(agents.values(), names.values(), places.values()))

    @invariant()
    def the_directory_agrees_with_itself_and_with_the_model(self) -> None:
        by_office = [member for office_id in OFFICES for member in run(self.directory.office(office_id)).members]
        by_sid = [member for sid in AGENTS + COMPUTERS for member in run(self.directory.seats(sid))]
        assert Counter(by_office) == Counter(by_sid) == Counter(self.held)
        holders = {member.instance: member.sid for member in self.held if member.instance}
        for instance in INSTANCES:
            assert instance is not None
            assert run(self.directory.holder(instance)) == holders.get(instance)

    @invariant()
    def whoever_listens_knows_who_is_there(self) -> None:
        present = Counter(self.entered)
        present.subtract(self.left)
        assert present == seen(self.held)

    def teardown(self) -> None:
        for sid in AGENTS + COMPUTERS:
            self.vacate(sid)
        assert self.directory.snapshot() == Contended().snapshot()
        assert not any(kept for kept in vars(self.directory).values() if isinstance(kept, dict)), "nothing leaks"
        assert self.entered == self.left

    # How it is checked

    def ghosts_of(self, newcomer: Member) -> set[str]:
        return {member.sid for member in self.held if newcomer.instance and member.instance == newcomer.instance}

    def contend(self, newcomer: Member, rival: Callable[[], object]) -> None:
        self.directory.rival = rival
        self.attempt(newcomer)
        self.directory.rival = None  # a refused join commits nothing, so nobody came in between

    def attempt(self, newcomer: Member) -> Change | None:
        """A join that the model either refuses, and then nothing may change, or whose outcome it knows."""
        try:
            change: Change = run(self.offices.join(newcomer))
        except errors.SMCPError as refusal:
            with pytest.raises(type(refusal)):
                joined(self.held, newcomer)
            assert self.directory.snapshot() == self.settled
            return None
        self.settle(change, joined(self.held, newcomer), newcomer.sid)
        return change

    def settle(self, change: Change, after: Seats, actor: str) -> None:
        """What is told is what has changed for those who listen: the leaves first, and never to the actor itself."""
        left = [self.named(notice, self.held) for notice in change.notices if notice.event == "notify:leave_office"]
        entered = [self.named(notice, after) for notice in change.notices if notice.event == "notify:enter_office"]
        assert [notice.event for notice in change.notices] == [
            *("notify:leave_office" for _ in left),
            *("notify:enter_office" for _ in entered),
        ]
        assert Counter(left) == seen(self.held) - seen(after)
        assert Counter(entered) == seen(after) - seen(self.held)
        assert all(notice.skip_sid == actor for notice in change.notices)
        assert change.replaces not in {member.sid for member in after}
        self.left.update(left)
        self.entered.update(entered)
        self.held, self.settled = after, self.directory.snapshot()

    @staticmethod
    def named(notice: Notice, members: Seats) -> Seen:
        """What a notice tells, and of which of these members: nobody else has its seat."""
        (role,) = notice.data.keys() - {"office_id", "lost", "seat"}
        (member,) = (member for member in members if member.seat == notice.data["seat"])
        told = notice.data["office_id"], role, notice.data[role]
        assert told == (notice.office_id, member.role, member.name)
        return notice.office_id, member.role, member.name, member.instance

    @staticmethod
    def one_of(data: st.DataObject, members: Any) -> Member:
        return data.draw(st.sampled_from(sorted(members, key=lambda member: (member.sid, member.office_id))))


OfficesMachine.TestCase.settings = settings(stateful_step_count=40)
TestOfficesKeepTheirRules = pytest.mark.covers(
    *("office-one-agent", "office-several", "office-switch", "office-rename", "office-idempotent"),
    *("office-refused-unchanged", "office-resume", "office-isolation"),
)(OfficesMachine.TestCase)
