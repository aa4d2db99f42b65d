"""`Computer`: what Python programs, the command line and the connection to a Server use. It knows no terminal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

from a2c_smcp.computer.approval import Approvals, Approve, Caller
from a2c_smcp.computer.calls.execution import Execution, IncomingCall
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
from a2c_smcp.computer.secrets.rules import SecretName
from a2c_smcp.computer.socketio.client import SMCPComputerClient
from a2c_smcp.computer.tools.catalogue import Catalogue
from a2c_smcp.computer.types import OwnedTool, Update
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.loops import cancel_and_wait, ended_by_interrupt
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

F = TypeVar("F", bound=Callable[..., Any])

_MAX_MESSAGE = 4 * 1024 * 1024


class Computer:
    """A device that offers tools of MCP servers and of Python functions to agents.

    `run` does everything until it is cancelled. Without it, use the computer as an async context manager: entering it
    makes the configured servers known, leaving it ends all calls and stops all servers.

    `approve` is called for each call of a tool without `auto_apply`; `prompt` is called for values of inputs, and
    `approve_command` before an input runs a command. They may be async or not. `values` and `inputs_file` have values
    of inputs. `on_state` is called with name, state and reason whenever the state of a server changes. Answers larger
    than `max_message` bytes are replaced by an error.
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
        self._changing = 0
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
        with self._leaving, self._many_changes():
            await self._execution.calls.close()
            await self._host.close()
            self._hosting = None

    async def run(
        self, url: str, *, office: str, api_key: str | None = None, state_folder: Path | None = None, **connection: Any
    ) -> None:
        """Start the servers, connect to a Server, join an office and answer agents, and reconnect, until cancelled.

        `connection` are further arguments of `SMCPComputerClient`, such as `on_connection`, which is called when the
        computer has joined or has lost the connection; without it, that is logged. Raises the `SMCPError` with which
        the Server refuses the computer. Ctrl-C ends it without an error if the program does nothing else:
        `asyncio.run(computer.run(…))`.
        """
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
                    await cancel_and_wait(starting)

    # Configuration

    def add_server(self, config: MCPServerConfig | Mapping[str, Any]) -> None:
        """Add a server before the computer is started; `put_server` adds one to a running computer.

        Raises `ConfigError` if the configuration is wrong or the computer is running.
        """
        parsed = parse_server(config) if isinstance(config, Mapping) else config
        if self._hosting:
            raise ConfigError("this computer is running: await put_server() instead")
        self._waiting_configs[parsed.name] = parsed

    async def check_server(self, config: MCPServerConfig) -> None:
        """Raise the `ConfigError` that `put_server` would raise."""
        await self._host.check(config)

    async def put_server(self, config: MCPServerConfig | Mapping[str, Any]) -> None:
        """Add or replace a server, and start it, unless it replaces one that was stopped. Raises `ConfigError`."""
        parsed = parse_server(config) if isinstance(config, Mapping) else config
        await self._host.put(parsed)
        self._notify("config")
        await self._host.fill_in(parsed.name)

    async def remove_server(self, name: str) -> None:
        """Stop a server and forget its configuration. Raises `ServerNotFound`."""
        await self._host.remove(name)
        self._refresh()
        self._notify("config")

    def define_inputs(self, definitions: Iterable[MCPServerInput | Mapping[str, Any]]) -> None:
        """Replace the definitions of all inputs, to which `${input:id}` refers. Raises `ConfigError`."""
        parsed = [parse_input(each) if isinstance(each, Mapping) else each for each in definitions]
        self.mask.add(secrets_of({"inputs": [input_to_wire(each) for each in parsed]}).found, NO_SERVER)
        self._definitions = {each.id: each for each in parsed}
        self.inputs.define(parsed)

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(self, function: None = None, /, *, name: str | None = None, **meta: Any) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, /, *, name: str | None = None, **meta: Any) -> Any:
        """Offer a Python function as a tool. The keywords are its ToolMeta, such as `auto_apply=True`.

        Raises `TypeError` if the parameters of the function cannot be described by a schema.
        """

        def register(function: F) -> F:
            self._catalogue.functions.add(function, name, ToolMeta(**meta))
            self._refresh()
            return function

        return register if function is None else register(function)

    # Servers

    async def start(self, name: str | None = None) -> None:
        """Start one server, or all. Returns when each is ready or failed, see `status`. Raises `ServerNotFound`."""
        with self._many_changes():
            await self._host.start(name)

    async def stop(self, name: str | None = None) -> None:
        """Stop one server, or all. Raises `ServerNotFound`."""
        with self._many_changes():
            await self._host.stop(name)

    async def restart(self, name: str) -> None:
        await self._host.restart(name)

    def status(self) -> dict[str, ServerStatus]:
        """The state of each server and the reason for it, without secrets."""
        return {
            name: replace(
                each,
                reason=self.mask.text(each.reason, name),
                diagnostics=self.mask.data(each.diagnostics, ARGUMENTS, name),
            )
            for name, each in self._host.status().items()
        }

    def secrets(self) -> dict[str, list[SecretName]]:
        """The names that are treated as secret, by server. Never a value."""
        return {name: names_of_secrets(each, self._definitions) for name, each in self._host.configs.items()}

    @property
    def warnings(self) -> list[str]:
        """Warnings about tools, for the owner: clashes of names, unusable schemas, tools that are left out."""
        left_out = [
            f"server {name!r}: {self.mask.text(warning, name)}"
            for name, each in (self._hosting.status() if self._hosting else {}).items()
            for warning in each.warnings
        ]
        return self._catalogue.warnings + left_out

    # What agents ask for

    def get_tools(self) -> list[OwnedTool]:
        """The tools as agents see them, each with its server. MCP servers are not asked."""
        return self._catalogue.shown(self.mask)

    def tools_for(self, agent: str, req_id: str) -> Written:
        """The answer to an agent's request for the tools, as JSON text already, with the tools it need not ask for."""
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
        """The windows of all servers as texts, the most important first, at most `size` (004).

        `window` selects one by its URI, as agents are shown it.
        """
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
        """Run a tool for an agent. Returns the result as it is sent to the agent; errors are results, too.

        `on_progress` is called with progress, total and message, as the MCP server reports them; it may be async. For a
        duplicate of a running call it is called from then on.
        """
        return await self._execution.result_of(IncomingCall(caller, req_id, name, params, timeout), on_progress)

    def start_tool(self, call: IncomingCall, then: Callable[[dict[str, Any]], None]) -> None:
        """Run a tool in the background, and call `then` with the result."""

        def settle(outcome: Outcome) -> None:
            then(self._execution.failed(call, outcome) if isinstance(outcome, SMCPError) else outcome)

        try:
            self._execution.start(call, settle)
        except SMCPError as error:
            settle(error)

    def fitting(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, or, if it is too large to be sent, one that says so."""
        return self._execution.fitting(answer)

    def cancel(self, agent: str, req_id: str) -> None:
        """End a call of this agent, also if it comes after its cancel."""
        self._execution.calls.cancel(agent, req_id)

    def recording(self, office: str, journal: Journal) -> AbstractContextManager[None]:
        """Inside the `with` block, calls of this office are written into this journal before their tools run."""
        return self._execution.calls.recording(office, journal)

    def forget(self, office: str, agent: str | None = None) -> None:
        """Drop the results kept for an agent that has left, or for an office that this computer has left."""
        self._execution.calls.forget(office, agent)

    def keep_only(self, office: str, agent: str) -> None:
        """Drop the results kept for other agents: this one has entered the office."""
        self._execution.calls.keep_only(office, agent)

    def on_update(self, listener: Callable[[Update], None]) -> Callable[[], None]:
        """Call the listener with each update that agents are notified of. Returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # Inside

    @property
    def _host(self) -> Hosting:
        if self._hosting is None:
            raise RuntimeError("the computer is not running: use `async with computer:`")
        return self._hosting

    def _shown(self, desktop: Desktop, owners: list[tuple[str, str]]) -> Desktop:
        """A window without the secrets of all servers that list its URI: it may be of any of them."""
        listed, blank, text = desktop.partition("\n\n")
        uri = listed
        for server in [server for each, server in owners if each == listed]:
            uri, text = self.mask.uri(uri, server), self.mask.text(text, server)
        return uri + blank + text

    def _refresh(self) -> None:
        """Rebuild the list of tools, and notify agents if they would see a difference."""
        if self._catalogue.refresh(self._hosting):
            self._notify("tool_list")
        if not self._changing:
            self._catalogue.warn()

    @contextmanager
    def _many_changes(self) -> Iterator[None]:
        """Delay warnings while servers start or stop one after the other: names may clash only meanwhile."""
        self._changing += 1
        try:
            yield
        finally:
            self._changing -= 1
        self._refresh()

    def _notify(self, update: Update) -> None:
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
            self._notify("desktop")
