"""Decides what happens to a call: `allow`, `ask` or `deny`, by which rule, and why. No I/O but the check of a schema.

The order: `read_only`, then the rules, then `default`, then the configuration. It never fails open:

- Arguments that cannot be checked against a rule that would otherwise match are denied, whatever the rule says.
- Annotations count only if the owner has given them, or trusts the server (WIRE §7). Otherwise the worst that MCP
  allows is assumed: not read-only, destructive, not idempotent, reaching other systems.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.computer.policy.rules import ANNOTATIONS, AccessPolicy, CallConditions, PolicyRule, Then, names_match
from a2c_smcp.computer.tools.table import ToolRoute
from a2c_smcp.registry.schemas.check import SchemaTooHeavy, fits_exactly

__all__ = [
    "Outlook",
    "Step",
    "Subject",
    "Verdict",
    "annotations_of",
    "applies",
    "candidates",
    "decide",
    "denied_always",
    "may_ask",
    "outlook_of",
]

READ_ONLY, DEFAULT, CONFIGURATION = "read_only", "default", "configuration"


@dataclass(frozen=True, slots=True)
class Subject:
    """Who calls which tool. `name` is the one that agents see, `tool` the one of its MCP server."""

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
    """What happens to a call. `rule` names what decided, `why` says it in words, `told` is the owner's own sentence."""

    then: Then
    rule: str
    why: str
    told: str = ""
    every_time: bool = False
    steps: tuple[Step, ...] = field(default=(), compare=False)

    @property
    def is_by_rule(self) -> bool:
        """Whether the policy decided, and not the configuration."""
        return self.rule != CONFIGURATION


@dataclass(frozen=True, slots=True)
class Outlook:
    """What may happen to calls of a tool, whatever their arguments are."""

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
    """The condition that does not hold; empty if all do. Tools have two names, and either counts."""
    if not names_match(conditions.agents, subject.agent):
        return f"the agent {subject.agent!r} is not among its agents"
    if not names_match(conditions.offices, subject.office):
        return f"the office {subject.office!r} is not among its offices"
    if not names_match(conditions.servers, subject.server):
        return f"the server {subject.server!r} is not among its servers"
    if not names_match(conditions.tools, subject.tool, subject.name):
        return f"the tool {subject.tool!r} is not among its tools"
    return ""


def candidates(policy: AccessPolicy, subject: Subject) -> tuple[int, ...]:
    """The rules, by number, that may decide on calls of this subject: all but time and arguments fits.

    Finding them takes longer than deciding, and the result is the same for each call: keep it.
    """
    return tuple(index for index, rule in enumerate(policy.rules) if not _mismatch(rule, subject))


def _missed(rule: PolicyRule, subject: Subject, now: float) -> str:
    """The condition of a rule that does not hold; empty if only the arguments are left to be looked at."""
    return "it was only until a time that is over" if rule.is_over(now) else _mismatch(rule, subject)


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
    """What happens to a call. `among` are its `candidates`; without them all rules are looked at, and explained."""
    if denied := _read_only(policy, subject):
        return denied
    steps: list[Step] = []
    now = time.time()
    for index in range(len(policy.rules)) if among is None else among:
        rule = policy.rules[index]
        label = policy.rule_label(index)
        missed = _missed(rule, subject, now)
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
    """What may happen to a call, before its arguments are known. `among` as of `decide`."""
    if _read_only(policy, subject):
        return Outlook(frozenset(["deny"]))
    may: set[Then] = set()
    every_time = False
    for rule in _in_force(policy, candidates(policy, subject) if among is None else among):
        may.add(rule.then)
        every_time |= rule.every_time
        if rule.argument_schema is None:
            return Outlook(frozenset(may), every_time)
    return Outlook(frozenset({*may, _otherwise(policy, subject, ()).then}), every_time)


def may_ask(policy: AccessPolicy, server: str, *names: str) -> bool:
    """Whether some agent's call of a tool, which has these names, may ask, whatever the configuration says."""
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


def _in_force(policy: AccessPolicy, among: Sequence[int]) -> Iterator[PolicyRule]:
    now = time.time()
    return (rule for index in among if not (rule := policy.rules[index]).is_over(now))


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
