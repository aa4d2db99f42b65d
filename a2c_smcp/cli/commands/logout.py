"""`a2c-smcp logout`: end the sign-in to an MCP server."""

from __future__ import annotations

from typing import Any

from a2c_smcp.cli import logs, options
from a2c_smcp.cli.commands.login import AsJSON, Config, Inputs, ServerName, open_server
from a2c_smcp.cli.errors import Failed
from a2c_smcp.cli.progress import spinning
from a2c_smcp.cli.stopping import unless_stopped
from a2c_smcp.cli.terminal import Terminal, put_json, put_text
from a2c_smcp.loops import run_program

__all__ = ["logout"]


def logout(
    server: ServerName,
    config: Config = None,
    inputs: Inputs = None,
    as_json: AsJSON = False,
    log_level: options.LogLevelOption = logs.LogLevel.error,
) -> None:
    """End the sign-in to an MCP server: its tokens are forgotten here, and revoked where its provider can do that.

    A computer that is running notices it by itself. Exit codes: 0 nobody is signed in, 1 failed or stopped, 2 wrong
    use.

    Examples:

    \b
    a2c-smcp logout files
    a2c-smcp logout files --config servers.json --json
    """
    logs.set_up(log_level)
    terminal = Terminal()
    found: dict[str, Any] = {}

    async def work() -> None:
        async with open_server(server, config, inputs, terminal) as (computer, _):
            found["was_signed_in"] = await computer.is_signed_in(server)
            with spinning(terminal, f"signing out of {server}"):
                found["revoked"] = found["was_signed_in"] and await computer.sign_out(server)

    if run_program(unless_stopped(work(), terminal)):
        raise Failed(f"Stopped: {server} may still be signed in to", f"Try a2c-smcp logout {server} again.")
    if as_json:
        put_json({"server": server, "signed_in": False, **found})
    else:
        put_text(_outcome(server, **found))


def _outcome(server: str, *, was_signed_in: bool, revoked: bool) -> str:
    if not was_signed_in:
        return f"Nobody was signed in to {server}."
    if revoked:
        return f"Signed out of {server}: its tokens are revoked, and forgotten here."
    return (
        f"Signed out of {server}: its tokens are forgotten here. Its provider did not revoke them: they expire there."
    )
