"""The tools that a Computer offers now: those of its MCP servers and its Python functions, as one table."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from a2c_smcp.computer.pins import PinnedTools
from a2c_smcp.computer.policy.decision import Outlook
from a2c_smcp.computer.secrets import TOOL, Mask
from a2c_smcp.computer.secrets.messages import NAME
from a2c_smcp.computer.tools.functions import FUNCTIONS, Functions
from a2c_smcp.computer.tools.names import NameOrder
from a2c_smcp.computer.tools.table import A2C_TOOL_META, ToolRoute, ToolTable, build_table, diff, fitted
from a2c_smcp.computer.types import OwnedTool
from a2c_smcp.errors import ToolNotFound
from a2c_smcp.mcp_host.config.servers import BaseServerConfig
from a2c_smcp.mcp_host.status import State
from a2c_smcp.protocol.codec import Written, dumps
from a2c_smcp.types import TOOL_NAME

if TYPE_CHECKING:
    from a2c_smcp.computer.hosting import Hosting

__all__ = ["Catalogue"]

logger = logging.getLogger(__name__)

_MOST_VIEWS = 16
_HEAD_ROOM = 16 * 1024  # for the rest of the answer: its id, the servers that are starting


class Catalogue:
    """The table of tools. Call `refresh` whenever something may have changed."""

    def __init__(self, max_message: int, pins: PinnedTools) -> None:
        self.functions = Functions()
        self._pins = pins
        self.limit(max_message)
        self._table = ToolTable()
        self._bundle_ids: Mapping[str, str] = {}
        self._id_warnings: list[str] = []
        self._name_order = NameOrder()
        self._known: dict[str, list[dict[str, Any]]] = {}
        self._logged: set[str] = set()
        self._starting: list[str] = []
        self._refreshed = asyncio.Event()
        self._written: tuple[ToolTable, int, list[str], Mapping[str, str], Written] | None = None
        self._views: dict[tuple[Outlook, ...], Written] = {}

    def limit(self, max_message: int) -> None:
        """Let the list of tools fit into a message of so many bytes, from the next `refresh` on."""
        self._room = max_message - min(_HEAD_ROOM, max_message // 8)

    @property
    def warnings(self) -> list[str]:
        return self._table.warnings + self._id_warnings

    def resolve(self, name: TOOL_NAME) -> ToolRoute:
        """Raises `ToolNotFound` or `ToolForbidden`."""
        return self._table.resolve(name)

    async def await_tool(self, name: TOOL_NAME) -> ToolRoute:
        """As `resolve`, but waits while the tool may be one of a server that is starting."""
        while True:
            try:
                return self.resolve(name)
            except ToolNotFound:
                if not self._may_come(name):
                    raise
            await self._refreshed.wait()

    def _may_come(self, name: TOOL_NAME) -> bool:
        """Whether a server that is starting may have the tool: one that starts for the first time may have any."""
        if server := self._table.absent.get(name):
            return server in self._starting
        return any(not self._known[server] for server in self._starting)

    def refresh(self, hosting: Hosting | None) -> bool:
        """Rebuild the table. Returns whether agents see a difference."""
        waited_for, self._starting = self._starting, hosting.starting if hosting else []
        servers = self._servers(hosting)
        self._name_order.configured(servers)
        self._known = {name: self._known.get(name, []) for name in servers}
        down = {name for name, server in servers.items() if not self._learn(name, server)}
        offers = {name: (server.config, self._known[name]) for name, server in servers.items()}
        before = self._table
        self._pins.begin(hosting.configs if hosting else {})
        table = build_table(offers, before, order=self._name_order.of, down=down, look=self._pins.look)
        self._pins.end()
        ids, self._bundle_ids = self._bundle_ids, hosting.bundle_ids.by_name if hosting else {}
        self._table = fitted(table, self._room, self._bundle_ids)
        self._id_warnings = hosting.bundle_ids.warnings if hosting else []
        self._refreshed.set()
        self._refreshed = asyncio.Event()
        is_renamed = any(self._bundle_ids.get(name, each) != each for name, each in ids.items())
        return bool(diff(before, self._table)) or is_renamed or not set(waited_for) <= set(self._starting)

    def warn(self) -> None:
        """Log each new warning once."""
        for warning in self.warnings:
            if warning not in self._logged:
                self._logged.add(warning)
                logger.warning("%s", warning)

    def shown(self, mask: Mask) -> list[OwnedTool]:
        """Each tool with its server, masked except for its name, by which it can be called."""
        routes = self._table.routes
        owned = []
        for tool, (name, route) in zip(self._table.listed, routes.items(), strict=True):
            bundle_id = self._bundle_ids.get(route.server, route.server)
            masked = mask.data(tool, TOOL, route.server)
            owned.append(OwnedTool(**masked, bundle_id=bundle_id, mcp_server=route.server))
            owned[-1]["name"] = name
        return owned

    @property
    def routes(self) -> Mapping[TOOL_NAME, ToolRoute]:
        return self._table.routes

    def written(
        self,
        mask: Mask,
        req_id: str,
        approved: bool | list[TOOL_NAME],
        outlooks: Mapping[TOOL_NAME, Outlook] | None = None,
    ) -> Written:
        """The answer to a request for the tools. Its text is kept until the tools or the secrets change.

        In the answer, `starting` has the servers whose tools are still missing, if there are any; `approved` has the
        tools that this agent need not ask for. `outlooks` are what the policy has in store for its calls.
        """
        now = self._table, mask.version, self._starting, self._bundle_ids
        if self._written is None or self._written[:4] != now:
            answer: dict[str, Any] = {"tools": self.shown(mask)}
            if self._starting:
                answer["starting"] = mask.data(self._starting, NAME)
            self._written = *now, Written(answer, dumps(answer))
            self._views.clear()
        listed = self._written[-1]
        if outlooks is not None:
            listed = self._view(listed, outlooks)
        own = {"req_id": req_id, **({"approved": approved} if approved else {})}
        return Written({**listed, **own}, f"{listed.text[:-1]},{dumps(own)[1:]}")

    def _view(self, listed: Written, outlooks: Mapping[TOOL_NAME, Outlook]) -> Written:
        """The list for an agent: without what the policy denies, and what asks is marked so."""
        key = tuple(outlooks.values())
        if (view := self._views.get(key)) is None:
            tools = [_with_outlook(each, outlooks[each["name"]]) for each in listed["tools"]]
            answer = {**listed, "tools": [each for each in tools if each is not None]}
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            view = self._views[key] = Written(answer, dumps(answer))
        return view

    def _learn(self, name: str, server: _Server) -> bool:
        """Take in the tools of a server. False if it is down; then its tools are those that it had before."""
        if server.tools or server.state in ("ready", "disabled"):
            self._known[name] = server.tools
            self._name_order.listed(name, [tool["name"] for tool in server.tools])
            return True
        if server.state in ("backoff", "failed", "auth_required"):
            self._name_order.failed(name)
        return False

    def _servers(self, hosting: Hosting | None) -> dict[str, _Server]:
        """The Python functions first, then the configured servers."""
        servers = {FUNCTIONS: _Server(*self.functions.offer(), "ready")} if len(self.functions) else {}
        if hosting is None:
            return servers
        manager = hosting.manager
        return servers | {
            name: _Server(manager.config(name), manager.tools(name), manager.state(name))
            if name in manager
            else _Server(config, [], "stopped")
            for name, config in hosting.configs.items()
        }


def _with_outlook(tool: OwnedTool, outlook: Outlook) -> OwnedTool | None:
    """The tool as an agent is shown it; `None` if the agent is not. What may ask is not said to run by itself."""
    if outlook.is_hidden:
        return None
    meta = tool.get("meta") or {}
    own = json.loads(str(meta.get(A2C_TOOL_META) or "{}"))
    if not outlook.may_ask or own.get("auto_apply") is not True:
        return tool
    changed: OwnedTool = {**tool, "meta": {**meta, A2C_TOOL_META: json.dumps({**own, "auto_apply": False})}}
    return changed


class _Server(NamedTuple):
    config: BaseServerConfig
    tools: list[dict[str, Any]]
    state: State
