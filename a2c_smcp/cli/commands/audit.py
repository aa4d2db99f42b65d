"""The commands of `a2c-smcp audit`: who did what, as a table or as JSON, and whether a file was changed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.audit.reading import EntryFilter, entries, follow, opened_after, verify
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.options import AsJSON, option, takes_options
from a2c_smcp.cli.terminal import printable, put_json, put_text
from a2c_smcp.computer.consent.rules import seconds_in

audit = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

File = Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="The file that was given to --audit.")]
AsJson = Annotated[bool, typer.Option("--json", help="The entries as JSON lines.")]


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Only entries with all of these values are shown."""

    office: Annotated[str | None, option(None, "--office", "Only this office.")] = None
    agent: Annotated[str | None, option(None, "--agent", "Only this agent.")] = None
    computer: Annotated[str | None, option(None, "--computer", "Only this computer.")] = None
    tool: Annotated[str | None, option(None, "--tool", "Only calls of this tool.")] = None
    event: Annotated[str | None, option(None, "--event", "Only this event, such as call, refused or approval.")] = None
    outcome: Annotated[
        str | None, option(None, "--outcome", "Only this outcome, such as ok, tool_error or timeout.")
    ] = None
    principal: Annotated[str | None, option(None, "--principal", "Only this principal.")] = None
    req_id: Annotated[str | None, option(None, "--req-id", "Only this request.")] = None

    def filter(self, since: str = "", until: str = "") -> EntryFilter:
        return EntryFilter({name: value for name, value in vars(self).items() if value is not None}, since, until)


_COLUMNS = ("time", "event", "who", "office", "what", "outcome")
_SHOWN = frozenset(
    {
        *("n", "hash", "time", "event", "office", "agent", "client"),
        *("computer", "server", "tool", "sealed", "outcome", "role", "name"),
    }
)


@audit.callback()
def _group() -> None:
    """Read audit files: who did what, and whether a file was changed.

    Example: a2c-smcp audit show audit.jsonl --event call --since 1h
    """


@audit.command()
@takes_options
def show(
    *,
    file: File,
    wanted: FilterOptions,
    since: Annotated[
        str | None,
        option(None, "--since", "From then on: 2026-11-18, 2026-11-18T06:30, or 90s, 15m, 2h, 7d ago.", metavar="TIME"),
    ] = None,
    until: Annotated[str | None, option(None, "--until", "Before this time.", metavar="TIME")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the entries of an audit file, the oldest first, those of rotated files included.

    Examples:

    \b
    a2c-smcp audit show audit.jsonl --office desk --since 24h
    a2c-smcp audit show audit.jsonl --event call --tool delete_file --json
    a2c-smcp audit show audit.jsonl --event refused
    """
    chosen = wanted.filter(_time(since, "--since"), _time(until, "--until"))
    _put(_read(file, lambda: entries(file, chosen)), as_json=as_json)


@audit.command("follow")
@takes_options
def _follow(
    *,
    file: File,
    wanted: FilterOptions,
    as_json: AsJson = False,
) -> None:
    """Show entries as they are written, until Ctrl-C.

    Example: a2c-smcp audit follow audit.jsonl --event call
    """
    _put(_read(file, lambda: follow(file, wanted.filter())), as_json=as_json)


@audit.command("verify")
def _verify(
    file: File,
    hash_: Annotated[
        str | None, option(None, "--hash", "A hash that was printed earlier: its line must still be there.")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Check that no line was changed, removed, moved or put in, and that none is missing at the end.

    Exits 1 and names file and line if there is one. Prints the hash of the last line: keep it elsewhere, and give it
    to --hash later, since who may write all files of an audit can also compute its hashes anew.

    Examples:

    \b
    a2c-smcp audit verify audit.jsonl
    a2c-smcp audit verify audit.jsonl --hash 5d41402abc4b2a76b9719d911017c592
    """
    if hash_ is not None and not re.fullmatch("[0-9a-f]{32}", hash_):
        raise WrongUse("--hash: a hash has 32 hexadecimal digits", "`a2c-smcp audit verify FILE` prints one.")
    try:
        (problems, end), before = verify(file, wanted=hash_), opened_after(file)
    except OSError as error:
        raise _unreadable(file, error) from None
    if as_json:
        rows = [problem._asdict() for problem in problems]
        after = before and before.facts()
        put_json({"ok": not problems, "lines": end.number, "hash": end.hash, "opened": after, "problems": rows})
        if problems:
            raise typer.Exit(1)
        return
    if problems:
        for problem in problems:
            put_text(printable(str(problem)))
        raise Failed(f"{file} was changed: at least {len(problems)} of its lines are wrong", "Compare it with a copy.")
    put_text(f"ok: the last line is {end.number}, its hash is {end.hash}")
    if before and before.after_file:
        words = f"the lines up to {before.after}, with the hash {before.after_hash}, are not here: they were in "
        put_text(printable(words + before.after_file))


def _time(text: str | None, flag: str) -> str:
    """A time as entries have it. Raises `WrongUse`."""
    if text is None:
        return ""
    try:
        if text[-1:] in "smhd":
            at = datetime.now(UTC) - timedelta(seconds=seconds_in(text))
        else:
            at = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        remedy = "Write it as 2026-11-18, 2026-11-18T06:30, or as 90s, 15m, 2h or 7d ago."
        raise WrongUse(f"{flag}: {text!r} is no time", remedy) from None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read(file: Path, read: Any) -> Iterable[dict[str, Any]]:
    try:
        yield from read()
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: OSError) -> Failed:
    of_worker = file.with_name(f"{file.stem}-1{file.suffix}")
    if of_worker.exists():
        remedy = f"The first worker of a Server (--workers) has written {of_worker}, and each other one a file like it."
    else:
        remedy = "Give the file that --audit was given."
    return Failed(f"{file} cannot be read: {error.strerror}", remedy)


def _put(shown: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    if not as_json:
        put_text(_row(*_COLUMNS).rstrip())
    for entry in shown:
        if as_json:
            put_json(entry, in_one_line=True)
        else:
            put_text(_line(entry))
        sys.stdout.flush()


def _line(entry: dict[str, Any]) -> str:
    """An entry for people: the columns, and all other facts behind them."""
    who = _first(entry, "agent", "name", "principal", "address")
    if client := entry.get("client"):
        who = f"{who} ({client})"
    tool = "(sealed)" if entry.get("sealed") else entry.get("tool")
    what = "/".join(filter(None, (_first(entry, "computer", "server"), tool))) or _first(entry, "role", "request")
    rest = " ".join(f"{name}={_word(value)}" for name, value in entry.items() if name not in _SHOWN)
    at = str(entry.get("time", "")).replace("T", " ").removesuffix("Z")
    row = _row(at, _first(entry, "event"), who, _first(entry, "office"), what, _first(entry, "outcome"))
    return printable(f"{row}  {rest}".rstrip())


def _first(entry: dict[str, Any], *names: str) -> str:
    """The first of these facts that is there."""
    return next((str(entry[name]) for name in names if entry.get(name)), "")


def _row(time: str, event: str, who: str, office: str, what: str, outcome: str) -> str:
    return f"{time:<23}  {event:<15}  {who:<20}  {office:<12}  {what:<28}  {outcome:<10}"


def _word(value: object) -> str:
    return value if isinstance(value, str) and value and " " not in value else repr(value)
