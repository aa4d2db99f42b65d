"""What signing and sealing add to a tool call: agent, Server, computer and MCP server, each a process of its own.

The same call in plain, signed, sealed, and both, in turn. CPU is each process's own.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvloop

from benchmarks.calling import READY
from benchmarks.configuration import written
from benchmarks.end_to_end import (
    COMPUTER,
    MCP_SERVERS,
    OFFICE,
    PARTS,
    TYPICAL,
    WAYS,
    Contestant,
    Found,
    answering,
    compare,
)
from benchmarks.processes import OURS as PYTHON
from benchmarks.processes import PROGRAM, hub, running
from benchmarks.report import save
from benchmarks.table import Row, options, per, ratio, report

__all__: list[str] = []

PLAIN, SIGNED, SEALED, BOTH = "plain", "signed", "sealed", "sealed and signed"
COMPUTERS = {PLAIN: (), SIGNED: ("--sign",), SEALED: ("--e2e", "prefer"), BOTH: ("--e2e", "prefer", "--sign")}
AGENTS = {PLAIN: "", SIGNED: "verify", SEALED: "e2e", BOTH: "e2e,verify"}
QUICK = 2


@asynccontextmanager
async def contestant(kind: str, config: Path) -> AsyncIterator[Contestant]:
    home = {"HOME": str(config.parent), "XDG_STATE_HOME": str(config.parent / "state")}
    async with hub() as (url, server):
        seat = ("--url", url, "--office", OFFICE, "--name", COMPUTER, "--config", config)
        call = ("-m", "benchmarks.our_caller", url, OFFICE, COMPUTER, AGENTS[kind])
        async with (
            running(PROGRAM, "computer", "--no-input", *COMPUTERS[kind], *seat, environment=home) as computer,
            running(PYTHON, *call, says=READY, environment=home) as caller,
        ):
            yield Contestant(caller, {"server": server, "computer": computer})


@asynccontextmanager
async def everybody() -> AsyncIterator[dict[str, Contestant]]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contestants = {}
        for kind in COMPUTERS:
            own = folder / kind.replace(" ", "-")
            own.mkdir()
            config = written(own / "servers.json", MCP_SERVERS)
            contestants[kind] = await stack.enter_async_context(contestant(kind, config))
        await asyncio.gather(*map(answering, contestants.values()))
        yield contestants


def rows(way: str, found: Mapping[str, Found]) -> list[Row]:
    plain = found[PLAIN]
    return [
        {
            "calls": way,
            "kind": kind,
            "p50 ms": per(each.p50, 1, 1e-3),
            "added ms": per(each.p50 - plain.p50, 1, 1e-3),
            "calls per s": per(each.throughput, 1),
            **{f"{part} CPU µs": each.busy.get(part) for part in PARTS},
        }
        for kind, each in found.items()
    ]


def goals(found: Mapping[str, Found]) -> dict[str, float | None]:
    plain = found[PLAIN]
    added = {kind: per(found[kind].p50 - plain.p50, 1, 1e-3) for kind in (SIGNED, SEALED, BOTH)}
    before, after = plain.busy.get("server"), found[SEALED].busy.get("server")
    return {
        "sealed.sealed": added[SEALED],
        "sealed.signed": added[SIGNED],
        "sealed.both": added[BOTH],
        "sealed.server": ratio(after, before) if before and after else None,
    }


async def measure(rounds: int) -> tuple[list[Row], dict[str, float | None]]:
    table: list[Row] = []
    measured: dict[str, float | None] = {}
    async with everybody() as contestants:
        for way, at_once in WAYS.items():
            found = await compare(contestants, rounds, TYPICAL, at_once)
            table += rows(way, found)
            measured |= goals(found) if at_once == 1 else {}
    return table, measured


def main() -> None:
    chosen = options("What signing and sealing add to a tool call.", rounds=20).parse_args()
    table, measured = uvloop.run(measure(QUICK if chosen.quick else chosen.rounds))
    report(table, chosen)
    save("sealed", chosen.title, table, measured)


if __name__ == "__main__":
    main()
