"""Decides which changes of a policy need the consent of its owner. Pure: two policies in, lines to show out.

The file is watched, and an agent with a tool that writes files could otherwise rewrite its own rules. A change is
applied at once only if it can be seen to allow nothing more. Of rules, of which the first that matches decides, these
are such changes:

- a `deny` is added anywhere, or an `allow` is removed: no call can come out more freely than before;
- an `ask` is added where nothing after it denies, or asks every time;
- a rule with the same conditions becomes stricter.

Whatever else changes needs consent, also if it looks harmless. A change is applied as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.watch import Consent, RefusedChanges, WatchedChanges
from a2c_smcp.computer.consent.rules import AccessPolicy, BudgetEntry, CallConditions, PolicyRule
from a2c_smcp.protocol.escaping import one_line

logger = logging.getLogger(__name__)

_STRICTNESS = {"allow": 0, None: 1, "ask": 2, "deny": 3}
_LIMITS = ("calls_per_minute", "running", "bytes_per_hour")
_MOST = 400


def digest_of_policy(policy: AccessPolicy) -> str:
    """The same for files that mean the same, however they are written."""
    return hashlib.sha256(policy.model_dump_json().encode()).hexdigest()


def loosened(before: AccessPolicy, after: AccessPolicy) -> list[str]:
    """A line for each change that may allow more than before. Empty if the change may be applied at once."""
    return [*_settings(before, after), *_rules(before, after), *_budgets(before.budgets, after.budgets)]


def _settings(before: AccessPolicy, after: AccessPolicy) -> Iterator[str]:
    if before.read_only and not after.read_only:
        yield "policy: read_only is false instead of true"
    if _STRICTNESS[after.default] < _STRICTNESS[before.default]:
        yield f"policy: default is {_word(after.default)} instead of {_word(before.default)}"
    if before.grants_last is not None and (after.grants_last is None or after.grants_last > before.grants_last):
        yield f"policy: permanent approvals last {_time(after.grants_last)} instead of {_time(before.grants_last)}"
    for name in dict.fromkeys((*before.servers, *after.servers)):
        if (old := before.servers.get(name)) != (new := after.servers.get(name)):
            yield f"policy: servers.{name}: {_shown(new)} instead of {_shown(old)}"


def _rules(before: AccessPolicy, after: AccessPolicy) -> Iterator[str]:
    old, new = before.rules, after.rules
    aligned = SequenceMatcher(None, [_conditions(rule) for rule in old], [_conditions(rule) for rule in new], False)
    for kind, first, end, new_first, new_end in aligned.get_opcodes():
        if kind == "equal":
            pairs = zip(old[first:end], new[new_first:new_end], strict=True)
            yield from (f"policy: the rule {_shown(b)} instead of {_shown(a)}" for a, b in pairs if _is_weaker(a, b))
            continue
        for rule in old[first:end]:
            if rule.then != "allow":
                yield f"policy: without the rule {_shown(rule)}"
        for index in range(new_first, new_end):
            if not _only_restricts(after, index):
                yield f"policy: a new rule {_shown(new[index])}"


def _conditions(rule: PolicyRule) -> str:
    return rule.model_dump_json(include={*CallConditions.model_fields, "annotations", "arguments", "until"})


def _is_weaker(before: PolicyRule, after: PolicyRule) -> bool:
    return (_STRICTNESS[after.then], after.every_time) < (_STRICTNESS[before.then], before.every_time)


def _only_restricts(policy: AccessPolicy, index: int) -> bool:
    """True if a rule added here cannot allow a call more. A rule with an end does not last."""
    rule = policy.rules[index]
    if rule.then == "deny":
        return True
    later = policy.rules[index + 1 :]
    strict = policy.default == "deny" or any(rule.then == "deny" or rule.every_time for rule in later)
    return rule.then == "ask" and not strict


def _budgets(before: Sequence[BudgetEntry], after: Sequence[BudgetEntry]) -> Iterator[str]:
    """A budget is gone unless one for the same calls limits at least as much."""
    known = [*after]
    for old in before:
        same = next((entry for entry in known if _counts_the_same(old, entry) and _limits_as_much(old, entry)), None)
        if same is None:
            yield f"policy: without the budget {_shown(old)}"
        else:
            known.remove(same)


def _counts_the_same(some: BudgetEntry, other: BudgetEntry) -> bool:
    fields = {*CallConditions.model_fields, "per"}
    return some.model_dump(include=fields) == other.model_dump(include=fields)


def _limits_as_much(before: BudgetEntry, after: BudgetEntry) -> bool:
    pairs = ((getattr(before, name), getattr(after, name)) for name in _LIMITS)
    return all(old is None or (new is not None and new <= old) for old, new in pairs)


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    known = value.model_dump(mode="json", exclude_defaults=True) if hasattr(value, "model_dump") else value
    return one_line(known, _MOST)


def _word(default: str | None) -> str:
    return default or "what the configuration says"


def _time(seconds: float | None) -> str:
    return "for good" if seconds is None else f"{seconds:g} s"


# Watches a policy file, and applies its changes: those that loosen it after the owner's yes (`changes.py`).
#
# A file that is wrong, or gone, changes nothing: the policy that was in force stays. As for the configuration, what is
# applied after a yes is what the owner was shown, and a change without a yes is kept, so that the next start of the
# program asks about it.

_INTERVAL = 1.0

ReadPolicy = Callable[[], AccessPolicy]
"""Reads the file. Raises `ConfigError`."""


async def watch_policy(
    computer: Computer,
    path: Path,
    read: ReadPolicy,
    on_fault: Callable[[str], None],
    consent: Consent | None = None,
    refused: RefusedChanges[AccessPolicy] | None = None,
    interval: float = _INTERVAL,
) -> None:
    """Apply changes of the file until cancelled. `on_fault` is told why a change is not taken."""
    assert computer.gate
    changes = _PolicyChanges(computer, computer.gate.policy, on_fault, consent, refused)
    await changes.follow([path], read, interval)


class _PolicyChanges(WatchedChanges[AccessPolicy]):
    what = "policy"
    fault = "the policy is not taken, and the one before stays in force"

    async def consider(self, after: AccessPolicy) -> None:
        self.withdraw()
        lines = self.lines(after)
        self.keep(after, lines)  # until there is a yes
        if lines:
            self.ask(after, lines)
        else:
            self.apply(after)

    def lines(self, after: AccessPolicy) -> list[str]:
        return loosened(self._known, after)

    def apply(self, after: AccessPolicy) -> None:
        if after != self._known:
            self._known = after
            self._computer.replace_rules(after)
            self._on_fault(f"the policy has changed: {after}")
