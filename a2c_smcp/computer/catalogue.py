"""What a Computer offers now: the tools of its servers and its functions, as one table that is kept up to date."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from a2c_smcp.computer.functions import FUNCTIONS, Functions
from a2c_smcp.computer.mcp_clients.manager import Manager
from a2c_smcp.computer.mcp_clients.model import BaseServerConfig
from a2c_smcp.computer.secrets import TOOL, Mask
from a2c_smcp.computer.tools import ToolRoute, ToolTable, build_table, diff
from a2c_smcp.computer.types import OwnedTool
from a2c_smcp.protocol.codec import Written, dumps
from a2c_smcp.types import TOOL_NAME

__all__ = ["Catalogue"]

logger = logging.getLogger(__name__)


class Catalogue:
    """`refresh` it whenever something may have changed."""

    def __init__(self) -> None:
        self.functions = Functions()
        self._table = ToolTable()
        self._told: set[str] = set()
        self._written: tuple[ToolTable, int, Written] | None = None

    @property
    def warnings(self) -> list[str]:
        return self._table.warnings

    def resolve(self, name: TOOL_NAME) -> ToolRoute:
        """Raises `ToolNotFound` or `ToolForbidden`."""
        return self._table.resolve(name)

    def refresh(self, manager: Manager | None) -> bool:
        """Whether agents see a difference."""
        before, self._table = self._table, build_table(self._offers(manager), self._table)
        return bool(diff(before, self._table))

    def warn(self) -> None:
        """Tells the owner what he should know about the tools, each thing once."""
        for warning in self._table.warnings:
            if warning not in self._told:
                self._told.add(warning)
                logger.warning("%s", warning)

    def shown(self, mask: Mask) -> list[OwnedTool]:
        """Each tool with its server. Names are not masked: as long as they are listed they can be called."""
        listed, routes = mask.data(self._table.listed, TOOL), self._table.routes
        owned = [OwnedTool(**tool, bundle_id=route.server) for tool, route in zip(listed, routes.values(), strict=True)]
        for tool, name in zip(owned, routes, strict=True):
            tool["name"] = name
        return owned

    def written(self, mask: Mask, req_id: str) -> Written:
        """The answer to a request for the tools. Its text is the same until they change, or the secrets do."""
        table, version = self._table, mask.version
        if self._written is None or (self._written[0] is not table or self._written[1] != version):
            tools = self.shown(mask)
            self._written = table, version, Written({"tools": tools}, dumps(tools))
        listed = self._written[2]
        return Written({**listed, "req_id": req_id}, f'{{"tools":{listed.text},"req_id":{dumps(req_id)}}}')

    def _offers(self, manager: Manager | None) -> Mapping[str, tuple[BaseServerConfig, Sequence[dict[str, Any]]]]:
        servers: dict[str, tuple[BaseServerConfig, Sequence[dict[str, Any]]]] = {}
        if manager is not None:
            servers = {name: (manager.config(name), manager.tools(name)) for name in manager}
        if len(self.functions) and FUNCTIONS not in servers:
            servers[FUNCTIONS] = self.functions.offer()
        return servers
