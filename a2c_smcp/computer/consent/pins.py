"""Pinned tools: the definition that each tool of an MCP server had when it was approved, or first seen.

An MCP server may change what a tool says of itself after its owner has approved it. So a digest of the definition is
kept for each tool, by the name of its server and the name that the server gives it: an alias changes nothing. `look` is
called for each tool whenever the list of tools is made. A definition that is not the pinned one is a `ToolChange`:

- `ask`: the permanent approvals of that tool are withdrawn, and each call needs the owner's yes, which pins the new
  definition. Until then the old one stays pinned. A server that changes back is as before, without those approvals.
- `warn`: the change is logged and told to agents, and the new definition is pinned at once.
- `off`: nothing is looked at; what was pinned before is kept.

Skills of MCP servers are pinned, too: their frontmatter, and the digests of their files. They run without asking.

Without a setting of the owner it is `ask` for tools that ask the owner, also because of a rule, and `warn` for those
that run without asking.

The pins of a computer are in a private file. A server under a new name that is started in the same way has the pins of
the old name. If the file cannot be read, all tools count as changed: nobody knows what was approved. A pin that goes
because there are too many takes the permanent approvals of its tool with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from a2c_smcp.computer.calls.definitions import CHANGED, Pinned, ToolChange, digest_of_tool, texts_of_tool
from a2c_smcp.computer.calls.table import ServerTool
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.errors import NotPrivate
from a2c_smcp.files import PrivateFileUnusable, PrivateJSONFile, private_folder
from a2c_smcp.loops import OwnedTasks, in_thread
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, source

logger = logging.getLogger(__name__)

PinMode: TypeAlias = Literal["off", "warn", "ask"]

_MOST_SERVERS, _MOST_TOOLS = 256, 2000
"""Pins that are kept: servers, and tools of one. A server lists at most 1,000 tools at a time."""
_MOST_TEXT = 8 * 1024 * 1024
"""Characters of definitions that are kept. Of further tools only the digest is kept, and no difference can be shown."""
_LOGGED, _MOST_LOGGED = 2000, 1000
"""Characters of a difference in the log, and changes that are remembered as logged."""
_STARTED_BY = ("command", "args", "cwd", "url")
_Tool: TypeAlias = tuple[str, str]
"""The names of a server and of its tool."""


@dataclass(slots=True)
class _Pin:
    digest: str
    texts: dict[str, str] | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        return sum(map(len, (self.texts or {}).values()))


@dataclass(slots=True)
class _PinnedServer:
    """The pins of a server. `started_by` is a digest of how it is started."""

    started_by: str = ""
    tools: dict[str, _Pin] = field(default_factory=dict)


class _Looked(NamedTuple):
    raw: Mapping[str, Any]
    digest: str


class PinnedTools:
    """The pins of one computer.

    `asks_nobody`: every tool runs without asking, so by default a change is only told. `asks_by_rule` tells whether a
    policy asks about a tool, though its configuration does not. `withdraw` is called with the
    server and the tool whose permanent approvals end. `on_accepted` is called when a definition was pinned by a yes.
    `on_changed` is called with each new definition, once.
    """

    def __init__(
        self,
        mode: PinMode | None,
        mask: Mask,
        asks_by_rule: Callable[[ServerTool], bool],
        *,
        asks_nobody: bool,
        withdraw: Callable[[str, str], None],
        on_accepted: Callable[[], None],
        on_changed: Callable[[str, str, ToolChange], None] = lambda server, tool, change: None,
    ) -> None:
        self._mode, self._mask, self._asks_nobody = mode, mask, asks_nobody
        self._asks_by_rule = asks_by_rule
        self._withdraw, self._on_accepted, self._on_changed = withdraw, on_accepted, on_changed
        self._servers: dict[str, _PinnedServer] = {}
        self._configured: Mapping[str, BaseServerConfig] = {}
        self._looked: dict[_Tool, _Looked] = {}
        self._looked_before: dict[_Tool, _Looked] = {}
        self._skills: dict[_Tool, _Looked] = {}
        self._asking: dict[_Tool, tuple[str, ToolChange]] = {}
        self._told: dict[_Tool, ToolChange] = {}
        self._logged: dict[tuple[str, str, str], None] = {}
        self._started: dict[str, tuple[BaseServerConfig, str]] = {}
        self._text = 0
        self._is_unreadable = False
        self._store: PrivateJSONFile | None = None
        self._is_unsaved = False
        self._is_saving = False
        self._saving = OwnedTasks()

    def open(self, computer: str, state_folder: Path | None) -> None:
        """Read the pins of this computer. Without a folder they last as long as this object."""
        self._is_unreadable = False
        if state_folder is None:
            return
        name = f"{hashlib.sha256(computer.encode()).hexdigest()[:32]}.json"
        try:
            self._store = PrivateJSONFile(private_folder(state_folder, "pins") / name)
            self._servers = dict(_read(self._store.load()))
        except OSError as error:
            logger.warning("pinned tools cannot be kept in %s: %s", state_folder, error.strerror)
        except (PrivateFileUnusable, NotPrivate) as error:
            self._store, self._is_unreadable = None, True
            logger.warning("all tools count as changed, since nobody knows what was approved: %s", error)
        self._text = sum(pin.size for server in self._servers.values() for pin in server.tools.values())

    async def close(self) -> None:
        await self._saving.finish(10.0)
        if self._is_unsaved and self._store:
            await in_thread(_write, self._store, self._written())
        await self._saving.close()

    # Looking at the list of tools

    def begin(self, configured: Mapping[str, BaseServerConfig]) -> None:
        """A list of tools is about to be made, of these servers. Their placeholders are not filled in."""
        self._configured = configured
        self._started = {name: known for name, known in self._started.items() if name in configured}
        self._looked_before, self._looked = self._looked, {}
        for name, config in configured.items():
            self._known(name, config)

    def look(self, tool: ServerTool) -> Pinned | None:
        """Compare a tool with its pin, and pin it if it is new; `None` if it is not to be looked at."""
        config = self._configured.get(tool.server)
        mode = self._mode_of(tool, config)
        if config is None or mode == "off":
            return None
        key = tool.server, tool.tool
        return self._compare(key, self._digest(key, tool.raw), tool.raw, mode)

    def look_at_skill(self, server: str, raw: Mapping[str, Any]) -> Pinned | None:
        """As `look`, for a skill: it has a `name` that no tool has, its `frontmatter` and `resources`."""
        config = self._configured.get(server)
        mode = (config and config.pin) or self._mode or "warn"
        if config is None or mode == "off":
            return None
        key = server, raw["name"]
        looked = self._skills[key] = _Looked(raw, digest_of_tool(raw))
        pinned = self._compare(key, looked.digest, raw, mode)
        if self._is_unsaved:
            self._save()
        return pinned

    def _compare(self, key: _Tool, digest: str, raw: Mapping[str, Any], mode: PinMode) -> Pinned:
        pin = self._servers[key[0]].tools.get(key[1])
        if pin is None and not self._is_unreadable:
            self._pin(key, digest, raw)
            return Pinned(digest)
        if pin is not None and pin.digest == digest:
            self._asking.pop(key, None)
            return Pinned(digest, self._told.get(key))
        if mode == "ask" and (asked := self._asking.get(key)) and asked[0] == digest:
            return Pinned(digest, asked[1])
        return Pinned(digest, self._changed(key, digest, pin, raw, asks=mode == "ask"))

    def end(self) -> None:
        """The list is made: drop pins over the limit, of servers and tools that are not there first, and save."""
        self._looked_before = {}
        gone = [name for name in self._servers if name not in self._configured]
        for name in gone[: max(len(self._servers) - _MOST_SERVERS, 0)]:
            self._drop(name, list(self._servers[name].tools))
            del self._servers[name]
        for name in self._configured:
            pins = self._servers[name].tools
            if (over := len(pins) - _MOST_TOOLS) > 0:
                looked = self._looked.keys() | self._skills.keys()
                self._drop(name, [tool for tool in pins if (name, tool) not in looked][:over])
        if self._is_unsaved:
            self._save()

    def accept(self, server: str, tool: str, digest: str) -> None:
        """The owner has said yes to this definition of a tool or skill, if it is the one that is listed now."""
        looked = self._looked.get((server, tool)) or self._skills.get((server, tool))
        if looked is None or looked.digest != digest or server not in self._servers:
            return
        self._told.pop((server, tool), None)
        self._asking.pop((server, tool), None)
        self._pin((server, tool), digest, looked.raw)
        logger.info("the changed definition of tool %r of server %r is approved", tool, server)
        self._save()
        self._on_accepted()

    def _mode_of(self, tool: ServerTool, config: BaseServerConfig | None) -> PinMode:
        if mode := (config and config.pin) or self._mode:
            return mode
        runs = tool.meta is not None and tool.meta.auto_apply is True
        return "ask" if not self._asks_nobody and (not runs or self._asks_by_rule(tool)) else "warn"

    def _digest(self, key: _Tool, raw: Mapping[str, Any]) -> str:
        known = self._looked_before.get(key)
        if known is None or (known.raw is not raw and known.raw != raw):
            known = _Looked(raw, digest_of_tool(raw))
        self._looked[key] = known
        return known.digest

    def _changed(self, key: _Tool, digest: str, pin: _Pin | None, raw: Mapping[str, Any], *, asks: bool) -> ToolChange:
        before = (
            {name: self._mask.text(text, key[0]) for name, text in pin.texts.items()} if pin and pin.texts else None
        )
        change = ToolChange(asks, before, self._texts(key, raw))
        self._log(key, digest, change)
        if asks:
            self._asking[key] = digest, change
            self._withdraw(*key)
        else:
            self._asking.pop(key, None)
            self._pin(key, digest, raw)
            self._told[key] = change
        return change

    def _log(self, key: _Tool, digest: str, change: ToolChange) -> None:
        """Log each new definition once: a server may change back and forth."""
        if (entry := (*key, digest)) in self._logged:
            return
        self._logged[entry] = None
        if len(self._logged) > _MOST_LOGGED:
            del self._logged[next(iter(self._logged))]
        self._on_changed(*key, change)
        what = "it needs approval again" if change.asks else "it runs as before"
        text = change.diff
        shown = text if len(text) <= _LOGGED else f"{text[:_LOGGED]}\n[… {len(text) - _LOGGED} more characters …]"
        kind = "skill" if key in self._skills else "tool"
        logger.warning("%s %r of server %r: %s; %s\n%s", kind, key[1], key[0], CHANGED, what, shown)

    # Pins

    def _known(self, name: str, config: BaseServerConfig) -> None:
        """Make a server known. A new name has the pins of an old one that is gone and was started in the same way."""
        known = self._started.get(name)
        if known is not None and known[0] is config and name in self._servers:
            return
        started_by = _started_by(config)
        self._started[name] = config, started_by
        if (server := self._servers.get(name)) is None:
            same = (
                other
                for old, other in self._servers.items()
                if old not in self._configured and other.started_by == started_by
            )
            renamed = next(same, None)
            server = self._servers[name] = _PinnedServer(started_by, dict(renamed.tools) if renamed else {})
            self._text += sum(pin.size for pin in server.tools.values())
        if server.started_by != started_by:
            server.started_by = started_by
            self._is_unsaved = True

    def _pin(self, key: _Tool, digest: str, raw: Mapping[str, Any]) -> None:
        server, tool = key
        self._drop(server, [tool], is_replaced=True)
        pin = _Pin(digest, self._texts(key, raw))
        if self._text + pin.size > _MOST_TEXT:
            pin = _Pin(digest)
        self._text += pin.size
        self._servers[server].tools[tool] = pin
        self._is_unsaved = True

    def _drop(self, server: str, tools: list[str], *, is_replaced: bool = False) -> None:
        for tool in tools:
            if pin := self._servers[server].tools.pop(tool, None):
                self._text -= pin.size
                self._is_unsaved = True
                if not is_replaced:
                    self._told.pop((server, tool), None)
                    self._asking.pop((server, tool), None)
                    self._withdraw(server, tool)

    def _texts(self, key: _Tool, raw: Mapping[str, Any]) -> dict[str, str]:
        return {name: self._mask.text(text, key[0]) for name, text in texts_of_tool(raw).items()}

    # The file

    def _save(self) -> None:
        """Save soon, in a thread. One save at a time; what changes meanwhile is saved afterwards."""
        if self._store and not self._is_saving:
            self._is_saving = True
            self._saving.spawn(self._saved(self._store))

    async def _saved(self, store: PrivateJSONFile) -> None:
        try:
            while self._is_unsaved:
                self._is_unsaved = False
                await in_thread(_write, store, self._written())
        finally:
            self._is_saving = False

    def _written(self) -> dict[str, Any]:
        return {
            name: {
                "started_by": server.started_by,
                "tools": {
                    tool: [pin.digest] if pin.texts is None else [pin.digest, pin.texts]
                    for tool, pin in server.tools.items()
                },
            }
            for name, server in self._servers.items()
        }


def _write(store: PrivateJSONFile, content: Mapping[str, Any]) -> None:
    try:
        store.save(content)
    except PrivateFileUnusable as error:
        logger.warning("pinned tools are forgotten when this program ends: %s", error)


def _started_by(config: BaseServerConfig) -> str:
    """A digest of how a server is started or reached, without its variables and headers."""
    parameters = source(config).get("server_parameters") or {}
    return hashlib.sha256(json.dumps([parameters.get(name) for name in _STARTED_BY]).encode()).hexdigest()


def _read(kept: Mapping[str, Any]) -> list[tuple[str, _PinnedServer]]:
    """The pins in the file. Raises `PrivateFileUnusable` if one of them is not like ours."""
    try:
        return [
            (
                name,
                _PinnedServer(
                    str(server["started_by"]), {tool: _read_pin(*pin) for tool, pin in server["tools"].items()}
                ),
            )
            for name, server in kept.items()
        ]
    except (TypeError, KeyError, AttributeError, ValueError):
        raise PrivateFileUnusable("the file of pinned tools is damaged: delete it, and approve tools again") from None


def _read_pin(digest: str, texts: Mapping[str, str] | None = None) -> _Pin:
    return _Pin(str(digest), None if texts is None else {str(name): str(text) for name, text in texts.items()})
