"""What a policy file may say, and what it decides: without a Computer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.consent.decision import (
    Subject,
    Verdict,
    annotations_of,
    candidates,
    decide,
    denied_always,
    outlook_of,
    warnings_about,
)
from a2c_smcp.computer.consent.rules import names_match, parse_policy, read_policy
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import ToolMeta
from a2c_smcp.registry.schemas.check import Schema

pytestmark = pytest.mark.covers("policy-rules")


def route(server: str = "ledger", tool: str = "pay", *, auto_apply: bool = False, **hints: Any) -> ToolRoute:
    return ToolRoute(server, tool, ToolMeta(auto_apply=auto_apply), Schema({}), hints)


async def verdict(
    policy: dict[str, Any],
    arguments: dict[str, Any] | None = None,
    *,
    agent: str = "planner",
    office: str = "finance",
    to: ToolRoute | None = None,
    name: str = "",
) -> Verdict:
    to, parsed = to or route(), parse_policy(policy)
    subject = Subject.of(parsed, agent, office, name or to.tool, to)
    found = await decide(parsed, subject, arguments or {})
    among = candidates(parsed, subject)
    assert await decide(parsed, subject, arguments or {}, among) == found, "what is kept for a tool decides the same"
    return found


# Files


def of_rule(**rule: Any) -> dict[str, Any]:
    return {"rules": [rule]}


WRONG: dict[str, tuple[Any, str]] = {
    "no object": ([], "p: must be an object"),
    "a misspelt decision": (of_rule(then="alow"), "rules.0.then: must be one of 'allow', 'ask' or 'deny'"),
    "a misspelt field": (
        {"rules": [{"then": "deny"}, {"name": "x", "then": "deny", "agent": "a"}]},
        "rules.1 ('x').agent: is an unknown field, did you mean 'agents'?",
    ),
    "a misspelt setting": ({"defualt": "deny"}, "defualt: is an unknown field, did you mean 'default'?"),
    "no decision": (of_rule(agents="x"), "rules.0.then: missing"),
    "an empty list": (of_rule(then="deny", agents=[]), "rules.0.agents: must not be empty"),
    "no name": (of_rule(then="deny", tools=[1]), "rules.0.tools.0: must be a string"),
    "no schema": (of_rule(then="allow", arguments={"type": "objekt"}), "rules.0.arguments: is not a JSON"),
    "arguments beside properties": (
        of_rule(then="allow", arguments={"amount": {"maximum": 5}}),
        "rules.0.arguments: amount is no keyword that is checked; names of arguments go into properties",
    ),
    "a keyword inside": (
        of_rule(then="allow", arguments={"properties": {"a": {"maxlength": 5}}}),
        "rules.0.arguments: properties.a.maxlength is no keyword",
    ),
    "a format": (
        of_rule(then="allow", arguments={"properties": {"a": {"format": "email"}}}),
        "properties.a.format is not checked: write a pattern",
    ),
    "a pattern that backtracks": (
        of_rule(then="deny", arguments={"properties": {"a": {"pattern": "(?=x)x"}}}),
        "rules.0.arguments: takes too long to check",
    ),
    "a circle": (of_rule(then="deny", arguments={"not": {"$ref": "#"}}), "takes too long to check"),
    "a remote schema": (
        of_rule(then="deny", arguments={"$ref": "https://example.org/x"}),
        "rules.0.arguments: is not a JSON Schema",
    ),
    "a time": (of_rule(then="allow", until="tomorrow"), "rules.0.until: must be a day or a time"),
    "a time without a zone": (of_rule(then="allow", until="2026-12-31T10:00"), "must say its time zone"),
    "every time": (of_rule(then="deny", every_time=True), "every_time: is only for rules with"),
    "an annotation": (of_rule(then="deny", annotations={"readonly": True}), "must be one of 'readOnlyHint'"),
    "a budget without a limit": ({"budgets": [{"name": "n"}]}, "budgets.0 ('n'): limits nothing"),
    "a limit": ({"budgets": [{"running": 0}]}, "budgets.0.running: must be at least 1"),
    "a limit as text": ({"budgets": [{"running": "1"}]}, "budgets.0.running: must be a whole number"),
    "a size": ({"budgets": [{"bytes_per_hour": "10 apples"}]}, "budgets.0.bytes_per_hour: must be a number of bytes"),
    "per what": ({"budgets": [{"running": 1, "per": "robot"}]}, "budgets.0.per: must be one of 'agent'"),
    "a duration": ({"grants_last": "8 hours"}, "grants_last: '8 hours' is not a time like 30m, 8h or 7d"),
    "a statement": ({"servers": {"a": {"trust_hint": True}}}, "servers.a.trust_hint: is an unknown field, did you"),
    "a name twice": ({"rules": [{"name": "a", "then": "deny"}, {"name": "a", "then": "ask"}]}, "'a' is given twice"),
}


@pytest.mark.parametrize(("data", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named_by_rule_and_field(data: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(data, "p")
    assert words in caught.value.message
    assert caught.value.message.startswith("Bad configuration: p: ")


def test_a_file_is_json_with_comments_or_toml(tmp_path: Path) -> None:
    as_json, as_toml = tmp_path / "p.json", tmp_path / "p.toml"
    as_json.write_text(
        '{"default": "deny", // nothing else\n "rules": [{"name": "r", "tools": "get_*", "then": "allow",'
        ' "until": "2030-01-31"}], "budgets": [{"servers": ["cad"], "running": 1, "bytes_per_hour": "2MB"}]}'
    )
    as_toml.write_text(
        'default = "deny"\n[[rules]]\nname = "r"\ntools = ["get_*"]\nthen = "allow"\nuntil = 2030-01-31\n'
        '[[budgets]]\nservers = "cad"\nrunning = 1\nbytes_per_hour = 2000000\n'
    )
    assert read_policy(as_json) == read_policy(as_toml)
    assert str(read_policy(as_toml)) == "1 rule, 1 budget, otherwise deny"
    as_json.write_text("{")
    with pytest.raises(ConfigError, match=r"p\.json: line 1, column 2"):
        read_policy(as_json)
    with pytest.raises(ConfigError, match=r"there is no such file, did you mean 'p\.toml'"):
        read_policy(tmp_path / "q.toml")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("get_*", "get_x", True),
        ("get_*", "target_x", False),
        ("a[b]", "a[b]", True),
        ("a[b]", "ab", False),
        ("a?", "ab", False),
        ("*", "x\ny", True),
        ("a.c", "abc", False),
        ("*a*a*a*a*a*a*a*b", "a" * 128, False),
    ],
)
def test_a_star_is_the_only_pattern(pattern: str, name: str, matches: bool) -> None:
    assert names_match((pattern,), name) is matches


# Decisions


SMALL = {"properties": {"amount": {"type": "number", "maximum": 100}}, "required": ["amount"]}
PAYING = {"servers": ["ledger"], "tools": ["pay"]}
BY_CLERKS = {"agents": ["planner", "clerk-*"], "offices": ["finance"], "arguments": SMALL}
PAY = {
    "default": "deny",
    "rules": [
        {"name": "small", **PAYING, **BY_CLERKS, "then": "allow"},
        {"name": "large", **PAYING, "agents": ["planner"], "then": "ask"},
    ],
}
OTHERS: dict[str, dict[str, Any]] = {"office": {"office": "lab"}, "agent": {"agent": "planner2"}}
OTHERS |= {"server": {"to": route("other")}, "tool": {"to": route(tool="pay2")}}


async def test_the_first_rule_that_matches_decides_and_says_why() -> None:
    small = await verdict(PAY, {"amount": 99.5})
    assert (small.then, small.rule) == ("allow", "small")
    assert small.why == "its agents, offices, servers, tools, arguments match"
    large = await verdict(PAY, {"amount": 101})
    assert (large.then, large.rule) == ("ask", "large")
    assert [(each.rule, each.missed) for each in large.steps] == [
        ("small", "the arguments do not fit its schema"),
        ("large", ""),
    ]
    clerk = await verdict(PAY, {"amount": 101}, agent="clerk-7")
    assert (clerk.then, clerk.rule, clerk.why) == ("deny", "default", "no rule matches")
    assert "the agent 'clerk-7' is not among its agents" in clerk.steps[1].missed


@pytest.mark.parametrize("changed", OTHERS.values(), ids=OTHERS)
async def test_a_rule_is_for_its_own_office_agent_server_and_tool(changed: dict[str, Any]) -> None:
    assert (await verdict(PAY, {"amount": 1}, **changed)).then != "allow"


@pytest.mark.parametrize("amount", ["99", 10**30, 1e300, True, None, [1], {"$gt": 0}])
async def test_a_value_of_another_type_or_size_does_not_fit(amount: Any) -> None:
    assert (await verdict(PAY, {"amount": amount})).then == "ask"


async def test_without_a_rule_the_configuration_decides() -> None:
    assert (await verdict({}, to=route(auto_apply=True))).then == "allow"
    asks = await verdict({})
    assert (asks.then, asks.rule, asks.is_by_rule) == ("ask", "configuration", False)
    assert (await verdict({"default": "ask"}, to=route(auto_apply=True))).then == "ask"


async def test_either_name_of_a_tool_counts() -> None:
    denied = of_rule(tools=["wire_money"], then="deny")
    assert (await verdict(denied, name="wire_money")).then == "deny"
    assert (await verdict(denied, to=route(tool="wire_money"), name="alias")).then == "deny"


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


UNCHECKED: dict[str, dict[str, Any]] = {
    "deep": {"text": "x", "deep": nested(300)},
    "surrogate": {"text": "x\ud800"},
    "heavy": {"text": "x", "items": [0] * 20_000},
}
HEAVY_SCHEMA = {"properties": {"text": {"type": "string", "pattern": "^x"}, "of": {"enum": [*range(10_000)]}}}
"""The work is counted before it is done: subschemas and listed values, for each value of the arguments."""


@pytest.mark.parametrize("then", ["allow", "ask", "deny"])
@pytest.mark.parametrize("arguments", UNCHECKED.values(), ids=UNCHECKED)
async def test_arguments_that_cannot_be_checked_are_denied(then: str, arguments: dict[str, Any]) -> None:
    rule = {"then": then, "arguments": HEAVY_SCHEMA}
    assert (await verdict({"rules": [rule, {"then": "deny"}]}, {"text": "x"})).then == then
    found = await verdict({"rules": [rule, {"then": "allow"}]}, arguments)
    assert found.then == "deny"
    assert "cannot be checked" in found.why


async def test_large_arguments_are_checked_exactly_in_another_process() -> None:
    text = {"properties": {"text": {"type": "string", "pattern": "secret"}}, "required": ["text"]}
    policy = {"rules": [{"then": "deny", "arguments": text}, {"then": "allow"}]}
    assert (await verdict(policy, {"text": "x" * 1_500_000 + "secret"})).then == "deny"
    assert (await verdict(policy, {"text": "x" * 1_500_000})).then == "allow"


async def test_a_rule_ends_with_its_time() -> None:
    def allowing(seconds: float) -> dict[str, Any]:
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        return {"default": "deny", **of_rule(then="allow", until=until.isoformat())}

    assert (await verdict(allowing(60))).then == "allow"
    over = await verdict(allowing(-1))
    assert (over.then, over.steps[0].missed) == ("deny", "it was only until a time that is over")


# Annotations


@pytest.mark.parametrize(
    ("said", "hints", "read_only", "destructive"),
    [
        ({}, {"readOnlyHint": True, "destructiveHint": False}, False, True),
        ({"trust_hints": True}, {"readOnlyHint": True}, True, False),
        ({"trust_hints": True}, {"destructiveHint": False}, False, False),
        ({"trust_hints": True}, {}, False, True),
        ({"trust_hints": True}, {"readOnlyHint": "yes", "destructiveHint": 0}, False, True),
        ({"read_only": ["get_*"]}, {}, True, False),
        ({"read_only": ["*"], "destructive": ["get_*"]}, {"readOnlyHint": True}, False, True),
        ({"trust_hints": True, "destructive": ["get_*"]}, {"readOnlyHint": True}, False, True),
    ],
)
async def test_hints_count_only_if_the_owner_gives_or_trusts_them(
    said: dict[str, Any], hints: dict[str, Any], read_only: bool, destructive: bool
) -> None:
    policy = parse_policy({"servers": {"ledger": said}})
    known = annotations_of(policy, route(tool="get_x", **hints))
    assert (known["readOnlyHint"], known["destructiveHint"]) == (read_only, destructive)
    assert annotations_of(policy, route("other", "get_x", **hints))["readOnlyHint"] is False
    rules = [
        {"annotations": {"readOnlyHint": True}, "then": "allow"},
        {"annotations": {"destructiveHint": True}, "then": "deny"},
    ]
    found = await verdict({"servers": {"ledger": said}, "rules": rules}, to=route(tool="get_x", **hints))
    assert found.then == ("allow" if read_only else "deny" if destructive else "ask")


async def test_read_only_denies_what_is_not_known_to_change_nothing() -> None:
    policy = {"read_only": True, "servers": {"ledger": {"read_only": ["get_*"]}}, "rules": [{"then": "allow"}]}
    assert (await verdict(policy, to=route(tool="get_x"))).then == "allow"
    denied = await verdict(policy)
    assert (denied.then, denied.rule) == ("deny", "read_only")
    overlaid = parse_policy({}).with_options(read_only=True, trust_hints=("ledger",))
    assert annotations_of(overlaid, route(readOnlyHint=True))["readOnlyHint"]
    assert overlaid.read_only


# What is listed


def outlook(policy: dict[str, Any]) -> set[str]:
    parsed = parse_policy(policy)
    return {*outlook_of(parsed, Subject.of(parsed, "planner", "finance", "pay", route())).may}


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (of_rule(name="never", tools=["pay"], then="deny"), "never"),
        ({"rules": [{"name": "much", "arguments": {"type": "object"}, "then": "deny"}], "default": "deny"}, "default"),
        ({"rules": [{"name": "other", "tools": ["read"], "then": "deny"}, {"then": "deny"}]}, "rules.1"),
        ({"read_only": True}, "read_only"),
    ],
)
def test_a_tool_that_is_always_denied_is_so_by_a_rule_with_a_name(policy: dict[str, Any], rule: str) -> None:
    parsed = parse_policy(policy)
    subject = Subject.of(parsed, "planner", "finance", "pay", route())
    assert outlook_of(parsed, subject).is_hidden
    verdict = denied_always(parsed, subject, candidates(parsed, subject))
    assert (verdict.then, verdict.rule) == ("deny", rule)


def test_a_tool_is_hidden_only_if_all_its_calls_are_denied() -> None:
    some = {"arguments": {"required": ["x"]}}
    assert outlook({"rules": [{"then": "deny"}]}) == {"deny"}
    assert outlook({"default": "deny", "rules": [{"then": "deny", **some}]}) == {"deny"}
    assert outlook({"rules": [{"then": "deny", **some}]}) == {"deny", "ask"}
    assert outlook({"default": "deny", "rules": [{"then": "allow", **some}]}) == {"deny", "allow"}
    assert outlook({"rules": [{"then": "allow"}, {"then": "deny"}]}) == {"allow"}
    assert outlook({"rules": [{"then": "deny", "agents": "clerk"}, {"then": "allow"}]}) == {"allow"}
    assert outlook({"read_only": True, "rules": [{"then": "allow"}]}) == {"deny"}


# Advice


def test_what_may_not_be_meant_is_a_warning() -> None:
    policy = parse_policy(
        {
            "servers": {"gone": {"trust_hints": True}},
            "rules": [
                {
                    "tools": "pay",
                    "then": "allow",
                    "arguments": {"properties": {"amount": {"maximum": 5}, "to": {"type": "string", "pattern": "^DE"}}},
                },
                {"servers": ["ledgr"], "then": "allow", "annotations": {"readOnlyHint": True}},
                {"then": "ask", "until": "2020-01-01"},
                {"then": "deny"},
                {"name": "late", "then": "allow"},
            ],
        }
    )
    said = "\n".join(warnings_about(policy, ["ledger"]))
    for words in (
        "servers.gone: there is no such MCP server",
        "'rules.0': it names tools without servers",
        "'rules.0': amount is not in required: the rule matches calls without it, too",
        "'rules.0': amount has no type",
        "properties.to.pattern does not begin with ^ and end with $",
        "'rules.1': there is no MCP server 'ledgr'",
        "'rules.1': it wants annotations, and no server",
        "'rules.2' is over since 2020-01-01 23:59 UTC",
        "'late' never matches: 'rules.3' before it has no conditions",
    ):
        assert words in said, said
    assert warnings_about(parse_policy(PAY), ["ledger"]) == []
    (nothing,) = warnings_about(parse_policy({"read_only": True}))
    assert nothing.startswith("read_only denies every tool")
