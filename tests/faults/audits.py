"""What the audit files of a fault run must say: no line is missing, and each call that was answered has its lines.

A line is written before the answer leaves, so a call that was answered has one at a Server, and one with `ok` at its
computer, whatever was killed. A Server that was killed may have recorded a call whose answer then came from another:
no process records a result twice. An error is not kept: a call that comes again after one is another request.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from a2c_smcp.audit.reading import EntryFilter, entries, verify
from tests.faults.books import Entry, Pair
from tests.faults.calls import ANSWERED

__all__ = ["find_audit_faults"]


_BY_SERVER = (ANSWERED, 404, 410)
"""How calls end whose answer has come from a Server. An agent gives up by itself with other codes."""


class _Lines:
    """The lines of calls in one file, by call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.of: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self._in_process: Counter[tuple[int, str]] = Counter()
        process = 0
        for line in entries(path, EntryFilter()):
            process += line["event"] == "audit opened"
            if line["event"] == "call" and "req_id" in line:
                self.of[line["req_id"]].append(line)
                self._in_process[process, line["req_id"]] += "code" not in line

    def faults(self) -> Iterator[str]:
        yield from (f"audit: {problem}" for problem in verify(self.path)[0])
        for (_, call), times in self._in_process.items():
            if times > 1:
                yield f"audited twice: {call} by one process, in {self.path.name}"


def find_audit_faults(
    servers: Sequence[Path], computers: Mapping[Pair, Path], calls: Iterable[Entry]
) -> tuple[list[str], int]:
    """What is wrong, and how many lines of calls there are."""
    of_servers = [_Lines(path) for path in servers]
    of_computers = {pair: _Lines(path) for pair, path in computers.items()}
    every = [*of_servers, *of_computers.values()]
    wrong = [fault for lines in every for fault in lines.faults()]
    for entry in calls:
        call = entry.call.id
        if entry.code in _BY_SERVER and not any(lines.of[call] for lines in of_servers):
            wrong.append(f"not audited: {call} was answered with {entry.code}, and no Server has its line")
        times = sum(line["outcome"] == "ok" for line in of_computers[entry.pair].of[call])
        if entry.code == ANSWERED and times != 1:
            wrong.append(f"not audited: {call} was answered, and its computer has {times} lines of it")
    return wrong, sum(len(found) for lines in every for found in lines.of.values())
