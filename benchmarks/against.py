"""What a plain call costs now, beside an older commit of this repository: `python -m benchmarks.against COMMIT`.

Agent, Server and computer are those of the commit, or those of this checkout; both take turns. The commit has to work
with the dependencies that are installed now.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import product
from pathlib import Path

import uvloop

from benchmarks.configuration import written
from benchmarks.end_to_end import MCP_SERVERS, TOOLS, WAYS, Contestant, answering, compare, ours
from benchmarks.processes import ROOT
from benchmarks.table import Row, options, per, ratio, report

__all__: list[str] = []

NOW = "now"
PARTS = ("agent", "server", "computer")
QUICK = 5


@contextmanager
def checkout_of(commit: str, folder: Path) -> Iterator[Path]:
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "add", "--quiet", "--detach", folder, commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", folder], check=True)


@asynccontextmanager
async def both(commit: str) -> AsyncIterator[dict[str, Contestant]]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        before = stack.enter_context(checkout_of(commit, folder / "checkout"))
        contestants = {}
        for name, checkout in {commit: before, NOW: ROOT}.items():
            (folder / name).mkdir()
            config = written(folder / name / "servers.json", MCP_SERVERS)
            contestants[name] = await stack.enter_async_context(ours(config, checkout))
        await asyncio.gather(*map(answering, contestants.values()))
        yield contestants


async def measure(commit: str, rounds: int) -> list[Row]:
    rows: list[Row] = []
    async with both(commit) as contestants:
        for tool, (way, at_once) in product(TOOLS, WAYS.items()):
            found = await compare(contestants, rounds, tool, at_once)
            before = found[commit]
            rows += [
                {
                    "MCP server": TOOLS[tool],
                    "calls": way,
                    "of": name,
                    "p50 ms": per(each.p50, 1, 1e-3),
                    "times before": ratio(each.p50, before.p50),
                    **{f"{part} CPU µs": each.busy.get(part) for part in PARTS},
                    "CPU times before": ratio(cpu(each.busy), cpu(before.busy)),
                }
                for name, each in found.items()
            ]
    return rows


def cpu(busy: dict[str, float | None]) -> float | None:
    known = [busy[part] for part in PARTS if busy.get(part) is not None]
    return sum(filter(None, known)) if len(known) == len(PARTS) else None


def main() -> None:
    parser = options("What a plain call costs, beside an older commit.", rounds=20)
    parser.add_argument("commit", help="such as v1.0 or a hash")
    chosen = parser.parse_args()
    try:
        rows = uvloop.run(measure(chosen.commit, QUICK if chosen.quick else chosen.rounds))
    except subprocess.CalledProcessError:
        sys.exit(f"there is no commit {chosen.commit}")
    report(rows, chosen)


if __name__ == "__main__":
    main()
