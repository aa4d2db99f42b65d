"""`Computer`: what Python programs, the command line and the connection to a Server use. It knows no terminal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from a2c_smcp.computer.calls.incoming import CallOptions, IncomingCall, OnProgress
from a2c_smcp.computer.calls.journal import journal_of
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.consent.gate import RulesGiven, policy_of_rules
from a2c_smcp.computer.content.agent_requests import AgentRequests
from a2c_smcp.computer.hosting import HostedServers
from a2c_smcp.computer.owner import ComputerOptions, Owner
from a2c_smcp.computer.secrets.logs import masked_logs
from a2c_smcp.computer.sign_in import Browser, OpenURL, PasteRedirect
from a2c_smcp.computer.socketio.client import SMCPComputerClient
from a2c_smcp.computer.types import OwnedTool
from a2c_smcp.errors import ConfigError
from a2c_smcp.files import default_folder, instance_of
from a2c_smcp.loops import cancel_and_wait, ended_by_interrupt
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, MCPServerInput, ToolMeta, parse_server
from a2c_smcp.mcp_host.status import ServerStatus, State
from a2c_smcp.smcp import GetComputerConfigRet
from a2c_smcp.types import TOOL_NAME, Desktop

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


class Computer:
    """A device that offers tools of MCP servers and of Python functions to agents. `options` are `ComputerOptions`.

    `run` does everything until it is cancelled. Without it, use the computer as an async context manager: entering it
    makes the configured servers known, leaving it ends all calls and stops all servers.

    `owner` is what only its owner is shown: logs, names of secrets, the state of each tool. `agents` is what a
    connection to a Server needs. `approvals`, `inputs`, `history` and `statistics` are the owner's, too.
    """

    def __init__(self, name: str, **options: Unpack[ComputerOptions]) -> None:
        if unknown := options.keys() - ComputerOptions.__annotations__.keys():
            raise TypeError(f"Computer() has no option {min(unknown)!r}")
        self.name = name
        self.owner = owner = Owner(name, options, on_accepted=lambda: self.agents.refresh())
        self.agents = agents = AgentRequests(name, owner, options)
        self.mask, self.observation, self.gate = owner.mask, owner.observation, owner.gate
        self.approvals, self.inputs, self.scanners = owner.approvals, owner.inputs, owner.scanners
        self.history, self.statistics = owner.history, owner.statistics
        self.calls, self.skills, self.blobs = agents.calls, agents.skills, agents.blobs
        self._on_state = options.get("on_state")
        self._open_url, self._state_folder = options.get("open_url"), options.get("state_folder")
        self._leaving = ExitStack()
        self._waiting_configs: dict[str, MCPServerConfig] = {}
        if self.gate:
            self.replace_rules(self.gate.policy)

    async def __aenter__(self) -> Self:
        self.owner.hosting = hosting = HostedServers(
            self.inputs,
            self.mask,
            policy=self.owner.limits,
            on_change=self._on_change,
            on_event=self.agents.on_event,
            logs=self.owner.server_logs,
            on_starting=self.agents.refresh,
            state_folder=self._state_folder,
            computer=self.name,
        )
        hosting.sign_ins.on_ended = self.observation.signed_in
        self._leaving.enter_context(masked_logs(self.mask))
        if self.gate:
            self._leaving.callback(self.gate.follow_expiry(lambda: self.agents.notify("tool_list")))
        configs, self._waiting_configs = self._waiting_configs, {}
        try:
            await self.agents.open(self._state_folder)
            for config in configs.values():
                await hosting.put(config)
            await self.skills.open()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self.agents.refresh()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._leaving, self.agents.many_changes():
            self._leaving.callback(self.blobs.close)
            await self.agents.close()
            await self.owner.host.close()
            self.owner.hosting = None

    async def run(
        self, url: str, *, office: str, api_key: str | None = None, state_folder: Path | None = None, **connection: Any
    ) -> None:
        """Start the servers, connect to a Server, join an office and answer agents, and reconnect, until cancelled.

        `connection` are further arguments of `SMCPComputerClient`, such as `on_connection`, which is called when the
        computer has joined or has lost the connection; without it, that is logged. Raises the `SMCPError` with which
        the Server refuses the computer. Ctrl-C ends it without an error if the program does nothing else:
        `asyncio.run(computer.run(…))`.
        """
        state_folder = self._state_folder = state_folder or self._state_folder or default_folder()
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

    # Tools and configuration

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(self, function: None = None, /, *, name: str | None = None, **meta: Any) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, /, *, name: str | None = None, **meta: Any) -> Any:
        """Offer a Python function as a tool. The keywords are its ToolMeta, such as `auto_apply=True`.

        The function may report progress, log and ask: see `a2c_smcp.registry.ToolContext`.
        Raises `TypeError` if the parameters of the function cannot be described by a schema.
        """

        def register(function: F) -> F:
            self.owner.catalog.functions.add(function, name, ToolMeta(**meta))
            self.agents.refresh()
            return function

        return register if function is None else register(function)

    def add_server(self, config: MCPServerConfig | Mapping[str, Any]) -> None:
        """Add a server before the computer is started; `put_server` adds one to a running computer.

        Raises `ConfigError` if the configuration is wrong or the computer is running.
        """
        parsed = parse_server(config) if isinstance(config, Mapping) else config
        if self.owner.is_running:
            raise ConfigError("this computer is running: await put_server() instead")
        self._waiting_configs[parsed.name] = parsed

    async def put_server(self, config: MCPServerConfig | Mapping[str, Any]) -> None:
        """Add or replace a server, and start it, unless it replaces one that was stopped. Raises `ConfigError`."""
        parsed = parse_server(config) if isinstance(config, Mapping) else config
        await self.owner.host.put(parsed)
        self.agents.notify("config")
        await self.owner.host.fill_in(parsed.name)

    async def remove_server(self, name: str) -> None:
        """Stop a server and forget its configuration. Raises `ServerNotFound`."""
        await self.owner.host.remove(name)
        self.skills.servers.forget(name)
        self.agents.refresh()
        self.agents.notify("config")

    def define_inputs(self, definitions: Iterable[MCPServerInput | Mapping[str, Any]]) -> None:
        """Replace the definitions of all inputs, to which `${input:id}` refers. Raises `ConfigError`."""
        self.owner.define_inputs(definitions)

    def replace_rules(self, rules: RulesGiven) -> None:
        """Decide by other rules from now on, and notify agents. Raises `ConfigError`; the old rules stay then.

        Only a computer that was made with rules can change them: without any, calls never pass the place that decides.
        """
        policy = policy_of_rules(rules)
        if self.gate is None:
            raise ConfigError("this computer was made without rules: Computer(rules={}) has some that can be replaced")
        self.gate.replace(policy)
        self.approvals.limit_grants(policy.grants_last)
        self.agents.uploads.are_refused = policy.read_only
        self.agents.notify("tool_list")

    # MCP servers

    async def start(self, name: str | None = None) -> None:
        """Start one server, or all. Returns when each is ready or failed, see `status`. Raises `ServerNotFound`."""
        with self.agents.many_changes():
            await self.owner.host.start(name)

    async def stop(self, name: str | None = None) -> None:
        """Stop one server, or all. Raises `ServerNotFound`."""
        with self.agents.many_changes():
            await self.owner.host.stop(name)

    async def restart(self, name: str) -> None:
        """Stop a server and start it again. Raises `ServerNotFound`."""
        await self.owner.host.restart(name)

    async def sign_in(
        self, name: str, *, open_url: OpenURL | None = None, paste_redirect: PasteRedirect | None = None
    ) -> None:
        """Sign in to a server by OAuth, and start it if it waits for that. Raises `SignInFailed` and `ServerNotFound`.

        `open_url` (without it, the computer's) opens the page to sign in on; the browser comes back by itself. Or
        `paste_redirect` gets the address of the page, and returns the one that the browser was sent to at the end.
        """
        await self.owner.host.sign_in(name, Browser(open_url or self._open_url, paste_redirect))

    async def sign_out(self, name: str) -> bool:
        """Forget the tokens of a server. Returns whether its provider has revoked them. Raises `ServerNotFound`."""
        is_revoked = await self.owner.host.sign_out(name)
        self.observation.signed_out(name)
        return is_revoked

    def status(self) -> dict[str, ServerStatus]:
        """The state of each server and the reason for it, without secrets."""
        return self.owner.host.status() if self.owner.is_running else {}

    @property
    def warnings(self) -> list[str]:
        """Warnings for the owner: clashes of names, unusable schemas, tools and skills that are left out."""
        left_out = self.owner.host.warnings if self.owner.is_running else []
        return self.owner.catalog.warnings + left_out + self.skills.warnings

    # As agents do

    def get_tools(self) -> list[OwnedTool]:
        """The tools as agents see them, each with its server. MCP servers are not asked."""
        return self.agents.get_tools()

    def get_config(self, *, labelled: bool = False) -> GetComputerConfigRet:
        """The configuration as agents may see it: placeholders stay, literal secrets are masked.

        The options of a pick list have labels if the owner has given them some, or if `labelled`.
        """
        return self.agents.get_config(labelled=labelled)

    async def get_desktop(self, size: int | None = None, window: str | None = None) -> list[Desktop]:
        """The windows of all servers as texts, the most important first, at most `size` (004).

        `window` selects one by its URI, as agents are shown it.
        """
        return await self.agents.get_desktop(size, window)

    async def execute_tool(
        self,
        caller: Caller,
        req_id: str,
        name: TOOL_NAME,
        params: dict[str, Any],
        timeout: float,
        on_progress: OnProgress | None = None,
        options: CallOptions | None = None,
    ) -> dict[str, Any]:
        """Run a tool for an agent. Returns the result as it is sent to the agent; errors are results, too.

        `on_progress` is called with progress, total and message, as the MCP server reports them; it may be async. For a
        duplicate of a running call it is called from then on.
        """
        return await self.calls.result_of(IncomingCall(caller, req_id, name, params, timeout, options), on_progress)

    def _on_change(self, name: str, state: State, reason: str) -> None:
        reason = self.mask.text(reason, name)
        self.observation.server_changed(name, state, reason)
        try:
            if self._on_state:
                self._on_state(name, state, reason)
        except Exception:  # the owner's own code; the supervision of the server goes on
            logger.exception("on_state failed")
        self.skills.servers.on_state(name, state)
        self.agents.refresh()
