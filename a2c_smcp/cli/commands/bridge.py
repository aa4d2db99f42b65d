"""`a2c-smcp bridge`: an office as an MCP server, for any MCP client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Annotated, Literal
from urllib.parse import urlsplit

from a2c_smcp.agent import AgentAuthProvider, AsyncSMCPAgentClient
from a2c_smcp.bridge import BridgeOptions
from a2c_smcp.bridge.catalog import CatalogOptions
from a2c_smcp.bridge.serving.through_server import ServerWay
from a2c_smcp.bridge.sharing import SharedBridge
from a2c_smcp.cli import options
from a2c_smcp.cli.bridging import (
    BearerKeyChoice,
    HTTPDoor,
    ServerKey,
    explain_with,
    kept_file,
    run_over_http,
    run_over_stdio,
)
from a2c_smcp.cli.errors import WrongUse, file_error
from a2c_smcp.cli.options import option
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.errors import NotPrivate
from a2c_smcp.files import default_folder, instance_of, private_folder
from a2c_smcp.loops import run_program
from a2c_smcp.protocol.codec import MAX_TIMEOUT
from a2c_smcp.web import is_loopback

_ONLY_HERE = ("name", "one_for_all", "search_above", "timeout", "withdraw_after", "e2e")
"""Options that a Server which serves MCP clients itself does not know of."""


@dataclass(frozen=True, kw_only=True)
class BridgeCommandOptions:
    """The options of `a2c-smcp bridge`."""

    stdio: Annotated[bool, option(None, "--stdio", "Serve one client on stdin and stdout.")] = False
    port: Annotated[
        int | None,
        option(None, "--port", "Serve streamable HTTP at /mcp on this port; 0 takes a free one.", min=0, max=65535),
    ] = None
    host: Annotated[str, option(None, "--host", "Address to listen on.")] = "127.0.0.1"
    url: options.Url = options.DEFAULT_URL
    office: options.Office = options.DEFAULT_OFFICE
    name: Annotated[str, option(None, "--name", "Name of the bridge in the office; computers know it by this.")] = (
        "bridge"
    )
    api_key: options.ApiKey = None
    key_file: Annotated[
        Path | None, option("A2C_KEY_FILE", "--key-file", "File with the key for the Server, read at each connection.")
    ] = None
    bearer_key: Annotated[
        str | None, option("A2C_BEARER_KEY", "--bearer-key", "Key that MCP clients must send over HTTP.")
    ] = None
    bearer_key_file: Annotated[
        Path | None, option(None, "--bearer-key-file", "File with that key. Without either, one is made and kept.")
    ] = None
    no_key: Annotated[bool, option(None, "--no-key", "Want no key of MCP clients; on a loopback address only.")] = False
    allow_host: Annotated[
        list[str] | None,
        option(None, "--allow-host", "Another name that clients may know this machine by; repeat for more."),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        option(None, "--allow-origin", "Web page that may use it, such as https://example.com; repeat for more."),
    ] = None
    one_for_all: Annotated[
        Literal["auto", "on", "off"],
        option(None, "--one-for-all", "Offer equal tools of computers once; auto: of more than three computers."),
    ] = "auto"
    search_above: Annotated[
        int | None, option(None, "--search-above", "With more tools than this, offer a search instead.", min=0)
    ] = None
    timeout: Annotated[
        int, option(None, "--timeout", "How many seconds a tool may take or be silent.", min=1, max=MAX_TIMEOUT)
    ] = 600
    withdraw_after: Annotated[int, option(None, "--withdraw-after", options.WITHDRAW_HELP, min=1)] = (
        options.WITHDRAW_AFTER
    )
    e2e: options.E2EOption = "off"
    link: options.LinkOptions
    log: options.LogOptions


@options.takes_options
def bridge(settings: BridgeCommandOptions) -> None:
    """Serve an office as an MCP server: its computers' tools, resources and prompts, for any MCP client.

    With --stdio a client such as Claude Desktop or Cursor starts this program, which goes through a Server that serves
    MCP clients itself (--mcp) unless it has options of its own, such as --name or --search-above. With --port many
    clients share it. An office that cannot be joined is tried again, and clients are told why there are no tools. Calls
    are approved by the owners of the computers as for any agent.

    Examples:

    \b
    a2c-smcp bridge --office desk --stdio
    a2c-smcp bridge --office desk --stdio --url https://hub.example --key-file ~/.config/a2c/desk.key
    a2c-smcp bridge --office desk --port 7100
    a2c-smcp bridge --office desk --port 7100 --host 0.0.0.0 --allow-host tools.example
    a2c-smcp bridge --office desk --port 7100 --search-above 100
    """
    if settings.stdio == (settings.port is not None):
        raise WrongUse("a bridge serves either stdin and stdout or a port", "Give --stdio, or --port 7100.")
    options.check_names(name=settings.name, office=settings.office)
    _require_one({"--api-key": settings.api_key, "--key-file": settings.key_file})
    keys = {"--bearer-key": settings.bearer_key, "--bearer-key-file": settings.bearer_key_file}
    _require_one({**keys, "--no-key": settings.no_key or None})
    _check_door(settings)
    shown_url = options.endpoint(settings.url).shown_url
    settings.log.set_up()
    terminal = Terminal()
    if warning := options.exposed(settings.url, settings.api_key or ("key" if settings.key_file else None)):
        terminal.show(". ".join(warning), "yellow", event="key exposed")
    if settings.e2e != "off":
        line = "calls are sealed between this bridge and the computers, and not between it and MCP clients"
        terminal.show(line, event="sealed")
    try:
        bridge_options = BridgeOptions(
            catalog=CatalogOptions(one_for_all=settings.one_for_all, search_above=settings.search_above),
            names_file=kept_file(settings.url, settings.office, "json"),
            timeout=settings.timeout,
            withdraw_after=settings.withdraw_after,
            explain=explain_with(shown_url, settings.office, settings.key_file),
        )
        door = None
        if settings.port is not None:
            kept = kept_file(settings.url, settings.office, "key")
            key, file = settings.bearer_key, settings.bearer_key_file
            bearer = BearerKeyChoice.of(key, file, none=settings.no_key, kept=kept)
            names = settings.allow_host or ()
            door = HTTPDoor(settings.host, settings.port, bearer, names, settings.allow_origin or ())
        agent = partial(_agent, settings, settings.link.tls())
        auth = ServerKey(url=settings.url, api_key=settings.api_key, key_file=settings.key_file)
        if door:
            with agent(auth) as client:
                run_program(run_over_http(client, settings.office, bridge_options, door, terminal))
        else:
            folder = private_folder(default_folder(), "bridge")
            private_folder(default_folder(), "instances")
            server = _server_way(settings)
            shared = SharedBridge(settings.office, bridge_options, agent, auth, _about(settings), folder, server)
            run_program(run_over_stdio(shared))
    except NotPrivate as error:
        raise file_error(error) from None


@contextmanager
def _agent(
    settings: BridgeCommandOptions, tls: SSLContext | None, auth: AgentAuthProvider
) -> Iterator[AsyncSMCPAgentClient]:
    with instance_of(f"bridge {settings.name} in {settings.office}", settings.url) as instance:
        yield AsyncSMCPAgentClient(
            settings.name,
            url=settings.url,
            office=[],
            auth=auth,
            ssl=tls,
            proxy=settings.link.proxy,
            instance=instance,
            e2e=settings.e2e,
        )


def _server_way(settings: BridgeCommandOptions) -> ServerWay | None:
    """The way through the Server; `None` if it could not honour an option, which was given for this bridge."""
    usual = {field.name: field.default for field in fields(settings)}
    if any(getattr(settings, name) != usual[name] for name in _ONLY_HERE):
        return None
    return ServerWay(settings.url, settings.office, settings.link.tls(), settings.link.proxy)


def _about(settings: BridgeCommandOptions) -> Sequence[str]:
    """The common identity of bridges that share one, beside the key."""
    link = settings.link
    files = [str(path and path.resolve()) for path in (link.ca, link.cert, link.cert_key)]
    return [settings.url, settings.office, settings.name, settings.e2e, str(link.proxy), *files]


def _require_one(values: Mapping[str, object]) -> None:
    """Raises `WrongUse` if more than one of these options is given."""
    flags = [flag for flag, value in values.items() if value is not None]
    if len(flags) > 1:
        raise WrongUse(f"{' and '.join(flags)} are both given", "Give one of them.")


def _check_door(settings: BridgeCommandOptions) -> None:
    """Raises `WrongUse` for options that do not go together, or can never be what a client sends."""
    if settings.no_key and not is_loopback(settings.host):
        raise WrongUse(
            f"--no-key with --host {settings.host} would let anybody on the network use the computers",
            "Leave out --no-key, or listen on 127.0.0.1.",
        )
    for name in settings.allow_host or ():
        if not name or set(name) & set("/ @?#"):
            raise WrongUse(f"--allow-host: {name!r} is not the name of a host", "Give it without http:// and path.")
    for origin in settings.allow_origin or ():
        parts = urlsplit(origin)
        if not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
            raise WrongUse(f"--allow-origin: {origin!r} is not an origin", "It looks like https://example.com.")
