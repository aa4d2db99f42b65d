"""The part of `Computer` with which its owner runs the MCP servers, sets rules, and reads their state.

No secrets are shown.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

from a2c_smcp.computer.agent_requests import AgentRequests
from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.calls.reports import CallWatch
from a2c_smcp.computer.observation import SignInEnded
from a2c_smcp.computer.policy.decision import Outlook
from a2c_smcp.computer.policy.gate import RulesGiven, policy_of_rules
from a2c_smcp.computer.secrets import ARGUMENTS
from a2c_smcp.computer.secrets.config import names_of_secrets
from a2c_smcp.computer.secrets.rules import SecretName
from a2c_smcp.computer.server_logs import LogLine
from a2c_smcp.computer.sign_in.browser import Browser, OpenURL, PasteRedirect
from a2c_smcp.computer.tools.definitions import ToolChange
from a2c_smcp.computer.tools.table import ToolRoute
from a2c_smcp.computer.types import Update
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.status import ServerStatus
from a2c_smcp.types import TOOL_NAME

__all__ = ["ServerControl", "ToolState"]


class ToolState(NamedTuple):
    """What may happen to calls of a tool; `change` is how its definition differs from the one that was approved."""

    server: str
    tool: TOOL_NAME
    outlook: Outlook
    change: ToolChange | None


class ServerControl(AgentRequests):
    """What an owner does with MCP servers. `Computer` sets the attributes."""

    _open_url: OpenURL | None

    def _many_changes(self) -> AbstractContextManager[None]:
        """Delays warnings while servers start or stop one after the other."""
        raise NotImplementedError

    def _notify(self, update: Update) -> None:
        raise NotImplementedError

    def replace_rules(self, rules: RulesGiven) -> None:
        """Decide by other rules from now on, and notify agents. Raises `ConfigError`; the old rules stay then.

        Only a computer that was made with rules can change them: without any, calls never pass the place that decides.
        """
        policy = policy_of_rules(rules)
        if self.gate is None:
            raise ConfigError("this computer was made without rules: Computer(rules={}) has some that can be replaced")
        self.gate.replace(policy)
        self.approvals.limit_grants(policy.grants_last)
        self.uploads.are_refused = policy.read_only
        self._notify("tool_list")

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

    async def sign_in(
        self, name: str, *, open_url: OpenURL | None = None, paste_redirect: PasteRedirect | None = None
    ) -> None:
        """Sign in to a server by OAuth, and start it if it waits for that. Raises `SignInFailed` and `ServerNotFound`.

        `open_url` (without it, the computer's) opens the page to sign in on; the browser comes back by itself. Or
        `paste_redirect` gets the address of the page, and returns the one that the browser was sent to at the end.
        """
        await self._host.sign_in(name, Browser(open_url or self._open_url, paste_redirect))

    async def is_signed_in(self, name: str) -> bool:
        """Whether there are tokens for a server. Raises `ServerNotFound`, `SignInFailed` if it takes no sign-in."""
        return await self._host.is_signed_in(name)

    @property
    def signed_in(self) -> frozenset[str]:
        """The servers that have been used with tokens of their owner since this computer began."""
        known = ((name, self._host.sign_ins.known(name)) for name in self._host.configs)
        return frozenset(name for name, account in known if account and account.is_signed_in)

    async def sign_out(self, name: str) -> bool:
        """Forget the tokens of a server. Returns whether its provider has revoked them. Raises `ServerNotFound`."""
        is_revoked = await self._host.sign_out(name)
        self.observation.report(SignInEnded(name, "out", True))
        return is_revoked

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not ended."""
        return self._hosting is not None

    def status(self) -> dict[str, ServerStatus]:
        """The state of each server and the reason for it, without secrets."""
        return {
            name: replace(
                each,
                reason=self.mask.text(each.reason, name),
                diagnostics=self.mask.data(each.diagnostics, ARGUMENTS, name),
            )
            for name, each in (self._hosting.status() if self._hosting else {}).items()
        }

    def logs(self, name: str, level: str = "debug") -> list[LogLine]:
        """The last messages of a server's own log, of this level and above, without secrets.

        Raises `ServerNotFound`, or `BadRequest` for a level that MCP does not have.
        """
        return self.server_logs.of(self._host.known(name), level)

    async def set_log_level(self, name: str, level: str) -> None:
        """Ask a server for messages of this level and above. Raises `ServerNotFound` or `BadRequest`."""
        self.server_logs.set_owners_level(self._host.known(name), level)
        await self._host.set_log_levels()

    def secrets(self) -> dict[str, list[SecretName]]:
        """The names that are treated as secret, by server. Never a value."""
        return {name: names_of_secrets(each, self._definitions) for name, each in self._host.configs.items()}

    def tool_states(self, office: str = "", agent: str = "") -> dict[TOOL_NAME, ToolState]:
        """What may happen to calls of each tool, without grants, and how its definition has changed."""
        routes = self._catalogue.routes
        known = self.gate.outlooks(Caller(office, agent), routes) if self.gate else {}
        return {
            name: ToolState(route.server, route.tool, known.get(name) or self._configured(route), route.change)
            for name, route in routes.items()
        }

    def _configured(self, route: ToolRoute) -> Outlook:
        runs = not route.asks_again and (route.meta.auto_apply is True or self.approvals.approves_all)
        return Outlook(frozenset(["allow" if runs else "ask"]))

    def watch_calls(self, watch: CallWatch | None) -> None:
        """Report each call to `watch`, from now on."""
        self._execution.listeners.watch = watch

    @property
    def warnings(self) -> list[str]:
        """Warnings for the owner: clashes of names, unusable schemas, tools and skills that are left out."""
        left_out = [
            f"server {name!r}: {self.mask.text(warning, name)}"
            for name, each in (self._hosting.status() if self._hosting else {}).items()
            for warning in each.warnings
        ]
        return self._catalogue.warnings + left_out + self.skills.warnings
