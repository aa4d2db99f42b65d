"""What MCP servers of computers offer to read, as tables or JSON: the servers themselves, resources and prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import typer

from a2c_smcp.cli.agent.run import OfficeContext
from a2c_smcp.cli.errors import Failed, server_names_hint
from a2c_smcp.cli.terminal import first_sentence, put_json, put_table
from a2c_smcp.errors import (
    BadRequest,
    CapabilityNotSupported,
    ComputerNotFound,
    NotFound,
    ServerNotFound,
    ServerNotRegistered,
    SMCPError,
)

__all__ = [
    "ListingTable",
    "argument_names",
    "required_arguments",
    "show_listings",
    "show_prompts",
    "show_resources",
    "show_servers",
    "with_server_hints",
]

_UNITS = ("B", "kB", "MB", "GB")
_STEP = 1000


class Listing(NamedTuple):
    """A list of one computer or MCP server, or why there is none."""

    owner: str
    entries: Sequence[Mapping[str, Any]] = ()
    error: SMCPError | None = None


class ListingTable(NamedTuple):
    """How a list is shown: what its entries are called, its columns, the last of which may be cut, and a row."""

    what: str
    columns: Sequence[str]
    row: Callable[[Mapping[str, Any]], tuple[str, ...]]


Fetch: TypeAlias = Callable[[str], Awaitable[Sequence[Mapping[str, Any]]]]
"""Asks a computer for its list."""


async def show_listings(
    context: OfficeContext, fetch: Fetch, table: ListingTable, *, computer: str | None, as_json: bool
) -> None:
    """Show the list of one computer, or those of all. Exits with 1, after the list, if a computer gave none."""
    if computer:
        listings = [Listing(computer, await fetch(computer))]
    else:
        listings = await asyncio.gather(*(_listing_or_error(fetch, each) for each in await context.computers()))
    found = [{"computer": each.owner, **entry} for each in listings for entry in each.entries]
    if as_json:
        put_json(found)
    elif found:
        put_table(table.columns, map(table.row, found), cut=table.columns[-1])
    else:
        context.terminal.show(f"no {table.what} {f'on {computer}' if computer else f'in office {context.office}'}")
    _finish(context, listings)


async def _listing_or_error(fetch: Fetch, computer: str) -> Listing:
    """A computer that leaves meanwhile has an empty list."""
    try:
        return Listing(computer, await fetch(computer))
    except ComputerNotFound:
        return Listing(computer)
    except SMCPError as error:
        return Listing(computer, error=error)


def _finish(context: OfficeContext, listings: Sequence[Listing]) -> None:
    """Say which lists are missing, and exit with 1 if there are any."""
    failed = [(each.owner, each.error) for each in listings if each.error]
    for owner, error in failed:
        context.terminal.show(f"{owner} gave no list: {error.message}", "red")
    if failed:
        raise typer.Exit(1)


async def show_servers(context: OfficeContext, *, computer: str | None, as_json: bool) -> None:
    """List the MCP servers of one computer or of all."""
    await show_listings(context, context.agent.get_servers, _SERVERS, computer=computer, as_json=as_json)


def _server_row(server: Mapping[str, Any]) -> tuple[str, ...]:
    known = {field: str(server.get(field) or "") for field in ("name", "computer", "state", "title", "version")}
    capabilities = server.get("capabilities")
    offers = ", ".join(capabilities) if isinstance(capabilities, Mapping) else ""
    return (*known.values(), offers, first_sentence(str(server.get("instructions") or "")))


_SERVERS = ListingTable(
    "MCP servers", ("server", "computer", "state", "title", "version", "offers", "instructions"), _server_row
)


async def show_resources(
    context: OfficeContext, *, computer: str, server: str | None, templates: bool, as_json: bool
) -> None:
    """List the resources of one MCP server, or of all that have some; or their templates."""
    listings = await _listings_of(context, computer, server, templates=templates)
    found = [{"mcp_server": each.owner, **entry} for each in listings for entry in each.entries]
    if as_json:
        put_json(found)
    elif found:
        columns = ("template" if templates else "resource", *_RESOURCE_COLUMNS)
        put_table(columns, map(_resource_row, found), cut="description")
    else:
        context.terminal.show(_none_of("templates of resources" if templates else "resources", computer, server))
    _finish(context, listings)


def _none_of(what: str, computer: str, server: str | None) -> str:
    return f"{server} on {computer} has no {what}" if server else f"no MCP server on {computer} has {what}"


async def _listings_of(context: OfficeContext, computer: str, server: str | None, *, templates: bool) -> list[Listing]:
    if server is None:
        names = await _names_of_servers(context, computer)
        return await asyncio.gather(*(_listing_of(context, computer, name, templates=templates) for name in names))
    async with with_server_hints(context, computer, server):
        return [Listing(server, await _resources_of(context, computer, server, templates=templates))]


async def _listing_of(context: OfficeContext, computer: str, server: str, *, templates: bool) -> Listing:
    """A server that has no resources, or has just been stopped, has an empty list."""
    try:
        return Listing(server, await _resources_of(context, computer, server, templates=templates))
    except ComputerNotFound:
        raise
    except (NotFound, CapabilityNotSupported):
        return Listing(server)
    except SMCPError as error:
        return Listing(server, error=error)


async def _resources_of(context: OfficeContext, computer: str, server: str, *, templates: bool) -> list[dict[str, Any]]:
    if templates:
        found = await context.agent.get_resource_templates(computer, server)
        return list(found["resourceTemplates"])
    return list((await context.agent.get_resources(computer, server))["resources"])


_RESOURCE_COLUMNS = ("server", "name", "type", "size", "description")


def _resource_row(resource: Mapping[str, Any]) -> tuple[str, ...]:
    uri, name = (str(resource.get(key) or "") for key in ("uri", "name"))
    uri = uri or str(resource.get("uriTemplate") or "")
    title, kind = resource.get("title"), resource.get("mimeType")
    summary = first_sentence(str(resource.get("description") or ""))
    return uri, resource["mcp_server"], str(title or name), str(kind or ""), _size_in(resource), summary


def _size_in(resource: Mapping[str, Any]) -> str:
    size = resource.get("size")
    if type(size) is not int or size < 0:
        return ""
    number, unit = float(size), 0
    while number >= _STEP and unit < len(_UNITS) - 1:
        number, unit = number / _STEP, unit + 1
    return f"{number:.3g} {_UNITS[unit]}"


async def show_prompts(context: OfficeContext, *, computer: str, server: str | None, as_json: bool) -> None:
    """List the prompts of one MCP server, or of all."""
    async with with_server_hints(context, computer, server or ""):
        found = (await context.agent.get_prompts(computer, server))["prompts"]
    if as_json:
        put_json(found)
    elif found:
        put_table(("prompt", "server", "arguments", "description"), map(_prompt_row, found), cut="description")
    else:
        context.terminal.show(_none_of("prompts", computer, server))


def argument_names(prompt: Mapping[str, Any]) -> list[str]:
    return [*_arguments(prompt)]


def required_arguments(prompt: Mapping[str, Any]) -> list[str]:
    """The names of the arguments that a prompt needs."""
    return [name for name, is_required in _arguments(prompt).items() if is_required]


def _arguments(prompt: Mapping[str, Any]) -> dict[str, bool]:
    """The names of all arguments, and whether each is needed."""
    listed = prompt.get("arguments")
    arguments = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    return {str(each.get("name")): each.get("required") is True for each in arguments}


def _prompt_row(prompt: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments that may be left out are in brackets."""
    shown = (name if is_required else f"[{name}]" for name, is_required in _arguments(prompt).items())
    summary = first_sentence(str(prompt.get("description") or prompt.get("title") or ""))
    return str(prompt["name"]), str(prompt.get("mcp_server") or ""), " ".join(shown), summary


@asynccontextmanager
async def with_server_hints(context: OfficeContext, computer: str, server: str) -> AsyncIterator[None]:
    """Errors about an MCP server say which ones there are, and what this one offers."""
    try:
        yield
    except (ServerNotFound, ServerNotRegistered):
        names = await _names_of_servers(context, computer)
        raise Failed(
            f"{computer} has no MCP server {server!r} that is running", server_names_hint(server, names)
        ) from None
    except CapabilityNotSupported as error:
        what = error.details.get("capability") or "such things"
        remedy = f"a2c-smcp agent servers {computer} shows what its MCP servers offer."
        raise Failed(f"{server or 'The MCP server'} on {computer} offers no {what}", remedy) from None


async def _names_of_servers(context: OfficeContext, computer: str) -> list[str]:
    """Published computers do not know `client:get_servers`: their configuration has the names."""
    try:
        return [server["name"] for server in await context.agent.get_servers(computer)]
    except BadRequest:
        config: Any = await context.agent.get_config(computer)
        servers = config.get("servers")
        return [*servers] if isinstance(servers, Mapping) else []
