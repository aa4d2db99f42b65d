"""`a2c-smcp device`: the identity of this machine, and the devices that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from a2c_smcp.cli import options
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.terminal import Terminal, put_json, put_text
from a2c_smcp.errors import ConfigError
from a2c_smcp.types import Role

if TYPE_CHECKING:
    from a2c_smcp.devices.identity import KnownPeer, StoredIdentity


_HELP = """Show and change the identity of this machine, and the devices that it knows.

    Without a command it shows them, as `a2c-smcp device show` does.

    Examples:

    \b
    a2c-smcp device
    a2c-smcp device show --json
    """

device = typer.Typer(
    help=_HELP,
    rich_markup_mode="rich",
    invoke_without_command=True,
)


_Role = Annotated[Role, typer.Argument(metavar="computer|agent", help="What the other device is.")]
_Own = Annotated[Role, typer.Argument(metavar="computer|agent", help="Which identity of this machine.")]
_Name = Annotated[str, typer.Argument(help="Its name in the office.", show_default=False)]
_CANNOT = "Correct that, and try again."


@device.callback()
def _without_subcommand(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show()


@device.command()
def show(as_json: options.AsJSON = False) -> None:
    """Show the fingerprints of this machine, and the devices that it knows. It needs no Server.

    The identity of a computer and that of an agent are made on first use. Give a fingerprint to the operator of the
    Server, for `a2c-smcp key --device`, or to the other side of sealed calls, for `a2c-smcp device trust`.

    Examples:

    \b
    a2c-smcp device
    a2c-smcp device show --json
    """
    from a2c_smcp.devices.identity import ROLES, IdentityStore, KnownDevices

    try:
        own = {role: IdentityStore(role).load_or_make() for role in ROLES}
        known = list(KnownDevices())
    except ConfigError as error:
        raise Failed(error.message, _CANNOT) from None
    if as_json:
        devices = [_described(role, identity) for role, identity in own.items()]
        rows = [{**device.peer._asdict(), "fingerprint": device.fingerprint, "how": device.how} for device in known]
        put_json({"devices": devices, "known": rows})
        return
    for role, stored in own.items():
        put_text(f"{role}: {stored.identity.fingerprint}")
    for role, stored in own.items():
        place = f"the keyring ({stored.place})" if stored.kept == "keyring" else stored.place
        Terminal().show(f"{role}: kept in {place}; {stored.copying}")
    for device in known:
        put_text(f"knows {device.peer} as {device.fingerprint} ({device.how})")


@device.command()
def rotate(role: _Own, as_json: options.AsJSON = False) -> None:
    """Make a new identity of this machine, which the present one vouches for.

    Devices that know the present one accept the new one by themselves. A key that is bound to the present one does not
    work any more: bind another. If the present key may have been stolen, its word is worth nothing: let others forget
    it as well. Programs that are running keep the present one until they are started again.

    Examples:

    \b
    a2c-smcp device rotate computer
    """
    from a2c_smcp.devices.identity import IdentityStore

    try:
        stored = IdentityStore(role).rotate()
    except ConfigError as error:
        raise Failed(error.message, _CANNOT) from None
    if as_json:
        put_json(_described(role, stored))
        return
    put_text(f"{role}: {stored.identity.fingerprint}")
    Terminal().show("keys that were bound to the one before need a new entry: a2c-smcp key --device")


@device.command()
def trust(
    fingerprint: Annotated[str, typer.Argument(help="As `a2c-smcp device` shows it there.", show_default=False)],
    role: _Role,
    name: _Name,
    office: options.Office = options.DEFAULT_OFFICE,
    url: options.Url = options.DEFAULT_URL,
) -> None:
    """Know the device of a computer or an agent beforehand.

    From then on the member of this name, in this office of this Server, is that device and no other.

    Examples:

    \b
    a2c-smcp device trust "$FINGERPRINT" computer laptop --office desk --url https://hub.example
    """
    from a2c_smcp.devices.identity import KnownDevices
    from a2c_smcp.devices.transcript import is_fingerprint

    peer = _peer(role, name, office, url)
    if not is_fingerprint(fingerprint):
        raise WrongUse(f"{fingerprint!r} is no fingerprint", "Run `a2c-smcp device` there, and copy its 43 characters.")
    try:
        KnownDevices().trust(peer, fingerprint)
    except ConfigError as error:
        raise Failed(error.message, _CANNOT) from None
    Terminal().show(f"{peer} is known as {fingerprint}")


@device.command()
def forget(
    role: _Role, name: _Name, office: options.Office = options.DEFAULT_OFFICE, url: options.Url = options.DEFAULT_URL
) -> None:
    """Forget the device of a computer or an agent, so that another may take its place.

    Examples:

    \b
    a2c-smcp device forget computer laptop --office desk --url https://hub.example
    """
    from a2c_smcp.devices.identity import KnownDevices

    peer = _peer(role, name, office, url)
    try:
        was_known = KnownDevices().forget(peer)
    except ConfigError as error:
        raise Failed(error.message, _CANNOT) from None
    if not was_known:
        raise Failed(f"No device is known for {peer}", "a2c-smcp device shows those that are.")
    Terminal().show(f"{peer} is forgotten")


def _peer(role: Role, name: str, office: str, url: str) -> KnownPeer:
    from a2c_smcp.devices.identity import KnownPeer

    options.check_names(name=name, office=office)
    return KnownPeer(options.endpoint(url).origin, office, role, name)


def _described(role: str, stored: StoredIdentity) -> dict[str, Any]:
    return {
        "role": role,
        "fingerprint": stored.identity.fingerprint,
        "kept": stored.kept,
        "place": stored.place,
        "can_be_copied": True,
        "copying": stored.copying,
        "rotations": len(stored.was),
    }
