"""`a2c-smcp connect`: write the bridge into the configuration of an MCP client, or take it out again."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from a2c_smcp.cli import options
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.options import option
from a2c_smcp.cli.program_file import ClientFile, KeyFile, client_names, find_key_file
from a2c_smcp.cli.serving.mounts import mcp_url
from a2c_smcp.cli.suggestions import invocation_for_programs
from a2c_smcp.cli.terminal import Terminal, put_diff, put_json, put_text
from a2c_smcp.computer.configuration.programs import CLIENTS, Machine, Program
from a2c_smcp.computer.configuration.toml_tables import with_table
from a2c_smcp.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_DEFAULT = 32
_BRIDGE = ("bridge", "--stdio")
_KEYS = ("--api-key", "--bearer-key")
_PLACE = ("--url", "--office")
_SHARED = (*_PLACE, "--key-file", "--name", "--e2e", "--ca", "--cert", "--cert-key", "--proxy")
"""Options that are equal in bridges that share a seat."""
_NO_KEY = "Put it into a file that only you can read, and name that with --key-file."
_OTHER = "Name another file with --config, or write it yourself: --print shows the entry."
_TYPED = ("claude-code", "cursor", "vscode")
"""Clients whose entries name the transport."""
_VARIABLE = "A2C_API_KEY"
_OVER_HTTP: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "claude-code": ({"type": "http"}, "url", {"headers": {"Authorization": f"Bearer ${{{_VARIABLE}}}"}}),
    "cursor": ({}, "url", {"headers": {"Authorization": f"Bearer ${{env:{_VARIABLE}}}"}}),
    "vscode": ({"type": "http"}, "url", {"headers": {"Authorization": f"Bearer ${{env:{_VARIABLE}}}"}}),
    "codex": ({}, "url", {"bearer_token_env_var": _VARIABLE}),
    "gemini": ({}, "httpUrl", {"headers": {"Authorization": f"Bearer ${{{_VARIABLE}}}"}}),
    "opencode": (
        {"type": "remote"}, "url", {"oauth": False, "headers": {"Authorization": f"Bearer {{env:{_VARIABLE}}}"}}
    ),
}  # fmt: skip
"""Of each client that takes a URL: what it begins with, the name of the URL, and how it takes a key."""
_LIMITS = {
    **dict.fromkeys(CLIENTS, "its file has no setting for it"),
    "claude-code": "the environment variable MCP_TOOL_TIMEOUT, in milliseconds",
    "codex": "`tool_timeout_sec` of the server, in seconds",
    "gemini": "`timeout` of the server, in milliseconds",
    "opencode": "`timeout` of the server, in milliseconds",
}
"""The limit of each client for a call, which counts the time in which an owner thinks."""
_NEXT = {
    "claude-desktop": "quit Claude Desktop and start it again; the tools are in the menu of its input field",
    "claude-code": "start Claude Code again; `claude mcp list` and /mcp show the server",
    "cursor": "Cursor shows the server under Settings, MCP; switch it on there if it is off",
    "vscode": "in VS Code, the command `MCP: List Servers` starts the server and shows it",
    "codex": "start Codex again; `codex mcp list` and /mcp show the server",
    "gemini": "start Gemini CLI again; `gemini mcp list` and /mcp show the server",
    "opencode": "start opencode again; `opencode mcp list` shows the server",
}


@options.takes_options
def connect(
    client: Annotated[
        str | None,
        typer.Argument(
            metavar="CLIENT", help=f"{', '.join(CLIENTS)}.", show_default=False, autocompletion=client_names
        ),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- BRIDGE-OPTIONS", help="Further options of a2c-smcp bridge.", show_default=False),
    ] = None,
    write: Annotated[bool, option(None, "--write", "Do it. Otherwise only what would change is shown.")] = False,
    undo: Annotated[bool, option(None, "--undo", "Take the bridge out again.")] = False,
    print_: Annotated[bool, option(None, "--print", "Only print the entry, for any client.")] = False,
    http: Annotated[
        bool, option(None, "--http", "Write the URL of the office at its Server instead, for a Server with --mcp.")
    ] = False,
    url: options.Url = options.DEFAULT_URL,
    office: options.Office = options.DEFAULT_OFFICE,
    name: Annotated[
        str | None, option(None, "--name", "Name of the server in the client.", show_default="a2c-OFFICE")
    ] = None,
    key_file: Annotated[
        Path | None,
        option(
            "A2C_KEY_FILE",
            "--key-file",
            "File with the key for the Server; made from --api-key if it is missing.",
            show_default="that of the `a2c-smcp up` at this URL",
        ),
    ] = None,
    api_key: options.ApiKey = None,
    config: Annotated[
        Path | None,
        option(None, "--config", "The client's file.", show_default="the one for all projects of this user"),
    ] = None,
    as_json: options.AsJSON = False,
) -> None:
    """Let Claude, Codex, Cursor, Gemini CLI, opencode or VS Code use the tools of an office.

    Shows what would change in the client's configuration; --write changes it and keeps a backup, --undo takes the
    bridge out again. Everything else in the file stays as it is. The key is not written there, but the name of a file
    that only you can read; with --http, the name of an environment variable.

    Examples:

    \b
    a2c-smcp connect claude-code
    a2c-smcp connect claude-desktop --write
    a2c-smcp connect cursor --url https://hub.example:7000 --office lab --key-file ~/lab.key --write
    a2c-smcp connect vscode --config .vscode/mcp.json --write
    a2c-smcp connect cursor --write -- --search-above 40
    a2c-smcp connect codex --http --url https://hub.example --office lab --write
    a2c-smcp connect claude-desktop --undo --write
    a2c-smcp connect --print
    """
    if client and client.startswith("-"):
        more, client = [client, *(more or [])], None
    terminal, server = Terminal(), _server_name(name, office)
    if undo:
        _carry_out(_undone(_file(client, config), server), terminal, write=write, as_json=as_json)
        return
    options.check_names(name=server, office=office)
    _check_bridge_options(more)
    keys = find_key_file(key_file, api_key, url=url, server=server)
    place = _checked_url(url, keys, terminal)
    make = _http_entry if http else _entry
    entry = make(client, place, office, keys, more)
    if print_:
        _print_entry(CLIENTS[client if client in CLIENTS else "claude-desktop"], server, entry)
        return
    change = _added(_file(client, config), server, entry)
    if write and keys and not http:
        keys.write()
    _warn_of_others(change, entry, terminal)
    _carry_out(change, terminal, write=write, as_json=as_json)


def _print_entry(program: Program, server: str, entry: Mapping[str, Any]) -> None:
    if program.user_file(Machine.here()).suffix == ".toml":
        put_text(with_table("", (program.group, server), entry).rstrip())
    else:
        put_json({program.group: {server: entry}})


def _server_name(name: str | None, office: str) -> str:
    """Clients put it in front of the names of tools, so it has to be of letters that model providers accept."""
    if name is None:
        return f"a2c-{_NOT_IN_A_NAME.sub('-', office).strip('-') or 'office'}"[:_LONGEST_DEFAULT]
    if not _NAME.fullmatch(name):
        raise WrongUse(f"--name: {name!r} is not a name that clients accept", "Use letters, digits, - and _.")
    return name


def _check_bridge_options(more: Sequence[str] | None) -> None:
    """Raises `WrongUse`: in a client, a wrong option would only be a server that does not start."""
    if not more:
        return
    if key := next((word for word in more if word.partition("=")[0] in _KEYS), None):
        raise WrongUse(f"{key.partition('=')[0]} would write a key into the client's file", _NO_KEY)
    from a2c_smcp.cli.commands.bridge import bridge

    app = typer.Typer(add_completion=False)
    app.command("bridge")(bridge)
    typer.main.get_command(app).make_context("a2c-smcp bridge", [_BRIDGE[1], *more])


def _file(client: str | None, config: Path | None) -> ClientFile:
    if client not in CLIENTS:
        what = f"{client!r} is not a client that is known" if client else "Which client?"
        raise WrongUse(what, f"Name one of {', '.join(CLIENTS)}; --print shows the entry for any other.")
    program = CLIENTS[client]
    path = config.expanduser() if config else program.user_file(Machine.here())
    try:
        return ClientFile.read(path, program)
    except ConfigError as error:
        raise Failed(error.about, _OTHER) from None


def _entry(
    client: str | None, url: str, office: str, keys: KeyFile | None, more: Sequence[str] | None
) -> dict[str, Any]:
    command, *start = invocation_for_programs()
    key = ["--key-file", str(keys.path)] if keys else []
    args = [*start, *_BRIDGE, "--url", url, "--office", office, *key, *(more or ())]
    if client == "opencode":
        return {"type": "local", "command": [command, *args], "enabled": True}
    entry = {"command": command, "args": args}
    return {"type": "stdio", **entry} if client in _TYPED else entry


def _http_entry(
    client: str | None, url: str, office: str, keys: KeyFile | None, more: Sequence[str] | None
) -> dict[str, Any]:
    """The entry with the URL of an office. Without a key, the client has to sign in. Raises `WrongUse`."""
    if client not in _OVER_HTTP:
        what = f"{client} takes no URL in its file" if client else "Which client? Each writes URLs in its own way"
        raise WrongUse(what, f"Name one of {', '.join(_OVER_HTTP)}, or leave out --http.")
    if more:
        raise WrongUse("With --http there is no bridge that could have options", "Leave out --http, or the options.")
    begin, name, key = _OVER_HTTP[client]
    return {**begin, name: mcp_url(url.rstrip("/"), office), **(key if keys else {})}


def _warn_of_others(change: _FileChange, entry: Mapping[str, Any], terminal: Terminal) -> None:
    """Warn of other clients of this user with a bridge to the same office that will not share a seat with this one."""
    if not (args := _args(entry)):
        return
    for program in CLIENTS.values():
        path, bridges = _bridges_of(program)
        here = [other for other in bridges if _values(other, _PLACE) == _values(args, _PLACE)]
        shares = sys.platform != "win32" and all(_values(other, _SHARED) == _values(args, _SHARED) for other in here)
        if here and not shares and path != change.before.path:
            terminal.show(
                f"{program.title} has a bridge to this office too, with another key or other options, and only one "
                "of the two can use it at a time: `a2c-smcp bridge --port 7100` is for several clients",
                "yellow",
            )


def _bridges_of(program: Program) -> tuple[Path, list[list[Any]]]:
    """The file of a client of this user, and the commands of the bridges in it."""
    path = program.user_file(Machine.here())
    try:
        servers = ClientFile.read(path, program).servers
    except ConfigError:
        return path, []
    return path, [args for server in servers.values() if (args := _args(server))]


def _values(args: Sequence[Any], options: Sequence[str]) -> list[Any]:
    return [args[args.index(word) + 1 :][:1] for word in options if word in args]


def _args(entry: Any) -> list[Any] | None:
    """The words of the command of a bridge; `None` for another server."""
    words = (entry.get("args"), entry.get("command")) if isinstance(entry, Mapping) else ()
    return next((found for found in words if isinstance(found, list) and all(word in found for word in _BRIDGE)), None)


def _is_bridge(entry: Any) -> bool:
    """True for a bridge, and for the URL of an office at a Server."""
    urls = [entry.get("url"), entry.get("httpUrl")] if isinstance(entry, Mapping) else []
    return _args(entry) is not None or any(isinstance(url, str) and "/mcp/" in url for url in urls)


def _checked_url(url: str, keys: KeyFile | None, terminal: Terminal) -> str:
    """The URL as the bridge needs it. Warns of a key that others could read. Raises `WrongUse`."""
    if urlsplit(url).username or urlsplit(url).password:
        raise WrongUse("--url has a user or a password, which would be written into the client's file", _NO_KEY)
    options.endpoint(url)
    if keys and (warning := options.exposed(url, str(keys.path))):
        terminal.show(". ".join(warning), "yellow")
    if keys and keys.warning:
        terminal.show(keys.warning, "yellow")
    return keys.url or url if keys else url


class _FileChange(NamedTuple):
    """A change of a client's file, and the server in it that is added or taken out."""

    before: ClientFile
    after: ClientFile
    server: str

    @property
    def is_empty(self) -> bool:
        return self.before.text == self.after.text


