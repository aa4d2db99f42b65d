"""`a2c-smcp office`: look into the offices of a Server, without taking a seat in one."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from a2c_smcp.cli import options
from a2c_smcp.cli.admin_client import AdminClient, ago, event_line, plural, run_with, size, warn_missing
from a2c_smcp.cli.errors import Failed
from a2c_smcp.cli.running import unless_stopped
from a2c_smcp.cli.terminal import Terminal, put_json, put_table, put_text

office = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

_OFFICES = ("office", "agent", "computers", "away", "calls", "nodes")
_MEMBERS = ("name", "role", "principal", "since", "calls", "unread", "address", "version", "device", "node")

_Office = Annotated[str, typer.Argument(help="The office.", show_default=False)]
_Search = Annotated[
    str | None, typer.Option("--search", help="Only those in which a name, principal or address contains this.")
]


@office.callback()
def _group() -> None:
    """Look into the offices of a Server, as its operator: who is there, what runs, what happens.

    It takes nobody's seat, and shows all nodes as one. The Server has to be started with --admin-key.

    Examples:

    \b
    a2c-smcp office ls
    a2c-smcp office show desk
    a2c-smcp office watch
    """


@office.command()
@options.takes_options
def ls(
    *,
    search: _Search = None,
    client: AdminClient,
    as_json: options.AsJSON = False,
) -> None:
    """List the offices that have members.

    Examples:

    \b
    a2c-smcp office ls
    a2c-smcp office ls --search laptop --json
    """
    page = run_with(client.pages("offices", "offices", search=search))
    if as_json:
        put_json(page)
        return
    warn_missing(page["missing"])
    if page["offices"]:
        put_table(_OFFICES, map(_office_cells, page["offices"]))
    else:
        Terminal().show("no office has members" + (f" with {search!r}" if search else ""))


@office.command()
@options.takes_options
def show(
    *,
    name: _Office,
    search: _Search = None,
    client: AdminClient,
    as_json: options.AsJSON = False,
) -> None:
    """Show the members of an office, and the calls that run there.

    Examples:

    \b
    a2c-smcp office show desk
    a2c-smcp office show desk --json
    """
    office = run_with(_members_and_calls(client, name, search))
    if as_json:
        put_json(office)
        return
    warn_missing(office["missing"])
    if not office["members"]:
        raise Failed(f"Office {name!r} has no members", "`a2c-smcp office ls` shows the offices that have some.")
    put_table(_MEMBERS, map(_member_cells, office["members"]))
    if calls := office["calls"]:
        put_text(f"\n{plural(len(calls), 'call')} in flight:")
        put_table(("tool", "computer", "agent", "for", "state", "bytes", "event"), map(_call_cells, calls))


@office.command()
@options.takes_options
def watch(
    *,
    name: Annotated[str | None, typer.Argument(help="Only this office; otherwise all.", show_default=False)] = None,
    event: Annotated[
        str | None, typer.Option("--event", help="Only these, with commas between them, such as joined,left,call.")
    ] = None,
    client: AdminClient,
    as_json: options.AsJSON = False,
) -> None:
    """Print what happens as it happens: who connects, joins and leaves, calls, refusals. Ctrl-C ends it.

    Examples:

    \b
    a2c-smcp office watch
    a2c-smcp office watch desk --event joined,left,call
    a2c-smcp office watch --json
    """
    terminal = Terminal()
    if run_with(unless_stopped(_print_events(client, terminal, name, event, as_json=as_json), terminal)):
        raise typer.Exit(1)


@office.command()
@options.takes_options
def disconnect(
    *,
    name: _Office,
    member: Annotated[str, typer.Argument(help="The member, by its name.", show_default=False)],
    client: AdminClient,
    as_json: options.AsJSON = False,
) -> None:
    """Disconnect a member. Its calls end, and its seat is free; a client whose key is valid may connect again.

    `a2c-smcp key revoke` keeps it out.

    Examples:

    \b
    a2c-smcp office disconnect desk laptop
    """
    done = run_with(_disconnect(client, name, member))
    if as_json:
        put_json(done)
    else:
        Terminal().show(f"{member} is disconnected")


async def _members_and_calls(client: AdminClient, name: str, search: str | None) -> dict[str, Any]:
    members = await client.pages("members", "members", office=name, search=search)
    calls = await client.pages("calls", "calls", office=name)
    return {"members": members["members"], "calls": calls["calls"], "missing": members["missing"]}


async def _print_events(
    client: AdminClient, terminal: Terminal, name: str | None, event: str | None, *, as_json: bool
) -> None:
    terminal.show(f"watching {f'office {name}' if name else 'all offices'} (Ctrl-C ends it)")
    async for facts in client.events(office=name, event=event):
        if facts["event"] == "dropped" and "node" not in facts:  # if another node missed some, the stream goes on
            raise Failed(f"This program read too slowly and missed {facts['missed']} events", "Run it again.")
        if as_json:
            put_json(facts, in_one_line=True)
        else:
            put_text(event_line(facts))
    raise Failed("The Server has ended", "Start it again, then this.")


async def _disconnect(client: AdminClient, name: str, member: str) -> dict[str, Any]:
    page = await client.pages("members", "members", office=name, name=member)
    if not page["members"]:
        raise Failed(f"Office {name!r} has no member {member!r}", f"`a2c-smcp office show {name}` shows who is there.")
    done: dict[str, Any] = {}
    for row in page["members"]:
        done = await client.ask("POST", f"members/{quote(row['id'])}/disconnect")
    return done


def _office_cells(row: dict[str, Any]) -> tuple[str, ...]:
    numbers = (str(row["computers"]), str(row["away"] or ""), str(row["calls"] or ""))
    return row["office"], row["agent"] or "", *numbers, ", ".join(row["nodes"])


def _member_cells(row: dict[str, Any]) -> tuple[str, ...]:
    since = ago(row["since"]) if row["connected"] else "away"
    numbers = (str(row["calls"] or ""), size(row["unread"]))
    more = (row["address"] or "", row["version"], (row["device"] or "")[:12], row["node"] or "")
    return row["name"], row["role"], row["principal"], since, *numbers, *more


def _call_cells(row: dict[str, Any]) -> tuple[str, ...]:
    tool = "(sealed)" if row["sealed"] else row["tool"] or ""
    return (
        tool,
        row["computer"],
        row["agent"],
        ago(row["since"]),
        row.get("state") or "",
        size(row["bytes"]),
        row["event"],
    )
