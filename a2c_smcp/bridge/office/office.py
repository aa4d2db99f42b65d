"""What an office has now, as MCP clients are shown it: its tools under their names, and words on its state.

The tools of all computers are in the agent's registry, which changes them in one step. The catalog is built anew from
it when a client asks after a change. While the office cannot be used, or has no computer, there is a tool that says so:
a client shows its list of tools, and nothing else that a person would look at.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.agent.toolbox import RemoteTool
from a2c_smcp.bridge.catalog import Catalog, catalog
from a2c_smcp.bridge.names import GivenNames
from a2c_smcp.bridge.offers import OfferedTool, Target
from a2c_smcp.bridge.office.announced_lists import AnnouncedLists, ListName
from a2c_smcp.bridge.office.desktops import GET_DESKTOP, DesktopResources
from a2c_smcp.bridge.office.membership import Membership
from a2c_smcp.bridge.office.readables import Readables
from a2c_smcp.bridge.options import BridgeOptions
from a2c_smcp.errors import ComputerNotFound, SMCPError, ToolNotFound
from a2c_smcp.registry.readable_registry import ReadableChange

__all__ = ["OFFICE_STATUS", "BridgedOffice"]

logger = logging.getLogger(__name__)

OFFICE_STATUS = "office_status"
_SHOWN_COMPUTERS = 50


class BridgedOffice:
    """An office that an agent is in, or tries to enter. It is what the `Announcer` of a server listens to."""

    def __init__(self, agent: AsyncSMCPAgentClient, name: str, options: BridgeOptions) -> None:
        self.agent, self.name, self.options = agent, name, options
        self.membership = Membership(agent, name, self._on_state, self._on_return)
        self._watched: Counter[str] = Counter()
        self.desktops = DesktopResources(agent, name, self._on_change)
        self.readables = Readables(agent, name)
        self._names = GivenNames(options.names_file)
        self._listeners: dict[object, Callable[[], None]] = {}
        self._listings: WeakKeyDictionary[RemoteTool, dict[str, Any]] = WeakKeyDictionary()
        self._tools: dict[Target, RemoteTool] = {}
        self._catalog: Catalog | None = None
        self._schemas: dict[str, dict[str, Any]] | None = None
        self._readable_listeners: dict[object, Callable[[ReadableChange], None]] = {}
        self._announced = AnnouncedLists(name, self._tell_unchanged)
        self._stack = ExitStack()

    async def open(self) -> None:
        self._stack.callback(self.agent.registry.on_change(self._on_change))
        self._stack.callback(self.agent.registry.on_readable_change(self._on_readable_change))
        self._stack.callback(self.agent.listen(self._announced))
        self.desktops.open()
        await self.membership.open(self.options.wait)

    async def close(self) -> None:
        self._stack.close()
        self._announced.close()
        await self.desktops.close()
        await self.membership.close()

    # What is offered

    @property
    def computers(self) -> list[str]:
        prefix = f"{self.name}/"
        return sorted(each.removeprefix(prefix) for each in self.agent.computers if each.startswith(prefix))

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._tools = {
                Target(tool.seat.computer, tool.tool["name"]): tool
                for _, tool in self.agent.registry.items()
                if isinstance(tool, RemoteTool) and tool.seat.office == self.name
            }
            offers = [OfferedTool(target, self._listing(tool)) for target, tool in self._tools.items()]
            reserved = (GET_DESKTOP, OFFICE_STATUS)
            self._catalog = catalog(offers, self._names, self.options.catalog, reserved)
        return self._catalog

    def resolve(self, name: str, arguments: Mapping[str, Any]) -> tuple[Target, dict[str, Any]]:
        """The tool that a call is for, and its own arguments. Raises `SMCPError`.

        A tool that is not offered now, but was before, is called where it was: its MCP server may be starting, and the
        computer knows that.
        """
        try:
            return self.catalog.resolve(name, arguments)
        except ToolNotFound:
            owner = self._names.owner_of(name)
            if not isinstance(owner, Target):
                raise
        if owner.computer not in self.computers:
            about = f"{owner.computer!r}, which has the tool {name!r}, is not in the office now"
            raise ComputerNotFound(about, computer=owner.computer)
        return owner, dict(arguments)

    def listings(self) -> list[dict[str, Any]]:
        """MCP's list of tools."""
        own = [self.desktops.tool, self._status_tool()]
        return [*self.catalog.listings(), *(tool for tool in own if tool)]

    def input_schema(self, name: str) -> dict[str, Any] | None:
        """The schema of a tool's arguments, by the name that it has here."""
        if self._schemas is None:
            self._schemas = {tool["name"]: tool["inputSchema"] for tool in self.listings()}
        return self._schemas.get(name)

    def server_of(self, target: Target) -> str | None:
        """The MCP server that a tool is of, if its computer says that."""
        tool: Mapping[str, Any] = self._tools[target].tool if target in self._tools else {}
        server = tool.get("mcp_server") or tool.get("bundle_id")
        return server if isinstance(server, str) else None

    # Its state, in words

    @property
    def trouble(self) -> str | None:
        """Why the office cannot be used now, and what to do about it."""
        if error := self.membership.trouble:
            return f"The office {self.name!r} cannot be used now. {self.options.explain(error)}"
        if not self.computers:
            return (
                f"There is no computer in the office {self.name!r} now. "
                f"Add one with: a2c-smcp computer --office {self.name}"
            )
        return None

    def explain(self, error: SMCPError) -> str:
        """Why a request has failed, and what to do about it."""
        return (self.trouble if self.membership.trouble else None) or self.options.explain(error)

    @property
    def instructions(self) -> str:
        """What a client is told about this server."""
        if trouble := self.trouble:
            return f"{trouble} This is tried again all the time, and the list of tools changes when it has succeeded."
        names = self.computers
        more = f" and {len(names) - _SHOWN_COMPUTERS} more" if len(names) > _SHOWN_COMPUTERS else ""
        return (
            f"Tools, resources and prompts of the computers in the office {self.name!r}, now: "
            f"{', '.join(names[:_SHOWN_COMPUTERS])}{more}. A tool with an argument `computer` runs on that computer."
        )

    def status(self) -> dict[str, Any]:
        """The result of the tool that says how the office is."""
        text = self.trouble or f"All is well. {self.instructions}"
        return {"content": [{"type": "text", "text": text}], "isError": False}

    def _status_tool(self) -> dict[str, Any] | None:
        if not (trouble := self.trouble):
            return None
        return {
            "name": OFFICE_STATUS,
            "title": "Status of the office",
            "description": f"Says why there are no tools of computers here. {trouble}",
            "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        }

    # Changes (`announcing.ChangingOffers`)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls the listener when the tools may have changed, or the state. Returns how to stop that."""
        token = object()
        self._listeners[token] = listener
        return lambda: self._listeners.pop(token, None) and None

    def on_readable_change(self, listener: Callable[[ReadableChange], None]) -> Callable[[], None]:
        """Calls the listener with `resources` or `prompts` when these may have changed."""
        token = object()
        self._readable_listeners[token] = listener
        return lambda: self._readable_listeners.pop(token, None) and None

    def watch_resource(self, uri: str, listener: Callable[[str], None]) -> Callable[[], None]:
        """Calls the listener after each change of a resource, and when changes may have been missed."""
        self._watched[uri] += 1
        stop = self.agent.registry.watch_resource(uri, listener)

        def end() -> None:
            self._watched[uri] -= 1
            stop()

        return end

    async def until_watched(self, uri: str) -> None:
        await self.agent.registry.until_watched(uri)

    def _on_return(self) -> None:
        """Changes of resources while the connection was lost were not told."""
        self._watched = +self._watched
        for uri in self._watched:
            self.agent.registry.resource_updated(uri)

    def _on_state(self) -> None:
        if self.membership.trouble:
            logger.warning("%s", self.trouble)
        else:
            logger.info("office %r is joined", self.name)
        self._on_change()

    def _on_change(self) -> None:
        self._catalog = self._schemas = None
        self._announced.changed("tools")
        for listener in [*self._listeners.values()]:
            listener()

    def _on_readable_change(self, change: ReadableChange) -> None:
        self._announced.changed(change)
        for listener in [*self._readable_listeners.values()]:
            listener(change)

    def _tell_unchanged(self, name: ListName) -> None:
        if name == "tools":
            self._on_change()
        else:
            self._on_readable_change(name)

    def _listing(self, tool: RemoteTool) -> dict[str, Any]:
        """A tool as MCP lists it, without its name. It is made once for each."""
        listing = self._listings.get(tool)
        if listing is None:
            listing = self._listings[tool] = {
                "description": tool.description,
                "inputSchema": {"type": "object", **tool.input_schema},
                **({"outputSchema": tool.output_schema} if tool.output_schema else {}),
                **tool.meta,
            }
        return listing
