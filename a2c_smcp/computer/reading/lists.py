"""Lists that agents ask for, page by page: the resources, templates and prompts of one MCP server, the prompts of all.

A page is asked of the MCP server each time: nothing is kept here, so nothing can be out of date. A URI that holds a
secret is shown masked; the agent uses the masked one in its requests, and `original` finds what it stands for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from a2c_smcp.computer.hosting import Hosting
from a2c_smcp.computer.reading.pages import (
    LARGEST_PAGE,
    PROMPTS,
    ListedPage,
    PageKind,
    Place,
    all_places,
    cursor_of_all,
    page_of,
)
from a2c_smcp.computer.reading.server_reads import ReadAsked, Result, ServerReads
from a2c_smcp.computer.secrets import READ, Mask
from a2c_smcp.errors import SMCPError
from a2c_smcp.mcp_host.failures import AuthRequired, ServerNotReady
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest

__all__ = ["ReadLists"]

logger = logging.getLogger(__name__)

_AT_ONCE = 8
_MOST_PAGES = 20  # that are looked at to tell an unknown prompt from wrong arguments
_MOST_SHOWN = 1000


class ReadLists:
    """`answer` has one page. `host` is called for each request."""

    def __init__(self, host: Callable[[], Hosting], reads: ServerReads, mask: Mask) -> None:
        self._host = host
        self._reads = reads
        self._mask = mask
        self._originals: dict[str, OrderedDict[str, str]] = defaultdict(OrderedDict)

    async def answer(self, kind: PageKind, asked: ReadAsked) -> Result:
        """A page of the list of one server."""
        page = await self._shown_page(kind, asked, asked.server, Place.of(asked.data.get("cursor")))
        return _answer(kind, page.entries, page.more, page.following.to_cursor() if page.following else None)

    async def prompts_of_all(self, asked: ReadAsked) -> Result:
        """A page of each server, one after the other, as long as there is room. The cursor has all the rest."""
        cursor = asked.data.get("cursor")
        places = self._known(all_places(cursor)) if cursor else dict.fromkeys(self._with_prompts(), Place())
        pages = await self._pages(asked, places)
        entries: list[Result] = []
        left: dict[str, Place] = {}
        size = 0
        for server, page in pages.items():
            if size + page.size > 2 * LARGEST_PAGE:
                left[server] = places[server]
                continue
            size += page.size
            entries += page.entries
            if page.following:
                left[server] = page.following
        ttl = min((page.more.get("ttlMs", 0) for page in pages.values()), default=0)
        return _answer(PROMPTS, entries, {"ttlMs": ttl} if ttl else {}, cursor_of_all(left))

    async def prompt(self, asked: ReadAsked, name: str) -> Mapping[str, Any] | None:
        """What the server lists of this prompt: nothing if that cannot be found out, `None` if it lists no such one."""
        place = Place()
        try:
            for _ in range(_MOST_PAGES):
                page = await self._page(PROMPTS, asked, asked.server, place)
                for entry in page.entries:
                    if entry["name"] == name:
                        return entry
                if page.following is None:
                    return None
                place = page.following
        except SMCPError:
            return {}
        return {}

    def original(self, server: str, uri: str) -> str:
        """The URI that an agent was shown as this one."""
        return self._originals[server].get(uri, uri) if server in self._originals else uri

    # Inside

    def _known(self, places: Mapping[str, Place]) -> dict[str, Place]:
        return {name: place for name, place in places.items() if name in self._host().manager}

    def _with_prompts(self) -> list[str]:
        """The servers that offer prompts, or may do so: those that are starting are waited for."""
        manager = self._host().manager
        is_starting = {name for name in manager if manager.state(name) == "starting"}
        return [name for name in manager if name in is_starting or manager.about(name).declares("prompts")]

    async def _pages(self, asked: ReadAsked, places: Mapping[str, Place]) -> dict[str, ListedPage]:
        """The pages of those servers that answer in time."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def page_or_none(server: str, place: Place) -> ListedPage | None:
            try:
                async with asyncio.timeout_at(asked.deadline), at_once:
                    return await self._shown_page(PROMPTS, asked, server, place)
            except (ServerNotReady, AuthRequired):
                return None
            except (SMCPError, TimeoutError) as error:  # it must not hide the prompts of others
                logger.warning("server %r: its prompts are not listed: %s", server, error)
                return None

        pages = await asyncio.gather(*(page_or_none(server, place) for server, place in places.items()))
        return {server: page for server, page in zip(places, pages, strict=True) if page}

    async def _page(self, kind: PageKind, asked: ReadAsked, server: str, place: Place) -> ListedPage:
        params = {} if place.cursor is None else {"cursor": place.cursor}
        return page_of(kind, await self._reads.read(server, ReadRequest(kind.method, params, asked.left)), place)

    async def _shown_page(self, kind: PageKind, asked: ReadAsked, server: str, place: Place) -> ListedPage:
        """A page without secrets. A prompt says which server it is of."""
        page = await self._page(kind, asked, server, place)
        if page.left_out:
            logger.warning("server %r: %d of its %s cannot be used", server, page.left_out, kind.field)
        page.more = self._mask.data(page.more, READ, server)
        masked: list[Result] = self._mask.data({kind.field: page.entries}, READ, server)[kind.field]
        self._remember(server, page.entries, masked)
        page.entries = [{"mcp_server": server, **each} for each in masked] if kind is PROMPTS else masked
        return page

    def _remember(self, server: str, originals: Iterable[Mapping[str, Any]], shown: Iterable[Result]) -> None:
        for original, masked in zip(originals, shown, strict=True):
            for field in ("uri", "uriTemplate"):
                if original.get(field) != masked.get(field):
                    known = self._originals[server]
                    known[masked[field]] = original[field]
                    known.move_to_end(masked[field])
                    if len(known) > _MOST_SHOWN:
                        known.popitem(last=False)


def _answer(kind: PageKind, entries: list[Result], more: Mapping[str, Any], cursor: str | None) -> Result:
    return {kind.field: entries, **more, **({"next_cursor": cursor} if cursor else {})}
