"""The operator's interface of a Server, as commands use it. Errors come with a remedy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import aiohttp

from a2c_smcp.cli import logs, options
from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.loops import run_program

__all__ = ["AdminClient", "AdminKey", "admin_client", "run_with"]

AdminKey = Annotated[
    str | None, options.option("A2C_ADMIN_KEY", "--admin-key", "The admin key of the Server, not an API key.")
]

_PATH = "/admin/api"
_PATIENCE = aiohttp.ClientTimeout(total=20.0, sock_connect=5.0)
_STREAMING = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=60.0)
_SWITCH_ON = "Start it with --admin-key KEY or A2C_SERVER_ADMIN_KEY, or correct --url."
_BAD_REQUEST, _UNAUTHENTICATED, _NOT_FOUND = 400, 401, 404
_LONGEST_LINE = 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True)
class AdminClient:
    """Asks a Server as an operator. Raises `Failed`, or `WrongUse` for a wrong filter."""

    endpoint: Endpoint
    key: str = field(repr=False)
    ca: Path | None = None

    async def get(self, path: str, **query: str | int | None) -> dict[str, Any]:
        return await self.ask("GET", path, query=query)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str | int | None] | None = None,
    ) -> dict[str, Any]:
        async with self._asking(method, path, query or {}, _PATIENCE, body) as response:
            answer: dict[str, Any] = await response.json()
            return answer

    async def pages(self, path: str, rows: str, **query: str | int | None) -> dict[str, Any]:
        """A whole list, page by page."""
        whole: dict[str, Any] = {}
        after: str | None = None
        while True:
            page = await self.get(path, limit=1000, after=after, **query)
            whole = {**page, rows: [*whole.get(rows, ()), *page[rows]]}
            after = page["next"]
            if after is None:
                del whole["next"]
                return whole

    async def events(self, **query: str | None) -> AsyncIterator[dict[str, Any]]:
        """What happens, until the Server ends the stream."""
        async with self._asking("GET", "events", query, _STREAMING) as response:
            async for line in response.content:
                if line.startswith(b"data:"):
                    yield json.loads(line.removeprefix(b"data:"))

    @asynccontextmanager
    async def _asking(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int | None],
        timeout: aiohttp.ClientTimeout,
        body: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        given = {name: str(value) for name, value in query.items() if value is not None}
        url = f"{self.endpoint.origin}{_PATH}/{path}"
        headers = {"Authorization": f"Bearer {self.key}"}
        place = self.endpoint.shown_url
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=options.tls(self.ca, None, None) or True),
                    timeout=timeout,
                    trust_env=True,
                    read_bufsize=_LONGEST_LINE,
                ) as session,
                session.request(
                    method, url, params=given, json=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                if not response.ok:
                    raise _refused(method, response.status, await response.text(), place)
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise Failed(f"The Server at {place} cannot be asked: {why}", "Correct --url, or start it.") from None


def admin_client(url: str, key: str | None, ca: Path | None) -> AdminClient:
    """Raises `WrongUse`."""
    if not key:
        raise WrongUse(
            "The admin key of the Server is missing",
            "Give the one that the Server was started with, by --admin-key or A2C_ADMIN_KEY.",
        )
    if found := options.exposed(url, key):
        Terminal().show(". ".join(found), "yellow")
    return AdminClient(options.endpoint(url), key, ca)


def run_with(work: Coroutine[Any, Any, T]) -> T:
    """Runs the work of a command."""
    logs.set_up(logs.LogLevel.error)
    return run_program(work)


def _refused(method: str, status: int, text: str, place: str) -> Failed | WrongUse:
    try:
        answer = json.loads(text)
        message = str(answer["message"])
    except (ValueError, TypeError, KeyError):
        return Failed(f"{place} is no Server with an operator's interface (status {status})", _SWITCH_ON)
    if status == _UNAUTHENTICATED:
        return Failed(
            f"{place} does not accept this admin key",
            "Give the one that the Server was started with, by --admin-key or A2C_ADMIN_KEY; an API key does not do.",
        )
    if status == _NOT_FOUND and "/socket.io/" in message:
        return Failed(f"The operator's interface of {place} is switched off", _SWITCH_ON)
    if (method, status) == ("GET", _BAD_REQUEST):  # a filter, in the words of the command line
        return WrongUse(message, "Correct that, and try again.")
    return Failed(message, "`a2c-smcp office ls` and `a2c-smcp key ls` show what there is.")
