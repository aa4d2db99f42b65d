"""This machine's Computer as a program: read from files that are watched, shown on the terminal, stopped by signals.

On a terminal the owner also has a prompt (`prompt/`), on which tool calls of agents are approved.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from a2c_smcp.audit.file import AuditFile
from a2c_smcp.cli.console import ConnectionReporter, ConsoleOptions, ServedConsole
from a2c_smcp.cli.errors import Failed, WrongUse, file_error
from a2c_smcp.cli.form import Questions
from a2c_smcp.cli.options import AuditOptions, E2EOption, check_folder, option
from a2c_smcp.cli.prompt.grants import Grants
from a2c_smcp.cli.prompt.owner import InteractiveOwner
from a2c_smcp.cli.setup_files import read_setups
from a2c_smcp.cli.sign_in import NoBrowser, SignInGuide
from a2c_smcp.cli.terminal import Say, ServerProgress, Terminal
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.computer.configuration.watch import (
    ConfigurationChanges,
    Consent,
    RefusedChanges,
    digest_of_configuration,
    trusting,
)
from a2c_smcp.computer.consent.approval import PendingApprovals, PendingQuestions, approve_all
from a2c_smcp.computer.consent.changes import digest_of_policy, watch_policy
from a2c_smcp.computer.consent.decision import warnings_about
from a2c_smcp.computer.consent.rules import AccessPolicy, read_policy, seconds_in
from a2c_smcp.computer.recording import recorded
from a2c_smcp.computer.secrets.logs import MaskFilter
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import ConfigError
from a2c_smcp.files import default_folder, remedy_for
from a2c_smcp.loops import stop_on_signals
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.status import State

# Where the policy of this machine's Computer comes from: a file that is watched, and options.

ReadOnly = Annotated[bool, option(None, "--read-only", "Agents may only call tools that are known to change nothing.")]
TrustHints = Annotated[
    list[str] | None,
    option(
        None,
        "--trust-hints",
        "MCP server whose own word counts on what its tools change; repeat for more.",
        show_default=False,
        metavar="SERVER",
    ),
]


@dataclass(frozen=True, kw_only=True)
class PolicySource:
    """The file of the policy, and what options add to it. Raises `WrongUse` for --trust-hints alone."""

    policy: Annotated[
        Path | None,
        option(
            None,
            "--policy",
            "File of rules and budgets: who may call what, and how often.",
            show_default=False,
            metavar="FILE",
        ),
    ] = None
    read_only: ReadOnly = False
    trust_hints: TrustHints = None

    def __post_init__(self) -> None:
        if self.trust_hints and not self.is_given:
            raise WrongUse("--trust-hints decides nothing by itself", "Give --policy FILE or --read-only with it.")

    @property
    def is_given(self) -> bool:
        """True if there is a policy; without one, servers decide by `auto_apply` alone."""
        return bool(self.policy or self.read_only)

    def at_start(self) -> AccessPolicy | None:
        """The policy at the start of a program, if there is one. Raises `WrongUse`."""
        try:
            return self.read() if self.is_given else None
        except ConfigError as error:
            raise file_error(error) from None

    def read(self) -> AccessPolicy:
        """Raises `ConfigError`."""
        if self.policy and (remedy := remedy_for(self.policy)):
            raise ConfigError(
                f"{self.policy}: can be changed by others on this machine, and is not used; run: {remedy}"
            )
        policy = read_policy(self.policy) if self.policy else AccessPolicy()
        return policy.with_options(read_only=self.read_only, trust_hints=tuple(self.trust_hints or ()))

    async def check_refused(self, policy: AccessPolicy, consent: Consent | None) -> None:
        """Ask again about a change that the owner has not accepted: a restart does not accept it. Raises `Failed`."""
        if self.policy is None or not (lines := self._refused(self.policy).lines_of(policy)):
            return
        if consent is None or await consent(lines) is not True:
            raise Failed(
                f"{self.policy} holds a change that its owner has not agreed to: {'; '.join(lines)}",
                "Correct the file, or start on a terminal and say yes; --trust-changes agrees to everything.",
            )
        self._refused(self.policy).clear()

    async def watch(self, computer: Computer, say: Callable[[str], None], consent: Consent | None) -> None:
        """Follow the file until cancelled."""
        if self.policy:
            await watch_policy(computer, self.policy, self.read, say, consent, self._refused(self.policy))

    def _refused(self, path: Path) -> RefusedChanges[AccessPolicy]:
        return RefusedChanges([path], digest_of_policy)


Desktop: TypeAlias = Literal["subscribed", "any"]
"""The default for servers whose entry has no `desktop`."""
ApproveBy: TypeAlias = Literal["owner", "client"]
"""Who approves calls of tools without `auto_apply`."""
Pin: TypeAlias = Literal["off", "warn", "ask"]
"""Effect of a tool that changes its definition, for servers whose entry has no `pin`."""


@dataclass(frozen=True, kw_only=True)
class OwnerOptions:
    """Decisions of the owner on the command line: what runs without asking, what is shown, limits, the policy."""

    yes: Annotated[bool, option(None, "--yes", "Let every tool run without asking.")] = False
    approve_by: Annotated[
        ApproveBy,
        option(None, "--approve-by", "Who approves calls: you here, or the person at the MCP client that calls."),
    ] = "owner"
    no_input: Annotated[bool, option(None, "--no-input", "Never ask: what is missing is an error.")] = False
    trust_changes: Annotated[
        bool, option(None, "--trust-changes", "Apply all changes of the files, including those that need your consent.")
    ] = False
    no_browser: NoBrowser = False
    idle_stop: Annotated[str | None, option(None, "--idle-stop", "Stop servers unused for so long, like 10m.")] = None
    desktop: Annotated[
        Desktop,
        option(
            None,
            "--desktop",
            "Whose windows are shown: of servers that report changes, or of any server, read on request.",
        ),
    ] = "subscribed"
    skills: Annotated[
        Path | None,
        option(
            "A2C_SKILL_HOME",
            "--skill-home",
            "Folder of skills; yours are the folders in its user/.",
            show_default="~/.a2c/skills",
            metavar="DIR",
        ),
    ] = None
    landing: Annotated[
        Path | None,
        option(
            None,
            "--landing",
            "Folder for files that agents send; without it they are refused.",
            show_default=False,
            metavar="DIR",
        ),
    ] = None
    e2e: E2EOption = "off"
    sign: Annotated[
        bool, option(None, "--sign", "Sign answers with the key of this device, for agents with --verify.")
    ] = False
    pin: Annotated[
        Pin | None,
        option(
            None,
            "--pin",
            "When a tool changes its definition: nothing, a warning, or your approval again.",
            show_default="ask, for tools that ask; else warn",
        ),
    ] = None
    scanner: Annotated[
        list[str] | None,
        option(
            None,
            "--scanner",
            "Checks each call: module:function, file.py:function or a command; repeat for more.",
            show_default=False,
            metavar="SCANNER",
        ),
    ] = None
    policy: PolicySource

    def __post_init__(self) -> None:
        """Raises `WrongUse`."""
        check_folder(self.landing, "--landing")
        if self.yes and self.approve_by == "client":
            raise WrongUse(
                "--yes lets every tool run: nobody is asked with --approve-by client", "Leave one of them out."
            )

    @property
    def approves_without_owner(self) -> bool:
        return self.yes or self.approve_by == "client"

    def for_computer(self) -> dict[str, Any]:
        """Arguments of the `Computer`. Raises `WrongUse`."""
        return {
            "policy": HostLimits(idle_stop=self._idle_seconds(), desktop=self.desktop),
            "skills": self.skills,
            "landing": self.landing,
            "approve_by": self.approve_by,
            "state_folder": default_folder(),
            "pin": self.pin,
            "rules": self.policy.at_start(),
            "e2e": self.e2e,
            "sign": self.sign,
        }

    def _idle_seconds(self) -> float | None:
        try:
            return None if self.idle_stop is None else seconds_in(self.idle_stop)
        except ValueError:
            raise WrongUse(f"--idle-stop: {self.idle_stop!r} is not a time", "Write 30s, 10m or 1h.") from None


MetricsPort = Annotated[
    int | None,
    option(
        None,
        "--metrics-port",
        "Serve metrics for Prometheus at /metrics on this port of 127.0.0.1; 0 takes a free one.",
        min=0,
        max=65535,
        show_default=False,
    ),
]


class LocalOptions(Protocol):
    """The options that `a2c-smcp computer` and `a2c-smcp up` share."""

    @property
    def owner(self) -> OwnerOptions: ...
    @property
    def metrics_port(self) -> int | None: ...
    @property
    def console(self) -> ConsoleOptions: ...
    @property
    def audit(self) -> AuditOptions: ...


class LocalComputer:
    """`settled` is set when each server has started or failed once, unless the program ends before.

    `can_approve`: calls that need approval are approved, or a person may be asked.
    """

    def __init__(
        self, name: str, files: list[Path], terminal: Terminal, options: LocalOptions, values: dict[str, Any]
    ) -> None:
        self._options, self._terminal, self._files = options, terminal, files
        owner = options.owner
        settings = owner.for_computer()
        self._configuration = _read(files, terminal)
        self._progress = ServerProgress(terminal, lambda server: self.computer.status().get(server))
        self._starting = {server.name for server in self._configuration.servers.values() if not server.disabled}
        self.settled = asyncio.Event()
        self._is_stopping = False
        questions = Questions(terminal) if terminal.can_ask and not owner.no_input else None
        guide = SignInGuide(terminal, questions, no_browser=owner.no_browser or questions is None)
        approvals = PendingApprovals()
        pending = approvals, PendingQuestions(approvals.numbers, approvals.first_added)
        self._owner = None
        if questions and terminal.console:
            self._owner = InteractiveOwner(terminal, questions, self._progress, guide, *pending)
        self._refused = RefusedChanges(files, digest_of_configuration)
        self._consent = _consent(owner, questions)
        can_ask = options.console.console or self._owner is not None
        self.can_approve = owner.approves_without_owner or can_ask
        callbacks = _callbacks(owner, questions, pending if can_ask else (None, None))
        self.computer = Computer(name, values=values, on_state=self._on_state, **settings, **callbacks)
        self._say_changes = partial(terminal.show, event="configuration")
        self._changes = ConfigurationChanges(
            self.computer, files, self._configuration, self._say_changes, self._consent, self._refused
        )
        self._pages: ServedConsole | None = None
        if options.console.is_given:
            self._pages = ServedConsole(self.computer, *pending, self._changes, terminal.show, options.console)
        self._fill()

    @property
    def starting(self) -> list[str]:
        """Servers that have neither started nor failed yet."""
        return sorted(self._starting)

    def _fill(self) -> None:
        # Mask secrets in logs, and write logs through the terminal, so that they do not interrupt a prompt.
        for handler in logging.getLogger().handlers:
            handler.addFilter(MaskFilter(self.computer.mask))
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(self._terminal)
        self.computer.define_inputs(self._configuration.inputs.values())
        for server in self._configuration.servers.values():
            self.computer.add_server(server)
        gate, known = self.computer.gate, self._configuration.servers.keys()
        for warning in warnings_about(gate.policy, known) if gate else ():
            self._terminal.show(f"policy: {warning}", "yellow", event="policy")
        if self._pages and not (self._options.console.console or self._owner):
            self._terminal.show("--webhook: nobody can answer, and it is told of nothing; add --console", "yellow")
        if not self._starting:
            self.settled.set()

    async def serve(self, url: str, office: str, on_connection: Say | None = None, **link: Any) -> None:
        """Run until a signal. Raises the error with which the Server refuses this computer for good."""
        await self._check_refused()
        # Use the scanners of the command line, then those of the files. To import one runs it. Raises `Failed`.
        try:
            self.computer.scanners.give(self._options.owner.scanner or ())
            self.computer.scanners.configure(self._configuration.scanners)
        except ConfigError as error:
            raise Failed(error.message, "Correct or leave out the scanner.") from None
        if self.computer.gate:
            await self._options.owner.policy.check_refused(self.computer.gate.policy, self._consent)
        gc.freeze()  # imported modules stay for ever: the collector need not visit them
        gc.set_threshold(7_000)  # rarely: reference counts free nearly everything that a call makes
        async with AsyncExitStack() as stack:
            wanted = self._options.audit
            recording = recorded(self.computer, wanted.audit, with_arguments=wanted.audit_arguments)
            audit = stack.enter_context(recording)
            if self._options.metrics_port is not None:
                await self._serve_metrics(stack, self._options.metrics_port, audit)
            stack.enter_context(self._progress.shown(self._configuration.servers.values()))
            if self._pages:
                await stack.enter_async_context(self._pages.serving(office))
            await self._serve(url, office, on_connection or self._terminal.show, **link)

    async def _serve(self, url: str, office: str, say: Say, **link: Any) -> None:
        report = ConnectionReporter(say, self._pages, url=Endpoint(url=url).shown_url, office=office)
        if self._owner is None and self._pages:  # at the prompt, the prompt keeps what is allowed for good
            tell = partial(self._terminal.show, event="grants")
            Grants(self.computer.approvals, self.computer.name, default_folder(), tell).enter(url, office)
        serve = partial(self._owner.serve, self.computer, self._changes) if self._owner else self.computer.run
        serving = asyncio.create_task(serve(url, office=office, on_connection=report, **link))
        watching = asyncio.create_task(self._watch())
        stop = stop_on_signals()
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        self._is_stopping = True
        self.computer.approvals.on_allowed()  # keeps when grants were last used
        if stop.is_set():
            self._progress.end()
            if self._terminal.console:
                self._terminal.show("stopping (Ctrl-C again stops at once)", event="stopping")
        for task in (watching, stopping, serving):
            task.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    async def _serve_metrics(self, stack: AsyncExitStack, port: int, audit: AuditFile | None) -> None:
        """Serve metrics until the stack ends. Raises `Failed`."""
        from a2c_smcp.bridge.serving.http import serving_http
        from a2c_smcp.computer.recording import metrics_page

        try:
            listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            remedy = "Choose another --metrics-port, or 0 for a free one."
            raise Failed(f"Cannot listen on 127.0.0.1:{port}: {error.strerror}", remedy) from None
        await stack.enter_async_context(serving_http(metrics_page(self.computer, audit), listener, wants_key=False))
        place = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        self._terminal.show(f"metrics at {place}", event="metrics", url=place)

    async def _watch(self) -> None:
        """Follow the configuration files, and the policy."""
        async with asyncio.TaskGroup() as following:
            following.create_task(self._changes.watch())
            following.create_task(self._options.owner.policy.watch(self.computer, self._say_changes, self._consent))

    async def _check_refused(self) -> None:
        """Ask again about changes that the owner did not accept: a restart does not accept them. Raises `Failed`."""
        if not (lines := self._refused.lines_of(self._configuration)):
            return
        if self._consent is None or await self._consent(lines) is not True:
            names = ", ".join(map(str, self._files))
            raise Failed(
                f"{names} holds a change that its owner has not agreed to: {'; '.join(lines)}",
                "Correct the file, or start on a terminal and say yes; --trust-changes agrees to everything.",
            )
        self._refused.clear()

    def _on_state(self, name: str, state: State, reason: str) -> None:
        (self._owner.on_state if self._owner else self._progress)(name, state, reason)
        if self._pages:
            self._pages.on_state(name, state, reason)
        if state != "starting":
            self._starting.discard(name)
        is_ending = self._is_stopping or (self._owner is not None and self._owner.has_quit)
        if not self._starting and not is_ending:
            self.settled.set()


def _read(paths: list[Path], terminal: Terminal) -> Configuration:
    configuration = read_setups(paths)
    for warning in configuration.unknown:
        terminal.show(warning, "yellow", event="configuration")
    if not configuration.servers:
        terminal.show("no MCP servers: --config names a file of them", "yellow", event="configuration")
    return configuration


def _consent(owner: OwnerOptions, questions: Questions | None) -> Consent | None:
    """The function that asks for consent to a change of the files; `None` if nobody can be asked."""
    if owner.trust_changes:
        return trusting
    return questions.consent if questions else None


def _callbacks(
    owner: OwnerOptions,
    questions: Questions | None,
    pending: tuple[PendingApprovals, PendingQuestions] | tuple[None, None],
) -> dict[str, Any]:
    """The functions that the Computer calls to ask its owner."""
    on_approval, on_question = pending
    return {
        "prompt": questions.value if questions else None,
        "on_question": on_question,
        "approve": approve_all if owner.yes else on_approval,
        "approve_command": (lambda *_: True) if owner.yes else questions.command if questions else None,
    }
