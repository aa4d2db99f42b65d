"""`a2c-smcp bridge`: an office as an MCP server, for any MCP client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge import BridgeOptions
from a2c_smcp.bridge.catalog import CatalogOptions
from a2c_smcp.cli import logs, options
from a2c_smcp.cli.bridging.keys import BearerKeyChoice, ServerKey, kept_file
from a2c_smcp.cli.bridging.run import HTTPDoor, explain_with, run_bridge
from a2c_smcp.cli.errors import WrongUse, file_error
from a2c_smcp.cli.options import option
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.errors import NotPrivate
from a2c_smcp.http.loopback import is_loopback
from a2c_smcp.loops import run_program
from a2c_smcp.private_files import instance_of
from a2c_smcp.protocol.codec import MAX_TIMEOUT

__all__ = ["bridge"]


class OneForAll(StrEnum):
    """What --one-for-all takes."""

    auto = "auto"
    on = "on"
    off = "off"


def bridge(
    stdio: Annotated[bool, option(None, "--stdio", "Serve one client on stdin and stdout.")] = False,
    port: Annotated[
        int | None,
        option(None, "--port", "Serve streamable HTTP at /mcp on this port; 0 takes a free one.", min=0, max=65535),
    ] = None,
    host: Annotated[str, option(None, "--host", "Address to listen on.")] = "127.0.0.1",
    url: options.Url = options.DEFAULT_URL,
    office: options.Office = options.DEFAULT_OFFICE,
    name: Annotated[str, option(None, "--name", "Name of the bridge in the office; computers know it by this.")] = (
        "bridge"
    ),
    api_key: options.ApiKey = None,
    key_file: Annotated[
        Path | None, option("A2C_KEY_FILE", "--key-file", "File with the key for the Server, read at each connection.")
    ] = None,
    bearer_key: Annotated[
        str | None, option("A2C_BEARER_KEY", "--bearer-key", "Key that MCP clients must send over HTTP.")
    ] = None,
    bearer_key_file: Annotated[
        Path | None, option(None, "--bearer-key-file", "File with that key. Without either, one is made and kept.")
    ] = None,
    no_key: Annotated[
        bool, option(None, "--no-key", "Want no key of MCP clients; on a loopback address only.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        option(None, "--allow-host", "Another name that clients may know this machine by; repeat for more."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        option(None, "--allow-origin", "Web page that may use it, such as https://example.com; repeat for more."),
    ] = None,
    one_for_all: Annotated[
        OneForAll,
        option(None, "--one-for-all", "Offer equal tools of computers once; auto: of more than three computers."),
    ] = OneForAll.auto,
    search_above: Annotated[
        int | None, option(None, "--search-above", "With more tools than this, offer a search instead.", min=0)
    ] = None,
    timeout: Annotated[
        int, option(None, "--timeout", "How many seconds a tool may take or be silent.", min=1, max=MAX_TIMEOUT)
    ] = 600,
    e2e: options.E2EOption = options.E2E.off,
    ca: options.CA = None,
    cert: options.Cert = None,
    cert_key: options.CertKey = None,
    proxy: options.Proxy = None,
    log_level: options.LogLevelOption = logs.LogLevel.warning,
    log_json: options.LogJSON = False,
) -> None:
    """Serve an office as an MCP server: its computers' tools, resources and prompts, for any MCP client.

    With --stdio a client such as Claude Desktop or Cursor starts this program. With --port many clients share it. An
    office that cannot be joined is tried again, and clients are told why there are no tools. Calls are approved by the
    owners of the computers as for any agent.

    Examples:

    \b
    a2c-smcp bridge --office desk --stdio
    a2c-smcp bridge --office desk --stdio --url https://hub.example --key-file ~/.config/a2c/desk.key
    a2c-smcp bridge --office desk --port 7100
    a2c-smcp bridge --office desk --port 7100 --host 0.0.0.0 --allow-host tools.example
    a2c-smcp bridge --office desk --port 7100 --search-above 100
    """
    if stdio == (port is not None):
        raise WrongUse("a bridge serves either stdin and stdout or a port", "Give --stdio, or --port 7100.")
    options.check_names(name=name, office=office)
    _require_one({"--api-key": api_key, "--key-file": key_file})
    _require_one({"--bearer-key": bearer_key, "--bearer-key-file": bearer_key_file, "--no-key": no_key or None})
    hosts, origins = allow_host or (), allow_origin or ()
    _check_door(host, hosts, origins, no_key=no_key)
    place = options.endpoint(url).shown_url
    logs.set_up(log_level, as_json=log_json)
    terminal = Terminal()
    _warn(terminal, options.exposed(url, api_key or ("key" if key_file else None)), e2e)
    try:
        offered = CatalogOptions(one_for_all=one_for_all.value, search_above=search_above)
        chosen = BridgeOptions(catalog=offered, timeout=timeout, explain=explain_with(place, office, key_file))
        names, sessions = (kept_file(url, office, ending) for ending in ("json", "sessions"))
        chosen = replace(chosen, names_file=names, sessions_folder=sessions)
        door = None
        if port is not None:
            keys = BearerKeyChoice.of(bearer_key, bearer_key_file, none=no_key, kept=kept_file(url, office, "key"))
            door = HTTPDoor(host, port, keys, hosts, origins)
        with instance_of(f"bridge {name} in {office}", url) as instance:
            agent = AsyncSMCPAgentClient(
                name,
                url=url,
                office=[],
                auth=ServerKey(url=url, api_key=api_key, key_file=key_file),
                ssl=options.tls(ca, cert, cert_key),
                proxy=proxy,
                instance=instance,
                e2e=e2e.value,
            )
            run_program(run_bridge(agent, office, chosen, door, terminal))
    except NotPrivate as error:
        raise file_error(error) from None


def _warn(terminal: Terminal, exposed: tuple[str, str] | None, e2e: options.E2E) -> None:
    if exposed:
        terminal.show(". ".join(exposed), "yellow", event="key exposed")
    if e2e is not options.E2E.off:
        line = "calls are sealed between this bridge and the computers, and not between it and MCP clients"
        terminal.show(line, event="sealed")


def _require_one(given: Mapping[str, object]) -> None:
    """Raises `WrongUse` if more than one of these options is given."""
    flags = [flag for flag, value in given.items() if value is not None]
    if len(flags) > 1:
        raise WrongUse(f"{' and '.join(flags)} are both given", "Give one of them.")


def _check_door(host: str, hosts: Iterable[str], origins: Iterable[str], *, no_key: bool) -> None:
    """Raises `WrongUse` for options that do not go together, or can never be what a client sends."""
    if no_key and not is_loopback(host):
        raise WrongUse(
            f"--no-key with --host {host} would let anybody on the network use the computers",
            "Leave out --no-key, or listen on 127.0.0.1.",
        )
    for name in hosts:
        if not name or set(name) & set("/ @?#"):
            raise WrongUse(f"--allow-host: {name!r} is not the name of a host", "Give it without http:// and path.")
    for origin in origins:
        parts = urlsplit(origin)
        if not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
            raise WrongUse(f"--allow-origin: {origin!r} is not an origin", "It looks like https://example.com.")
