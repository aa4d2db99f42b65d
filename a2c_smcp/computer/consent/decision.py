"""Decides what happens to a call: `allow`, `ask` or `deny`, by which rule, and why. No I/O but the check of a schema.

The order: `read_only`, then the rules, then `default`, then the configuration. It never fails open:

- Arguments that cannot be checked against a rule that would otherwise match are denied, whatever the rule says.
- Annotations count only if the owner has given them, or trusts the server (WIRE §7). Otherwise the worst that MCP
  allows is assumed: not read-only, destructive, not idempotent, reaching other systems.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.consent.rules import (
    ANNOTATIONS,
    AccessPolicy,
    CallConditions,
    PolicyRule,
    Then,
    names_match,
    traps,
)
from a2c_smcp.registry.schemas.check import SchemaTooHeavy, fits_exactly

READ_ONLY, DEFAULT, CONFIGURATION = "read_only", "default", "configuration"


@dataclass(frozen=True, slots=True)
class Subject:
    """The caller and the tool of a call. `name` is the one that agents see, `tool` the one of its MCP server."""

    agent: str
    office: str
    server: str
    tool: str
    name: str
    annotations: dict[str, bool] = field(hash=False)
    auto_apply: bool = False

    @classmethod
    def of(cls, policy: AccessPolicy, agent: str, office: str, name: str, route: ToolRoute) -> Subject:
        annotations = annotations_of(policy, route)
        return cls(agent, office, route.server, route.tool, name, annotations, route.meta.auto_apply is True)


@dataclass(frozen=True, slots=True)
class Step:
    """A rule that was looked at. `missed` says which of its conditions does not hold; empty if it decided."""

    rule: str
    missed: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision on a call. `rule` is the deciding rule, `why` the reason in words, `told` the owner's own sentence."""

    then: Then
    rule: str
    why: str
    told: str = ""
    every_time: bool = False
    steps: tuple[Step, ...] = field(default=(), compare=False)

    @property
    def is_by_rule(self) -> bool:
        """True if the policy decided, and not the configuration."""
        return self.rule != CONFIGURATION


@dataclass(frozen=True, slots=True)
class Outlook:
    """The possible decisions on calls of a tool, with any arguments."""

    may: frozenset[Then]
    every_time: bool = False

    @property
    def is_hidden(self) -> bool:
        return self.may == {"deny"}

    @property
    def may_ask(self) -> bool:
        return "ask" in self.may


def annotations_of(policy: AccessPolicy, route: ToolRoute) -> dict[str, bool]:
    """The annotations that count, with MCP's defaults for those that are not given."""
    said = policy.servers.get(route.server)
    hints = route.hints if said and said.trust_hints else {}
    read_only, destructive = hints.get("readOnlyHint") is True, hints.get("destructiveHint") is not False
    if said and said.read_only is not None and names_match(said.read_only, route.tool):
        read_only = True
    if said and said.destructive is not None and names_match(said.destructive, route.tool):
        read_only, destructive = False, True
    idempotent, open_world = hints.get("idempotentHint") is True, hints.get("openWorldHint") is not False
    values = (read_only, destructive and not read_only, idempotent or read_only, open_world)
    return dict(zip(ANNOTATIONS, values, strict=True))


def applies(conditions: CallConditions, subject: Subject) -> str:
    """The condition that does not hold; empty if all do. Tools have two names, and either counts.

    An MCP server chooses its names itself, and might take one that means another server's tool: in a rule that allows,
    and is not for this server alone, `<server>__<tool>` counts only as the name that the Computer gives to a tool of
    that server, or as an alias (WIRE §7). What restricts counts for both.
    """
    if not names_match(conditions.agents, subject.agent):
        return f"the agent {subject.agent!r} is not among its agents"
    if not names_match(conditions.offices, subject.office):
        return f"the office {subject.office!r} is not among its offices"
    if not names_match(conditions.servers, subject.server):
        return f"the server {subject.server!r} is not among its servers"
    if not names_match(conditions.tools, subject.tool, subject.name):
        return f"the tool {subject.tool!r} is not among its tools"
    if isinstance(conditions, PolicyRule) and conditions.then == "allow" and not _is_meant(conditions, subject):
        return f"the tool is another server's {subject.tool!r} unless the rule is for {subject.server!r} alone"
    return ""


