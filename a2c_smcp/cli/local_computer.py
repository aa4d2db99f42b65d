"""This machine's Computer as a program: read from files that are watched, shown on the terminal, stopped by signals.

On a terminal the owner also has a prompt (`prompt/`), on which tool calls of agents are approved.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from a2c_smcp.audit.file import AuditFile
from a2c_smcp.cli.call_checks import Pin, use_scanners
from a2c_smcp.cli.errors import Failed, WrongUse, file_error
from a2c_smcp.cli.options import E2E, option
from a2c_smcp.cli.owner_console.serving import ConnectionReporter, ConsoleOptions, ServedConsole, WebhookOptions
from a2c_smcp.cli.policies.source import PolicySource, rules_of
from a2c_smcp.cli.progress import ServerProgress
from a2c_smcp.cli.prompt.grants import Grants
from a2c_smcp.cli.prompt.owner import InteractiveOwner
from a2c_smcp.cli.prompt.questions import Questions
from a2c_smcp.cli.sign_in import SignInGuide
from a2c_smcp.cli.terminal import Say, Terminal
from a2c_smcp.computer.approval import approve_all
from a2c_smcp.computer.audit import recorded
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import Configuration, read_all
from a2c_smcp.computer.configuration.watch import Consent, RefusedChanges, digest_of_configuration, trusting, watch
from a2c_smcp.computer.pending import PendingApprovals, PendingQuestions
from a2c_smcp.computer.policy.advice import warnings_about
from a2c_smcp.computer.secrets import MaskFilter
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import stop_on_signals
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.status import State
from a2c_smcp.private_files import default_folder

if TYPE_CHECKING:
    pass

__all__ = [
    "ApproveBy",
    "ApproveByOption",
    "Desktop",
    "DesktopOption",
    "IdleStop",
    "Landing",
    "LocalComputer",
    "MetricsPort",
    "NoInput",
    "OwnerOptions",
    "Sign",
    "SkillsFolder",
    "TrustChanges",
    "Yes",
    "policy_of",
]


class Desktop(StrEnum):
    """The default for servers whose entry has no `desktop`."""

    subscribed = "subscribed"
    any = "any"


class ApproveBy(StrEnum):
    """Who approves calls of tools without `auto_apply`."""

    owner = "owner"
    client = "client"


_DESKTOP = "Whose windows are shown: of servers that report changes, or of any server, read on request."

Yes = Annotated[bool, option(None, "--yes", "Let every tool run without asking.")]
NoInput = Annotated[bool, option(None, "--no-input", "Never ask: what is missing is an error.")]
ApproveByOption = Annotated[
    ApproveBy,
    option(None, "--approve-by", "Who approves calls: you here, or the person at the MCP client that calls."),
]
TrustChanges = Annotated[
    bool, option(None, "--trust-changes", "Apply all changes of the files, including those that need your consent.")
]
IdleStop = Annotated[str | None, option(None, "--idle-stop", "Stop servers unused for so long, like 10m.")]
Landing = Annotated[
    Path | None,
    option(
        None,
        "--landing",
        "Folder for files that agents send; without it they are refused.",
        show_default=False,
        metavar="DIR",
    ),
]
Sign = Annotated[bool, option(None, "--sign", "Sign answers with the key of this device, for agents with --verify.")]
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
DesktopOption = Annotated[Desktop, option(None, "--desktop", _DESKTOP)]
SkillsFolder = Annotated[
    Path | None,
    option(
        "A2C_SKILL_HOME",
        "--skill-home",
        "Folder of skills; yours are the folders in its user/.",
        show_default="~/.a2c/skills",
        metavar="DIR",
    ),
]


def policy_of(idle_stop: str | None, desktop: Desktop) -> HostPolicy:
    return HostPolicy(idle_stop=_seconds(idle_stop), desktop=desktop.value)


@dataclass(frozen=True, kw_only=True)
class OwnerOptions:
    """What the owner has decided on the command line: what runs without asking, values of inputs, limits."""

    yes: bool = False
    approve_by: ApproveBy = ApproveBy.owner
    no_input: bool = False
    trust_changes: bool = False
    no_browser: bool = False
    values: dict[str, Any] | None = None
    policy: HostPolicy | None = None
    skills: Path | None = None
    landing: Path | None = None
    e2e: E2E = E2E.off
    sign: bool = False
    pin: Pin | None = None
    scanners: list[str] | None = None
    rules: PolicySource | None = None
    metrics_port: int | None = None
    audit: Path | None = None
    audit_arguments: bool = False
    console: ConsoleOptions | None = None
    webhook: WebhookOptions | None = None

    def __post_init__(self) -> None:
        if self.yes and self.approve_by is ApproveBy.client:
            raise WrongUse(
                "--yes lets every tool run: nobody is asked with --approve-by client", "Leave one of them out."
            )

    @property
    def approves_without_owner(self) -> bool:
        return self.yes or self.approve_by is ApproveBy.client

    def of_computer(self) -> dict[str, Any]:
        """The arguments of the `Computer`."""
        return {
            "values": self.values,
            "policy": self.policy,
            "skills": self.skills,
            "landing": self.landing,
            "approve_by": self.approve_by.value,
            "state_folder": default_folder(),
            "pin": self.pin.value if self.pin else None,
            "rules": rules_of(self.rules),
            "e2e": self.e2e.value,
            "sign": self.sign,
        }


class LocalComputer:
    """`settled` is set when each server has started or failed once, unless the program ends before.

    `can_approve`: calls that need approval are approved, or a person may be asked.
    """

    def __init__(self, name: str, files: list[Path], terminal: Terminal, given: OwnerOptions) -> None:
        self._terminal, self._files, self._rules = terminal, files, given.rules
        self._configuration = _read(files, terminal)
        self._progress = ServerProgress(terminal, lambda server: self.computer.status()[server].tools)
        self._starting = {each.name for each in self._configuration.servers.values() if not each.disabled}
        self.settled = asyncio.Event()
        self._is_stopping = False
        questions = Questions(terminal) if terminal.can_ask and not given.no_input else None
        guide = SignInGuide(terminal, questions, no_browser=given.no_browser or questions is None)
        self._approvals = PendingApprovals()
        self._questions = PendingQuestions(self._approvals.numbers, self._approvals.first_added)
        waiting = self._approvals, self._questions
        parts = (terminal, questions, self._progress, guide) if questions and terminal.console else None
        self._owner = InteractiveOwner(*parts, *waiting) if parts else None
        self._refused = RefusedChanges(files, digest_of_configuration)
        self._consent = _consent(given, questions)
        can_ask = given.console is not None or self._owner is not None
        self.can_approve = given.approves_without_owner or can_ask
        self._given, self._scanners, self._metrics_port = given, given.scanners, given.metrics_port
        callbacks = _callbacks(questions, waiting if can_ask else (None, None), guide, approve_everything=given.yes)
        self.computer = Computer(name, on_state=self._on_state, **given.of_computer(), **callbacks)
        self._pages = self._served(given, can_ask=can_ask)
        self._fill()

    def _served(self, given: OwnerOptions, *, can_ask: bool) -> ServedConsole | None:
        """The console and the webhook, if one of them is wanted."""
        if not (given.console or given.webhook):
            return None
        if not can_ask:
            self._terminal.show("--webhook: nobody can answer, and it is told of nothing; add --console", "yellow")
        waiting = self._approvals, self._questions
        return ServedConsole(self.computer, *waiting, self._terminal.show, given.console, given.webhook)

    @property
    def starting(self) -> list[str]:
        """Servers that have neither started nor failed yet."""
        return sorted(self._starting)

    def _fill(self) -> None:
        _mask_logs(self.computer, self._terminal)
        self.computer.define_inputs(self._configuration.inputs.values())
        for server in self._configuration.servers.values():
            self.computer.add_server(server)
        gate, known = self.computer.gate, self._configuration.servers.keys()
        for words in warnings_about(gate.policy, known) if gate else ():
            self._terminal.show(f"policy: {words}", "yellow", event="policy")
        if not self._starting:
            self.settled.set()

    async def serve(self, url: str, office: str, on_connection: Say | None = None, **link: Any) -> None:
        """Run until a signal. Raises the error with which the Server refuses this computer for good."""
        await self._check_refused()
        use_scanners(self.computer, self._scanners, self._configuration)
        if self._rules and self.computer.gate:
            await self._rules.check_refused(self.computer.gate.policy, self._consent)
        gc.freeze()  # imported modules stay for ever: the collector need not visit them
        async with AsyncExitStack() as stack:
            path, with_arguments = self._given.audit, self._given.audit_arguments
            audit = stack.enter_context(recorded(self.computer, path, with_arguments=with_arguments))
            if self._metrics_port is not None:
                await self._serve_metrics(stack, self._metrics_port, audit)
            stack.enter_context(self._progress.shown(self._configuration.servers.values()))
            if self._pages:
                await stack.enter_async_context(self._pages.serving(office))
            await self._serve(url, office, on_connection or self._terminal.show, **link)

    async def _serve(self, url: str, office: str, say: Say, **link: Any) -> None:
        report = ConnectionReporter(say, self._pages, url=Endpoint(url=url).shown_url, office=office)
        if self._owner is None and self._pages:  # at the prompt, the prompt keeps what is allowed for good
            tell = partial(self._terminal.show, event="grants")
            Grants(self.computer.approvals, self.computer.name, default_folder(), tell).enter(url, office)
        serve = partial(self._owner.serve, self.computer) if self._owner else self.computer.run
        serving = asyncio.create_task(serve(url, office=office, on_connection=report, **link))
        watching = asyncio.create_task(self._watch())
        await self._until_stopped(serving, watching)

    async def _serve_metrics(self, stack: AsyncExitStack, port: int, audit: AuditFile | None) -> None:
        """Serve metrics until the stack ends. Raises `Failed`."""
        from a2c_smcp.computer.metrics import serving_metrics

        try:
            taken = await stack.enter_async_context(serving_metrics(self.computer, port, audit))
        except OSError as error:
            remedy = "Choose another --metrics-port, or 0 for a free one."
            raise Failed(f"Cannot listen on 127.0.0.1:{port}: {error.strerror}", remedy) from None
        place = f"http://127.0.0.1:{taken}/metrics"
        self._terminal.show(f"metrics at {place}", event="metrics", url=place)

    async def _watch(self) -> None:
        """Follow the configuration files, and the policy."""
        say = partial(self._terminal.show, event="configuration")
        async with asyncio.TaskGroup() as following:
            following.create_task(
                watch(self.computer, self._files, self._configuration, say, self._consent, self._refused)
            )
            if self._rules:
                following.create_task(self._rules.watch(self.computer, say, self._consent))

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

    async def _until_stopped(self, serving: asyncio.Task[None], watching: asyncio.Task[None]) -> None:
        stop = stop_on_signals()
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        self._is_stopping = True
        if stop.is_set():
            self._on_stop()
        for task in (watching, stopping, serving):
            task.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    def _on_stop(self) -> None:
        self._progress.end()
        if self._terminal.console:
            self._terminal.show("stopping (Ctrl-C again stops at once)", event="stopping")

    def _on_state(self, name: str, state: State, reason: str) -> None:
        (self._owner.on_state if self._owner else self._progress)(name, state, reason)
        if self._pages:
            self._pages.on_state(name, state, reason)
        if state != "starting":
            self._starting.discard(name)
        is_ending = self._is_stopping or (self._owner is not None and self._owner.has_quit)
        if not self._starting and not is_ending:
            self.settled.set()


def _mask_logs(computer: Computer, terminal: Terminal) -> None:
    """Mask secrets in logs, and write logs through the terminal, so that they do not interrupt a prompt."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(MaskFilter(computer.mask))
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(terminal)