def _added(before: ClientFile, server: str, entry: Mapping[str, Any]) -> _FileChange:
    known = before.servers.get(server)
    if known == entry:
        return _FileChange(before, before, server)
    if known is not None and _is_bridge(known):
        what = f"{before.path} has a bridge named {server!r} already, with other options"
        raise Failed(what, "Take that one out with --undo --write, or choose another name with --name.")
    if known is not None:
        raise Failed(f"{before.path} has another server named {server!r}", "Choose another name with --name.")
    try:
        return _FileChange(before, before.with_server(server, entry), server)
    except ConfigError as error:
        raise Failed(f"{before.path}: {error.about}", _OTHER) from None


def _undone(before: ClientFile, server: str) -> _FileChange:
    known = before.servers.get(server)
    if known is None:
        bridges = [name for name, entry in before.servers.items() if _is_bridge(entry)]
        remedy = f"Its bridges are {', '.join(bridges)}: --name names one." if bridges else "There is nothing to undo."
        raise Failed(f"{before.path} has no server named {server!r}", remedy)
    if not _is_bridge(known):
        raise Failed(f"{server!r} in {before.path} is not a bridge", "--name names the one that is.")
    try:
        return _FileChange(before, before.without_server(server), server)
    except ConfigError as error:
        raise Failed(f"{before.path}: {error.about}", "Take it out by hand.") from None


