"""Applies the owner's policy, before a tool runs and when an agent is shown its tools.

A call passes it twice. As soon as its tool is known, a tool that is denied whatever its arguments are is refused like
a forbidden one, before anything is said about its arguments. When the arguments are known to be valid, the policy
decides and the budgets count. After an approval, the policy decides once more: it may have changed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from a2c_smcp.computer.approval import OWNER, Caller
from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.computer.policy.budgets import Budgets, BudgetState, BudgetUse
from a2c_smcp.computer.policy.decision import (
    Outlook,
    Subject,
    Verdict,
    candidates,
    decide,
    denied_always,
    may_ask,
    outlook_of,
)
from a2c_smcp.computer.policy.rules import AccessPolicy, parse_policy, read_policy
from a2c_smcp.computer.tools.names import ServerTool
from a2c_smcp.computer.tools.table import ToolRoute
from a2c_smcp.errors import ToolForbidden
from a2c_smcp.mcp_host.message_limits import text_in
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from a2c_smcp.types import TOOL_NAME

__all__ = ["AdmittedCall", "PolicyGate", "RulesGiven", "policy_of_rules"]

logger = logging.getLogger(__name__)

RulesGiven: TypeAlias = AccessPolicy | Mapping[str, Any] | Path
"""A policy, the content of a policy file, or the path of one."""

_Send: TypeAlias = Callable[[str, ToolRequest], Awaitable[dict[str, Any]]]
_LONGEST_TIMER = 86400.0
_SUBJECTS = 4096  # tools and their callers whose rules are kept


def policy_of_rules(given: RulesGiven) -> AccessPolicy:
    """Raises `ConfigError`."""
    if isinstance(given, AccessPolicy):
        return given
    return read_policy(given) if isinstance(given, Path) else parse_policy(dict(given))


class PolicyGate:
    """The policy that is in force, and its budgets."""

    def __init__(
        self,
        policy: AccessPolicy,
        on_decided: Callable[[IncomingCall, ToolRoute, Verdict], None] = lambda call, route, verdict: None,
    ) -> None:
        self.on_decided = on_decided
        self._budgets = Budgets(policy)
        self._use(policy)

    def _use(self, policy: AccessPolicy) -> None:
        self.policy = policy
        self._candidates = lru_cache(_SUBJECTS)(partial(candidates, policy))

    def replace(self, policy: AccessPolicy) -> None:
        """Decide by this policy from now on, also on calls that wait for approval."""
        self._use(policy)
        self._budgets.replace(policy)

    @property
    def budgets(self) -> list[BudgetState]:
        return self._budgets.state()

    def outlooks(self, caller: Caller, routes: Mapping[TOOL_NAME, ToolRoute]) -> dict[TOOL_NAME, Outlook]:
        """What may happen to calls of each tool."""
        return {name: self._outlook(self._subject(caller, name, route)) for name, route in routes.items()}

    def may_ask(self, tool: ServerTool) -> bool:
        """Whether some call of a tool may ask the owner because of a rule."""
        return may_ask(self.policy, tool.server, tool.tool, tool.wanted)

    def require_shown(self, call: IncomingCall, route: ToolRoute) -> None:
        """Raise `ToolForbidden` for a tool that this agent is not shown."""
        if call.caller is OWNER:
            return
        subject = self._subject(call.caller, call.name, route)
        if self._outlook(subject).is_hidden:
            verdict = denied_always(self.policy, subject, self._candidates(subject))
            self.on_decided(call, route, verdict)
            logger.info("%s is denied %r of %s by %s", call.caller.who, route.tool, route.server, verdict.rule)
            raise ToolForbidden(repr(call.name), toolId=call.name)

    @asynccontextmanager
    async def admitted(
        self, call: IncomingCall, route: ToolRoute, deadline: float, *, goes_on: bool
    ) -> AsyncGenerator[AdmittedCall, None]:
        """Decide, and count the call while it runs. Raises `ToolForbidden`, `RateLimited` or `TimeoutError`.

        `goes_on`: it goes on with a call that runs already, and is counted.
        """
        subject = self._subject(call.caller, call.name, route)
        is_owner = call.caller is OWNER
        admission = AdmittedCall(self, call, route, subject)
        if not is_owner:
            async with asyncio.timeout_at(deadline):
                admission.verdict = await admission.decide()
        if not goes_on:
            size = len(orjson.dumps(call.params, default=repr)) if self._counts_bytes else 0
            admission.use = self._budgets.admit(subject, size, is_owner=is_owner)
        try:
            yield admission
        finally:
            if admission.use:
                admission.use.close()

    def follow_expiry(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` whenever a rule is over. Returns a function that ends this."""
        loop, timer = asyncio.get_running_loop(), list[asyncio.TimerHandle]()

        def schedule() -> None:
            ends = (rule.until.timestamp() for rule in self.policy.rules if rule.until)
            left = min((end - time.time() for end in ends if end > time.time()), default=_LONGEST_TIMER)
            timer[:] = [loop.call_later(min(left, _LONGEST_TIMER) + 0.01, expire, left <= _LONGEST_TIMER)]

        def expire(is_due: bool) -> None:
            if is_due:
                on_change()
            schedule()

        schedule()
        return lambda: timer[0].cancel()

    def _outlook(self, subject: Subject) -> Outlook:
        return outlook_of(self.policy, subject, self._candidates(subject))

    async def verdict(self, subject: Subject, arguments: dict[str, Any]) -> Verdict:
        """What happens to a call by the policy that is in force now."""
        return await decide(self.policy, subject, arguments, self._candidates(subject))

    def _subject(self, caller: Caller, name: TOOL_NAME, route: ToolRoute) -> Subject:
        return Subject.of(self.policy, caller.agent, caller.office, name, route)

    @property
    def _counts_bytes(self) -> bool:
        return any(each.bytes_per_hour is not None for each in self.policy.budgets)


class AdmittedCall:
    """A call that may go on. `verdict` is `allow` or `ask`; without one the owner calls."""

    def __init__(self, gate: PolicyGate, call: IncomingCall, route: ToolRoute, subject: Subject) -> None:
        self.verdict: Verdict | None = None
        self.use: BudgetUse | None = None
        self._gate, self._call, self._route, self._subject = gate, call, route, subject

    async def decide(self) -> Verdict:
        """Decide on the call. Raises `ToolForbidden`."""
        verdict = await self._gate.verdict(self._subject, self._call.params)
        self._gate.on_decided(self._call, self._route, verdict)
        if verdict.then == "deny":
            call = self._call
            logger.warning("%s is denied %r by %s: %s", call.caller.who, call.name, verdict.rule, verdict.why)
            told = f": {verdict.told}" if verdict.told else ""
            raise ToolForbidden(
                f"{call.name!r} with these arguments, by the rule {verdict.rule!r}{told}",
                toolId=call.name,
                rule=verdict.rule,
            )
        return verdict

    async def decide_again(self) -> None:
        """Raise `ToolForbidden` if the policy denies the call by now."""
        if self.verdict is not None:
            await self.decide()

    def counting(self, send: _Send) -> _Send:
        """A function that sends, counts the call as running until the MCP server has answered, and the bytes of it."""
        use = self.use
        if use is None:
            return send

        async def sending(server: str, request: ToolRequest) -> dict[str, Any]:
            use.hold()
            try:
                raw = await send(server, request)
                if use.counts_bytes:
                    use.spend(text_in(raw))
                return raw
            finally:
                use.close()

        return sending
