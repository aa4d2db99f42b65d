"""`a2c-smcp import`: the MCP servers that other programs have, put into a file of ours."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.imported import Outcome, put_for_people, put_for_programs
from a2c_smcp.cli.input_files import beside
from a2c_smcp.cli.options import option
from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.computer.imports.convert import Conversion, convert
from a2c_smcp.computer.imports.programs import PROGRAMS, Document, Machine, read_documents
from a2c_smcp.computer.imports.target import Merged, StoredValues, Target, merge, store_values
from a2c_smcp.computer.secrets.replace import Secret
from a2c_smcp.errors import ConfigError
from a2c_smcp.loops import run_program

__all__ = ["import_"]

_NOT_ALL = 1
_FILE = "a2c-smcp import FILE takes any file with mcpServers."


class Secrets(StrEnum):
    """What becomes of secrets that are written out."""

    inputs = "inputs"
    keep = "keep"
    ask = "ask"


def _programs(typed: str) -> Iterable[str]:
    return (name for name in PROGRAMS if name.startswith(typed))


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM|FILE",
            help=f"{', '.join(PROGRAMS)}, or a file.",
            show_default=False,
            autocompletion=_programs,
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
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for a program to read.")] = False,
) -> None:
    """Take over the MCP servers of Claude Desktop, Claude Code, Cursor, VS Code, or of any file with mcpServers.

    Shows what would change in a2c.json, without secrets; --write changes it. Nothing that is there is lost. Secrets
    leave the file: they become inputs, whose values are kept in the keyring. What cannot be taken over is told (exit
    code 1 if it is a server).

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
        tuple(document.path for document in documents), target, conversion, merged, kept, _values(into, inputs)
    )
    (put_for_programs if as_json else put_for_people)(outcome, terminal)
    if conversion.refused or merged.clashes or (kept and kept.others):
        raise typer.Exit(_NOT_ALL)


def _documents(source: str, machine: Machine) -> list[Document]:
    try:
        documents = read_documents(_files(source, machine), machine)
    except ConfigError as error:
        raise Failed(_reason(error), "Correct the file, or name another.") from None
    if not any(document.servers for document in documents):
        names = ", ".join(dict.fromkeys(str(document.path) for document in documents))
        raise Failed(f"There are no MCP servers in {names}", _FILE)
    return documents


def _files(source: str, machine: Machine) -> list[Path]:
    if program := PROGRAMS.get(source):
        looked = program.files(machine)
        if found := [path for path in looked if path.is_file()]:
            return found
        raise Failed(f"{program.title} has no file here: looked for {' and '.join(map(str, looked))}", _FILE)
    if not Path(source).is_file():
        raise WrongUse(f"There is no file {source!r}", f"Name one, or one of {', '.join(PROGRAMS)}.")
    return [Path(source)]


def _target(into: Path) -> Target:
    try:
        return Target.read(into)
    except ConfigError as error:
        raise WrongUse(_reason(error), "Correct it, or name another file with --into.") from None


def _to_keep(conversion: Conversion, secrets: Secrets | None, terminal: Terminal, *, may_ask: bool) -> set[str]:
    """The ids of secrets that stay where they are."""
    if secrets is Secrets.ask and not terminal.can_ask:
        raise WrongUse("Nobody can be asked without a terminal", "Say --secrets inputs, or --secrets keep.")
    if secrets is Secrets.keep:
        return {secret.id for secret in conversion.secrets}
    if secrets is Secrets.ask or (secrets is None and may_ask and terminal.can_ask):
        return {secret.id for secret in conversion.secrets if not _leaves_the_file(secret)}
    return set()


def _leaves_the_file(secret: Secret) -> bool:
    return typer.confirm(printable(f"{secret.place} holds a secret: make it an input?"), default=True, err=True)


def _write(
    target: Target, merged: Merged, conversion: Conversion, inputs: Path | None, *, replace: bool
) -> StoredValues:
    """The values first: a secret that has left one file must be somewhere else."""
    values, file = conversion.values(merged.taken), _values(target.path, inputs)
    try:
        kept = run_program(store_values(values, file, use_keyring=inputs is None, replace=replace))
        if merged.added or merged.replaced:
            merged.target.write()
    except ConfigError as error:
        raise Failed(_reason(error), "Name another file with --into or --inputs.") from None
    return kept


def _values(into: Path, given: Path | None) -> Path:
    return given or beside(into)


def _reason(error: ConfigError) -> str:
    return error.message.removeprefix(f"{error.opening}: ")
