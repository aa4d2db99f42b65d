"""`a2c-smcp import`: copy the MCP servers of other programs into a file of ours, and report it without secrets."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.options import AsJSON, option
from a2c_smcp.cli.program_file import program_names
from a2c_smcp.cli.setup_files import NAMES, git_would_take, values_file_of
from a2c_smcp.cli.suggestions import invocation
from a2c_smcp.cli.terminal import Terminal, printable, put_diff, put_json
from a2c_smcp.computer.configuration.convert import Conversion, convert
from a2c_smcp.computer.configuration.definitions import ids_in, variable_of
from a2c_smcp.computer.configuration.programs import PROGRAMS, Document, Machine, read_documents
from a2c_smcp.computer.configuration.target import ImportTarget, Merged, StoredValues, difference, merge, store_values
from a2c_smcp.errors import ConfigError
from a2c_smcp.loops import run_program

_NOT_ALL = 1
_FILE = "a2c-smcp import FILE takes any file with mcpServers."


Secrets: TypeAlias = Literal["inputs", "keep", "ask"]
"""The place for secrets that are written out in the file."""


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM|FILE",
            help=f"{', '.join(PROGRAMS)}, or a file.",
            show_default=False,
            autocompletion=program_names,
        ),
    ],
    into: Annotated[Path, option(None, "--into", "File to put them into: JSON.")] = Path("a2c.json"),
    write: Annotated[bool, option(None, "--write", "Do it. Otherwise only what would change is shown.")] = False,
    replace: Annotated[bool, option(None, "--replace", "Replace what is there under the same name.")] = False,
    secrets: Annotated[
        Secrets | None,
        option(
            None,
            "--secrets",
            "Secrets that are written out: make them inputs, keep them, or ask for each.",
            show_default="ask on a terminal, else inputs",
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        option(
            None,
            "--inputs",
            "File for the values of those inputs, instead of the keyring.",
            show_default="the keyring; where there is none, a2c.inputs.json beside a2c.json",
        ),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Import the MCP servers of Claude Desktop, Claude Code, Cursor, VS Code, or of any file with mcpServers.

    Shows what would change in a2c.json, without secrets; --write changes it. Existing entries are kept. Secrets leave
    the file: they become inputs, whose values are kept in the keyring. What cannot be imported is reported (exit code 1
    if it is a server).

    Examples:

    \b
    a2c-smcp import claude-desktop
    a2c-smcp import claude-desktop --write
    a2c-smcp import .vscode/mcp.json --into servers.json --secrets keep
    a2c-smcp import cursor --write --replace --json
    """
    terminal, machine = Terminal(), Machine.here()
    documents, target = _documents(source, machine), _target(into)
    conversion = convert(documents, machine)
    conversion = convert(documents, machine, _to_keep(conversion, secrets, terminal, may_ask=write and not as_json))
    merged = merge(target, conversion, replace=replace)
    kept = _write(target, merged, conversion, inputs, replace=replace) if write else None
    outcome = Outcome(
        tuple(document.path for document in documents), target, conversion, merged, kept, inputs or values_file_of(into)
    )
    (put_for_programs if as_json else put_for_people)(outcome, terminal)
    if conversion.refused or merged.clashes or (kept and kept.others):
        raise typer.Exit(_NOT_ALL)


def _documents(source: str, machine: Machine) -> list[Document]:
    try:
        documents = read_documents(_files(source, machine), machine)
    except ConfigError as error:
        raise Failed(error.about, "Correct the file, or name another.") from None
    if not any(document.servers for document in documents):
        names = ", ".join(dict.fromkeys(str(document.path) for document in documents))
        raise Failed(f"There are no MCP servers in {names}", _FILE)
    return documents


def _files(source: str, machine: Machine) -> list[Path]:
    if program := PROGRAMS.get(source):
        paths = program.files(machine)
        if files := [path for path in paths if path.is_file()]:
            return files
        raise Failed(f"{program.title} has no file here: looked for {' and '.join(map(str, paths))}", _FILE)
    if not Path(source).is_file():
        raise WrongUse(f"There is no file {source!r}", f"Name one, or one of {', '.join(PROGRAMS)}.")
    return [Path(source)]


def _target(into: Path) -> ImportTarget:
    try:
        return ImportTarget.read(into)
    except ConfigError as error:
        raise WrongUse(error.about, "Correct it, or name another file with --into.") from None


def _to_keep(conversion: Conversion, secrets: Secrets | None, terminal: Terminal, *, may_ask: bool) -> set[str]:
    """The ids of secrets that stay in the file."""
    if secrets == "ask" and not terminal.can_ask:
        raise WrongUse("Questions need a terminal", "Say --secrets inputs, or --secrets keep.")
    if secrets == "keep":
        return {secret.id for secret in conversion.secrets}
    if secrets == "ask" or (secrets is None and may_ask and terminal.can_ask):
        question = "{} holds a secret: make it an input?"
        return {
            secret.id
            for secret in conversion.secrets
            if not typer.confirm(printable(question.format(secret.place)), default=True, err=True)
        }
    return set()


def _write(
    target: ImportTarget, merged: Merged, conversion: Conversion, inputs: Path | None, *, replace: bool
) -> StoredValues:
    """Keep the values first, then write the file: no secret may get lost between the two."""
    values, file = conversion.values(merged.taken), inputs or values_file_of(target.path)
    try:
        kept = run_program(store_values(values, file, use_keyring=inputs is None, replace=replace))
        if merged.added or merged.replaced:
            merged.target.write()
    except ConfigError as error:
        raise Failed(error.about, "Name another file with --into or --inputs.") from None
    return kept


@dataclass(frozen=True)
class Outcome:
    """The result of an import, real or shown only. `kept`: where values are now, `None` if nothing was written."""

    files: tuple[Path, ...]
    before: ImportTarget
    conversion: Conversion
    merged: Merged
    kept: StoredValues | None
    values: Path

    @property
    def changes(self) -> str:
        return difference(self.before, self.merged.target)

    @property
    def held_back(self) -> dict[str, str]:
        """Servers that were not imported, with the reason."""
        return {**self.conversion.refused, **self.merged.clashes}

    @property
    def leaving(self) -> list[str]:
        """Inputs that replace secrets."""
        return sorted(self.conversion.values(self.merged.taken))

    @property
    def asked_for(self) -> list[str]:
        """Inputs without a known value."""
        used = ids_in([self.conversion.servers[name] for name in self.merged.taken])
        inputs = self.conversion.inputs
        return sorted(id_ for id_ in used if id_ not in self.leaving and "default" not in inputs[id_])

    @property
    def next_line(self) -> str:
        """The command that offers the servers in an office."""
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
    put_diff(outcome.changes)
    for line in outcome.conversion.notes:
        terminal.show(line, "yellow")
    for line in _problems(outcome):
        terminal.show(line, "red")
    for line in _summary(outcome):
        terminal.show(line)


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
    lists = {
        "secrets that become inputs, their values leave the file": [] if outcome.kept else outcome.leaving,
        "secrets that are in the keyring now": kept.in_keyring,
        f"secrets that are in {outcome.values} now, which only you can read": kept.in_file,
        "secrets that stay in the file": sorted(outcome.conversion.kept),
    }
    yield from (f"{what}: {', '.join(ids)}" for what, ids in lists.items() if ids)
    if kept.in_file and git_would_take(outcome.values):
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
