"""Memory and Redis give the same answers to the same commands, whichever node a command comes in on.

Whatever several clients do in any order is done twice. The outcome, what the others are told, and who sits where
afterwards must be the same; and every node that follows an office must have heard the same of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from itertools import chain
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.cluster.memory import Directory, MemoryDirectory
from a2c_smcp.server.seating import Offices
from tests.directory.nodes import LONG, Node, said
from tests.stage.members import AGENTS, COMPUTERS, INSTANCES, NAMES, OFFICES, seats
from tests.valkey import Valkey
from tests.waiting import until

SIDS = AGENTS + COMPUTERS
Deed = Callable[[Offices], Awaitable[Change]]


class Contended:
    """Lets a rival in between a decision and its commit, once."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.rival: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._directory, name)

    async def commit(self, change: Change) -> bool:
        rival, self.rival = self.rival, None
        if rival:
            await rival()
        return await self._directory.commit(change)


def is_mine(sid: str) -> int:
    """Which of the two nodes a connection is on."""
    return int(sid[1:]) % 2


class TwinsMachine(RuleBasedStateMachine):
    valkey: Valkey

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.memory = MemoryDirectory()
        prefix = f"machine-{uuid4().hex}:"
        self.nodes = [Node(self.valkey.url, node=f"n{i}", prefix=prefix, pace=LONG) for i in range(2)]
        self.run(self.start())

    async def start(self) -> None:
        for node in self.nodes:
            await node.start()
            await asyncio.gather(*map(node.office, OFFICES))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def teardown(self) -> None:
        for node in self.nodes:
            self.run(node.close())
        self.loop.close()

    # What clients do

    @rule(newcomer=seats)
    def join(self, newcomer: Member) -> None:
        self.both(newcomer.sid, lambda offices: offices.join(newcomer))

    @rule(newcomer=seats)
    def join_with_the_other_role(self, newcomer: Member) -> None:
        role: Any = "computer" if newcomer.role == "agent" else "agent"
        self.join(replace(newcomer, role=role, instance=None))

    @rule(newcomer=seats, office_id=st.sampled_from(OFFICES), name=st.sampled_from(NAMES))
    def join_where_not_every_seat_may_be_kept(self, newcomer: Member, office_id: str, name: str) -> None:
        keep = (office_id, name)
        self.both(newcomer.sid, lambda it: it.join(newcomer, lambda seat: (seat.office_id, seat.name) == keep))

    @rule(sid=st.sampled_from(SIDS), office_id=st.sampled_from(OFFICES))
    def leave(self, sid: str, office_id: str) -> None:
        self.both(sid, lambda offices: offices.leave(sid, office_id))

    @rule(sid=st.sampled_from(SIDS))
    def vacate(self, sid: str) -> None:
        self.both(sid, lambda offices: offices.vacate(sid))

    @rule(newcomer=seats, rival=seats)
    def somebody_is_faster(self, newcomer: Member, rival: Member) -> None:
        """Not the same client twice: in memory that cannot be, and no snapshot of an office would show it."""
        holder = self.run(self.memory.holder(newcomer.instance)) if newcomer.instance else None
        is_same = newcomer.instance is not None and newcomer.instance == rival.instance
        if rival.sid not in (newcomer.sid, holder) and not is_same:
            self.both(newcomer.sid, lambda it: it.join(newcomer), rival.sid, lambda it: it.join(rival))

    @rule(newcomer=seats, sid=st.sampled_from(SIDS))
    def somebody_goes_meanwhile(self, newcomer: Member, sid: str) -> None:
        if newcomer.sid != sid:
            self.both(newcomer.sid, lambda it: it.join(newcomer), sid, lambda it: it.vacate(sid))

    # How it is compared

    def both(self, sid: str, deed: Deed, rival: str | None = None, rivalry: Deed | None = None) -> None:
        twins: list[list[Any]] = []
        for places in ([self.memory, self.memory], self.nodes):
            outcomes: list[Any] = []
            directory = Contended(places[is_mine(sid)])
            if rival and rivalry:
                other = Offices(places[is_mine(rival)])
                directory.rival = lambda other=other, outcomes=outcomes: self.note(rivalry, other, outcomes)
            self.run(self.note(deed, Offices(directory), outcomes))
            twins.append(outcomes)
        assert [comparable(outcome) for outcome in twins[0]] == [comparable(outcome) for outcome in twins[1]]
        self.run(self.agree(twins[1]))

    @staticmethod
    async def note(deed: Deed, offices: Offices, outcomes: list[Any]) -> None:
        try:
            outcomes.append(await deed(offices))
        except SMCPError as refusal:
            outcomes.append(refusal)

    async def agree(self, outcomes: list[Any]) -> None:
        in_memory = [shown(await self.memory.office(office_id)) for office_id in OFFICES]
        for node in self.nodes:
            offices = await asyncio.gather(*map(node.office, OFFICES))
            assert [shown(office) for office in offices] == in_memory
            await until(lambda node=node, offices=offices: [node.cached_office(each) for each in OFFICES] == offices)
            for sid, found in zip(SIDS, await asyncio.gather(*map(node.seats, SIDS)), strict=True):
                assert Counter(found) == Counter(await self.memory.seats(sid))
                assert Counter(node.cached_seats(sid) or ()) == Counter(found if self.is_on(node, sid) else ())
            for instance, holder in zip(INSTANCES, await asyncio.gather(*map(node.holder, INSTANCES)), strict=True):
                assert holder == await self.memory.holder(str(instance))
            told = Counter(chain.from_iterable(said(each.notices) for each in outcomes if isinstance(each, Change)))
            assert Counter(node.ear.said) == told
            node.ear.changes.clear()

    def is_on(self, node: Node, sid: str) -> bool:
        return self.nodes[is_mine(sid)] is node


def comparable(outcome: Any) -> Any:
    """All of a change but the versions, which are each directory's own."""
    if isinstance(outcome, SMCPError):
        return type(outcome), outcome.message
    notices = Counter((notice.event, notice.office_id, str(notice.data), notice.skip_sid) for notice in outcome.notices)
    return set(outcome.expects), Counter(outcome.leaves), Counter(outcome.enters), notices, outcome.replaces


def shown(office: Office) -> Any:
    """What can be seen of an office, computers in their order."""
    return office.agent, list(office.computers.values()), bool(office.version)


@pytest.mark.covers("office-one-agent", "office-several", "office-switch", "office-rename", "office-resume")
def test_memory_and_two_nodes_give_the_same_answers(lasting_valkey: Valkey) -> None:
    machine = type("Machine", (TwinsMachine,), {"valkey": lasting_valkey})
    examples = settings.default.max_examples // 4  # each asks a store some hundred times
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30))
