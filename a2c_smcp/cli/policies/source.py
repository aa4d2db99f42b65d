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
from a2c_smcp.computer.policy.changes import digest_of_policy
from a2c_smcp.computer.policy.rules import AccessPolicy, read_policy
from a2c_smcp.computer.policy.watch import watch_policy
from a2c_smcp.errors import ConfigError
from a2c_smcp.private_files import remedy_for

__all__ = ["PolicyFile", "PolicySource", "ReadOnly", "TrustHints", "policy_source", "rules_of"]

PolicyFile = Annotated[
    Path | None,
    option(
        None,
        "--policy",
        "File of rules and budgets: who may call what, and how often.",
        show_default=False,
        metavar="FILE",
    ),
]
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


@dataclass(frozen=True)
class PolicySource:
    """The file, and what the options add to it."""

    path: Path | None
    read_only: bool
    trust_hints: tuple[str, ...]

    def read(self) -> AccessPolicy:
        """Raises `ConfigError`."""
        if self.path and (remedy := remedy_for(self.path)):
            raise ConfigError(f"{self.path}: can be changed by others on this machine, and is not used; run: {remedy}")
        policy = read_policy(self.path) if self.path else AccessPolicy()
        return policy.with_options(read_only=self.read_only, trust_hints=self.trust_hints)

    async def check_refused(self, policy: AccessPolicy, consent: Consent | None) -> None:
        """Ask again about a change that the owner has not accepted: a restart does not accept it. Raises `Failed`."""
        if self.path is None or not (lines := self._refused(self.path).lines_of(policy)):
            return
        if consent is None or await consent(lines) is not True:
            raise Failed(
                f"{self.path} holds a change that its owner has not agreed to: {'; '.join(lines)}",
                "Correct the file, or start on a terminal and say yes; --trust-changes agrees to everything.",
            )
        self._refused(self.path).clear()

    async def watch(self, computer: Computer, say: Callable[[str], None], consent: Consent | None) -> None:
        """Follow the file until cancelled."""
        if self.path:
            await watch_policy(computer, self.path, self.read, say, consent, self._refused(self.path))

    def _refused(self, path: Path) -> RefusedChanges[AccessPolicy]:
        return RefusedChanges([path], digest_of_policy)


def rules_of(source: PolicySource | None) -> AccessPolicy | None:
    """The policy at the start of a program. Raises `WrongUse`."""
    try:
        return source.read() if source else None
    except ConfigError as error:
        raise file_error(error) from None


def policy_source(path: Path | None, *, read_only: bool, trust_hints: list[str] | None) -> PolicySource | None:
    """What the options say; `None` if they say nothing. Raises `WrongUse`."""
    if trust_hints and not (path or read_only):
        raise WrongUse("--trust-hints decides nothing by itself", "Give --policy FILE or --read-only with it.")
    if path is None and not read_only:
        return None
    return PolicySource(path, read_only, tuple(trust_hints or ()))
