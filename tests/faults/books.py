"""What is known of every call: read from the notes of the agents and the ledger of the tools, which grow meanwhile."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.faults.calls import ANSWERED, Call

__all__ = ["Books", "Entry", "Pair", "Run", "clock"]

Pair = tuple[str, str]
"""An office and one of its computers."""


@dataclass(slots=True)
class Entry:
    """A call and its end. `code` is `None` as long as it has none."""

    call: Call
    begun: float
    ended: float = 0.0
    code: int | None = None
    outcome: str | None = None
    text: str = ""

    @property
    def pair(self) -> Pair:
        return self.call.office, self.call.computer

    @property
    def deadline(self) -> float:
        """When the agent gives up at the latest (WIRE §5: two seconds after the tool's own time)."""
        return self.begun + self.call.timeout + 2

    @property
    def agent(self) -> str:
        """The agent process that made it."""
        return self.call.id.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Run:
    """A line of the ledger: a tool has begun to work."""

    call: str
    office: str
    computer: str
    at: float


class Books:
    """Everything that was noted so far; `read` takes in what is new."""

    def __init__(self, folder: Path) -> None:
        self.entries: dict[str, Entry] = {}
        self.runs: defaultdict[str, list[Run]] = defaultdict(list)
        self.answers: defaultdict[Pair, list[Entry]] = defaultdict(list)
        self.ledger = folder / "ledger.jsonl"
        self.notes = folder / "notes.jsonl"
        self._places: dict[Path, int] = {}

    def read(self) -> None:
        for note in self._lines(self.notes):
            if call := note.get("begin"):
                self.entries[call["id"]] = Entry(Call(**call), note["at"])
            else:
                self._end(note)
        for line in self._lines(self.ledger):
            self.runs[line["call"]].append(Run(**line))

    def back_at(self, pair: Pair, begun: float, ended: float) -> float | None:
        """When the first probe of a pair was answered that could not be answered before the end of an outage."""
        probes = (each for each in reversed(self.answers[pair]) if each.call.seconds == 0 and each.begun >= begun)
        return min((each.ended for each in probes if each.ended >= ended), default=None)

    def last_answer(self, pair: Pair, before: float) -> float:
        """When this pair gave its last answer before a moment, to a call that began before it."""
        return max((each.ended for each in self.answers[pair] if each.ended <= before), default=0.0)

    def _end(self, note: dict[str, Any]) -> None:
        entry = self.entries[note["end"]]
        entry.ended, entry.code, entry.text = note["at"], note["code"], note["text"]
        entry.outcome = note.get("outcome")
        if entry.code == ANSWERED:
            self.answers[entry.pair].append(entry)

    def _lines(self, path: Path) -> Iterator[dict[str, Any]]:
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._places.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):  # its writer is in the middle of it
                    return
                self._places[path] = self._places.get(path, 0) + len(line)
                yield json.loads(line)


def clock(at: float) -> str:
    """A moment as the logs of the processes have it."""
    return f"{datetime.fromtimestamp(time.time() - time.monotonic() + at):%H:%M:%S.%f}"[:-5]
