"""Lists that MCP servers offered when they last ran, in a private folder: those of servers that are asleep.

Each server of a computer has one file. It counts only for the server it was made of: a digest of all that identifies it
(`_identity`) is in the file. Variables and headers count by their names, since their values are secrets. A program on
this machine that was replaced is another server.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from a2c_smcp.errors import CallTimeout, CapabilityNotSupported, NotPrivate
from a2c_smcp.files import PrivateFileUnusable, PrivateJSONFile, private_folder, stamp
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, source
from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused
from a2c_smcp.mcp_host.limits import HostLimits, is_within
from a2c_smcp.mcp_host.sessions.listings import MAX_LISTED_BYTES, ToolList, WindowList
from a2c_smcp.mcp_host.sessions.server_info import AboutServer
from a2c_smcp.mcp_host.sessions.session import MCPSession
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest
from a2c_smcp.protocol.operations import MCP_LISTS

logger = logging.getLogger(__name__)

_FORMAT = 1
_IDENTIFYING = ("type", "sandbox", "protocol", "desktop")
_NAMES_ONLY = ("env", "headers")

Pages = dict[str, dict[str, dict[str, Any]]]
"""Results of MCP's requests for lists, by method and cursor; the first page has the cursor `""`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a server offered: its tools and windows as they are used, its description, pages of other lists."""

    tools: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    about: AboutServer
    revision: str
    pages: Pages = field(default_factory=dict)


class SeenServers:
    """The files of one computer. Without a folder nothing is kept. The methods read and write files."""

    def __init__(self, computer: str = "", state_folder: Path | None = None) -> None:
        self._computer = computer
        self._state_folder = state_folder

    def load(self, config: MCPServerConfig) -> Seen | None:
        """Return what this server offered; `None` if it was never seen, or its file cannot be used."""
        try:
            kept = file.load() if (file := self._file(config.name)) else {}
            if not kept or kept["identity"] != _identity(config):
                return None
            tools, windows = ToolList(), WindowList()
            tools.take(kept["tools"])
            windows.take(kept["windows"])
            about, pages = AboutServer(**kept["about"]), kept["pages"]
            if not all(isinstance(page, dict) for listed in pages.values() for page in listed.values()):
                raise TypeError
            return Seen(tools.tools, windows.windows, about, str(kept["revision"]), pages)
        except (OSError, NotPrivate, PrivateFileUnusable, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s: what it offered last cannot be read, and it is started: %s", config.name, error)
            return None

    def save(self, config: MCPServerConfig, seen: Seen) -> None:
        try:
            if file := self._file(config.name):
                file.save({"identity": _identity(config), **asdict(seen)})
        except (OSError, NotPrivate, PrivateFileUnusable) as error:
            logger.warning("%s: what it offers cannot be kept: %s", config.name, error)

    def _file(self, server: str) -> PrivateJSONFile | None:
        if self._state_folder is None:
            return None
        folder = private_folder(self._state_folder, "seen")
        name = hashlib.sha256(json.dumps([self._computer, server]).encode()).hexdigest()[:32]
        return PrivateJSONFile(folder / f"{name}.json", self._state_folder, folder)


async def read_lists(session: MCPSession, policy: HostLimits) -> Pages:
    """All pages of the server's lists, but those that are too large or come too late; none of a list that it refuses.

    Raises `ServerFailure` if the session ends.
    """
    pages: Pages = {}
    for row in MCP_LISTS:
        with suppress(CapabilityNotSupported, CallTimeout, OversizedAnswer):
            if (listed := await _all_pages(session, row.method, policy)) is not None:
                pages[row.method] = listed
    return pages


async def _all_pages(session: MCPSession, method: str, policy: HostLimits) -> dict[str, dict[str, Any]] | None:
    pages: dict[str, dict[str, Any]] = {}
    cursor: object = ""
    while isinstance(cursor, str) and cursor not in pages:
        if len(pages) == policy.listing_pages or not is_within(pages, MAX_LISTED_BYTES):
            return None
        try:
            page = await session.read(ReadRequest(method, {"cursor": cursor} if cursor else {}, policy.listing_limit))
        except RequestRefused:
            return {}
        pages[cursor], cursor = page, page.get("nextCursor")
    return pages


def _identity(config: MCPServerConfig) -> str:
    """Return a digest of what is started or reached, and how; of programs and files among it also their stamps."""
    data = source(config)
    parameters = data["server_parameters"]
    words = [parameters["command"], *parameters["args"]] if config.type == "stdio" else []
    named = {name: sorted(parameters.get(name) or ()) for name in _NAMES_ONLY}
    place = Path(parameters.get("cwd") or "")
    found = [stamp(Path(path)) for path in (*map(shutil.which, words[:1]), *(place / word for word in words)) if path]
    identity = [_FORMAT, *(data.get(name) for name in _IDENTIFYING), {**parameters, **named}, found]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
