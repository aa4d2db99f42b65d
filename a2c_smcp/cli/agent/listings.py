"""Lists of MCP servers, resources, prompts and skills, as tables or JSON."""

from __future__ import annotations

import asyncio
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import typer

from a2c_smcp.cli.agent.run import OfficeContext, cannot_write, put_result, save
from a2c_smcp.cli.errors import Failed, server_names_hint
from a2c_smcp.cli.terminal import Meter, first_sentence, put_json, put_table, put_text, spinning
from a2c_smcp.errors import (
    BadRequest,
    CapabilityNotSupported,
    ComputerNotFound,
    InvalidSkillName,
    NotFound,
    ServerNotFound,
    ServerNotRegistered,
    SkillFileNotAccessible,
    SkillNotFound,
    SMCPError,
)
from a2c_smcp.protocol.names import name_hint
from a2c_smcp.protocol.skills import SKILL_FILE
from a2c_smcp.v04_events import GetSkillRet

_UNITS = ("B", "kB", "MB", "GB")
_STEP = 1000


class Listing(NamedTuple):
    """A list of one computer or MCP server, or why there is none."""

    owner: str
    entries: Sequence[Mapping[str, Any]] = ()
    error: SMCPError | None = None


class ListingTable(NamedTuple):
    """The layout of a list: the name of its entries, its columns, the last of which may be cut, and a row."""

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
        listings = await asyncio.gather(*(_listing_or_error(fetch, name) for name in await context.computers()))
    entries = [{"computer": listing.owner, **entry} for listing in listings for entry in listing.entries]
    if as_json:
        put_json(entries)
    elif entries:
        put_table(table.columns, map(table.row, entries), cut=table.columns[-1])
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
    for listing in listings:
        if listing.error:
            context.terminal.show(f"{listing.owner} gave no list: {listing.error.message}", "red")
    if any(listing.error for listing in listings):
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
    entries = [{"mcp_server": listing.owner, **entry} for listing in listings for entry in listing.entries]
    if as_json:
        put_json(entries)
    elif entries:
        columns = ("template" if templates else "resource", "server", "name", "type", "size", "description")
        put_table(columns, map(_resource_row, entries), cut="description")
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
        return list((await context.agent.get_resource_templates(computer, server))["resourceTemplates"])
    return list((await context.agent.get_resources(computer, server))["resources"])


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
        prompts = (await context.agent.get_prompts(computer, server))["prompts"]
    if as_json:
        put_json(prompts)
    elif prompts:
        put_table(("prompt", "server", "arguments", "description"), map(_prompt_row, prompts), cut="description")
    else:
        context.terminal.show(_none_of("prompts", computer, server))


def arguments_of(prompt: Mapping[str, Any]) -> dict[str, bool]:
    """The names of all arguments of a prompt, and whether each is needed."""
    listed = prompt.get("arguments")
    arguments = [argument for argument in listed if isinstance(argument, Mapping)] if isinstance(listed, list) else []
    return {str(argument.get("name")): argument.get("required") is True for argument in arguments}


def _prompt_row(prompt: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments that may be left out are in brackets."""
    shown = (name if is_required else f"[{name}]" for name, is_required in arguments_of(prompt).items())
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


# `a2c-smcp agent skills` and `agent skill`: list the skills of computers, print or save one of their files.


async def show_skills(context: OfficeContext, *, computer: str | None, as_json: bool) -> None:
    """List the skills of one computer or of all."""

    def row(skill: Mapping[str, Any]) -> tuple[str, ...]:
        return skill["name"], skill["computer"], skill["source"], first_sentence(skill["description"])

    table = ListingTable("skills", ("skill", "computer", "source", "description"), row)
    await show_listings(context, context.agent.get_skills, table, computer=computer, as_json=as_json)


@dataclass(frozen=True)
class SkillWork:
    """The work of `a2c-smcp agent skill`."""

    computer: str
    name: str
    file: str | None
    output: Path | None
    as_json: bool

    async def __call__(self, context: OfficeContext) -> None:
        with spinning(context.terminal, f"reading {self._shown}") as meter:
            answer = await self._find(context)
            if self.output:
                await self._save(context, answer, self.output, meter)
                return
            content = await self._fetch(context, answer, meter)
        self._put(answer, content)

    @property
    def _shown(self) -> str:
        return self.file or SKILL_FILE

    async def _find(self, context: OfficeContext) -> GetSkillRet:
        try:
            return await context.agent.get_skill(self.computer, self.name, self.file)
        except (SkillNotFound, InvalidSkillName):
            names = [skill["name"] for skill in await context.agent.get_skills(self.computer)]
            what = f"{self.computer} has no skill {self.name!r}"
            raise Failed(what, name_hint(self.name, names, "skills")) from None
        except SkillFileNotAccessible as error:
            remedy = _REMEDIES.get(str(error.details.get("reason")), "")
            raise Failed(f"{self._shown}: {error.reason or error.message}", remedy) from None

    async def _fetch(self, context: OfficeContext, answer: GetSkillRet, meter: Meter) -> bytes:
        if "body" in answer:
            return answer["body"].encode("utf-8", "backslashreplace")
        return await context.agent.read_blob(self.computer, answer["blob_handle"], meter.report_bytes)

    async def _save(self, context: OfficeContext, answer: GetSkillRet, output: Path, meter: Meter) -> None:
        if "body" in answer:
            await save(await self._fetch(context, answer, meter), output)
        else:
            try:
                await context.agent.save_blob(self.computer, answer["blob_handle"], output, meter.report_bytes)
            except OSError as error:
                raise cannot_write(output, error) from None
        context.terminal.show(f"{answer['total_size']:,} bytes written to {output}")

    def _put(self, answer: GetSkillRet, content: bytes) -> None:
        text = _text_of(content)
        if self.as_json:
            kept = {key: value for key, value in answer.items() if key not in ("body", "blob_handle", "req_id")}
            whole = {"blob": b64encode(content).decode()} if text is None else {"body": text}
            put_result(kept | whole, "--output FILE saves them")
        elif not sys.stdout.isatty():
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
        elif text is None:
            kind = answer["mime_type"]
            raise Failed(f"{self._shown} is binary ({kind}), which a terminal cannot show", "--output FILE saves it.")
        else:
            put_text(text)


_REMEDIES = {
    "traversal": "Give a path inside of the skill, with / between its parts.",
    "forbidden": "Give another file.",
    "not_found": f"The skill's {SKILL_FILE} says which files it has.",
    "too_large": "Its owner may raise A2C_SKILL_MAX_SIZE on that computer.",
}


def _text_of(content: bytes) -> str | None:
    """The text of a file, of any type; `None` if it is binary."""
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None
