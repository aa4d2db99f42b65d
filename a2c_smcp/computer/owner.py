"""The owner's part of a `Computer`: `computer.owner`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import TypedDict

from a2c_smcp.computer.calls.catalog import ToolCatalog
from a2c_smcp.computer.calls.definitions import ToolChange
from a2c_smcp.computer.calls.incoming import CallStatistics, CallWatch, ProgressListeners
from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.configuration.resolver import Approve as ApproveCommand
from a2c_smcp.computer.configuration.resolver import Inputs, Prompt
from a2c_smcp.computer.consent.approval import Approvals, Approve, ApproveBy, Caller
from a2c_smcp.computer.consent.decision import Outlook
from a2c_smcp.computer.consent.freeze import FreezeState, OwnersFreeze
from a2c_smcp.computer.consent.gate import PolicyGate, RulesGiven, policy_of_rules
from a2c_smcp.computer.consent.pins import PinMode, PinnedTools
from a2c_smcp.computer.consent.risk import Risk, effects_of, paths_outside, unusual_about
from a2c_smcp.computer.consent.scanners import ScannerLike, Scanners
from a2c_smcp.computer.content.blob_handles import BlobLimits
from a2c_smcp.computer.hosting import HostedServers
from a2c_smcp.computer.observation import ComputerObservation, FreezeChanged
from a2c_smcp.computer.questions.answering import Answering
from a2c_smcp.computer.questions.client_approval import OpenQuestions
from a2c_smcp.computer.secrets.mask import NO_SERVER, Mask
from a2c_smcp.computer.secrets.rules import SecretName, names_of_secrets, secrets_of
from a2c_smcp.computer.sign_in import OpenURL
from a2c_smcp.computer.tells import LogLine, ServerLogs, Tells
from a2c_smcp.computer.types import AttributedCall
from a2c_smcp.device_events import Sealing
from a2c_smcp.loops import in_thread
from a2c_smcp.mcp_host.config.servers import MCPServerInput, input_to_wire, parse_input
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.status import OnChange
from a2c_smcp.protocol.questions import OnQuestion
from a2c_smcp.types import TOOL_NAME

if TYPE_CHECKING:  # it needs the extra `devices`
    from a2c_smcp.devices.identity import Identity

MAX_MESSAGE = 4 * 1024 * 1024
_HISTORY = 100


class ComputerOptions(TypedDict, total=False):
    """The keyword arguments of `Computer`. All of them are optional.

    Functions of the owner, which may be async or not:

    - `approve` is called for each call of a tool without `auto_apply`; with `approve_by="client"`, calls that can be
      asked ask the person at their MCP client instead (`"owner"` is the default).
    - `prompt` is called for values of inputs, and `approve_command` before an input runs a command.
    - `on_question` is called for each question of a tool. Without it, and if it returns `None`, the agent is asked if
      its call allows that, but never for a secret or to open a URL, unless `questions_for_agents` of the server's
      configuration says so.
    - `on_state` is called with name, state and reason whenever the state of a server changes. It must not be async.
    - `open_url` opens a page in the owner's browser, when `sign_in` is called without another way.

    Values, files and limits:

    - `values` and `inputs_file` have values of inputs.
    - `policy` are the limits of MCP servers. Answers larger than `max_message` bytes (4 MiB) are replaced by an error.
    - `state_folder` is for tokens, if there is no keyring, and for pins. `skills` is the folder of skills; without it,
      the one in A2C_SKILL_HOME, or else `~/.a2c/skills`.
    - Files that agents send land in `landing`; without it they are refused. `blob_limits` bounds what is kept on disk
      for agents.

    What agents may do:

    - `pin` says what happens when a tool changes its definition (`"off"`, `"warn"` or `"ask"`), for servers that do not
      say it themselves; `run` keeps the definitions in `state_folder`.
    - `scanners` check each call before and after it runs: functions, or texts as of `--scanner`.
    - `rules` are those of a policy file, or its path: who may call what.
    - `e2e` says which agents seal their requests, so that the Server cannot read them: `"off"`; `"prefer"`, those that
      can, and then always; `"require"`, all, and only those that were trusted beforehand (`a2c-smcp device trust`).
      `sign`: answers are signed. Both need the extra `devices`. The keys of this device are kept in the keyring, or in
      `state_folder`, and made on first use, unless `identity` is given.
    """

    approve: Approve | None
    approve_by: ApproveBy
    prompt: Prompt | None
    approve_command: ApproveCommand | None
    on_question: OnQuestion | None
    on_state: OnChange
    open_url: OpenURL | None
    values: Mapping[str, Any] | None
    inputs_file: Path | None
    policy: HostLimits | None
    max_message: int
    state_folder: Path | None
    skills: Path | None
    landing: Path | None
    blob_limits: BlobLimits | None
    pin: PinMode | None
    scanners: Iterable[ScannerLike]
    rules: RulesGiven | None
    e2e: Sealing
    sign: bool
    identity: Identity | None


class ToolState(NamedTuple):
    """The possible decisions on calls of a tool; `change` is the difference of its definition from the approved one."""

    server: str
    tool: TOOL_NAME
    outlook: Outlook
    change: ToolChange | None


class Owner:
    """The owner's decisions, the MCP servers and tools they apply to, and calls as the owner sees them.

    Its methods return no secrets. `hosting` is there while the computer runs.
    """

    def __init__(self, name: str, options: ComputerOptions, on_accepted: Callable[[], None]) -> None:
        self.hosting: HostedServers | None = None
        self.observation = observation = ComputerObservation()
        self.mask = Mask()
        max_message = options.get("max_message", MAX_MESSAGE)
        self.limits = options.get("policy") or HostLimits(largest_message=4 * max_message)
        self.approvals = Approvals(options.get("approve"), by=options.get("approve_by", "owner"))
        self.inputs = Inputs(
            values=options.get("values"),
            prompt=options.get("prompt"),
            approve=options.get("approve_command"),
            store=options.get("inputs_file"),
        )
        rules = options.get("rules")
        self.gate = None if rules is None else PolicyGate(policy_of_rules(rules), observation.policy_decided)
        self.pins = PinnedTools(
            options.get("pin"),
            self.mask,
            lambda tool: self.gate is not None and self.gate.may_ask(tool),
            asks_nobody=self.approvals.approves_all,
            withdraw=self.approvals.withdraw,
            on_accepted=on_accepted,
            on_changed=observation.tool_changed,
        )
        self.scanners = Scanners(name, options.get("scanners", ()))
        self.freezing = OwnersFreeze()
        self.freezing.on_change.append(self._on_freeze)
        self.tells = Tells(name, self.mask, is_silent=lambda: self.frozen is not None)
        self.questions = OpenQuestions(self.tells, self.mask)
        on_question = options.get("on_question")
        self.listeners = ProgressListeners(name)
        self.answering = Answering(
            on_question, self._questions_for_agents, self.questions, self.mask, observation, self.listeners
        )
        self.server_logs = ServerLogs(self.tells, self.mask)
        self.catalog = ToolCatalog(max_message, self.pins)
        self.catalog.functions.on_log = self.server_logs.add
        self.history: deque[AttributedCall] = deque(maxlen=_HISTORY)
        self.statistics = CallStatistics()

    @property
    def host(self) -> HostedServers:
        """The MCP servers. Raises `RuntimeError` if the computer does not run."""
        if self.hosting is None:
            raise RuntimeError("the computer is not running: use `async with computer:`")
        return self.hosting

    @property
    def is_running(self) -> bool:
        """True if the computer was started, and not ended."""
        return self.hosting is not None

    @property
    def frozen(self) -> FreezeState | None:
        """Since when, where and why this computer is frozen; `None` if it is not."""
        return self.freezing.state if self.freezing.state.is_frozen else None

    def freeze(self, reason: str = "", where: str = "program") -> None:
        """Cancel all that runs, and let nothing through until `thaw`, also after a restart."""
        self.freezing.freeze(reason, where)

    def thaw(self, where: str = "program") -> None:
        """Let requests through again. Call it for a person only. Raises `ConfigError` if that cannot be kept."""
        self.freezing.thaw(where)

    def _on_freeze(self, state: FreezeState) -> None:
        self.observation.report(FreezeChanged(state.is_frozen, self.mask.text(state.reason), state.where))

    @property
    def signed_in(self) -> frozenset[str]:
        """The servers that have been used with tokens of their owner since this computer began."""
        accounts = ((name, self.host.sign_ins.known(name)) for name in self.host.configs)
        return frozenset(name for name, account in accounts if account and account.is_signed_in)

    async def is_signed_in(self, name: str) -> bool:
        """True if there are tokens for a server. Raises `ServerNotFound`, `SignInFailed` if it takes no sign-in."""
        return await self.host.is_signed_in(name)

    def logs(self, name: str, level: str = "debug") -> list[LogLine]:
        """Return the last messages of a server's own log, of this level and above.

        Raises `ServerNotFound`, or `BadRequest` for a level that MCP does not have.
        """
        return self.server_logs.of(self.host.known(name), level)

    async def set_log_level(self, name: str, level: str) -> None:
        """Ask a server for messages of this level and above. Raises `ServerNotFound` or `BadRequest`."""
        self.server_logs.set_owners_level(self.host.known(name), level)
        await self.host.set_log_levels()

    def define_inputs(self, definitions: Iterable[MCPServerInput | Mapping[str, Any]]) -> None:
        """Replace the definitions of all inputs, and mask the secrets in them. Raises `ConfigError`."""
        parsed = [parse_input(input_) if isinstance(input_, Mapping) else input_ for input_ in definitions]
        self.mask.add(secrets_of({"inputs": [*map(input_to_wire, parsed)]}).found, NO_SERVER)
        self.inputs.define(parsed)

    def secrets(self) -> dict[str, list[SecretName]]:
        """The names that are treated as secret, by server. Never a value."""
        return {name: names_of_secrets(config, self.inputs.definitions) for name, config in self.host.configs.items()}

    def tool_states(self, office: str = "", agent: str = "") -> dict[TOOL_NAME, ToolState]:
        """The possible decisions on calls of each tool, without grants, and the change of its definition."""
        routes = self.catalog.routes
        outlooks = self.gate.outlooks(Caller(office, agent), routes) if self.gate else {}
        return {
            name: ToolState(route.server, route.tool, outlooks.get(name) or self._configured(route), route.change)
            for name, route in routes.items()
        }

    def _configured(self, route: ToolRoute) -> Outlook:
        runs = not route.asks_again and (route.meta.auto_apply is True or self.approvals.approves_all)
        return Outlook(frozenset(["allow" if runs else "ask"]))

    async def risk_of(self, caller: Caller, route: ToolRoute, shown: Mapping[str, Any]) -> Risk:
        """Return what the tool does, and what is unusual about this call. `shown` are its arguments, masked."""
        config = self.hosting.configs.get(route.server) if self.hosting else None
        known = self.approvals.memory.unusual(caller.known_as, caller.seat, route.server, route.tool, shown)
        unusual = await in_thread(lambda: unusual_about([*paths_outside(shown, config), *known], shown))
        description = self.mask.text(route.description, route.server).strip()
        return Risk(description, effects_of(self.gate.policy if self.gate else None, route), unusual)

    def watch_calls(self, watch: CallWatch | None) -> None:
        """Report each call to `watch`, from now on."""
        self.listeners.watch = watch

    def _questions_for_agents(self, server: str) -> Collection[str]:
        config = self.host.configs.get(server)
        return config.questions_for_agents if config else ()
