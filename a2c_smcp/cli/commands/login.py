"""`a2c-smcp login`: sign in to an MCP server by OAuth, for the computers of this user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli import logs, options
from a2c_smcp.cli.errors import Failed, WrongUse, mcp_server_failure, server_names_hint, sign_in_failure
from a2c_smcp.cli.form import Questions
from a2c_smcp.cli.options import option
from a2c_smcp.cli.running import unless_stopped
from a2c_smcp.cli.setup_files import HOW_TO_MAKE_ONE, NAMES, find_setups, read_input_values, read_setups
from a2c_smcp.cli.sign_in import NoBrowser, SignInGuide
from a2c_smcp.cli.terminal import Terminal, put_json, put_text, read_line, spinning
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.loops import run_program
from a2c_smcp.mcp_host.config.servers import StdioConfig
from a2c_smcp.mcp_host.failures import SignInFailed

ServerName = Annotated[str, typer.Argument(metavar="SERVER", help="The MCP server, by its name in the file.")]
Config = Annotated[
    list[Path] | None,
    option(None, "--config", "File of MCP servers; repeat for more. Otherwise the one that up would use here."),
]
Inputs = Annotated[Path | None, option(None, "--inputs", "JSON object of values for inputs.")]


def login(
    server: ServerName,
    config: Config = None,
    inputs: Inputs = None,
    again: Annotated[bool, option(None, "--again", "Sign in anew, for instance with another account.")] = False,
    no_browser: NoBrowser = False,
    as_json: options.AsJSON = False,
    log_level: options.LogLevelOption = "error",
) -> None:
    """Sign in to an MCP server that wants it (OAuth).

    Opens the page to sign in on in your browser, $BROWSER if that is set. Without a browser here, for instance over
    ssh, the page is printed: open it anywhere, and paste the address that it ends at. The tokens stay on this machine,
    in the keyring or in a file that only you can read. A computer that is running notices it by itself. Exit codes: 0
    signed in, or no sign-in is needed, 1 failed or stopped, 2 wrong use.

    Examples:

    \b
    a2c-smcp login files
    a2c-smcp login files --config servers.json --no-browser
    a2c-smcp login files --again
    """
    logs.set_up(log_level)
    terminal = Terminal()
    result: dict[str, bool] = {}

    async def work() -> None:
        async with open_server(server, config, inputs, terminal) as (computer, questions):
            guide = SignInGuide(terminal, questions, no_browser=no_browser)
            result.update(await _sign_in(computer, server, guide, terminal, again=again))

    if run_program(unless_stopped(work(), terminal)):
        raise Failed(f"Stopped: nobody was signed in to {server}", f"a2c-smcp login {server} begins anew.")
    if as_json:
        put_json({"server": server, **result})
    elif not result["signed_in"]:
        put_text(f"{server} works without a sign-in.")
    else:
        put_text(f"Signed in to {server}{'' if result['is_new'] else ' already; --again signs in anew'}.")


async def _sign_in(
    computer: Computer, server: str, guide: SignInGuide, terminal: Terminal, *, again: bool
) -> dict[str, bool]:
    """Sign in if that is needed or wanted. Raises `Failed`."""
    if not again and not await _is_needed(computer, server, terminal):
        return {"signed_in": await computer.owner.is_signed_in(server), "is_new": False}
    terminal.show(f"signing in to {server}")
    try:
        await computer.sign_in(server, open_url=guide.open_url, paste_redirect=guide.paste_if_possible)
    except SignInFailed as failure:
        raise sign_in_failure(failure) from None
    return {"signed_in": True, "is_new": True}


async def _is_needed(computer: Computer, server: str, terminal: Terminal) -> bool:
    """True if the server wants a sign-in: it is started to find out. Raises `Failed`."""
    with spinning(terminal, f"asking {server} whether it wants a sign-in"):
        await computer.start(server)
    status = computer.status()[server]
    if status.state not in ("ready", "auth_required"):
        raise mcp_server_failure(status.reason or f"{server} is {status.state}", status.fault)
    return status.state == "auth_required"


@asynccontextmanager
async def open_server(
    server: str, config: list[Path] | None, inputs: Path | None, terminal: Terminal
) -> AsyncIterator[tuple[Computer, Questions]]:
    """A Computer with this one server, which is not started. Raises `WrongUse`, and `Failed` for errors inside."""
    files = config or find_setups(Path.cwd())[:1]
    known = _configuration(files)
    if server not in known.servers:
        what = f"There is no MCP server {server!r} in {', '.join(path.name for path in files)}"
        raise WrongUse(what, server_names_hint(server, [*known.servers]))
    if isinstance(known.servers[server], StdioConfig):
        raise WrongUse(
            f"{server} is a program on this machine, and takes no sign-in here",
            "If it needs a credential, give it one under env, such as ${input:token}.",
        )
    questions = Questions(terminal, _reader(terminal))
    callbacks: dict[str, Any] = {"prompt": questions.value, "approve_command": questions.command}
    values = read_input_values(inputs, files)
    computer = Computer(server, values=values, **(callbacks if terminal.can_ask else {}))
    computer.define_inputs(known.inputs.values())
    computer.add_server(known.servers[server])
    async with computer:
        try:
            yield computer, questions
        except SignInFailed as failure:
            raise sign_in_failure(failure) from None


def _configuration(files: list[Path]) -> Configuration:
    if not files:
        what = f"There is no {', '.join(NAMES[:-1])} or {NAMES[-1]} here"
        raise WrongUse(what, f"--config names a file of MCP servers. {HOW_TO_MAKE_ONE}")
    return read_setups(files)


def _reader(terminal: Terminal) -> Any:
    """Reads answers: with an editor on a terminal, so that a question can be withdrawn; elsewhere lines of stdin."""
    if not (terminal.can_ask and terminal.console):
        return _read_line_of_stdin
    from a2c_smcp.cli.prompt.prompt import answer_reader

    return answer_reader()


async def _read_line_of_stdin(text: str, hidden: bool) -> str:
    """Nothing can be hidden where there is no terminal, and nothing is echoed."""
    return await read_line(text, hidden=False)


# `a2c-smcp logout`: end the sign-in to an MCP server.


def logout(
    server: ServerName,
    config: Config = None,
    inputs: Inputs = None,
    as_json: options.AsJSON = False,
    log_level: options.LogLevelOption = "error",
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
    result: dict[str, bool] = {}

    async def work() -> None:
        async with open_server(server, config, inputs, terminal) as (computer, _):
            result["was_signed_in"] = await computer.owner.is_signed_in(server)
            with spinning(terminal, f"signing out of {server}"):
                result["revoked"] = result["was_signed_in"] and await computer.sign_out(server)

    if run_program(unless_stopped(work(), terminal)):
        raise Failed(f"Stopped: {server} may still be signed in to", f"Try a2c-smcp logout {server} again.")
    if as_json:
        put_json({"server": server, "signed_in": False, **result})
    elif not result["was_signed_in"]:
        put_text(f"Nobody was signed in to {server}.")
    elif result["revoked"]:
        put_text(f"Signed out of {server}: its tokens are revoked, and forgotten here.")
    else:
        tokens = "its tokens are forgotten here. Its provider did not revoke them: they expire there."
        put_text(f"Signed out of {server}: {tokens}")
