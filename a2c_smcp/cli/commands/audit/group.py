"""The commands of `a2c-smcp audit`: who did what, as a table or as JSON, and whether a file was changed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.audit.reading import EntryFilter, entries, follow, verify
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.options import option
from a2c_smcp.cli.terminal import printable, put_json, put_text

__all__ = ["audit"]

audit = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

File = Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="The file that was given to --audit.")]
Office = Annotated[str | None, option(None, "--office", "Only this office.")]
Agent = Annotated[str | None, option(None, "--agent", "Only this agent.")]
OfComputer = Annotated[str | None, option(None, "--computer", "Only this computer.")]
Tool = Annotated[str | None, option(None, "--tool", "Only calls of this tool.")]
EventName = Annotated[str | None, option(None, "--event", "Only this event, such as call, refused or approval.")]
Result = Annotated[str | None, option(None, "--outcome", "Only this outcome, such as ok, tool_error or timeout.")]
Principal = Annotated[str | None, option(None, "--principal", "Only this principal.")]
RequestId = Annotated[str | None, option(None, "--req-id", "Only this request.")]
Since = Annotated[
    str | None,
    option(None, "--since", "From then on: 2026-11-18, 2026-11-18T06:30, or 90s, 15m, 2h, 7d ago.", metavar="TIME"),
]
Until = Annotated[str | None, option(None, "--until", "Before this time.", metavar="TIME")]
AsJson = Annotated[bool, typer.Option("--json", help="The entries as JSON lines.")]

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
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
def show(
    file: File,
    office: Office = None,
    agent: Agent = None,
    computer: OfComputer = None,
    tool: Tool = None,
    event: EventName = None,
    outcome: Result = None,
    principal: Principal = None,
    req_id: RequestId = None,
    since: Since = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Show the entries of an audit file, the oldest first, those of rotated files included.

    Examples:

    \b
    a2c-smcp audit show audit.jsonl --office desk --since 24h
    a2c-smcp audit show audit.jsonl --event call --tool delete_file --json
    a2c-smcp audit show audit.jsonl --event refused
    """
    wanted = _filter(since, until, office, agent, computer, tool, event, outcome, principal, req_id)
    _put(_read(file, lambda: entries(file, wanted)), as_json=as_json)


@audit.command("follow")
def _follow(
    file: File,
    office: Office = None,
    agent: Agent = None,
    computer: OfComputer = None,
    tool: Tool = None,
    event: EventName = None,
    outcome: Result = None,
    principal: Principal = None,
    req_id: RequestId = None,
    as_json: AsJson = False,
) -> None:
    """Show entries as they are written, until Ctrl-C.

    Example: a2c-smcp audit follow audit.jsonl --event call
    """
    wanted = _filter(None, None, office, agent, computer, tool, event, outcome, principal, req_id)
    _put(_read(file, lambda: follow(file, wanted)), as_json=as_json)


@audit.command("verify")
def _verify(
    file: File,
    hash_: Annotated[
        str | None, option(None, "--hash", "A hash that was printed earlier: its line must still be there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for a program to read.")] = False,
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
        problems, end = verify(file, wanted=hash_)
    except OSError as error:
        raise _unreadable(file, error) from None
    if as_json:
        found = [problem._asdict() for problem in problems]
        put_json({"ok": not problems, "lines": end.number, "hash": end.hash, "problems": found})
        if problems:
            raise typer.Exit(1)
        return
    if problems:
        for problem in problems:
            put_text(printable(str(problem)))
        raise Failed(f"{file} was changed: at least {len(problems)} of its lines are wrong", "Compare it with a copy.")
    put_text(f"ok: the last line is {end.number}, its hash is {end.hash}")


def _filter(since: str | None, until: str | None, *values: str | None) -> EntryFilter:
    names = ("office", "agent", "computer", "tool", "event", "outcome", "principal", "req_id")
    given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    return EntryFilter(given, _time(since, "--since"), _time(until, "--until"))


def _time(text: str | None, flag: str) -> str:
    """A time as entries have it. Raises `WrongUse`."""
    if text is None:
        return ""
    try:
        if ago := re.fullmatch(r"(\d{1,9})([smhd])", text):
            at = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
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


def _put(found: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    if not as_json:
        put_text(_row(*_COLUMNS).rstrip())
    for entry in found:
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
    rest = " ".join(f"{name}={_value(value)}" for name, value in entry.items() if name not in _SHOWN)
    at = str(entry.get("time", "")).replace("T", " ").removesuffix("Z")
    row = _row(at, _first(entry, "event"), who, _first(entry, "office"), what, _first(entry, "outcome"))
    return printable(f"{row}  {rest}".rstrip())


def _first(entry: dict[str, Any], *names: str) -> str:
    """The first of these facts that is there."""
    return next((str(entry[name]) for name in names if entry.get(name)), "")


def _row(time: str, event: str, who: str, office: str, what: str, outcome: str) -> str:
    return f"{time:<23}  {event:<15}  {who:<20}  {office:<12}  {what:<28}  {outcome:<10}"


def _value(value: object) -> str:
    return value if isinstance(value, str) and value and " " not in value else repr(value)
