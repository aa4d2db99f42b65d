"""The Computer: what its socket, its command line and a Python program all call. It knows no terminal."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, overload

from a2c_smcp.computer.approval import Approvals, Approve, Caller, Request
from a2c_smcp.computer.arguments import check_arguments
from a2c_smcp.computer.calls import Calls
from a2c_smcp.computer.desktop.organize import Contents, Window
from a2c_smcp.computer.desktop.read import read_desktop
from a2c_smcp.computer.hosting import Hosting
from a2c_smcp.computer.inputs.resolver import Approve as ApproveCommand
from a2c_smcp.computer.inputs.resolver import Inputs, Prompt
from a2c_smcp.computer.instance import instance_of
from a2c_smcp.computer.mcp_clients.model import (
    BaseServerConfig,
    MCPServerConfig,
    MCPServerInput,
    ToolMeta,
    input_to_wire,
    parse_input,
    parse_server,
    to_wire,
)
from a2c_smcp.computer.mcp_clients.policy import Policy
from a2c_smcp.computer.mcp_clients.session import EventKind
from a2c_smcp.computer.mcp_clients.status import OnChange, ServerStatus, State
from a2c_smcp.computer.secrets import Mask, literal_secrets, mask_config, masked_logs
from a2c_smcp.computer.tools import ToolRoute, ToolTable, build_table, diff
from a2c_smcp.computer.types import OwnedTool, ToolCallRecord
from a2c_smcp.errors import CallTimeout, ConfigError, SMCPError, TooLarge, ToolNotFound
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.results import failed_call
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.wire import wire_call, wire_tools
from a2c_smcp.smcp import GetComputerConfigRet
from a2c_smcp.types import TOOL_NAME, Desktop

__all__ = ["Computer", "Update"]

logger = logging.getLogger(__name__)

Update: TypeAlias = Literal["config", "tool_list", "desktop"]
"""What agents are told of: `server:update_<x>`."""

F = TypeVar("F", bound=Callable[..., Any])

_FUNCTIONS = "python"
_GRACE = 0.5
_HISTORY = 100
_HEAD_ROOM = 256
_MAX_MESSAGE = 4 * 1024 * 1024


class Computer:
    """A device: its MCP servers and plain Python functions. An async context manager; leaving it stops everything.

    `approve` is asked for each call of a tool without `auto_apply`; `prompt` for inputs, `approve_command` before an
    input runs a command. They may be async or not.
    """

    def __init__(
        self,
        name: str,
        *,
        approve: Approve | None = None,
        prompt: Prompt | None = None,
        approve_command: ApproveCommand | None = None,
        values: Mapping[str, Any] | None = None,
        inputs_file: Path | None = None,
        policy: Policy | None = None,
        on_state: OnChange = lambda name, state, reason: None,
        max_message: int = _MAX_MESSAGE,
    ) -> None:
        self.name = name
        self.mask = Mask()
        self.approvals = Approvals(approve)
        self.inputs = Inputs(values=values, prompt=prompt, approve=approve_command, store=inputs_file)
        self.history: deque[ToolCallRecord] = deque(maxlen=_HISTORY)
        self._policy = policy
        self._on_state = on_state
        self._max_message = max_message
        self._functions = MCPRegistry()
        self._function_meta: dict[TOOL_NAME, ToolMeta] = {}
        self._calls = Calls()
        self._table = ToolTable()
        self._definitions: dict[str, MCPServerInput] = {}
        self._listeners: list[Callable[[Update], None]] = []
        self._hosting: Hosting | None = None
        self._restarting: set[asyncio.Future[None]] = set()
        self._leaving = ExitStack()
        self._waiting_configs: dict[str, MCPServerConfig] = {}

    async def __aenter__(self) -> Self:
        self._hosting = Hosting(
            self.inputs, self.mask, policy=self._policy, on_change=self._on_change, on_event=self._on_event
        )
        self._leaving.enter_context(masked_logs(self.mask))
        self._leaving.callback(self.inputs.subscribe(self._on_inputs))
        configs, self._waiting_configs = self._waiting_configs, {}
        try:
            for config in configs.values():
                await self._hosting.put(config, start=False)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._refresh()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._leaving:
            for restarting in self._restarting:
                restarting.cancel()
            await asyncio.gather(*self._restarting, return_exceptions=True)
            await self._calls.close()
            await self._host.close()
            self._hosting = None

    async def run(
        self,
        url: str,
        *,
        office: str,
        api_key: str | None = None,
        state_folder: Path | None = None,
        **connection: Any,
    ) -> None:
        """Starts its servers, dials out, joins, serves and reconnects, until it is cancelled or refused for good.

        `connection` are further arguments of `SMCPComputerClient`.
        """
        from a2c_smcp.computer.socketio.client import SMCPComputerClient

        async with self:
            starting = asyncio.create_task(self.start())
            try:
                with instance_of(self.name, url, state_folder) as instance:
                    client = SMCPComputerClient(self, url, office, api_key=api_key, instance=instance, **connection)
                    await client.run()
            finally:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)

    # Configuration

    def add_server(self, config: MCPServerConfig | Mapping[str, Any]) -> None:
        """Makes a server known before the computer runs; `put_server` adds one to a computer that does."""
        parsed = parse_server(config) if isinstance(config, Mapping) else config
        if self._hosting:
            raise ConfigError("this computer is running: await put_server() instead")
        self._waiting_configs[parsed.name] = parsed

    async def put_server(self, config: MCPServerConfig | Mapping[str, Any]) -> None:
        """Adds or replaces a server, and starts it."""
        parsed = parse_server(config) if isinstance(config, Mapping) else config
        await self._host.put(parsed)
        self._tell("config")

    async def remove_server(self, name: str) -> None:
        await self._host.remove(name)
        self._refresh()
        self._tell("config")

    def define_inputs(self, definitions: Iterable[MCPServerInput | Mapping[str, Any]]) -> None:
        """What `${input:id}` may refer to."""
        parsed = [parse_input(each) if isinstance(each, Mapping) else each for each in definitions]
        self.mask.add(literal_secrets({"inputs": [input_to_wire(each) for each in parsed]}))
        self._definitions = {each.id: each for each in parsed}
        self.inputs.define(parsed)

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(self, function: None = None, /, *, name: str | None = None, **meta: Any) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, /, *, name: str | None = None, **meta: Any) -> Any:
        """Offers a Python function as a tool. The keywords are its ToolMeta, such as `auto_apply=True`."""

        def register(function: F) -> F:
            self._functions.tool(name=name)(function)
            self._function_meta[name or function.__name__] = ToolMeta(**meta)
            self._refresh()
            return function

        return register if function is None else register(function)

    # Servers

    async def start(self, name: str | None = None) -> None:
        await self._host.start(name)
        self._refresh()

    async def stop(self, name: str | None = None) -> None:
        await self._host.manager.stop(name)

    async def restart(self, name: str) -> None:
        await self._host.manager.restart(name)

    def status(self) -> dict[str, ServerStatus]:
        """What the owner may see of each server: its state and why, without secrets."""
        return {
            name: replace(each, reason=self.mask.text(each.reason), diagnostics=self.mask.data(each.diagnostics))
            for name, each in self._host.status().items()
        }

    @property
    def warnings(self) -> list[str]:
        """What the owner should know about the tools: clashes of names, schemas that cannot be used."""
        return self._table.warnings

    # What agents ask for

    def get_tools(self) -> list[OwnedTool]:
        """The tools as agents see them, each with its server. Causes no traffic.

        Names are not masked: a server that is given `github` in a variable may well have a tool `github_search`.
        """
        listed, routes = self.mask.data(self._table.listed), self._table.routes
        owned = [OwnedTool(**tool, bundle_id=route.server) for tool, route in zip(listed, routes.values(), strict=True)]
        for tool, name in zip(owned, routes, strict=True):
            tool["name"] = name
        return owned

    def get_config(self) -> GetComputerConfigRet:
        """The configuration as agents may see it: placeholders stay, literal secrets are masked."""
        config = GetComputerConfigRet(
            inputs=[input_to_wire(each) for each in self._definitions.values()],
            servers={name: to_wire(each) for name, each in self._host.configs.items()},
        )
        return self.mask.data(mask_config(config))

    async def get_desktop(self, size: int | None = None, window: str | None = None) -> list[Desktop]:
        """The windows of all servers as one view (004)."""
        manager = self._host.manager
        windows = [
            Window(name, listed["uri"], index)
            for name in manager
            for index, listed in enumerate(manager.windows(name))
            if window in (None, listed["uri"])
        ]

        async def read(each: Window, limit: float) -> Contents:
            contents: Contents = (await manager.read_resource(each.server, each.uri, limit)).get("contents")
            return contents

        desktops = await read_desktop(windows, size, list(self.history), read)
        return [self.mask.text(desktop) for desktop in desktops]

    async def execute_tool(
        self, caller: Caller, req_id: str, name: TOOL_NAME, params: dict[str, Any], timeout: float
    ) -> dict[str, Any]:
        """The result as it travels; whatever goes wrong is one too. The order is that of WIRE §5."""
        try:
            return await self._calls.run(
                caller, req_id, [name, params], lambda: self._execute(caller, req_id, name, params, timeout)
            )
        except SMCPError as error:
            return self.fitting(self.mask.data(failed_call(error)))

    def cancel(self, agent: str, req_id: str) -> None:
        self._calls.cancel(agent, req_id)

    def forget(self, office: str, agent: str | None = None) -> None:
        """Drops the results kept for an agent that has left, or for an office that this computer has left."""
        self._calls.forget(office, agent)

    def on_update(self, listener: Callable[[Update], None]) -> Callable[[], None]:
        """Calls the listener when agents should look again, until the function that is returned is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # How it is done

    @property
    def _host(self) -> Hosting:
        if self._hosting is None:
            raise RuntimeError("the computer is not running: use `async with computer:`")
        return self._hosting

    async def _execute(
        self, caller: Caller, req_id: str, name: TOOL_NAME, params: dict[str, Any], timeout: float
    ) -> dict[str, Any]:
        route = self._table.resolve(name)
        check_arguments(route.schema, params)
        record = self._record(req_id, route, params, timeout)
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                request = Request(caller, name, route.server, route.tool, self.mask.data(params))
                await self.approvals.require(request, route)
            self._check_unchanged(name, route)
            async with asyncio.timeout_at(deadline + _GRACE):  # who knows most answers first: the session
                result = self.mask.data(await self._run(route, params, deadline))
                transform, masked = self._host.transform(route), self.mask.data(params)
                result = self.mask.data(await transform.apply(result, tool_name=name, parameters=masked))
        except TimeoutError:
            record["error"] = f"no answer within {timeout:g} s"
            raise CallTimeout(f"{name!r} did not finish within {timeout:g} s") from None
        except BaseException as error:
            record["error"] = self.mask.text(str(error) or type(error).__name__)
            raise
        record["success"] = not result.get("isError")
        return self.fitting(result)

    def _check_unchanged(self, name: TOOL_NAME, approved: ToolRoute) -> None:
        """What the owner said yes to may have been replaced while he was thinking."""
        now = self._table.resolve(name)
        if (now.server, now.tool) != (approved.server, approved.tool):
            raise ToolNotFound(f"{name!r} has become another tool", toolId=name)

    async def _run(self, route: ToolRoute, params: dict[str, Any], deadline: float) -> dict[str, Any]:
        if route.server == _FUNCTIONS and _FUNCTIONS not in self._host.configs:
            async with asyncio.timeout_at(deadline):
                return await wire_call(self._functions, route.tool, params)
        left = max(deadline - asyncio.get_running_loop().time(), 0.001)
        return await self._host.manager.call_tool(route.server, route.tool, params, left, cap=left)

    def fitting(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer that is too large to be sent becomes one that says so."""
        size = len(dumps(answer).encode(errors="surrogatepass"))
        if size + _HEAD_ROOM <= self._max_message:
            return answer
        return failed_call(TooLarge(f"the answer has {size} bytes, at most {self._max_message} can be sent", size=size))

    def _record(self, req_id: str, route: ToolRoute, params: dict[str, Any], timeout: float) -> ToolCallRecord:
        record = ToolCallRecord(
            timestamp=datetime.now(UTC).isoformat(),
            req_id=req_id,
            server=route.server,
            tool=route.tool,
            parameters=self.mask.data(params),
            timeout=timeout,
            success=False,
            error=None,
        )
        self.history.append(record)
        return record

    def _refresh(self) -> None:
        """Builds the table of tools anew, and tells agents if they would see a difference."""
        servers: dict[str, tuple[BaseServerConfig, list[dict[str, Any]]]] = {}
        if self._hosting:
            manager = self._hosting.manager
            servers = {name: (manager.config(name), manager.tools(name)) for name in manager}
        if len(self._functions) and _FUNCTIONS not in servers:
            functions = BaseServerConfig(name=_FUNCTIONS, tool_meta=self._function_meta)
            servers[_FUNCTIONS] = (functions, wire_tools(self._functions))
        before, self._table = self._table, build_table(servers, self._table)
        for warning in self._table.warnings:
            if warning not in before.warnings:
                logger.warning("%s", warning)
        if diff(before, self._table):
            self._tell("tool_list")

    def _tell(self, update: Update) -> None:
        for listener in list(self._listeners):
            listener(update)

    def _on_change(self, name: str, state: State, reason: str) -> None:
        try:
            self._on_state(name, state, self.mask.text(reason))
        except Exception:  # the owner's own code; the supervision of the server goes on
            logger.exception("on_state failed")
        self._refresh()

    def _on_event(self, name: str, kind: EventKind, about: str | None) -> None:
        if kind in ("tools_changed", "lost"):
            self._refresh()
        else:
            self._tell("desktop")

    def _on_inputs(self, ids: frozenset[str]) -> None:
        if self._hosting and (users := self._hosting.users_of(ids)):
            restarting = asyncio.ensure_future(self._hosting.fill_in_again(users))
            self._restarting.add(restarting)
            restarting.add_done_callback(self._restarted)

    def _restarted(self, task: asyncio.Future[None]) -> None:
        self._restarting.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("servers could not be restarted after an input changed", exc_info=error)
