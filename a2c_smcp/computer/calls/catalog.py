"""The tools that a Computer offers now: those of its MCP servers and its Python functions, as one table."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from a2c_smcp.computer.calls.table import A2C_TOOL_META, NameOrder, ToolRoute, ToolTable, build_table, diff, fitted
from a2c_smcp.computer.consent.decision import Outlook
from a2c_smcp.computer.consent.pins import PinnedTools
from a2c_smcp.computer.secrets.mask import TOOL, Mask
from a2c_smcp.computer.types import OwnedTool
from a2c_smcp.errors import BadRequest, ToolNotFound
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, ToolMeta
from a2c_smcp.mcp_host.sessions.server_info import ServerLog
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, ToolRequest
from a2c_smcp.mcp_host.status import OnServerLog, State
from a2c_smcp.protocol.codec import Encoded, dumps
from a2c_smcp.protocol.questions import InputRequest
from a2c_smcp.protocol.structure import NAME
from a2c_smcp.registry import CannotAsk, MCPRegistry
from a2c_smcp.registry.calls.context import ToolCaller, called_by
from a2c_smcp.registry.content import mcp_result
from a2c_smcp.registry.functions import InvalidArguments, Parameters
from a2c_smcp.registry.schemas.check import Fault, Schema, SchemaTooHeavy, find_faults_async, find_faults_here
from a2c_smcp.types import TOOL_NAME

if TYPE_CHECKING:
    from a2c_smcp.computer.hosting import HostedServers

logger = logging.getLogger(__name__)

# Checks the arguments of a call against the schema of its tool. An unusable schema accepts all arguments.


def fits_at_once(schema: Schema, params: dict[str, Any]) -> bool:
    """True if the arguments are known to fit without a check in another process."""
    return find_faults_here(schema, params) == []


async def check_arguments(schema: Schema, params: dict[str, Any], called: str = "a tool") -> None:
    """Raise `BadRequest` if the arguments do not fit: `details["errors"]` has a JSON pointer and a message per fault.

    Messages quote no value. Raises `SchemaTooHeavy` if a process made for such checks needs more than a second; that is
    logged once per schema, with the tool as `called`.
    """
    try:
        faults = await find_faults_async(schema, params)
    except SchemaTooHeavy as error:
        if not schema.is_reported:
            schema.is_reported = True
            logger.warning("%s: %s", called, error.message)
        raise
    if faults:
        raise bad_arguments(faults)


def bad_arguments(faults: list[Fault]) -> BadRequest:
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return BadRequest(f"params{first['path']}: {first['message']}{more}", field="params", errors=faults)


# Python functions as tools of a Computer. They are called like the tools of an MCP server: by a `ToolRequest`.
#
# A function that takes a `ToolContext` may report progress, log and ask. Its log is one of those that the Computer
# keeps for each server, and its questions take the way of a server's questions.

FUNCTIONS = "python"
"""The name of the server that Python functions belong to, unless a server is configured under this name."""


class Functions:
    """Python functions as tools. Arguments must fit the schema that agents see, and the annotations of the function."""

    def __init__(self) -> None:
        self.on_log: OnServerLog = lambda name, message: None
        self._registry = MCPRegistry()
        self._parameters: dict[TOOL_NAME, Parameters] = {}
        self._meta: dict[TOOL_NAME, ToolMeta] = {}
        self._log = ServerLog(lambda message: self.on_log(FUNCTIONS, message))

    def __len__(self) -> int:
        return len(self._registry)

    def add(self, function: Callable[..., Any], name: str | None, meta: ToolMeta) -> None:
        """Raise `TypeError` if the parameters of the function cannot be described by a schema."""
        self._registry.tool(name=name)(function)
        name = name or function.__name__
        self._parameters[name] = Parameters(function, {})
        self._meta[name] = meta

    def offer(self) -> tuple[BaseServerConfig, list[dict[str, Any]]]:
        """The configuration and the tools of a server with these functions."""
        return BaseServerConfig(name=FUNCTIONS, tool_meta=self._meta), self._registry.describe("mcp")

    async def call_tool(self, request: ToolRequest) -> dict[str, Any]:
        """The result as an MCP result. Raises `TimeoutError`, and `BadRequest` for arguments that do not fit.

        With `extend`, the timeout begins again with each report of progress and with each question and answer.
        """
        name, loop = request.tool, asyncio.get_running_loop()
        params = dict(request.arguments)
        try:
            self._parameters[name].bind(params)
        except InvalidArguments as error:
            raise bad_arguments(error.details["errors"]) from None
        async with asyncio.timeout(request.timeout) as limit:

            def extend() -> None:
                if request.extend and not limit.expired():
                    limit.reschedule(loop.time() + request.timeout)

            def on_progress(progress: float, total: float | None, message: str | None) -> None:
                extend()
                if request.on_progress is not None:
                    request.on_progress(progress, total, message)

            async def on_input(asked: InputRequest) -> dict[str, Any]:
                extend()
                try:
                    return await _answered(request, asked)
                finally:
                    extend()

            request.begin()
            asking = on_input if request.on_input else None

            def on_log(level: str, data: Any, logger: str | None) -> None:
                self._log.add({"level": level, "data": data, "logger": logger})

            caller = ToolCaller(on_log=on_log, on_input=asking, capabilities=request.capabilities, loop=loop)
            is_followed = request.extend or request.on_progress is not None
            with called_by(caller):
                call = self._registry.acall(name, params, on_progress=on_progress if is_followed else None)
                return await mcp_result(name, call)


async def _answered(request: ToolRequest, asked: InputRequest) -> dict[str, Any]:
    assert request.on_input
    try:
        return await request.on_input(asked)
    except InputRefused as refusal:
        raise CannotAsk(str(refusal), method=asked.method) from None


_MOST_VIEWS = 16
_HEAD_ROOM = 16 * 1024  # for the rest of the answer: its id, the servers that are starting


class ToolCatalog:
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
        self._reserved: dict[TOOL_NAME, str] = {}
        self._starting: list[str] = []
        self._refreshed = asyncio.Event()
        self._written: tuple[ToolTable, int, list[str], Mapping[str, str], Encoded] | None = None
        self._views: dict[tuple[Outlook, ...], Encoded] = {}

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
        """True if a starting server may have the tool: a server that starts for the first time may have any."""
        if server := self._table.absent.get(name):
            return server in self._starting
        return any(not self._known[server] for server in self._starting)

    def reserve(self, servers: Collection[str]) -> None:
        """Give the names of these servers' tools to no other server, until the program ends."""
        owners = {name: route.server for name, route in self._table.routes.items()} | self._table.absent
        self._reserved |= {name: server for name, server in owners.items() if server in servers}

    def refresh(self, hosting: HostedServers | None) -> bool:
        """Rebuild the table. Returns whether agents see a difference."""
        waited_for, self._starting = self._starting, hosting.starting if hosting else []
        servers = self._servers(hosting)
        self._name_order.configured(servers)
        self._known = {name: self._known.get(name, []) for name in servers}
        down = {name for name, server in servers.items() if not self._learn(name, server)}
        offers = {name: (server.config, self._known[name]) for name, server in servers.items()}
        before = self._table
        self._pins.begin(hosting.configs if hosting else {})
        table = build_table(
            offers, before, order=self._name_order.of, down=down, look=self._pins.look, reserved=self._reserved
        )
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
    ) -> Encoded:
        """The answer to a request for the tools. Its text is kept until the tools or the secrets change.

        In the answer, `starting` has the servers whose tools are still missing, if there are any; `approved` has the
        tools that this agent need not ask for. `outlooks` are what the policy has in store for its calls.
        """
        now = self._table, mask.version, self._starting, self._bundle_ids
        if self._written is None or self._written[:4] != now:
            answer: dict[str, Any] = {"tools": self.shown(mask)}
            if self._starting:
                answer["starting"] = mask.data(self._starting, NAME)
            self._written = *now, Encoded(answer, dumps(answer))
            self._views.clear()
        listed = self._written[-1]
        if outlooks is not None:
            listed = self._view(listed, outlooks)
        own = {"req_id": req_id, **({"approved": approved} if approved else {})}
        return Encoded({**listed, **own}, f"{listed.text[:-1]},{dumps(own)[1:]}")

    def _view(self, listed: Encoded, outlooks: Mapping[TOOL_NAME, Outlook]) -> Encoded:
        """The list for an agent: without what the policy denies, and what asks is marked so."""
        key = tuple(outlooks.values())
        if (view := self._views.get(key)) is None:
            tools = [_with_outlook(tool, outlooks[tool["name"]]) for tool in listed["tools"]]
            answer = {**listed, "tools": [tool for tool in tools if tool is not None]}
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            view = self._views[key] = Encoded(answer, dumps(answer))
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

    def _servers(self, hosting: HostedServers | None) -> dict[str, _Server]:
        """The Python functions first, then the configured servers."""
        servers = {FUNCTIONS: _Server(*self.functions.offer(), "ready")} if len(self.functions) else {}
        if hosting is None:
            return servers
        manager = hosting.manager
        return servers | {
            name: _Server(manager[name].config, manager[name].tools, manager[name].state)
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
