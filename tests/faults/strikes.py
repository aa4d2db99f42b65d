"""Faults carried out on the stage, each as an outage that ends when everybody it touched has been heard again."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tests.faults.books import Pair
from tests.faults.lines import Lines
from tests.faults.processes import Process
from tests.faults.schedule import Do, Fault, Whom
from tests.faults.stage import Member, Stage
from tests.faults.verdicts import BACK_WITHIN, Outage
from tests.waiting import until

__all__ = ["strike", "until_back"]

_GIVE_UP = 3 * BACK_WITHIN


async def strike(stage: Stage, fault: Fault) -> Outage:
    """Returns when everybody is back, or after a time that nobody should need."""
    blows = [_Blow(stage, each) for each in (fault, fault.at_once_with) if each]
    touched = [pair for pair in stage.pairs if any(pair in blow.touched for blow in blows)]
    name = f"{fault.name} for {fault.seconds:g} s: {', '.join(blow.victim for blow in blows)}"
    outage = Outage(fault.name, name, touched, _now())
    outage.killed = [blow.victim for blow in blows if blow.fault.do is Do.kill]
    outage.paused = [blow.victim for blow in blows if blow.fault.do is Do.pause]
    outage.cuts_off = any(blow.cuts_off for blow in blows)
    await asyncio.gather(*(blow.fall() for blow in blows))
    outage.ended = outage.begun if _is_covered(stage, fault) else _now()
    await until_back(stage, outage)
    return outage


def _is_covered(stage: Stage, fault: Fault) -> bool:
    """Whether other nodes carry on at once, so that nobody has to wait for the return of the one that was killed."""
    only_a_node = fault.whom is Whom.server and fault.at_once_with is None
    return only_a_node and fault.do is Do.kill and len(stage.servers) > 1


async def until_back(stage: Stage, outage: Outage) -> None:
    """Waits until every pair has answered a probe after the end of the outage, and notes when."""

    def is_back() -> bool:
        stage.books.read()
        for pair in outage.touched:
            if pair not in outage.back and (at := stage.books.back_at(pair, outage.begun, outage.ended)):
                outage.back[pair] = at
        return len(outage.back) == len(outage.touched)

    with suppress(TimeoutError):
        await until(is_back, _GIVE_UP)


class _Blow:
    """One fault and its victim."""

    def __init__(self, stage: Stage, fault: Fault) -> None:
        self._stage, self.fault = stage, fault
        members = {Whom.computer: stage.computers, Whom.agent: stage.agents}.get(fault.whom, {})
        names = list(members) or [server.name for server in stage.servers]
        self.victim = names[fault.pick % len(names)] if fault.whom not in (Whom.store, Whom.everybody) else fault.whom
        self._member: Member | None = members.get(self.victim)

    @property
    def touched(self) -> list[Pair]:
        return self._member.pairs if self._member else self._stage.pairs

    @property
    def cuts_off(self) -> bool:
        return self.fault.whom in (Whom.server, Whom.everybody) and self.fault.do in (Do.kill, Do.cut)

    async def fall(self) -> None:
        await _DEEDS[self.fault.do](self)

    async def kill(self) -> None:
        begin, end = self._kill_and_start()
        await begin()
        await asyncio.sleep(self.fault.seconds)
        await end()

    async def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        await asyncio.sleep(self.fault.seconds)
        self._signal(signal.SIGCONT)

    async def cut(self) -> None:
        for lines in self._lines():
            lines.cut()

    async def silence(self) -> None:
        silent = self._lines()
        for lines in silent:
            lines.silence()
        await asyncio.sleep(self.fault.seconds)
        for lines in silent:
            lines.go_on()

    def _kill_and_start(self) -> tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]:
        stage = self._stage
        if self.fault.whom is Whom.store:
            assert stage.store
            store = stage.store
            return lambda: asyncio.to_thread(store.kill), lambda: asyncio.to_thread(store.start)
        if self.fault.whom is Whom.agent:
            return lambda: stage.kill_agent(self.victim), lambda: self._start_member(stage.start_agent(self.victim))
        if self._member:
            process = self._member.process
            return process.kill, lambda: self._start_member(process.start())
        return self._server.kill, self._start_server

    async def _start_member(self, starting: Awaitable[None]) -> None:
        """Returns when it dials: how long Python takes to load a program on a busy machine is not looked at."""
        assert self._member
        lines = self._member.lines
        before = lines.taken
        await starting
        await until(lambda: lines.taken > before, _GIVE_UP)

    async def _start_server(self) -> None:
        await self._server.start()
        await self._server.says("listening on ")

    @property
    def _server(self) -> Process:
        return next(each for each in self._stage.servers if each.name == self.victim)

    def _signal(self, number: signal.Signals) -> None:
        if self.fault.whom is Whom.store:
            assert self._stage.store
            (self._stage.store.pause if number == signal.SIGSTOP else self._stage.store.resume)()
        else:
            (self._member.process if self._member else self._server).signal(number)

    def _lines(self) -> list[Lines]:
        if self.fault.whom is Whom.store:
            return [self._stage.store_lines[self.fault.pick % len(self._stage.store_lines)]]
        return [self._member.lines] if self._member else self._stage.lines


_DEEDS: dict[Do, Callable[[_Blow], Awaitable[None]]] = {
    Do.kill: _Blow.kill,
    Do.pause: _Blow.pause,
    Do.cut: _Blow.cut,
    Do.silence: _Blow.silence,
}


def _now() -> float:
    return time.monotonic()
