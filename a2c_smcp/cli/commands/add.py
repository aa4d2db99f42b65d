"""`a2c-smcp add`, `remove`, `list`, `update`: MCP servers of a configuration file, installed once and pinned.

The prompt of a computer reads its lines with the same options (`read_change`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from a2c_smcp.cli import logs, options
from a2c_smcp.cli.errors import Failed, WrongUse, file_error
from a2c_smcp.cli.options import option
from a2c_smcp.cli.setup_files import find_setups
from a2c_smcp.cli.terminal import Conversations, Terminal, printable, put_json, put_table, put_text, spinning, yes_or_no
from a2c_smcp.computer.configuration import additions
from a2c_smcp.computer.configuration.additions import Dialog, Wanted
from a2c_smcp.computer.configuration.packages import NotDone
from a2c_smcp.computer.configuration.target import ServersFile
from a2c_smcp.computer.configuration.watch import ConfigurationChanges
from a2c_smcp.errors import ConfigError
from a2c_smcp.loops import run_program
from a2c_smcp.mcp_host.config.servers import MCPServerConfig

_NEW_FILE = "a2c.json"

NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the MCP server.", show_default=False)]
Config = Annotated[
    Path | None,
    option(None, "--config", "The file of MCP servers.", show_default="a2c.json or mcp.json here, as `up` finds it"),
]
Scripts = Annotated[bool, option(None, "--install-scripts", "Let packages run code while they are installed.")]
Yes = Annotated[bool, option(None, "--yes", "Do it without a question.")]


class ServersChange(NamedTuple):
    """A line that changes the servers of a file. `make` shows it, asks, and returns what was done."""

    name: str
    config: Path | None
    yes: bool
    make: Callable[[ServersFile, Dialog], Awaitable[str]]
    typed: Mapping[str, Any] = {}
    """A configuration of what may hold secrets."""


class TerminalDialog:
    """Shows and asks on the terminal. `files` are those of a computer that runs."""

    def __init__(
        self,
        conversations: Conversations,
        show: Callable[[str, str], None],
        working: Callable[[str], AbstractContextManager[object]],
        *,
        yes: bool,
        can_ask: bool = True,
        files: ConfigurationChanges | None = None,
    ) -> None:
        self._conversations, self._show, self._yes, self._can_ask = conversations, show, yes, can_ask
        self.working, self._files = working, files

    def show(self, line: str, style: str = "", facts: Mapping[str, str] | None = None) -> None:
        self._show(printable(f"  {line}" if facts is None else line), style)
        for what, text in (facts or {}).items():
            if text:
                self.show(f"{what + ':':<11}{text}")

    async def written(self, name: str, config: MCPServerConfig | None) -> None:
        if self._files:
            await self._files.agreed(name, config)

    async def agrees(self, question: str, *, is_risk: bool = False) -> bool:
        if self._yes or not self._can_ask:
            if not (self._yes or is_risk):
                what = "There is no terminal to ask on, and nothing was done"
                raise NotDone(what, "--yes does it without a question.", is_wrong=True)
            return not is_risk
        return bool(await self._conversations.ask(f"{question} [y/N]: ", yes_or_no))


def _carried_out(read: Callable[..., ServersChange]) -> Callable[..., None]:
    """Make the command of a function that reads its options."""

    @wraps(read)
    def run(**values: Any) -> None:
        logs.set_up("error")
        change, terminal = read(**values), Terminal()
        file = _file(change.config)
        working = partial(spinning, terminal)
        dialog = TerminalDialog(
            Conversations(terminal), terminal.show, working, yes=change.yes, can_ask=terminal.can_ask
        )

        async def made() -> str:
            return await change.make(file, dialog)

        try:
            done = run_program(made())
        except NotDone as error:
            raise (WrongUse if error.is_wrong else Failed)(printable(error.what), error.remedy) from None
        put_text(done)

    return run


def _file(config: Path | None) -> ServersFile:
    path = config or next(iter(find_setups(Path.cwd())), Path(_NEW_FILE))
    if config is not None and not path.expanduser().parent.is_dir():
        raise WrongUse(f"--config: there is no folder {path.parent}", "Make it, or name another file.")
    try:
        return ServersFile.read(path)
    except ConfigError as error:
        raise file_error(error) from None


@dataclass(frozen=True, kw_only=True)
class AddOptions:
    """The fields of `Wanted`."""

    name: NewName
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- npx|uvx PACKAGE ARGS…", help="The line that starts it.", show_default=False),
    ] = None
    url: Annotated[str | None, option(None, "--url", "An MCP server that is reached over HTTP.")] = None
    from_config: Annotated[
        bool, option(None, "--from-config", "Install what an entry starts with npx or uvx until now.")
    ] = False
    env: Annotated[list[str] | None, option(None, "--env", "NAME=VALUE for its environment; repeat.")] = None
    scripts: Scripts = False
    unchecked: Annotated[bool, option(None, "--no-start", "Add it without a first start.")] = False
    read: Annotated[list[Path] | None, option(None, "--read", "File or folder that it may read; repeat for more.")] = (
        None
    )
    write: Annotated[
        list[Path] | None, option(None, "--write", "File or folder that it may change; repeat for more.")
    ] = None
    network: Annotated[str, option(None, "--network", "none, all, or TCP ports such as 443,80.")] = "none"
    no_sandbox: Annotated[bool, option(None, "--no-sandbox", "Run it with all your rights.")] = False


@options.takes_options
def _add(added: AddOptions, config: Config = None, yes: Yes = False) -> ServersChange:
    """Add an MCP server: from npm, from PyPI, or at a URL.

    The exact version of a package is installed into a folder of that server, with the checksums that its registry
    states. It is started from there: nothing is downloaded at a start, and nothing changes until `update`. On Linux it
    runs in a sandbox: it reads its own package, writes to its own data folder ({data} in arguments and --env), and has
    no network, unless you allow more. It is shown, and you are asked, before anything is installed.

    Examples:

    \b
    a2c-smcp add everything -- npx -y @modelcontextprotocol/server-everything
    a2c-smcp add notes --write ~/notes -- npx -y @modelcontextprotocol/server-filesystem ~/notes
    a2c-smcp add time --yes -- uvx mcp-server-time --local-timezone Europe/Berlin
    a2c-smcp add web --network 443,80 -- uvx mcp-server-fetch
    a2c-smcp add tracker --url https://tracker.example/mcp
    a2c-smcp add files --from-config
    """
    wanted = Wanted(**{key: value for key, value in vars(added).items() if value is not None})
    return ServersChange(wanted.name, config, yes, partial(additions.add, wanted), wanted.typed())


@options.takes_options
def _update(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An installed MCP server; without it, all.", show_default=False)
    ] = None,
    to: Annotated[str | None, option(None, "--to", "This version, instead of the newest one.")] = None,
    config: Config = None,
    scripts: Scripts = False,
    yes: Yes = False,
) -> ServersChange:
    """Update installed MCP servers: shows what changes, and asks.

    The version, the publisher and, after a first start of the new version, the tools are compared with those of now.
    The version of before stays in its folder until the next update. Options of the entry and its data stay.

    Examples:

    \b
    a2c-smcp update
    a2c-smcp update notes
    a2c-smcp update notes --to 2026.8.31 --yes
    """
    return ServersChange(name or "", config, yes, partial(additions.update, name, to=to, scripts=scripts))


@options.takes_options
def _remove(
    name: NewName,
    config: Config = None,
    data: Annotated[bool, option(None, "--data", "Remove what it has stored in its data folder, too.")] = False,
    yes: Yes = False,
) -> ServersChange:
    """Remove an MCP server from its file, and what `add` installed for it.

    Its data folder stays, unless it is empty or --data says otherwise.

    Examples:

    \b
    a2c-smcp remove notes
    a2c-smcp remove notes --data --yes
    """
    return ServersChange(name, config, yes, partial(additions.remove, name, data=data))


add, update, remove = _carried_out(_add), _carried_out(_update), _carried_out(_remove)


def read_change(verb: str, words: Sequence[str]) -> ServersChange:
    """Read a line of the prompt. Raises the error of Typer for a wrong one."""
    line = typer.Typer(add_completion=False, context_settings={"help_option_names": []})
    line.command()({"add": _add, "update": _update, "remove": _remove}[verb])
    change: ServersChange = typer.main.get_command(line).main([*words], prog_name=f"mcp {verb}", standalone_mode=False)
    return change


def list_(config: Config = None, as_json: options.AsJSON = False) -> None:
    """List the MCP servers of a file: their packages with versions, and their sandboxes.

    Examples:

    \b
    a2c-smcp list
    a2c-smcp list --config servers.json --json
    """
    file = _file(config)
    rows = [additions.row_of(name, entry) for name, entry in file.servers.items()]
    if as_json:
        put_json({"file": str(file.path), "servers": rows})
        return
    if not rows:
        remedy = (
            "Add one: a2c-smcp add NAME -- npx -y PACKAGE ARGS…, add NAME -- uvx PACKAGE ARGS…, add NAME --url URL."
        )
        raise Failed(f"There are no MCP servers in {file.path}", remedy)
    columns = ("name", "package", "version", "from", "sandbox")
    put_table(
        [each.upper() for each in columns], ([str(row[each] or "") for each in columns] for row in rows), cut="PACKAGE"
    )
