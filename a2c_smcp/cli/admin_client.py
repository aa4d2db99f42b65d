"""The operator's interface of a Server, as commands use it. Errors come with a remedy."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias, TypeVar

import aiohttp

from a2c_smcp.cli import logs, options
from a2c_smcp.cli.errors import Failed, WrongUse, explained
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.connection import Unreachable, fault_of
from a2c_smcp.endpoint import cause_of
from a2c_smcp.errors import NotAuthenticated, NotAuthorised, kind_of
from a2c_smcp.loops import run_program

_PATH = "/admin/api"
_PATIENCE = aiohttp.ClientTimeout(total=20.0, sock_connect=5.0)
_STREAMING = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=60.0)
_SWITCH_ON = "Start it with --admin-keys-file FILE or A2C_SERVER_ADMIN_KEY, or correct --url."
_BAD_REQUEST, _UNAUTHENTICATED, _NOT_FOUND = 400, 401, 404
_LONGEST_LINE = 1024 * 1024

T = TypeVar("T")
AdminKey: TypeAlias = Annotated[
    str | None, options.option("A2C_ADMIN_KEY", "--admin-key", "Your admin key, or that of the Server.")
]


@dataclass(frozen=True, kw_only=True)
class AdminClient:
    """Requests to a Server as its operator. They raise `Failed`, or `WrongUse` for a wrong filter.

    The fields are options of the commands that make them.
    """

    url: options.Url = options.DEFAULT_URL
    admin_key: AdminKey = field(default=None, repr=False)
    ca: options.CA = None

    def __post_init__(self) -> None:
        """Raises `WrongUse`, and warns of a key that others could read."""
        if not self.admin_key:
            raise WrongUse(
                "The admin key of the Server is missing",
                "Give your own, or that of the Server, by --admin-key or A2C_ADMIN_KEY.",
            )
        if warning := options.exposed(self.url, self.admin_key):
            Terminal().show(". ".join(warning), "yellow")
        options.endpoint(self.url)

    async def get(self, path: str, **query: str | int | None) -> dict[str, Any]:
        return await self.ask("GET", path, query=query)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str | int | None] | None = None,
        api: str = _PATH,
    ) -> dict[str, Any]:
        async with self._asking(method, path, query or {}, _PATIENCE, body, api) as response:
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
        """Yield events until the Server ends the stream."""
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
        api: str = _PATH,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        params = {name: str(value) for name, value in query.items() if value is not None}
        endpoint = options.endpoint(self.url)
        place, url = endpoint.shown_url, f"{endpoint.origin}{api}/{path}"
        headers = {"Authorization": f"Bearer {self.admin_key}"}
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=options.LinkOptions(ca=self.ca).tls() or True),
                    timeout=timeout,
                    trust_env=True,
                    read_bufsize=_LONGEST_LINE,
                ) as session,
                session.request(
                    method, url, params=params, json=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                if not response.ok and api != _PATH:
                    raise _link_refused(response.status, await response.text(), place)
                if not response.ok:
                    raise _refused(method, response.status, await response.text(), place)
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = f"{place} cannot be reached, {cause_of(error) or kind_of(type(error))}"
            failure = Unreachable(why, await fault_of(error, endpoint))
            raise explained(failure, {"url": place, "office": ""}) from None


def run_with(work: Coroutine[Any, Any, T]) -> T:
    """Run the work of a command."""
    logs.set_up("error")
    return run_program(work)


def _link_refused(status: int, text: str, place: str) -> Failed:
    """The Server makes no link for the holder of a key."""
    if status == _UNAUTHENTICATED:
        return explained(NotAuthenticated(), {"url": place, "office": ""})
    if status == NotAuthorised.code:
        return explained(NotAuthorised(json.loads(text)["error_description"].partition(": ")[2]))
    return Failed(f"Nobody can sign in at {place}", "Start it with --mcp --sign-in, or correct --url.")


def _refused(method: str, status: int, text: str, place: str) -> Failed | WrongUse:
    try:
        answer = json.loads(text)
        message = str(answer["message"])
    except (ValueError, TypeError, KeyError):
        return Failed(f"{place} is no Server with an operator's interface (status {status})", _SWITCH_ON)
    if status == _UNAUTHENTICATED:
        return Failed(
            f"{place} does not accept this admin key",
            "Give your own, or that of the Server, by --admin-key or A2C_ADMIN_KEY; an API key does not do.",
        )
    if status == NotAuthorised.code:
        return Failed(message, "Give the admin key of an operator by --admin-key or A2C_ADMIN_KEY.")
    if status == _NOT_FOUND and "/socket.io/" in message:
        return Failed(f"The operator's interface of {place} is switched off", _SWITCH_ON)
    if (method, status) == ("GET", _BAD_REQUEST):  # a filter, in the words of the command line
        return WrongUse(message, "Correct that, and try again.")
    return Failed(message, "`a2c-smcp office ls` and `a2c-smcp key ls` show what there is.")


# Times, durations and sizes in tables, and lines for events.

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_FIRST = ("event", "at", "node")
_KIB = 1024


def moment(seconds: float | None) -> str:
    """A time in UTC, or nothing."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def ago(seconds: float | None) -> str:
    """The time since then: `3 min`."""
    if seconds is None:
        return ""
    lasted = max(0.0, time.time() - seconds)
    return next((f"{int(lasted // unit)} {name}" for unit, name in _UNITS if lasted >= unit), "0 s")


def size(count: int) -> str:
    if not count:
        return ""
    return f"{count} B" if count < _KIB else f"{count / _KIB:.0f} KiB"


def plural(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def event_line(facts: Mapping[str, Any]) -> str:
    """`05:12:08 joined office=desk role=computer name=laptop`."""
    at = datetime.fromtimestamp(facts["at"], UTC).strftime("%H:%M:%S")
    rest = (f"{name}={_word(value)}" for name, value in facts.items() if name not in _FIRST)
    node = f" [{facts['node']}]" if facts.get("node") else ""
    return " ".join((at + node, facts["event"], *rest))


def warn_missing(missing: Iterable[Mapping[str, str]]) -> None:
    """Name the nodes that have not answered: their part of the list is not shown."""
    for node in missing:
        Terminal().show(f"node {node['node']} is missing here: {node['reason']}", "yellow")


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return repr(text) if not text or any(mark.isspace() for mark in text) else text
