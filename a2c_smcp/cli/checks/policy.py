"""Checks of the policy file: errors in it, what it may not mean, and who may change it."""

from __future__ import annotations

from collections.abc import Iterator

from a2c_smcp.cli.checks.findings import Finding, Situation, ok, problem, warning
from a2c_smcp.cli.errors import sentence
from a2c_smcp.computer.policy.advice import warnings_about
from a2c_smcp.computer.policy.rules import read_policy
from a2c_smcp.errors import ConfigError
from a2c_smcp.private_files import remedy_for

__all__ = ["policy"]

_HOW = "docs/guides/policy.md has an example of each."


def policy(situation: Situation) -> Iterator[Finding]:
    """Nothing is found if no file is named: a policy is not needed."""
    if (path := situation.policy) is None:
        return
    if remedy := remedy_for(path):
        yield problem(f"{path} can be changed by others on this machine, and is not used.", f"Run: {remedy}")
    try:
        found = read_policy(path)
    except ConfigError as error:
        faults = error.details.get("faults")
        for fault in [f"{path}: {each}" for each in faults] if faults else [error.about]:
            yield problem(sentence(fault), f"Correct that field; {_HOW}")
        return
    servers = [*situation.configuration.servers] if situation.files and not situation.faults else None
    for words in warnings_about(found, servers):
        yield warning(sentence(f"{path}: {words}"), f"If that is not meant, correct it; {_HOW}")
    yield ok(f"{path}: {found}.")
