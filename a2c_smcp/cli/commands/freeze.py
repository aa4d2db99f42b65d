"""`a2c-smcp freeze` and `thaw`: let nothing through to computers, at once, until a person ends that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from a2c_smcp.cli import options
from a2c_smcp.cli.admin_client import AdminClient, AdminKey, moment, plural, run_with
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.setup_files import set_freeze
from a2c_smcp.cli.terminal import Terminal, put_json, put_table
from a2c_smcp.computer.consent.freeze import FreezeState
from a2c_smcp.protocol.names import enumerated

_COLUMNS = ("frozen", "reason", "by", "since")


@dataclass(frozen=True, kw_only=True)
class FreezeTarget:
    """The target of a freeze or thaw: computers of this machine, or of offices of the Server."""

    name: Annotated[str | None, typer.Option(help="A computer of this machine, as its owner.", show_default=False)] = (
        None
    )
    office: Annotated[str | None, typer.Option(help="All computers of this office.", show_default=False)] = None
    computer: Annotated[
        str | None, typer.Option(help="This computer; its --office is found if it is there.", show_default=False)
    ] = None
    everything: Annotated[bool, typer.Option("--all", help="Every office of the Server.")] = False
    url: options.Url = options.DEFAULT_URL
    admin_key: AdminKey = field(default=None, repr=False)
    ca: options.CA = None

    def __post_init__(self) -> None:
        if "" in (self.name, self.office, self.computer):
            raise WrongUse("A name is empty", "Give one, or leave the option out.")
        if self.everything and (self.office or self.computer):
            raise WrongUse("--all does not go with --office or --computer", "Give either.")
        if self.name and not self.is_here:
            raise WrongUse("--name is of this machine, --office, --computer and --all are of a Server", "Give either.")

    @property
    def is_here(self) -> bool:
        return self.office is None and self.computer is None and not self.everything

    def client(self) -> AdminClient:
        return AdminClient(url=self.url, admin_key=self.admin_key, ca=self.ca)


@options.takes_options
def freeze(
    *,
    target: FreezeTarget,
    reason: Annotated[str, typer.Option(help="Why; agents and owners read it.", show_default=False)] = "",
    is_list: Annotated[bool, typer.Option("--list", help="Only show what is frozen on the Server.")] = False,
    as_json: options.AsJSON = False,
) -> None:
    """Stop everything: cancel what runs on computers and refuse every request to them, until `a2c-smcp thaw`.

    On this machine, as its owner: all of its computers, or --name. It counts within a second, also for
    those of them that do not run now.

    On a Server, as its operator: an office, a computer or all. It holds on all nodes, over restarts, and for computers
    that come back or join later. Nobody is disconnected. No time ends it. The Server needs --admin-key or
    --admin-keys-file.

    Examples:

    \b
    a2c-smcp freeze --reason "something is wrong here"
    a2c-smcp freeze --all --reason "looking into an incident"
    a2c-smcp freeze --office desk
    a2c-smcp freeze --computer laptop --office desk
    a2c-smcp freeze --list
    """
    if is_list:
        _show_list(target.client(), as_json=as_json)
    elif target.is_here:
        _change_here(target.name, FreezeState(True, reason, "command"), as_json=as_json)
    else:
        _change("freeze", target, as_json=as_json, reason=reason)


@options.takes_options
def thaw(*, target: FreezeTarget, as_json: options.AsJSON = False) -> None:
    """End a freeze. What was frozen apart stays so: `thaw --all` ends `freeze --all`, not that of an office.

    Calls that were cancelled do not go on. Without --office, --computer and --all it is the freeze of this machine.

    Examples:

    \b
    a2c-smcp thaw
    a2c-smcp thaw --all
    a2c-smcp thaw --office desk
    a2c-smcp thaw --computer laptop --office desk
    """
    if target.is_here:
        _change_here(target.name, FreezeState(where="command"), as_json=as_json)
    else:
        _change("thaw", target, as_json=as_json)


def _change_here(name: str | None, state: FreezeState, *, as_json: bool) -> None:
    names = set_freeze(name, state)
    if as_json:
        put_json({"frozen" if state.is_frozen else "thawed": names})
        return
    for computer in names:
        text = "is frozen, within a second if it runs" if state.is_frozen else "is thawed"
        Terminal().show(f"computer {computer!r} of this machine {text}")
    if not names:
        Terminal().show("no computer of this machine is frozen")


def _change(action: str, target: FreezeTarget, *, as_json: bool, **more: str) -> None:
    changed = run_with(_ask(target, action, more))
    if as_json:
        put_json(changed)
        return
    terminal, what = Terminal(), _name(changed["freeze"])
    if action == "freeze":
        count = plural(changed["computers"], "computer")
        nobody = "" if changed["computers"] else ": none is there now, and those that come are frozen"
        terminal.show(f"{what} is frozen, {count}{nobody}")
    else:
        terminal.show(f"{what} is thawed")
        for other in changed["still"]:
            terminal.show(f"still frozen: {_name(other)}", "yellow")
    for node in changed["missing"]:
        terminal.show(f"node {node['node']} has not confirmed that: {node['reason']}", "yellow")
    if changed["unkept"]:
        terminal.show(f"a restart of the Server ends what is frozen: {changed['unkept']}", "yellow")


async def _ask(target: FreezeTarget, action: str, more: Mapping[str, str]) -> dict[str, Any]:
    client, office = target.client(), target.office
    if target.computer and not office:
        office = await _office_of(client, action, target.computer)
    scope = {"office": office, "computer": target.computer} if office else {"all": True}
    return await client.ask("POST", action, body={**scope, **more})


async def _office_of(client: AdminClient, action: str, computer: str) -> str:
    """The only office that has this computer, or has it frozen. Raises `Failed`."""
    frozen = (await client.get("freezes"))["freezes"] if action == "thaw" else []
    there = (await client.pages("members", "members", role="computer", name=computer))["members"]
    offices = {row["office"] for row in [row for row in frozen if row["computer"] == computer] or there}
    if len(offices) == 1:
        return str(offices.pop())
    what = f"is in {enumerated(sorted(offices))}" if offices else "is in no office now"
    raise Failed(f"A computer {computer!r} {what}", f"Say which with --office, to {action} it there.")


def _show_list(client: AdminClient, *, as_json: bool) -> None:
    listed = run_with(client.get("freezes"))
    if as_json:
        put_json(listed)
    elif listed["freezes"]:
        rows = [(_name(row), row["reason"], row["by"], moment(row["since"])) for row in listed["freezes"]]
        put_table(_COLUMNS, rows)
    else:
        Terminal().show("nothing is frozen")


def _name(scope: Mapping[str, Any]) -> str:
    if scope["computer"]:
        return f"computer {scope['computer']!r} of office {scope['office']!r}"
    return f"office {scope['office']!r}" if scope["office"] else "the whole Server"
