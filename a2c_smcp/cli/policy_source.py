"""Where the policy of this machine's Computer comes from: a file that is watched, and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from a2c_smcp.cli.errors import Failed, WrongUse, file_error
from a2c_smcp.cli.options import option
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.watch import Consent, RefusedChanges
from a2c_smcp.computer.consent.changes import digest_of_policy, watch_policy
from a2c_smcp.computer.consent.rules import AccessPolicy, read_policy
from a2c_smcp.errors import ConfigError
from a2c_smcp.files import remedy_for

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