def _read(paths: list[Path], terminal: Terminal) -> Configuration:
    try:
        found = read_all(paths)
    except SMCPError as error:
        raise file_error(error) from None
    for words in found.unknown:
        terminal.show(words, "yellow", event="configuration")
    if not found.servers:
        terminal.show("no MCP servers: --config names a file of them", "yellow", event="configuration")
    return found


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)", text)
    if not found or float(found[1]) <= 0:
        raise WrongUse(f"--idle-stop: {text!r} is not a time", "Write 30s, 10m or 1h.")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _consent(given: OwnerOptions, questions: Questions | None) -> Consent | None:
    """What is asked whether a change of the files may be applied; `None` if nobody can be."""
    if given.trust_changes:
        return trusting
    return questions.consent if questions else None


def _callbacks(
    questions: Questions | None,
    waiting: tuple[PendingApprovals, PendingQuestions] | tuple[None, None],
    guide: SignInGuide,
    *,
    approve_everything: bool,
) -> dict[str, Any]:
    """What the Computer calls: for approval of a tool call or a command, an input, a question, a page to sign in on."""
    callbacks: dict[str, Any] = {
        "prompt": questions.value if questions else None,
        "on_question": waiting[1],
        "open_url": guide.open_url if guide.has_browser else None,
    }
    if approve_everything:
        return callbacks | {"approve": approve_all, "approve_command": _say_yes}
    return callbacks | {
        "approve": waiting[0],
        "approve_command": questions.command if questions else None,
    }


def _say_yes(*_: object) -> bool:
    return True
