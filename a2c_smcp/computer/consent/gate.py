"""Applies the owner's policy, before a tool runs and when an agent is shown its tools.

A call passes it twice. As soon as its tool is known, a tool that is denied whatever its arguments are is refused like
a forbidden one, before anything is said about its arguments. When the arguments are known to be valid, the policy
decides and the budgets count. After an approval, the policy decides once more: it may have changed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import orjson

from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.computer.calls.table import ServerTool, ToolRoute
from a2c_smcp.computer.consent.approval import OWNER, Caller
from a2c_smcp.computer.consent.decision import (
    Outlook,
    Subject,
    Verdict,
    applies,
    candidates,
    decide,
    denied_always,
    may_ask,
    outlook_of,
)
from a2c_smcp.computer.consent.rules import AccessPolicy, BudgetEntry, CallConditions, parse_policy, read_policy
from a2c_smcp.errors import RateLimited, ToolForbidden
from a2c_smcp.mcp_host.limits import text_in
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from a2c_smcp.types import TOOL_NAME

logger = logging.getLogger(__name__)

# Budgets: how many calls a minute, how many at once, and how many bytes an hour. A call over one is refused with 429.
#
# A call has to fit all budgets that apply to it, or it is counted in none. Calls of the last minute are counted
# exactly; bytes in steps of a minute. The bytes of a result are known when the tool has run: the call that goes over
# the budget is answered, and the next ones are refused. `running` is held until the MCP server has answered, also if
# nobody waits for the answer any more. Counts begin anew with the process.
#
# The owner's own calls are counted, so that agents do not get the seat of a licence that the owner uses; they are
# never refused.

_MINUTE, _HOUR = 60.0, 3600.0
_MOST_COUNTERS = 10_000
_DURATIONS = 20


@dataclass(slots=True)
class _Counter:
    """The use of one budget, for one agent, office, server or tool if it is `per` these."""

    entry: BudgetEntry
    calls: deque[float] = field(default_factory=deque)
    running: int = 0
    bytes: deque[tuple[float, int]] = field(default_factory=deque)
    spent: int = 0
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=_DURATIONS))

    def forget_old(self, now: float) -> None:
        while self.calls and self.calls[0] <= now - _MINUTE:
            self.calls.popleft()
        while self.bytes and self.bytes[0][0] <= now - _HOUR:
            self.spent -= self.bytes.popleft()[1]

    @property
    def is_idle(self) -> bool:
        return not (self.calls or self.running or self.bytes)

    def refusal(self, now: float, size: int) -> tuple[str, float] | None:
        """Which limit a call of so many bytes would break, and after how many seconds it may be tried again."""
        entry = self.entry
        if entry.running is not None and self.running >= entry.running:
            usual = median(self.durations) if self.durations else 1.0
            return f"at most {entry.running} at once", usual
        if entry.calls_per_minute is not None and len(self.calls) >= entry.calls_per_minute:
            return f"at most {entry.calls_per_minute} a minute", self.calls[-entry.calls_per_minute] + _MINUTE - now
        if entry.bytes_per_hour is not None and self.spent + size > entry.bytes_per_hour:
            return f"at most {entry.bytes_per_hour} bytes an hour", self._room_for(size, entry.bytes_per_hour, now)
        return None

    def _room_for(self, size: int, most: int, now: float) -> float:
        left = self.spent
        for at, some in self.bytes:
            left -= some
            if left + size <= most:
                return at + _HOUR - now
        return _HOUR

    def spend(self, now: float, size: int) -> None:
        self.spent += size
        if self.bytes and now - self.bytes[-1][0] < _MINUTE:
            at, some = self.bytes.pop()
            self.bytes.append((at, some + size))
        else:
            self.bytes.append((now, size))


class BudgetState(NamedTuple):
    """The use of a budget, for the owner."""

    budget: str
    whom: str
    used: str


class BudgetUse:
    """The use of budgets by one call. `close` ends it; each `hold` needs a further `close`."""

    def __init__(self, counters: list[_Counter], clock: Callable[[], float]) -> None:
        self._counters, self._clock = counters, clock
        self._began, self._holders = clock(), 1

    @property
    def counts_bytes(self) -> bool:
        return any(counter.entry.bytes_per_hour is not None for counter in self._counters)

    def spend(self, size: int) -> None:
        now = self._clock()
        for counter in self._counters:
            if counter.entry.bytes_per_hour is not None:
                counter.spend(now, size)

    def hold(self) -> None:
        self._holders += 1

    def close(self) -> None:
        self._holders -= 1
        if self._holders:
            return
        for counter in self._counters:
            counter.running -= 1
            counter.durations.append(self._clock() - self._began)


class Budgets:
    """The counters of all budgets of a policy."""

    def __init__(self, policy: AccessPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._policy = policy
        self._counters: dict[tuple[str, ...], _Counter] = {}

    def replace(self, policy: AccessPolicy) -> None:
        """Take the budgets of another policy. Those for the same calls go on with what they have counted."""
        self._policy = policy
        entries = {_identity(entry): entry for entry in policy.budgets}
        kept = {key: each for key, each in self._counters.items() if key[0] in entries}
        for key, counter in kept.items():
            counter.entry = entries[key[0]]
        self._counters = kept

    def admit(self, subject: Subject, size: int = 0, *, is_owner: bool = False) -> BudgetUse | None:
        """Count a call in all budgets that apply to it; `None` if none does. Raises `RateLimited`, and counts nothing.

        `size` is that of the arguments.
        """
        found = [
            (label, self._counter(entry, subject))
            for index, entry in enumerate(self._policy.budgets)
            if not applies(entry, subject)
            for label in [self._policy.budget_label(index)]
        ]
        if not found:
            return None
        now = self._clock()
        if not is_owner:
            _require(found, now, size)
        use = BudgetUse([counter for _, counter in found], self._clock)
        for _, counter in found:
            counter.running += 1
            if counter.entry.calls_per_minute is not None:
                counter.calls.append(now)
        use.spend(size)
        return use

    def state(self) -> list[BudgetState]:
        now = self._clock()
        for counter in self._counters.values():
            counter.forget_old(now)
        labels = {id(entry): self._policy.budget_label(index) for index, entry in enumerate(self._policy.budgets)}
        return [
            BudgetState(labels[id(counter.entry)], " ".join(whom), _used(counter))
            for (_, *whom), counter in self._counters.items()
        ]

    def _counter(self, entry: BudgetEntry, subject: Subject) -> _Counter:
        key = (_identity(entry), *(str(getattr(subject, dimension)) for dimension in entry.per))
        if (counter := self._counters.get(key)) is None:
            if len(self._counters) >= _MOST_COUNTERS:
                self._drop_idle()
            counter = self._counters[key] = _Counter(entry)
        counter.forget_old(self._clock())
        return counter

    def _drop_idle(self) -> None:
        """Forget counters that count nothing now. Raises `RateLimited` if there is none: no count is forgotten."""
        now = self._clock()
        for counter in self._counters.values():
            counter.forget_old(now)
        self._counters = {key: each for key, each in self._counters.items() if not each.is_idle}
        if len(self._counters) >= _MOST_COUNTERS:
            raise RateLimited("the budgets of this computer count too many callers", retry_after=60)


def _identity(entry: BudgetEntry) -> str:
    """The same for budgets that count the same calls, whatever their names and limits are."""
    return entry.model_dump_json(include={*CallConditions.model_fields, "per"})


def _require(found: Iterable[tuple[str, _Counter]], now: float, size: int) -> None:
    for label, counter in found:
        if refusal := counter.refusal(now, size):
            limit, seconds = refusal
            wait = max(1, math.ceil(seconds))
            raise RateLimited(
                f"the budget {label!r} allows {limit}; try again in {wait} s", retry_after=wait, budget=label
            )


def _used(counter: _Counter) -> str:
    entry = counter.entry
    parts = [
        (counter.running, entry.running, "running"),
        (len(counter.calls), entry.calls_per_minute, "calls in the last minute"),
        (counter.spent, entry.bytes_per_hour, "bytes in the last hour"),
    ]
    return ", ".join(f"{used} of {most} {what}" for used, most, what in parts if most is not None)


RulesGiven: TypeAlias = AccessPolicy | Mapping[str, Any] | Path
"""A policy, the content of a policy file, or the path of one."""

_Send: TypeAlias = Callable[[ToolRequest], Awaitable[dict[str, Any]]]
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
        """The possible decisions on calls of each tool."""
        return {name: self._outlook(self._subject(caller, name, route)) for name, route in routes.items()}

    def may_ask(self, tool: ServerTool) -> bool:
        """True if any call of a tool may ask the owner because of a rule."""
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
        self, call: IncomingCall, route: ToolRoute, deadline: float, *, resumes: bool
    ) -> AsyncGenerator[AdmittedCall, None]:
        """Decide, and count the call while it runs. Raises `ToolForbidden`, `RateLimited` or `TimeoutError`.

        `resumes`: it goes on with a call that runs already, and is counted.
        """
        subject = self._subject(call.caller, call.name, route)
        is_owner = call.caller is OWNER
        admission = AdmittedCall(self, call, route, subject)
        if not is_owner:
            async with asyncio.timeout_at(deadline):
                admission.verdict = await admission.decide()
        if not resumes:
            counts_bytes = any(budget.bytes_per_hour is not None for budget in self.policy.budgets)
            size = len(orjson.dumps(call.params, default=repr)) if counts_bytes else 0
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
        """Decide on a call by the current policy."""
        return await decide(self.policy, subject, arguments, self._candidates(subject))

    def _subject(self, caller: Caller, name: TOOL_NAME, route: ToolRoute) -> Subject:
        return Subject.of(self.policy, caller.agent, caller.office, name, route)


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

        async def sending(request: ToolRequest) -> dict[str, Any]:
            use.hold()
            try:
                raw = await send(request)
                if use.counts_bytes:
                    use.spend(text_in(raw))
                return raw
            finally:
                use.close()

        return sending
