"""`python -m tests.faults`: runs calls under faults and exits with 1 if anything was lost, doubled or mixed up."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.audits import find_audit_faults
from tests.faults.books import clock
from tests.faults.processes import alarms_in
from tests.faults.report import find_faults, put_report
from tests.faults.schedule import Fault, choose_faults
from tests.faults.stage import Stage, open_stage
from tests.faults.strikes import strike, until_back
from tests.faults.verdicts import Outage, World
from tests.waiting import until

_CALM = (0.3, 2.0)
_QUICK = 40.0


def main() -> int:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    began = time.monotonic()
    print(
        f"fault run: {options.nodes} node(s), {options.offices} offices, {options.rate:g} calls/s, seed {options.seed}"
    )
    try:
        wrong = asyncio.run(_run(options, folder))
    except asyncio.CancelledError:
        print(f"\nstopped; logs are in {folder}", file=sys.stderr)
        return 130
    if wrong:
        print(f"\n{len(wrong)} things were wrong; logs, notes and ledger are in {folder}")
        return 1
    shutil.rmtree(folder)
    print(f"\nnothing was wrong, in {time.monotonic() - began:.0f} s")
    return 0


async def _run(options: argparse.Namespace, folder: Path) -> list[str]:
    task = asyncio.current_task()
    assert task
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    size = {"nodes": options.nodes, "offices": options.offices, "rate": options.rate, "seed": options.seed}
    async with open_stage(folder, **size) as stage:
        outages = [await _opening(stage)]
        await _strike_all(stage, options, outages)
        wrong = await stage.end()
        stage.books.read()
    wrong += await _left_behind(stage)
    wrong += [f"alarm: {line}" for process in stage.processes() for line in alarms_in(process.log)]
    opened = max(outages[0].back.values())
    world = World(opened, outages[1:], stage.books.last_answer, stage.began, stage.killed)
    wrong += find_faults(stage.books, world)
    audit_faults, lines = _audit_faults(stage)
    wrong += audit_faults
    put_report(stage.books, outages[1:], wrong, lines)
    return wrong


def _audit_faults(stage: Stage) -> tuple[list[str], int]:
    servers = [stage.audit(server.name) for server in stage.servers]
    computers = {pair: stage.audit("-".join(pair)) for pair in stage.pairs}
    return find_audit_faults(servers, computers, stage.books.entries.values())


async def _opening(stage: Stage) -> Outage:
    """Nobody is judged before everybody has been heard once."""
    now = time.monotonic()
    outage = Outage("start", "start", stage.pairs, now, now)
    await until_back(stage, outage)
    _say(stage, outage)
    if len(outage.back) < len(stage.pairs):
        raise SystemExit(f"not everybody came: {set(stage.pairs) - set(outage.back)}, see {stage.folder}")
    return outage


async def _strike_all(stage: Stage, options: argparse.Namespace, outages: list[Outage]) -> None:
    chance, end = random.Random(options.seed), time.monotonic() + options.seconds
    for fault in _faults(options):
        await asyncio.sleep(chance.uniform(*_CALM))
        if time.monotonic() >= end:
            break
        outages.append(await strike(stage, fault))
        _say(stage, outages[-1])


def _faults(options: argparse.Namespace) -> Iterator[Fault]:
    rounds = choose_faults(options.seed, with_store=options.nodes > 1)
    for faults in rounds if options.seconds < float("inf") else [next(rounds)]:
        yield from (fault for fault in faults if options.only in fault.name)


def _say(stage: Stage, outage: Outage) -> None:
    calls = len(stage.books.entries)
    missing = set(outage.touched) - set(outage.back)
    back = f"{len(missing)} never came back" if missing else f"back in {outage.longest:.1f} s"
    print(f"{clock(outage.ended)}  {outage.name}; {back} ({calls} calls)", flush=True)


async def _left_behind(stage: Stage) -> list[str]:
    try:
        await until(lambda: not stage.left(), 5)
    except TimeoutError:
        return [f"orphan: process {pid}, {_command(pid)}" for pid in stage.left()]
    return []


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").replace("\0", " ")[:200]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="one Server, or three nodes on one Valkey")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; default: one round")
    parser.add_argument("--quick", action="store_true", help=f"the same as --seconds {_QUICK:g}")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="chooses faults and calls")
    parser.add_argument("--only", default="", metavar="WORDS", help="only faults named like this, such as 'kill store'")
    parser.add_argument("--offices", type=int, default=4, help="each with an agent and two computers")
    parser.add_argument("--rate", type=float, default=60.0, help="calls a second, of all agents together")
    options = parser.parse_args()
    if options.quick:
        options.seconds = _QUICK
    return options


if __name__ == "__main__":
    sys.exit(main())
