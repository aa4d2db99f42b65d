"""Warnings about a policy that is valid, but may not mean what its owner wants. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from a2c_smcp.computer.policy.conditions import traps
from a2c_smcp.computer.policy.rules import AccessPolicy, PolicyRule, names_match

__all__ = ["warnings_about"]

_CONDITIONS = ("agents", "offices", "servers", "tools", "annotations", "arguments", "until")


def warnings_about(policy: AccessPolicy, servers: Collection[str] | None = None) -> list[str]:
    """A sentence for each warning. `servers` are the names of all MCP servers, if they are known."""
    return [
        *_about_settings(policy),
        *_about_rules(policy),
        *(_about_names(policy, servers) if servers is not None else ()),
    ]


def _about_settings(policy: AccessPolicy) -> Iterator[str]:
    is_known = any(said.trust_hints or said.read_only is not None for said in policy.servers.values())
    if policy.read_only and not is_known:
        yield "read_only denies every tool: no server has trust_hints or read_only (--trust-hints SERVER)"


def _about_rules(policy: AccessPolicy) -> Iterator[str]:
    last = None
    for index, rule in enumerate(policy.rules):
        label = f"rule {policy.rule_label(index)!r}"
        if last is not None:
            yield f"{label} never matches: {policy.rule_label(last)!r} before it has no conditions"
        elif all(getattr(rule, each) is None for each in _CONDITIONS):
            last = index
        if rule.is_over(time.time()):
            yield f"{label} is over since {rule.until:%Y-%m-%d %H:%M} UTC"
        if rule.then == "allow":
            yield from (f"{label}: {each}" for each in _about_allowing(policy, rule))


def _about_allowing(policy: AccessPolicy, rule: PolicyRule) -> Iterator[str]:
    if rule.tools is not None and rule.servers is None:
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
