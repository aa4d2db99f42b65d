"""Calls that are made up, for tests of the judge."""

from __future__ import annotations

from typing import Any

from tests.faults.books import Entry
from tests.faults.calls import ANSWERED, Call

PAIR = ("office1", "left")


BEGUN = 100.0


def call(**changes: Any) -> Call:
    plain: dict[str, Any] = {"seconds": 1.0, "timeout": 10, "size": 0, "cancel_after": None}
    return Call(id="1.office1.0-7", office="office1", computer="left", tool="work_now", **{**plain, **changes})


def entry(code: int | None, ended: float = BEGUN + 1, *, outcome: str | None = "unknown", **more: Any) -> Entry:
    text = more.pop("text", "")
    return Entry(call(**more), BEGUN, ended, code, None if code == ANSWERED else outcome, text)
