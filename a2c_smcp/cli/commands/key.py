"""`a2c-smcp key`: a new API key, and the entry of a keys file that lets its holder in."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.devices.transcript import is_fingerprint
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.auth.api_keys import KeysFileError, hash_key, new_key, read_entries, read_entry

__all__ = ["key"]

_EXAMPLE = "Write one such as 2027-01-01T00:00:00Z, where Z is UTC, or 2027-01-01T00:00:00+08:00."


class KeyRole(StrEnum):
    """A role that a key may be limited to."""

    agent = "agent"
    computer = "computer"


def key(
    principal: Annotated[str, typer.Option(help="Who will hold the key; shown in the audit log.")],
    office: Annotated[
        list[str] | None, typer.Option(help="An office they may enter, or a pattern; repeat for more. Default: any.")
    ] = None,
    role: Annotated[
        list[KeyRole] | None, typer.Option(metavar="agent|computer", help="A role they may take. Default: either.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="A name they may use, or a pattern; repeat for more. Default: any.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Until when, such as 2027-01-01T00:00:00Z. Default: for ever.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="FINGERPRINT", help="The only device that may use it, as `a2c-smcp device` shows it."),
    ] = None,
    add_to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add the entry to this keys file, made if there is none.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for a program to read.")] = False,
) -> None:
    """Make an API key, and the entry that lets its holder in.

    The Server keeps only the entry. The key itself is shown once, here, and cannot be recovered from the entry. With
    --device it is worth nothing without the private key of that machine.

    Examples:

    \b
    a2c-smcp key --principal alice
    a2c-smcp key --principal alice --role agent --office desk --office 'team-*' --add-to keys.json
    a2c-smcp key --principal laptop --expires 2027-01-01T00:00:00Z --json
    a2c-smcp key --principal laptop --role computer --device "$FINGERPRINT" --add-to keys.json
    """
    for option, names in {"--principal": [principal], "--office": office, "--name": name}.items():
        _check_names(option, names or [])
    if expires is not None:
        _check_moment(expires)
    if device is not None and not is_fingerprint(device):
        raise WrongUse(
            "--device: that is no fingerprint", "Run `a2c-smcp device` on that machine, and copy its 43 characters."
        )
    roles = [each.value for each in role or ()]
    options = {
        "principal": principal,
        "offices": office,
        "roles": roles,
        "names": name,
        "expires": expires,
        "device": device,
    }
    entry = {field: value for field, value in options.items() if value not in (None, [])}
    read_entry(entry)
    new = new_key()
    if add_to:
        _add(add_to, {hash_key(new): entry})
    _show(new, entry, add_to, as_json=as_json)


def _check_names(option: str, names: list[str]) -> None:
    if fault := next((fault for each in names if (fault := fault_in(each))), None):
        raise WrongUse(f"{option}: {fault}", "Choose another.")


def _check_moment(text: str) -> None:
    """Raises `WrongUse` for what is no date and time with a time zone, and for one in the past."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUse(f"--expires: {text!r} is no date and time", _EXAMPLE) from None
    if moment.tzinfo is None:
        raise WrongUse(f"--expires: {text!r} does not say its time zone", _EXAMPLE)
    if moment <= datetime.now(UTC):
        raise WrongUse(f"--expires: {text} is over", "Give a later one.")


def _add(path: Path, entries: dict[str, Any]) -> None:
    """Add entries to a keys file, which is replaced in one step and readable by its owner only. Raises `WrongUse`."""
    try:
        known = read_entries(path) if path.exists() else {}
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.touch(mode=0o600, exist_ok=False)
        draft.write_text(json.dumps(known | entries, indent=2, ensure_ascii=False) + "\n", "utf-8")
        draft.replace(path)
    except KeysFileError as error:
        raise WrongUse(str(error), "Correct that file, or name another with --add-to.") from None
    except OSError as error:
        raise WrongUse(f"{path}: cannot be written: {error.strerror}", "Name another file with --add-to.") from None


def _show(new: str, entry: dict[str, Any], add_to: Path | None, *, as_json: bool) -> None:
    entries = {hash_key(new): entry}
    if as_json:
        typer.echo(json.dumps({"key": new, "entries": entries}))
        return
    typer.echo("The key, for its holder alone (A2C_API_KEY or --api-key):", err=True)
    typer.echo(new)
    if add_to:
        typer.echo(f"\nIts entry is in {add_to}. A running Server reads it on SIGHUP.", err=True)
        return
    typer.echo("\nThe entry, for the Server's keys file:", err=True)
    typer.echo(json.dumps(entries, indent=2, ensure_ascii=False))
