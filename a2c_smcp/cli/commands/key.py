"""`a2c-smcp key`: make an API key for a keys file, and list, end and replace the keys of a running Server."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from a2c_smcp.cli import options
from a2c_smcp.cli.admin_client import AdminClient, ago, moment, run_with, warn_missing
from a2c_smcp.cli.bridging import ServerKey
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.terminal import Terminal, put_json, put_table, put_text
from a2c_smcp.computer.consent.rules import seconds_in
from a2c_smcp.devices.transcript import is_fingerprint
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.auth.api_keys import KeysFileError, change_keys, hash_key, new_key, read_entry

_EXAMPLE = "Write one such as 2027-01-01T00:00:00Z, where Z is UTC, or 2027-01-01T00:00:00+08:00."


class KeyRole(StrEnum):
    """A role that a key may be limited to. The last two are those of admin keys."""

    agent = "agent"
    computer = "computer"
    viewer = "viewer"
    operator = "operator"


@dataclass(frozen=True, kw_only=True)
class KeyEntry:
    """The holder of a new key, and what it is for."""

    principal: Annotated[str | None, typer.Option(help="Who will hold the key; shown in the audit log.")] = None
    office: Annotated[
        list[str] | None, typer.Option(help="An office they may enter, or a pattern; repeat for more. Default: any.")
    ] = None
    role: Annotated[
        list[KeyRole] | None,
        typer.Option(
            metavar="agent|computer|viewer|operator",
            help="A role they may take, default agent or computer; or for an admin key: viewer or operator.",
        ),
    ] = None
    name: Annotated[
        list[str] | None, typer.Option(help="A name they may use, or a pattern; repeat for more. Default: any.")
    ] = None
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Until when, such as 2027-01-01T00:00:00Z, or 7d. Default: for ever."),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(metavar="FINGERPRINT", help="The only device that may use it, as `a2c-smcp device` shows it."),
    ] = None

    def checked(self) -> dict[str, Any]:
        """The entry for a keys file. Raises `WrongUse`."""
        if self.principal is None:
            raise WrongUse("--principal is missing", "Say who will hold the key, such as --principal alice.")
        for flag, names in {"--principal": [self.principal], "--office": self.office, "--name": self.name}.items():
            _check_names(flag, names or [])
        _check_device(self.device)
        fields = {
            "principal": self.principal,
            "offices": self.office,
            "roles": [known.value for known in self.role or ()],
            "names": self.name,
            "expires": _checked_moment(self.expires),
            "device": self.device,
        }
        entry = {field: value for field, value in fields.items() if value not in (None, [])}
        try:
            read_entry(entry)
        except KeysFileError as error:
            raise WrongUse(str(error), "Make a key for each.") from None
        return entry


key = typer.Typer(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})


@key.callback()
@options.takes_options
def make(
    *,
    context: typer.Context,
    wanted: KeyEntry,
    add_to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add the entry to this keys file, made if there is none.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for a program to read.")] = False,
) -> None:
    """Make an API key, and the entry that lets its holder in; or list and change those of a running Server.

    Without a command it makes a key. The Server keeps only the entry. The key itself is shown once, here, and cannot be
    recovered from the entry. With --device it is worth nothing without the private key of that machine. With --role
    viewer or operator it is an admin key, for a file of its own (`a2c-smcp server --admin-keys-file`). The commands
    need a Server with admin keys, and change its keys files at once.

    Examples:

    \b
    a2c-smcp key --principal alice
    a2c-smcp key --principal alice --role agent --office desk --office 'team-*' --add-to keys.json
    a2c-smcp key --principal laptop --expires 2027-01-01T00:00:00Z --json
    a2c-smcp key --principal laptop --role computer --device "$FINGERPRINT" --add-to keys.json
    a2c-smcp key --principal ann --role operator --add-to admin-keys.json
    a2c-smcp key ls
    """
    if context.invoked_subcommand is not None:
        return
    entry, new = wanted.checked(), new_key()
    if add_to:
        _add(add_to, {hash_key(new): entry})
    _show(new, entry, add_to, as_json=as_json)


@key.command()
@options.takes_options
def add(*, wanted: KeyEntry, client: AdminClient, as_json: options.AsJSON = False) -> None:
    """Make a key on a running Server, where it is in force at once. It is shown once, on stdout.

    Examples:

    \b
    a2c-smcp key add --principal alice --role agent --office desk
    a2c-smcp key add --principal ann --role viewer --expires 7d
    """
    entry = wanted.checked()
    made = run_with(client.ask("POST", "keys", body=entry))
    if as_json:
        put_json(made)
        return
    _warn_differing(made)
    Terminal().show(f"The key {made['id']}, {_for_holder(entry)}:")
    put_text(made["key"])


_Key = Annotated[str, typer.Argument(metavar="ID", help="The id of the key, as `ls` shows it.", show_default=False)]
_GRANT_COLUMNS = ("grant", "principal", "office", "client", "domain", "since", "last use")
_COLUMNS = (
    "id", "principal", "offices", "roles", "names", "expires", "connections", "last use", "device", "kept in",
)  # fmt: skip


@key.command()
@options.takes_options
def ls(
    *,
    client: AdminClient,
    as_json: options.AsJSON = False,
) -> None:
    """List the keys of a running Server by their ids: who holds them, for what, until when.

    Below them are the grants: which MCP clients people have signed in. `revoke` ends either.

    Examples:

    \b
    a2c-smcp key ls
    a2c-smcp key ls --json
    """
    answer = run_with(_keys_and_grants(client))
    if as_json:
        put_json(answer)
        return
    warn_missing(answer["missing"])
    put_table(_COLUMNS, map(_cells, answer["keys"]))
    if answer["grants"]:
        put_table(_GRANT_COLUMNS, map(_grant_cells, answer["grants"]))


async def _keys_and_grants(client: AdminClient) -> dict[str, Any]:
    return {**await client.get("keys"), **await client.get("grants")}


@key.command()
@options.takes_options
def link(
    *,
    office: Annotated[str, typer.Option(help="The office that it opens.")] = options.DEFAULT_OFFICE,
    principal: Annotated[
        str | None, typer.Option(help="For whom; this needs the admin key.", show_default="the holder of --api-key")
    ] = None,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    admin_key: Annotated[
        str | None, options.option("A2C_ADMIN_KEY", "--admin-key", "The admin key of the Server, with --principal.")
    ] = None,
    ca: options.CA = None,
) -> None:
    """Make a one-time link that signs in an MCP client on the page of a Server with --sign-in.

    It opens one office, for ten minutes. Paste it on the page that the client has opened.

    Examples:

    \b
    a2c-smcp key link --office desk
    a2c-smcp key link --office desk --principal alice
    """
    if principal:
        client = AdminClient(url=url, admin_key=admin_key, ca=ca)
        made = run_with(client.ask("POST", "links", body={"office": office, "principal": principal}))
    else:
        own = ServerKey(url=url, api_key=api_key, key_file=None).credentials().token
        if not own:
            raise WrongUse(
                "The API key of the one who signs in is missing", "Give --api-key, or name another --principal."
            )
        client = AdminClient(url=url, admin_key=own, ca=ca)
        made = run_with(client.ask("POST", "links", body={"office": office}, api="/sign-in"))
    Terminal().show("A link that signs in one MCP client, within ten minutes:")
    put_text(made["link"])


@key.command()
@options.takes_options
def revoke(
    *,
    key_id: _Key,
    client: AdminClient,
    as_json: options.AsJSON = False,
) -> None:
    """End a key or a grant of a running Server. Its clients are disconnected at once.

    Examples:

    \b
    a2c-smcp key revoke key-1a2b3c4d
    """
    changed = run_with(client.ask("DELETE", f"keys/{quote(key_id)}"))
    if as_json:
        put_json(changed)
        return
    _warn_differing(changed)
    if changed["until_restart"]:
        until = "until all processes of the Server are started again, with --redis for as long as the keys file has it"
        how = "the Server cannot write that file. Delete the entry there"
        Terminal().show(f"{key_id} is refused {until}: {how}", "yellow")
        return
    Terminal().show(f"{key_id} is revoked")


@key.command()
@options.takes_options
def rotate(
    *,
    key_id: _Key,
    grace: Annotated[
        int, typer.Option("--grace", help="Seconds for which the old key stays valid.", min=0, max=366 * 86400)
    ] = 3600,
    client: AdminClient,
    as_json: options.AsJSON = False,
) -> None:
    """Replace a key of a running Server by a new one that may do the same. The old one expires after --grace.

    The new key is shown once, on stdout.

    Examples:

    \b
    a2c-smcp key rotate key-1a2b3c4d
    a2c-smcp key rotate key-1a2b3c4d --grace 0 --json
    """
    changed = run_with(client.ask("POST", f"keys/{quote(key_id)}/rotate", body={"grace": grace}))
    if as_json:
        put_json(changed)
        return
    _warn_differing(changed)
    until = f"expires in {grace} s" if grace else "is no longer valid"
    Terminal().show(f"The new key {changed['id']}, for its holder alone; {key_id} {until}:")
    put_text(changed["key"])


def _warn_differing(changed: dict[str, Any]) -> None:
    warn_missing(changed["missing"])
    if differing := changed["differing"]:
        nodes = " and ".join(differing)
        Terminal().show(f"{nodes} has another keys file: change that one, too, and send it SIGHUP", "yellow")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    is_admin_key = bool({"viewer", "operator"} & {*(row["roles"] or ())})
    scope = (", ".join(row[name] or ("–" if is_admin_key else "any",)) for name in ("offices", "roles", "names"))
    expires = f"expired {moment(row['expires'])}" if row["expired"] else moment(row["expires"]) or "never"
    places = ("--admin-key", "admin keys file") if is_admin_key else ("--api-key", "keys file")
    known = f"{ago(row['last_use'])} ago" if row["last_use"] else f"not since {moment(row['uses_since'])}"
    uses = str(row["connections"]), "now" if row["connections"] else known
    return row["id"], row["principal"], *scope, expires, *uses, (row["device"] or "")[:12], places[not row["fixed"]]


def _grant_cells(row: dict[str, Any]) -> tuple[str, ...]:
    since, used = moment(row["created"]), f"{ago(row['used'])} ago"
    return row["id"], row["principal"], row["office"], row["client"], row["domain"] or "unverified", since, used


def _check_names(flag: str, names: list[str]) -> None:
    if fault := next(filter(None, map(fault_in, names)), None):
        raise WrongUse(f"{flag}: {fault}", "Choose another.")


def _check_device(fingerprint: str | None) -> None:
    if fingerprint is not None and not is_fingerprint(fingerprint):
        remedy = "Run `a2c-smcp device` on that machine, and copy its 43 characters."
        raise WrongUse("--device: that is no fingerprint", remedy)


def _checked_moment(text: str | None) -> str | None:
    """Raises `WrongUse` for what is no date and time with a time zone, and for one in the past."""
    if text is None:
        return None
    with suppress(ValueError):
        return (datetime.now(UTC) + timedelta(seconds=seconds_in(text))).isoformat(timespec="seconds")
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise WrongUse(f"--expires: {text!r} is no date and time", _EXAMPLE) from None
    if moment.tzinfo is None:
        raise WrongUse(f"--expires: {text!r} does not say its time zone", _EXAMPLE)
    if moment <= datetime.now(UTC):
        raise WrongUse(f"--expires: {text} is over", "Give a later one.")
    return text


def _for_holder(entry: dict[str, Any]) -> str:
    is_admin_key = read_entry(entry).is_operator
    return f"for its holder alone ({'A2C_ADMIN_KEY or --admin-key' if is_admin_key else 'A2C_API_KEY or --api-key'})"


def _add(path: Path, entries: dict[str, Any]) -> None:
    """Add entries to a keys file, which is replaced in one step and readable by its owner only. Raises `WrongUse`."""
    try:
        change_keys(path, lambda known: known | entries)
    except KeysFileError as error:
        raise WrongUse(str(error), "Correct that file, or name another with --add-to.") from None
    except OSError as error:
        raise WrongUse(f"{path}: cannot be written: {error.strerror}", "Name another file with --add-to.") from None


def _show(new: str, entry: dict[str, Any], add_to: Path | None, *, as_json: bool) -> None:
    entries = {hash_key(new): entry}
    if as_json:
        typer.echo(json.dumps({"key": new, "entries": entries}))
        return
    typer.echo(f"The key, {_for_holder(entry)}:", err=True)
    typer.echo(new)
    if add_to:
        typer.echo(f"\nIts entry is in {add_to}. A running Server reads it on SIGHUP.", err=True)
        return
    typer.echo("\nThe entry, for the Server's keys file:", err=True)
    typer.echo(json.dumps(entries, indent=2, ensure_ascii=False))