def _is_meant(rule: PolicyRule, subject: Subject) -> bool:
    """False if the tool only has a name that means the tool of another server."""
    if rule.tools is None or rule.servers == (subject.server,):
        return True
    is_given = subject.name != subject.tool or subject.tool.startswith(f"{subject.server}__")
    qualified = (subject.name,) if is_given else ()
    return any(
        names_match((name,), *(qualified if "__" in name else (subject.tool, subject.name))) for name in rule.tools
    )


def candidates(policy: AccessPolicy, subject: Subject) -> tuple[int, ...]:
    """The rules, by number, that may decide on calls of this subject: all but time and arguments fits.

    Finding them takes longer than deciding, and the result is the same for each call: keep it.
    """
    return tuple(index for index, rule in enumerate(policy.rules) if not _mismatch(rule, subject))


def _mismatch(rule: PolicyRule, subject: Subject) -> str:
    if missed := applies(rule, subject):
        return missed
    for hint, wanted in (rule.annotations or {}).items():
        if subject.annotations[hint] is not wanted:
            return f"{hint} of the tool is {str(not wanted).lower()}"
    return ""


async def decide(
    policy: AccessPolicy, subject: Subject, arguments: dict[str, Any], among: Sequence[int] | None = None
) -> Verdict:
    """Decide on a call. `among` are its `candidates`; without them all rules are examined, and explained."""
    if denied := _read_only(policy, subject):
        return denied
    steps: list[Step] = []
    now = time.time()
    for index in range(len(policy.rules)) if among is None else among:
        rule = policy.rules[index]
        label = policy.rule_label(index)
        missed = "it was only until a time that is over" if rule.is_over(now) else _mismatch(rule, subject)
        if not missed and rule.argument_schema is not None:
            try:
                missed = (
                    "" if await fits_exactly(rule.argument_schema, arguments) else "the arguments do not fit its schema"
                )
            except SchemaTooHeavy as error:
                why = f"the arguments cannot be checked against the rule: {error.reason}"
                return Verdict("deny", label, why, steps=(*steps, Step(label)))
        steps.append(Step(label, missed))
        if not missed:
            return Verdict(rule.then, label, _because(rule), rule.why, rule.every_time, tuple(steps))
    return _otherwise(policy, subject, tuple(steps))


def outlook_of(policy: AccessPolicy, subject: Subject, among: Sequence[int] | None = None) -> Outlook:
    """The possible decisions on a call, before its arguments are known. `among` as of `decide`."""
    if _read_only(policy, subject):
        return Outlook(frozenset(["deny"]))
    may: set[Then] = set()
    every_time, now = False, time.time()
    for index in candidates(policy, subject) if among is None else among:
        rule = policy.rules[index]
        if rule.is_over(now):
            continue
        may.add(rule.then)
        every_time |= rule.every_time
        if rule.argument_schema is None:
            return Outlook(frozenset(may), every_time)
    return Outlook(frozenset({*may, _otherwise(policy, subject, ()).then}), every_time)


def may_ask(policy: AccessPolicy, server: str, *names: str) -> bool:
    """True if any agent's call of this tool may need approval under the policy. A tool may have several names."""
    asking = (rule for rule in policy.rules if rule.then == "ask")
    return policy.default == "ask" or any(
        names_match(rule.servers, server) and names_match(rule.tools, *names) for rule in asking
    )


def denied_always(policy: AccessPolicy, subject: Subject, among: Sequence[int]) -> Verdict:
    """The verdict on a tool that is denied whatever its arguments are, by the first rule that asks for none of them."""
    if denied := _read_only(policy, subject):
        return denied
    now = time.time()
    for index in among:
        rule = policy.rules[index]
        if rule.argument_schema is None and not rule.is_over(now):
            return Verdict(rule.then, policy.rule_label(index), _because(rule), rule.why)
    return _otherwise(policy, subject, ())


