"""The Computer: what its socket, its command line and a Python program all call. It knows no terminal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, cast, overload

from a2c_smcp.computer.approval import Approvals, Approve, Caller
from a2c_smcp.computer.calls.execution import Execution, ToolCall
from a2c_smcp.computer.calls.in_flight import Outcome
from a2c_smcp.computer.calls.journal import Journal, journal_of
from a2c_smcp.computer.calls.reports import OnProgress
from a2c_smcp.computer.desktop.read import read_desktop
from a2c_smcp.computer.hosting import Hosting
from a2c_smcp.computer.inputs.resolver import Approve as ApproveCommand
from a2c_smcp.computer.inputs.resolver import Inputs, Prompt
from a2c_smcp.computer.private_files import instance_of
from a2c_smcp.computer.secrets import ARGUMENTS, CONFIG, NO_SERVER, SERVER, Mask, mask_config, masked_logs, secrets_of
from a2c_smcp.computer.secrets.config import names_of_secrets
from a2c_smcp.computer.secrets.rules import Named
from a2c_smcp.computer.tools.catalogue import Catalogue
from a2c_smcp.computer.types import OwnedTool
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.loops import ended_by_interrupt
from a2c_smcp.mcp_host.config.servers import (
    MCPServerConfig,
    MCPServerInput,
    ToolMeta,
    input_to_wire,
    parse_input,
    parse_server,
    to_wire,
)
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.session import EventKind
from a2c_smcp.mcp_host.status import OnChange, ServerStatus, State
from a2c_smcp.protocol.codec import Written
from a2c_smcp.smcp import GetComputerConfigRet
from a2c_smcp.types import TOOL_NAME, Desktop

__all__ = ["Computer", "Update"]

logger = logging.getLogger(__name__)

Update: TypeAlias = Literal["config", "tool_list", "desktop"]
"""What agents are told of: `server:update_<x>`."""

F = TypeVar("F", bound=Callable[..., Any])

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
        policy: HostPolicy | None = None,
        on_state: OnChange = lambda name, state, reason: None,
        max_message: int = _MAX_MESSAGE,
    ) -> None:
        self.name = name
        self.mask = Mask()
        self.approvals = Approvals(approve)
        self.inputs = Inputs(values=values, prompt=prompt, approve=approve_command, store=inputs_file)
        self._policy = policy or HostPolicy(largest_message=4 * max_message)
        self._on_state = on_state
        self._catalogue = Catalogue(max_message)
        self._execution = Execution(lambda: self._host, self._catalogue, self.approvals, self.mask, max_message)
        self.history, self.statistics = self._execution.history, self._execution.statistics
        self._definitions: dict[str, MCPServerInput] = {}
        self._listeners: list[Callable[[Update], None]] = []
        self._hosting: Hosting | None = None
        self._leaving = ExitStack()
        self._moving = 0
        self._waiting_configs: dict[str, MCPServerConfig] = {}

    async def __aenter__(self) -> Self:
        self._hosting = Hosting(
            self.inputs,
            self.mask,
            policy=self._policy,
            on_change=self._on_change,
            on_event=self._on_event,
            on_starting=self._refresh,
        )
        self._leaving.enter_context(masked_logs(self.mask))
        configs, self._waiting_configs = self._waiting_configs, {}
        try:
            for config in configs.values():
                await self._hosting.put(config)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._refresh()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._leaving, self._many_moving():
            await self._execution.calls.close()
            await self._host.close()
            self._hosting = None

    async def run(
        self, url: str, *, office: str, api_key: str | None = None, state_folder: Path | None = None, **connection: Any
    ) -> None:
        """Starts its servers, dials out, joins, serves and reconnects, until it is cancelled or refused for good.

        `connection` are further arguments of `SMCPComputerClient`, such as `on_connection`, a function that is told
        when it has joined or lost the connection; without one, that is logged. Ctrl-C ends it without an error where
        it is all that the program does: `asyncio.run(computer.run(…))`.
        """
        from a2c_smcp.computer.socketio.client import SMCPComputerClient

        with ended_by_interrupt():
            async with self:
                starting = asyncio.create_task(self.start())
                try:
                    with (
                        instance_of(self.name, url, state_folder) as instance,
                        journal_of(self.name, url, office, state_folder) as journal,
                    ):
                        client = SMCPComputerClient(
                            self, url, office, api_key=api_key, instance=instance, journal=journal, **connection
                        )
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

    async def check_server(self, config: MCPServerConfig) -> None:
        """Raises the `ConfigError` that `put_server` would."""
        await self._host.check(config)

    async def put_server(self, config: MCPServerConfig | Mapping[str, Any]) -> None:
        """Adds or replaces a server, and starts it, unless it replaces one that was stopped."""
        parsed = parse_server(config) if isinstance(config, Mapping) else config
        await self._host.put(parsed)
        self._tell("config")
        await self._host.fill_in(parsed.name)

    async def remove_server(self, name: str) -> None:
        await self._host.remove(name)
        self._refresh()
        self._tell("config")

    def define_inputs(self, definitions: Iterable[MCPServerInput | Mapping[str, Any]]) -> None:
        """What `${input:id}` may refer to."""
        parsed = [parse_input(each) if isinstance(each, Mapping) else each for each in definitions]
        self.mask.add(secrets_of({"inputs": [input_to_wire(each) for each in parsed]}).found, NO_SERVER)
        self._definitions = {each.id: each for each in parsed}
        self.inputs.define(parsed)

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(self, function: None = None, /, *, name: str | None = None, **meta: Any) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, /, *, name: str | None = None, **meta: Any) -> Any:
        """Offers a Python function as a tool. The keywords are its ToolMeta, such as `auto_apply=True`."""

        def register(function: F) -> F:
            self._catalogue.functions.add(function, name, ToolMeta(**meta))
            self._refresh()
            return function

        return register if function is None else register(function)

    # Servers

    async def start(self, name: str | None = None) -> None:
        with self._many_moving():
            await self._host.start(name)

    async def stop(self, name: str | None = None) -> None:
        with self._many_moving():
            await self._host.stop(name)

    async def restart(self, name: str) -> None:
        await self._host.restart(name)

    def status(self) -> dict[str, ServerStatus]:
        """What the owner may see of each server: its state and why, without secrets."""
        return {
            name: replace(
                each,
                reason=self.mask.text(each.reason, name),
                diagnostics=self.mask.data(each.diagnostics, ARGUMENTS, name),
            )
            for name, each in self._host.status().items()
        }

    def secrets(self) -> dict[str, list[Named]]:
        """What is treated as secret, by server: names, never values."""
        return {name: names_of_secrets(each, self._definitions) for name, each in self._host.configs.items()}

    @property
    def warnings(self) -> list[str]:
        """What the owner should know about the tools: clashes of names, unusable schemas, tools that are left out."""
        left_out = [
            f"server {name!r}: {self.mask.text(warning, name)}"
            for name, each in (self._hosting.status() if self._hosting else {}).items()
            for warning in each.warnings
        ]
        return self._catalogue.warnings + left_out

    # What agents ask for

    def get_tools(self) -> list[OwnedTool]:
        """The tools as agents see them, each with its server. Causes no traffic."""
        return self._catalogue.shown(self.mask)

    def tools_for(self, agent: str, req_id: str) -> Written:
        """The same as the answer to a request, written already, with what this agent need not ask for."""
        approved = self.approvals.approved(agent, self._catalogue.routes)
        return self._catalogue.written(self.mask, req_id, approved)

    def get_config(self) -> GetComputerConfigRet:
        """The configuration as agents may see it: placeholders stay, literal secrets are masked."""
        inputs = [input_to_wire(each) for each in self._definitions.values()]
        servers = {name: {**to_wire(each), "secrets": each.secrets} for name, each in self._host.configs.items()}
        config: dict[str, Any] = mask_config({"inputs": inputs, "servers": servers})
        config["servers"] = {name: self.mask.data(each, SERVER, name) for name, each in config["servers"].items()}
        return cast("GetComputerConfigRet", self.mask.data(config, CONFIG))

    async def get_desktop(self, size: int | None = None, window: str | None = None) -> list[Desktop]:
        """The windows of all servers as one view (004). One is chosen by its URI, as agents are shown it."""
        windows = self._host.windows()
        if window is not None:
            windows = [each for each in windows if window in (each.uri, self.mask.uri(each.uri, each.server))]
        desktops = await read_desktop(windows, size, list(self.history), self._host.read)
        owners = [(each.uri, each.server) for each in windows]
        return [self._shown(desktop, owners) for desktop in desktops]

    async def execute_tool(
        self,
        caller: Caller,
        req_id: str,
        name: TOOL_NAME,
        params: dict[str, Any],
        timeout: float,
        on_progress: OnProgress | None = None,
    ) -> dict[str, Any]:
        """The result as it travels; whatever goes wrong is one too.

        `on_progress` is called with progress, total and message, as the MCP server reports them; it may be async. One
        that comes with a duplicate of a running call hears of it from then on.
        """
        return await self._execution.result_of(ToolCall(caller, req_id, name, params, timeout), on_progress)

    def start_tool(self, call: ToolCall, then: Callable[[dict[str, Any]], None]) -> None:
        """The same for those who do not wait: `then` is called with the result, once it is there."""

        def settle(outcome: Outcome) -> None:
            then(self._execution.failed(call, outcome) if isinstance(outcome, SMCPError) else outcome)

        try:
            self._execution.start(call, settle)
        except SMCPError as error:
            settle(error)

    def fitting(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer that is too large to be sent becomes one that says so."""
        return self._execution.fitting(answer)

    def cancel(self, agent: str, req_id: str) -> None:
        self._execution.calls.cancel(agent, req_id)

    def recording(self, office: str, journal: Journal) -> AbstractContextManager[None]:
        """Meanwhile calls from this office are written into this journal before they begin."""
        return self._execution.calls.recording(office, journal)

    def forget(self, office: str, agent: str | None = None) -> None:
        """Drops the results kept for an agent that has left, or for an office that this computer has left."""
        self._execution.calls.forget(office, agent)

    def keep_only(self, office: str, agent: str) -> None:
        """Drops the results kept for any other agent: this one has entered the office."""
        self._execution.calls.keep_only(office, agent)

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

    def _shown(self, desktop: Desktop, owners: list[tuple[str, str]]) -> Desktop:
        """A window without the secrets of whichever server it may be of: several may list the same URI."""
        listed, blank, text = desktop.partition("\n\n")
        uri = listed
        for server in [server for each, server in owners if each == listed]:
            uri, text = self.mask.uri(uri, server), self.mask.text(text, server)
        return uri + blank + text

    def _refresh(self) -> None:
        """Looks at the tools anew, and tells agents if they would see a difference."""
        if self._catalogue.refresh(self._hosting):
            self._tell("tool_list")
        if not self._moving:
            self._catalogue.warn()

    @contextmanager
    def _many_moving(self) -> Iterator[None]:
        """While servers come or go one after the other, names clash that will not in the end."""
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
        self._refresh()

    def _tell(self, update: Update) -> None:
        for listener in list(self._listeners):
            listener(update)

    def _on_change(self, name: str, state: State, reason: str) -> None:
        try:
            self._on_state(name, state, self.mask.text(reason, name))
        except Exception:  # the owner's own code; the supervision of the server goes on
            logger.exception("on_state failed")
        self._refresh()

    def _on_event(self, name: str, kind: EventKind, about: str | None) -> None:
        if kind in ("tools_changed", "lost"):
            self._refresh()
        else:
            self._tell("desktop")