def _carry_out(change: _FileChange, terminal: Terminal, *, write: bool, as_json: bool) -> None:
    is_written = write and not change.is_empty
    if is_written:
        try:
            change.after.write(change.before)
        except ConfigError as error:
            raise Failed(error.about, "Try again, or name another file with --config.") from None
    diff = change.before.difference(change.after, change.server)
    if as_json:
        put_json({**_for_programs(change, is_written), "diff": diff})
        return
    put_diff(diff)
    for line in _summary(change, is_written):
        terminal.show(line)


def _for_programs(change: _FileChange, is_written: bool) -> dict[str, Any]:
    return {
        "client": change.before.program.name,
        "file": str(change.before.path),
        "server": change.server,
        "entry": change.after.servers.get(change.server),
        "written": is_written,
        "backup": str(change.before.backup) if is_written and change.before.text is not None else None,
    }


def _summary(change: _FileChange, is_written: bool) -> Iterator[str]:
    path = change.before.path
    if change.is_empty:
        yield f"{change.server} is in {path} already, as it would be written"
    elif not is_written:
        yield "nothing is written yet: --write does it"
    else:
        done = "removed: it was made for this" if change.after.text is None else "written"
        kept = "" if change.before.text is None else f"; what it was is in {change.before.backup.name}"
        yield f"{path} is {done}{kept}"
        if change.server in change.after.servers:
            name = change.before.program.name
            yield f"next: {_NEXT[name]}"
            if _VARIABLE in str(change.after.servers[change.server]):
                yield f"the client sends the key that it finds in the environment variable {_VARIABLE}"
            yield f"how long a call may wait for its owner, {change.before.program.title} says: {_LIMITS[name]}"
