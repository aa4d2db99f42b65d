"""What a check is given, and what it finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from a2c_smcp.cli.checks.probe import Visit
from a2c_smcp.cli.setup_files import DEFAULT_HOST, DEFAULT_PORT
from a2c_smcp.cli.up_state import Note
from a2c_smcp.computer.configuration.files import Configuration

__all__ = ["Check", "Finding", "Level", "Situation", "ok", "problem", "warning"]


class Level(StrEnum):
    """A problem means that it would not work."""

    ok = "ok"
    warning = "warning"
    problem = "problem"


@dataclass(frozen=True)
class Finding:
    """One sentence on what there is, and one on what to do about it."""

    level: Level
    what: str
    remedy: str = ""


def ok(what: str) -> Finding:
    return Finding(Level.ok, what)


def warning(what: str, remedy: str) -> Finding:
    return Finding(Level.warning, what, remedy)


def problem(what: str, remedy: str) -> Finding:
    return Finding(Level.problem, what, remedy)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """`files` are used and `aside` are not; `faults` are what is wrong in the files; `note` is of an `up` that runs."""

    files: tuple[Path, ...] = ()
    aside: tuple[Path, ...] = ()
    faults: tuple[str, ...] = ()
    configuration: Configuration = field(default_factory=Configuration)
    no_input: bool = False
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    note: Note | None = None
    visit: Visit | None = None


Check: TypeAlias = Callable[[Situation], Iterable[Finding] | Awaitable[Iterable[Finding]]]
