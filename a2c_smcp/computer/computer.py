"""`Computer`: what Python programs, the command line and the connection to a Server use. It knows no terminal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from a2c_smcp.computer.approval import Approvals, Approve, ApproveBy
from a2c_smcp.computer.blobs.limits import BlobLimits
from a2c_smcp.computer.blobs.offers import Blobs
from a2c_smcp.computer.blobs.uploads import Uploads
from a2c_smcp.computer.calls.approving import CallApproval
from a2c_smcp.computer.calls.delivery import ResultDelivery
from a2c_smcp.computer.calls.execution import Execution
from a2c_smcp.computer.calls.journal import journal_of
from a2c_smcp.computer.hosting import Hosting
from a2c_smcp.computer.inputs.resolver import Approve as ApproveCommand
from a2c_smcp.computer.inputs.resolver import Inputs, Prompt
from a2c_smcp.computer.observation import ComputerObservation, ServerStateChanged
from a2c_smcp.computer.pins import PinMode, PinnedTools
from a2c_smcp.computer.policy.gate import PolicyGate, RulesGiven, policy_of_rules
from a2c_smcp.computer.questions.answering import Answering, OnQuestion
from a2c_smcp.computer.questions.client_approval import ClientApprovals
from a2c_smcp.computer.questions.open_questions import OpenQuestions
from a2c_smcp.computer.reading.contents import ReadContents
from a2c_smcp.computer.reading.requests import ReadAnswers
from a2c_smcp.computer.scanners.scanners import ScannerLike, Scanners
from a2c_smcp.computer.secrets import NO_SERVER, Mask, masked_logs, secrets_of
from a2c_smcp.computer.server_control import ServerControl
from a2c_smcp.computer.server_logs import ServerLogs
from a2c_smcp.computer.sign_in.browser import Browser, OpenURL
from a2c_smcp.computer.skills.skills import Skills
from a2c_smcp.computer.socketio.client import SMCPComputerClient
from a2c_smcp.computer.tells import Tells
from a2c_smcp.computer.tools.catalogue import Catalogue
from a2c_smcp.computer.tools.names import ServerTool
from a2c_smcp.computer.types import ServerUpdate, Update
from a2c_smcp.device_events import Sealing
from a2c_smcp.devices.proving import Prover
from a2c_smcp.errors import ConfigError
from a2c_smcp.loops import cancel_and_wait, ended_by_interrupt
from a2c_smcp.mcp_host.config.servers import (
    MCPServerConfig,
    MCPServerInput,
    ToolMeta,
    input_to_wire,
    parse_input,
    parse_server,
)
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.session import EventKind
from a2c_smcp.mcp_host.status import OnChange, State
from a2c_smcp.private_files import default_folder, instance_of

if TYPE_CHECKING:  # they need the extra `devices`
    from a2c_smcp.computer.sealed.device import ComputerDevice
    from a2c_smcp.devices.identity import Identity

__all__ = ["Computer", "Update"]

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_MAX_MESSAGE = 4 * 1024 * 1024


class Computer(ServerControl):
    """A device that offers tools of MCP servers and of Python functions to agents.

    `run` does everything until it is cancelled. Without it, use the computer as an async context manager: entering it
    makes the configured servers known, leaving it ends all calls and stops all servers.

    `approve` is called for each call of a tool without `auto_apply`; with `approve_by="client"`, calls that can be
    asked ask the person at their MCP client instead. `prompt` is called for values of inputs, and `approve_command`
    before an input runs a command; `on_question` is called for each question of a tool. They may be async or not.
    Without `on_question`, and if it returns `None`, the agent is asked if its call allows that, but never for a secret
    or to open a URL, unless `questions_for_agents` of the server's configuration says so. `values` and `inputs_file`
    have values of inputs. `on_state` is called with name, state and reason whenever the state of a server changes.
    Answers larger than `max_message` bytes are replaced by an error. `open_url` opens a page in the owner's browser,
    async or not: with it, a server that wants a sign-in begins one by itself; without it, `sign_in` has to be called.
    Tokens are kept in the keyring, or in `state_folder`. Files that agents send land in `landing`; without it they are
    refused. `blob_limits` bounds what is kept on disk for agents. `skills` is the folder of skills; without it, the one
    in A2C_SKILL_HOME, or else `~/.a2c/skills`.

    `e2e` says which agents seal their requests, so that the Server cannot read them: `"off"`; `"prefer"`, those that
    can, and then always; `"require"`, all, and only those that were trusted beforehand (`a2c-smcp device trust`).
    `sign`: answers are signed. Both need the extra `devices`. The keys of this device are kept in the keyring, or in
    `state_folder`, and made on first use, unless `identity` is given.

    `pin` says what happens when a tool changes its definition (`pins.py`), for servers that do not say it themselves;
    `run` keeps the definitions in `state_folder`. `scanners` check each call before and after it runs: functions, or
    texts as of `--scanner` (`scanners/`). `rules` are those of a policy file, or its path: who may call what.
    """

    def __init__(
        self,
        name: str,
        *,
        approve: Approve | None = None,
        approve_by: ApproveBy = "owner",
        prompt: Prompt | None = None,
        approve_command: ApproveCommand | None = None,
        on_question: OnQuestion | None = None,
        values: Mapping[str, Any] | None = None,
        inputs_file: Path | None = None,
        policy: HostPolicy | None = None,
        on_state: OnChange = lambda name, state, reason: None,
        max_message: int = _MAX_MESSAGE,
        open_url: OpenURL | None = None,
        state_folder: Path | None = None,
        skills: Path | None = None,
        landing: Path | None = None,
        blob_limits: BlobLimits | None = None,
        e2e: Sealing = "off",
        sign: bool = False,
        identity: Identity | None = None,
        pin: PinMode | None = None,
        scanners: Iterable[ScannerLike] = (),
        rules: RulesGiven | None = None,
    ) -> None:
        self.name = name
        self.observation = ComputerObservation()
        self.mask = Mask()
        self.approvals = Approvals(approve, by=approve_by)
        self.inputs = Inputs(values=values, prompt=prompt, approve=approve_command, store=inputs_file)
        self.gate = None if rules is None else PolicyGate(policy_of_rules(rules), self.observation.policy_decided)
        self._policy = policy or HostPolicy(largest_message=4 * max_message)
        self._on_state = on_state
        self._open_url, self._state_folder = open_url, state_folder
        self._max_message = max_message
        self.device: ComputerDevice | None = None
        self._sealing, self._signs, self._identity = e2e, sign, identity
        unasked, withdraw = self.approvals.approves_all, self.approvals.withdraw
        hooks: dict[str, Any] = {"on_accepted": self._refresh, "on_changed": self.observation.tool_changed}
        self.pins = PinnedTools(pin, self.mask, self._asks_by_rule, asks_nobody=unasked, withdraw=withdraw, **hooks)
        self._catalogue = Catalogue(max_message, self.pins)
        blob_limits = blob_limits or BlobLimits()
        self.blobs, self.uploads = Blobs(blob_limits), Uploads(landing, blob_limits)
        self.skills = Skills(lambda: self._host, self.mask, self.blobs, lambda: self._notify("skills"), home=skills)
        self.tells = Tells(name)
        self.questions = OpenQuestions(self.tells, self.mask)
        self.server_logs = ServerLogs(self.tells, self.mask)
        self._catalogue.functions.on_log = self.server_logs.add
        answering = Answering(on_question, self._questions_for_agents, self.questions, self.mask, self.observation)
        self._delivery = ResultDelivery(self.blobs, max_message)
        clients = ClientApprovals(name, self.questions, self.mask)
        approval = CallApproval(self.approvals, clients, self._catalogue, self.pins, self.observation)
        self.scanners = Scanners(name, scanners)
        parts = approval, answering, self.tells, self.mask, self._delivery, self.scanners, self.gate
        self._execution = Execution(lambda: self._host, self._catalogue, *parts, self.observation)
        self.blobs.on_fetched, self.uploads.on_landed = self.observation.blob_fetched, self.observation.blob_stored
        self._contents = ReadContents(self.blobs, self.mask, max_message)
        self.reading = ReadAnswers(
            lambda: self._host,
            self._execution.live,
            answering,
            self._contents,
            self.tells,
            self.mask,
            self._policy.subscription_limit,
        )
        self.history, self.statistics = self._execution.history, self._execution.statistics
        self._definitions: dict[str, MCPServerInput] = {}
        self._listeners: list[Callable[[Update], None]] = []
        self._hosting: Hosting | None = None
        self._leaving = ExitStack()
        self._changing = 0
        self._waiting_configs: dict[str, MCPServerConfig] = {}
        if self.gate:
            self.replace_rules(self.gate.policy)

    async def __aenter__(self) -> Self:
        self._hosting = Hosting(
            self.inputs,
            self.mask,
            policy=self._policy,
            on_change=self._on_change,
            on_event=self._on_event,
            logs=self.server_logs,
            on_starting=self._refresh,
            state_folder=self._state_folder,
            browser=Browser(self._open_url) if self._open_url else None,
        )
        self._hosting.sign_ins.on_ended = self.observation.signed_in
        self._leaving.enter_context(masked_logs(self.mask))
        if self.gate:
            self._leaving.callback(self.gate.follow_expiry(lambda: self._notify("tool_list")))
        configs, self._waiting_configs = self._waiting_configs, {}
        try:
            self.device = await self._own_device()
            self.pins.open(self.name, self._state_folder)
            self.blobs.open(self._state_folder)
            await self.uploads.open()
            for config in configs.values():
                await self._hosting.put(config)
            await self.skills.open()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._refresh()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._leaving, self._many_changes():
            self._leaving.callback(self.blobs.close)
            await self._execution.close()
            await self.skills.close()
            await self.reading.subscriptions.close()
            await self.uploads.close()
            await self.pins.close()
            await self.scanners.close()
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

    def prover(self, url: str) -> Prover:
        """What proves this device to a Server where the key of this computer is bound to it."""
        return Prover.of("computer", url, self.device.identity if self.device else self._identity, self._state_folder)

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
        self.skills.servers.forget(name)
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

        The function may report progress, log and ask: see `a2c_smcp.registry.ToolContext`.
        Raises `TypeError` if the parameters of the function cannot be described by a schema.
        """

        def register(function: F) -> F:
            self._catalogue.functions.add(function, name, ToolMeta(**meta))
            self._refresh()
            return function

        return register if function is None else register(function)

    # What has changed for agents

    def on_update(self, listener: Callable[[Update], None]) -> Callable[[], None]:
        """Call the listener with each update that agents are notified of. Returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def limit_messages(self, largest: int) -> None:
        """Take the largest message of the Server that this computer is connected to for its own, if that is less."""
        largest = min(largest, self._max_message)
        self._delivery.limit(largest)
        self._contents.limit(largest)
        self._catalogue.limit(largest)
        self._refresh()

    # Inside

    async def _own_device(self) -> ComputerDevice | None:
        if self._sealing == "off" and not self._signs:
            return None
        from a2c_smcp.computer.sealed.device import load_device

        return await load_device(self._sealing, self._signs, self._state_folder, self._identity)

    def _asks_by_rule(self, tool: ServerTool) -> bool:
        return self.gate is not None and self.gate.may_ask(tool)

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

    def _questions_for_agents(self, server: str) -> Collection[str]:
        config = self._host.configs.get(server)
        return config.questions_for_agents if config else ()

    def _on_change(self, name: str, state: State, reason: str) -> None:
        reason = self.mask.text(reason, name)
        self.observation.report(ServerStateChanged(name, state, reason))
        try:
            self._on_state(name, state, reason)
        except Exception:  # the owner's own code; the supervision of the server goes on
            logger.exception("on_state failed")
        self.skills.servers.on_state(name, state)
        self._refresh()

    def _on_event(self, name: str, kind: EventKind, about: str | None) -> None:
        self.skills.servers.on_event(name, kind, about)
        match kind:
            case "tools_changed" | "lost":
                self._refresh()
            case "tools_announced":  # they look the same: an agent that passes announcements on is told all the same
                self._notify("tool_list")
            case "resource_list_changed":
                self._notify(ServerUpdate("resource_list", name))
            case "prompts_changed":
                self._notify(ServerUpdate("prompts", name))
            case "resource_updated":
                self.reading.subscriptions.updated(name, about or "")
            case "windows_changed" | "window_updated":
                self._notify("desktop")
