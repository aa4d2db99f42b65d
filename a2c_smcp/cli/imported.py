"""What `a2c-smcp import` tells of what it did, or would do. Nothing of it is a secret."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from a2c_smcp.cli.input_files import is_open_to_git
from a2c_smcp.cli.invocation import invocation
from a2c_smcp.cli.results import put_json, put_text
from a2c_smcp.cli.setup_files import NAMES
from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.computer.imports.convert import Conversion
from a2c_smcp.computer.imports.target import Merged, StoredValues, Target, difference
from a2c_smcp.computer.inputs.definitions import ids_in, variable_of

__all__ = ["Outcome", "put_for_people", "put_for_programs"]

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class Outcome:
    """`kept` says where values are now; without it nothing was written. `values` is the file for them."""

    files: tuple[Path, ...]
    before: Target
    conversion: Conversion
    merged: Merged
    kept: StoredValues | None
    values: Path

    @property
    def changes(self) -> str:
        return difference(self.before, self.merged.target)

    @property
    def held_back(self) -> dict[str, str]:
        """Servers that were not taken, with the reason."""
        return {**self.conversion.refused, **self.merged.clashes}

    @property
    def leaving(self) -> list[str]:
        """Inputs that stand for secrets."""
        return sorted(self.conversion.values(self.merged.taken))

    @property
    def asked_for(self) -> list[str]:
        """Inputs whose values nobody knows yet."""
        used = ids_in([self.conversion.servers[name] for name in self.merged.taken])
        inputs = self.conversion.inputs
        return sorted(id_ for id_ in used if id_ not in self.leaving and "default" not in inputs[id_])

    @property
    def next_line(self) -> str:
        """What puts the servers on an office."""
        words = [*invocation(), "computer", "--config", str(self.before.path)]
        if self.kept and self.kept.in_file:
            words += ["--inputs", str(self.values)]
        return shlex.join(words)


def put_for_programs(outcome: Outcome, _: Terminal) -> None:
    merged, kept = outcome.merged, outcome.kept or StoredValues()
    put_json(
        {
            "from": [str(path) for path in dict.fromkeys(outcome.files)],
            "into": str(outcome.before.path),
            "written": outcome.kept is not None,
            "added": merged.added,
            "replaced": merged.replaced,
            "unchanged": merged.unchanged,
            "held_back": outcome.held_back,
            "secrets": {
                "inputs": outcome.leaving,
                "in_keyring": kept.in_keyring,
                "in_file": kept.in_file,
                "other_value_kept": kept.others,
                "file": str(outcome.values) if kept.in_file else None,
                "left_in_place": sorted(outcome.conversion.kept),
            },
            "asked_for": {id_: variable_of(id_) for id_ in outcome.asked_for},
            "notes": outcome.conversion.notes,
            "diff": outcome.changes,
        }
    )


def put_for_people(outcome: Outcome, terminal: Terminal) -> None:
    _put_diff(outcome.changes)
    for line in outcome.conversion.notes:
        terminal.show(line, "yellow")
    for line in _problems(outcome):
        terminal.show(line, "red")
    for line in _summary(outcome):
        terminal.show(line)


def _put_diff(text: str) -> None:
    if not sys.stdout.isatty():
        if text:
            put_text(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in printable(text).splitlines():
        console.print(Text(line, _COLOURS.get(line[0], "")), soft_wrap=True)


def _problems(outcome: Outcome) -> Iterator[str]:
    for name, why in outcome.conversion.refused.items():
        yield f"{name} is not imported: {why}"
    for name, why in outcome.merged.clashes.items():
        yield f"{name} is not imported, {why}: --replace replaces it"
    for id_ in outcome.kept.others if outcome.kept else ():
        yield f"another value is kept for input {id_!r}, and stays: --replace replaces it"


def _summary(outcome: Outcome) -> Iterator[str]:
    merged, path = outcome.merged, outcome.before.path
    if merged.unchanged:
        yield f"already in {path}: {', '.join(merged.unchanged)}"
    if merged.replaced and not outcome.changes:
        yield f"only values that are not shown change in {path}: {', '.join(merged.replaced)}"
    if outcome.before.has_comments and (merged.added or merged.replaced):
        yield f"comments in {path} {'are' if outcome.kept else 'would be'} lost"
    yield from _about_secrets(outcome)
    if outcome.asked_for:
        named = ", ".join(f"{id_} ({variable_of(id_)})" for id_ in outcome.asked_for)
        yield f"asked for when a server starts, unless the environment has them: {named}"
    yield from _next_steps(outcome)


def _about_secrets(outcome: Outcome) -> Iterator[str]:
    kept = outcome.kept or StoredValues()
    told = {
        "secrets that become inputs, their values leave the file": [] if outcome.kept else outcome.leaving,
        "secrets that are in the keyring now": kept.in_keyring,
        f"secrets that are in {outcome.values} now, which only you can read": kept.in_file,
        "secrets that stay in the file": sorted(outcome.conversion.kept),
    }
    yield from (f"{what}: {', '.join(ids)}" for what, ids in told.items() if ids)
    if kept.in_file and is_open_to_git(outcome.values):
        yield f"git does not ignore {outcome.values.name} here: put it on .gitignore, so that no secret is committed"


def _next_steps(outcome: Outcome) -> Iterator[str]:
    merged, path = outcome.merged, outcome.before.path
    count = len(merged.added) + len(merged.replaced)
    if outcome.kept is None:
        yield "nothing is written yet: --write does it" if count else "there is nothing to write"
        return
    if count:
        yield f"{path} is written, with {count} {'server' if count == 1 else 'servers'} from {outcome.files[0]}"
    if merged.taken:
        if path.name in NAMES:
            yield f"to try it on this machine: {shlex.join([*invocation(), 'up'])}"
        yield f"next: {outcome.next_line}"
