"""Calls of a fault run: how they are chosen, what their right answer is, and the file in which their ends are noted."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.results import CallToolResult

__all__ = ["ANSWERED", "GARBLED", "TOOL_FAILED", "Call", "Notes", "choose_calls"]

ANSWERED, GARBLED, TOOL_FAILED = 0, -1, -2
"""How a call ended, where it was no error of the protocol: those have codes above 0."""

_TIMEOUTS = (5, 10, 20, 30)
_SIZES = (0, 100, 2_000, 30_000)
_LARGE, _LARGE_SHARE = 300_000, 0.01
_CANCELLED_SHARE = 0.05
_PROBE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Call:
    """One call before it is made. `seconds` is how long its tool works; 0 makes it a probe."""

    id: str
    office: str
    computer: str
    tool: str
    seconds: float
    timeout: int
    size: int
    cancel_after: float | None

    @property
    def payload(self) -> str:
        return random.Random(self.id).randbytes(self.size // 2).hex()

    @property
    def params(self) -> dict[str, Any]:
        return {"call": self.id, "seconds": self.seconds, "payload": self.payload}

    def check(self, result: CallToolResult) -> tuple[int, str]:
        """How it ended, and what is wrong with the answer."""
        if result.is_error:
            return TOOL_FAILED, result.text[:300]
        answer, payload = json.loads(result.text), self.payload
        right = {"call": self.id, "office": self.office, "computer": self.computer, "payload": payload}
        right["sum"] = hashlib.sha256((self.id + payload).encode()).hexdigest()
        wrong = [name for name, value in right.items() if answer.get(name) != value]
        return (GARBLED, f"wrong in the answer: {', '.join(wrong)}") if wrong else (ANSWERED, "")


def choose_calls(prefix: str, office: str, computers: Sequence[str], tools: Sequence[str]) -> Iterator[Call]:
    """An endless row of calls, the same for the same prefix. Computers take turns."""
    chance, number = random.Random(prefix), 0
    while True:
        is_probe = chance.random() < _PROBE_SHARE
        is_cancelled = not is_probe and chance.random() < 2 * _CANCELLED_SHARE
        yield Call(
            id=f"{prefix}-{number}",
            office=office,
            computer=computers[number % len(computers)],
            tool=chance.choice(tools),
            seconds=0 if is_probe else round(chance.uniform(0, 3), 2),
            timeout=chance.choice(_TIMEOUTS),
            size=_LARGE if chance.random() < _LARGE_SHARE else chance.choice(_SIZES),
            cancel_after=round(chance.uniform(0, 2), 2) if is_cancelled else None,
        )
        number += 1


class Notes:
    """The file in which an agent notes the begin and the end of its calls, so that its death loses none of them."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def begin(self, call: Call) -> None:
        self._write({"begin": asdict(call)})

    def end(self, call: Call, result: CallToolResult) -> None:
        code, text = call.check(result)
        self._write({"end": call.id, "code": code, "text": text})

    def fail(self, call: Call, error: SMCPError) -> None:
        outcome = error.details.get("outcome")
        self._write({"end": call.id, "code": error.code, "outcome": outcome, "text": error.message[:300]})

    def _write(self, note: dict[str, Any]) -> None:
        os.write(self._file, json.dumps({**note, "at": time.monotonic()}).encode() + b"\n")
