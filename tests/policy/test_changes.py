"""Which changes of a policy wait for the owner's yes: decided without a file, and followed in one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer import Caller
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.watch import RefusedChanges
from a2c_smcp.computer.consent.changes import digest_of_policy, loosened, watch_policy
from a2c_smcp.computer.consent.rules import AccessPolicy, parse_policy, read_policy
from tests.stage.owners import AskedOwner
from tests.waiting import until

pytestmark = pytest.mark.covers("policy-consent")

DENY = {"tools": "rm", "then": "deny"}
ASK = {"tools": "mv", "then": "ask"}
EVERY = {**ASK, "every_time": True}
ALLOW = {"tools": "ls", "then": "allow"}
WITH_A = {**ALLOW, "arguments": {"required": ["a"]}}
SEAT = {"servers": ["cad"], "running": 1}


def rules(*known: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rules": [*known], **more}


LOOSER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a deny less": (rules(DENY), rules(), "policy: without the rule"),
    "an ask less": (rules(ASK), rules(), "policy: without the rule"),
    "an allow more": (rules(), rules(ALLOW), "policy: a new rule"),
    "an ask before a deny": (rules(DENY), rules(ASK, DENY), "policy: a new rule"),
    "an ask before one every time": (rules(EVERY), rules({"then": "ask"}, EVERY), "policy: a new rule"),
    "an ask where all is denied": (rules(default="deny"), rules(ASK, default="deny"), "policy: a new rule"),
    "a deny that asks": (rules(DENY), rules({**DENY, "then": "ask"}), "policy: the rule"),
    "an ask that allows": (rules(ASK), rules({**ASK, "then": "allow"}), "policy: the rule"),
    "not every time": (rules(EVERY), rules(ASK), "policy: the rule"),
    "another order": (rules(DENY, ALLOW), rules(ALLOW, DENY), "policy: "),
    "fewer agents denied": (rules(DENY), rules({**DENY, "agents": "x"}), "policy: without the rule"),
    "a deny that ends": (rules(DENY), rules({**DENY, "until": "2030-01-01"}), "policy: without the rule"),
    "other arguments": (rules(WITH_A), rules({**ALLOW, "arguments": {}}), "policy: a new rule"),
    "the default": (rules(default="deny"), rules(default="ask"), "policy: default is ask instead of deny"),
    "no default": (rules(default="ask"), rules(), "policy: default is what the configuration says instead of ask"),
    "not read-only": ({"read_only": True}, {}, "policy: read_only is false instead of true"),
    "trust": ({}, {"servers": {"a": {"trust_hints": True}}}, 'policy: servers.a: {"trust_hints": true} instead of'),
    "a statement less": ({"servers": {"a": {"destructive": ["x"]}}}, {}, "policy: servers.a: nothing instead of"),
    "a budget less": ({"budgets": [SEAT]}, {}, "policy: without the budget"),
    "a larger budget": ({"budgets": [SEAT]}, {"budgets": [{**SEAT, "running": 2}]}, "policy: without the budget"),
    "a budget for each": ({"budgets": [SEAT]}, {"budgets": [{**SEAT, "per": "agent"}]}, "policy: without the budget"),
    "a budget for others": ({"budgets": [SEAT]}, {"budgets": [{**SEAT, "agents": "x"}]}, "policy: without the budget"),
    "longer grants": ({"grants_last": "1h"}, {"grants_last": "2h"}, "policy: permanent approvals last 7200 s instead"),
    "grants for good": ({"grants_last": "1h"}, {}, "policy: permanent approvals last for good instead of 3600 s"),
}


@pytest.mark.parametrize(("before", "after", "line"), LOOSER.values(), ids=LOOSER)
def test_what_may_allow_more_waits(before: dict[str, Any], after: dict[str, Any], line: str) -> None:
    lines = loosened(parse_policy(before), parse_policy(after))
    assert any(each.startswith(line) for each in lines), lines


STRICTER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": (rules(DENY, ASK, ALLOW), rules(DENY, ASK, ALLOW)),
    "a deny more": (rules(ALLOW), rules(ALLOW, DENY)),
    "a deny first": (rules(ALLOW, ASK), rules(DENY, ALLOW, ASK)),
    "an allow less": (rules(DENY, ALLOW), rules(DENY)),
    "an ask where nothing is denied": (rules(ALLOW), rules(ASK, ALLOW)),
    "an allow that asks": (rules(ALLOW), rules({**ALLOW, "then": "ask"})),
    "an allow that denies": (rules(ALLOW), rules({**ALLOW, "then": "deny"})),
    "every time": (rules(ASK), rules(EVERY)),
    "the default": ({}, {"default": "ask"}),
    "read-only": ({}, {"read_only": True}),
    "a budget more": ({"budgets": [SEAT]}, {"budgets": [SEAT, {"calls_per_minute": 5}]}),
    "a smaller budget": ({"budgets": [{**SEAT, "running": 3}]}, {"budgets": [SEAT]}),
    "names and reasons": (rules({**DENY, "name": "a"}), rules({**DENY, "name": "b", "why": "because"})),
    "shorter grants": ({}, {"grants_last": "1h"}),
}


@pytest.mark.parametrize(("before", "after"), STRICTER.values(), ids=STRICTER)
def test_what_allows_nothing_more_is_applied_at_once(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert loosened(parse_policy(before), parse_policy(after)) == []


def test_a_digest_is_of_what_a_file_means() -> None:
    listed = rules({**DENY, "tools": ["rm"]})
    assert digest_of_policy(parse_policy(rules(DENY))) == digest_of_policy(parse_policy(listed))
    assert digest_of_policy(parse_policy(rules(DENY))) != digest_of_policy(parse_policy(rules(ASK)))


# A file that is followed


@asynccontextmanager
async def followed(path: Path, owner: Any, folder: Path) -> AsyncIterator[tuple[Computer, list[str]]]:
    """A computer with the policy in the file, which is followed. What its owner is told is in the list."""
    said = list[str]()
    computer = Computer("laptop", rules=path)
    computer.tool(lambda: "done", name="rm", auto_apply=True)
    async with computer:
        refused = refused_changes(path, folder)
        watching = asyncio.create_task(
            watch_policy(computer, path, lambda: read_policy(path), said.append, owner, refused, 0.02)
        )
        try:
            yield computer, said
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def refused_changes(path: Path, folder: Path) -> RefusedChanges[AccessPolicy]:
    return RefusedChanges([path], digest_of_policy, folder)


def write(path: Path, policy: dict[str, Any]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(policy))
    draft.replace(path)


async def code_of(computer: Computer, req_id: str) -> int | None:
    answer = await computer.execute_tool(Caller("desk", "planner"), req_id, "rm", {}, 10)
    code: int | None = answer.get("code")
    return code


async def test_a_change_that_loosens_waits_for_a_yes_and_one_that_does_not_is_applied(tmp_path: Path) -> None:
    path, owner, updates = tmp_path / "p.json", AskedOwner(), list[Any]()
    write(path, rules(DENY))
    async with followed(path, owner, tmp_path / "state") as (computer, said):
        computer.agents.on_update(updates.append)
        assert await code_of(computer, "r1") == 403
        write(path, rules())
        await until(lambda: len(owner.asked) == 1)
        assert owner.asked[0] == ['policy: without the rule {"tools": ["rm"], "then": "deny"}']
        assert await code_of(computer, "r2") == 403
        assert refused_changes(path, tmp_path / "state").lines_of(parse_policy(rules())) == owner.asked[0]
        owner.answers[0].set_result(True)
        await until(lambda: updates == ["tool_list"])
        assert await code_of(computer, "r3") is None
        assert refused_changes(path, tmp_path / "state").lines_of(parse_policy(rules())) == []
        write(path, rules(DENY))
        await until(lambda: said[-1:] == ["the policy has changed: 1 rule"])
        assert await code_of(computer, "r4") == 403
        assert len(owner.asked) == 1


@pytest.mark.parametrize("answer", [False, None, "yes", RuntimeError("no terminal")])
async def test_anything_but_a_yes_changes_nothing(tmp_path: Path, answer: Any) -> None:
    path, owner = tmp_path / "p.json", AskedOwner()
    write(path, rules(DENY))
    async with followed(path, owner, tmp_path / "state") as (computer, _):
        write(path, rules())
        await until(lambda: len(owner.asked) == 1)
        if isinstance(answer, Exception):
            owner.answers[0].set_exception(answer)
        else:
            owner.answers[0].set_result(answer)
        write(path, rules(ASK))
        await until(lambda: len(owner.asked) == 2)
        assert await code_of(computer, "r1") == 403


@pytest.mark.parametrize("becomes", ["{", '{"rules": [{"then": "alow"}]}', None])
async def test_a_file_that_is_wrong_or_gone_leaves_the_policy_in_force(tmp_path: Path, becomes: str | None) -> None:
    path, owner = tmp_path / "p.json", AskedOwner()
    write(path, rules(DENY))
    async with followed(path, owner, tmp_path / "state") as (computer, said):
        write(path, rules(DENY, DENY))
        await until(lambda: said == ["the policy has changed: 2 rules"])
        if becomes is None:
            path.unlink()
        else:
            path.write_text(becomes)
        await until(lambda: len(said) == 2)
        assert "the policy is not taken, and the one before stays in force" in said[1]
        assert await code_of(computer, "r1") == 403


async def test_without_an_owner_a_loosening_is_not_applied_and_asked_about_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write(path, rules(DENY))
    async with followed(path, None, tmp_path / "state") as (computer, _):
        write(path, rules())
        await until(lambda: refused_changes(path, tmp_path / "state").lines_of(parse_policy(rules())))
        assert await code_of(computer, "r1") == 403