def _read_only(policy: AccessPolicy, subject: Subject) -> Verdict | None:
    if not policy.read_only or subject.annotations["readOnlyHint"]:
        return None
    return Verdict("deny", READ_ONLY, "only tools that are known to change nothing may be called")


def _otherwise(policy: AccessPolicy, subject: Subject, steps: tuple[Step, ...]) -> Verdict:
    if policy.default is not None:
        return Verdict(policy.default, DEFAULT, "no rule matches", steps=steps)
    if subject.auto_apply:
        return Verdict("allow", CONFIGURATION, "no rule matches, and auto_apply is set for the tool", steps=steps)
    return Verdict("ask", CONFIGURATION, "no rule matches, and auto_apply is not set for the tool", steps=steps)


def _because(rule: PolicyRule) -> str:
    conditions = [
        *(name for name in CallConditions.model_fields if getattr(rule, name) is not None),
        *(["annotations"] if rule.annotations else []),
        *(["arguments"] if rule.arguments is not None else []),
    ]
    return f"its {', '.join(conditions)} match" if conditions else "it has no conditions"


# Warnings about a policy that is valid, but may not mean what its owner wants. Decides nothing.

_CONDITIONS = ("agents", "offices", "servers", "tools", "annotations", "arguments", "until")


def warnings_about(policy: AccessPolicy, servers: Collection[str] | None = None) -> list[str]:
    """A sentence for each warning. `servers` are the names of all MCP servers, if they are known."""
    warnings = [*_about_rules(policy), *(_about_names(policy, servers) if servers is not None else ())]
    is_known = any(server.trust_hints or server.read_only is not None for server in policy.servers.values())
    if policy.read_only and not is_known:
        warnings[:0] = ["read_only denies every tool: no server has trust_hints or read_only (--trust-hints SERVER)"]
    return warnings


def _about_rules(policy: AccessPolicy) -> Iterator[str]:
    last = None
    for index, rule in enumerate(policy.rules):
        label = f"rule {policy.rule_label(index)!r}"
        if last is not None:
            yield f"{label} never matches: {policy.rule_label(last)!r} before it has no conditions"
        elif all(getattr(rule, condition) is None for condition in _CONDITIONS):
            last = index
        if rule.is_over(time.time()):
            yield f"{label} is over since {rule.until:%Y-%m-%d %H:%M} UTC"
        if rule.then == "allow":
            yield from (f"{label}: {warning}" for warning in _about_allowing(policy, rule))


def _about_allowing(policy: AccessPolicy, rule: PolicyRule) -> Iterator[str]:
    if rule.servers is None and any("__" not in name for name in rule.tools or ()):
        yield "it names tools without servers: any MCP server may offer a tool of that name"
    wanted = rule.annotations or {}
    if wanted and not any(_is_known(policy, server, rule) for server in policy.servers):
        yield "it wants annotations, and no server in its servers has trust_hints or read_only: it matches nothing"
    yield from traps(rule.arguments or {})


def _is_known(policy: AccessPolicy, server: str, rule: PolicyRule) -> bool:
    said = policy.servers[server]
    return names_match(rule.servers, server) and (said.trust_hints or said.read_only is not None)


def _about_names(policy: AccessPolicy, servers: Collection[str]) -> Iterator[str]:
    for name in policy.servers:
        if name not in servers:
            yield f"servers.{name}: there is no such MCP server"
    entries = [
        *((f"rule {policy.rule_label(index)!r}", each) for index, each in enumerate(policy.rules)),
        *((f"budget {policy.budget_label(index)!r}", each) for index, each in enumerate(policy.budgets)),
    ]
    for label, entry in entries:
        for name in entry.servers or ():
            if not any(names_match((name,), server) for server in servers):
                yield f"{label}: there is no MCP server {name!r}"
