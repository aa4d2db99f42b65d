"""Lines to paste at the other end, so that it knows this device: a key that is bound to it, or an entry of trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

from a2c_smcp.cli.suggestions import command_line
from a2c_smcp.errors import ConfigError

if TYPE_CHECKING:
    from a2c_smcp.cli.terminal import Terminal
    from a2c_smcp.devices.storage import DeviceRole

__all__ = ["key_line", "own_fingerprint", "pairing_lines", "trust_line"]


def own_fingerprint(terminal: Terminal) -> str | None:
    """The fingerprint of this computer, made on first use; `None` without the extra `devices`, or if none can be kept.

    It may have to wait for the keyring.
    """
    try:
        from a2c_smcp.devices.storage import IdentityStore
    except ModuleNotFoundError:
        return None
    try:
        return IdentityStore("computer").load_or_make().identity.fingerprint
    except ConfigError as error:
        terminal.show(f"this device cannot be paired: {error.about}", "yellow")
        return None


def key_line(role: DeviceRole, name: str, office: str, fingerprint: str) -> str:
    """For the operator of the Server: makes a key that only this device can use."""
    scope = ("--role", role, "--name", name, "--office", office)
    return command_line("key", "--principal", name, *scope, "--device", fingerprint)


def trust_line(role: DeviceRole, name: str, office: str, url: str, fingerprint: str) -> str:
    """For the other side of sealed calls: knows this device beforehand."""
    return command_line("device", "trust", fingerprint, role, name, "--office", office, "--url", url)


def pairing_lines(fingerprint: str, name: str, office: str, url: str, *, has_own_server: bool) -> list[str]:
    """How this computer is paired: with a Server that others run, and with agents."""
    key = key_line("computer", name, office, fingerprint)
    trust = trust_line("computer", name, office, url, fingerprint)
    return [
        *([] if has_own_server else [f"to bind its key to this device, at the Server:\n  {key}"]),
        f"to know this device beforehand, at the agent:\n  {trust}",
    ]
