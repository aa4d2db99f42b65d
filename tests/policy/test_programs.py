"""The programs with a policy: `computer`, `up`, `policy check`, `doctor` and the prompt."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli.prompt.grants import Grants
from a2c_smcp.computer.consent.approval import Approvals, Grant
from a2c_smcp.errors import ToolForbidden
from tests.shown_output import Machine, is_printed, steps, texts
from tests.stage.guides import GUIDES, Up, example_server
from tests.stage.place import Place, good
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("policy-program")

PAGE = GUIDES / "policy.md"
CHECK = ("policy", "check", "planner", "add", '{"a": 1, "b": 2}')
POLICY, OF_GOOD = ("--policy", "policy.json"), ("--server", "good")
DENIED = {"rules": [{"name": "no sums", "tools": "add", "then": "deny"}]}


def put(place: Place, policy: Any, name: str = "policy.json") -> Path:
    path, draft = place.folder / name, place.folder / f".{name}"
    draft.write_text(json.dumps(policy))
    return draft.replace(path)


# policy check


@pytest.mark.parametrize(
    ("policy", "code", "decision"),
    [
        (DENIED, 4, "deny"),
        ({}, 0, "allow"),
        ({"default": "ask"}, 3, "ask"),
        ({"read_only": True}, 4, "deny"),
        ({"rules": [{"arguments": {"properties": {"a": {"const": 2}}}, "then": "deny"}]}, 0, "allow"),
    ],
)
async def test_check_says_what_happens_by_its_code_and_as_json(
    place: Place, policy: dict[str, Any], code: int, decision: str
) -> None:
    place.write({"good": good()})
    put(place, policy)
    ended = await place.run(*CHECK, *POLICY, "--json")
    assert (ended.code, json.loads(ended.out)["decision"]) == (code, decision)


async def test_check_names_the_rule_and_looks_at_the_configuration(place: Place) -> None:
    meta = {"tool_meta": {"add": {"alias": "sum"}}, "forbidden_tools": ["paint"]}
    place.write({"good": good(**meta), "other": good()})
    put(place, {**DENIED, "budgets": [{"name": "b", "running": 1, "per": ["agent", "tool"]}]})
    ended = await place.run(*CHECK, *POLICY, *OF_GOOD)
    assert ended.out.splitlines() == [
        "deny: planner may not call add of good",
        "decided by no sums: its tools match",
        "this agent is not shown the tool, whatever its arguments are",
        "budget b: running 1, per agent and tool",
    ]
    by_alias = await place.run("policy", "check", "planner", "sum", *POLICY, *OF_GOOD)
    assert by_alias.out == ended.out
    forbidden = await place.run("policy", "check", "x", "paint", *POLICY, *OF_GOOD, "--json")
    assert json.loads(forbidden.out)["forbidden_tools"] is True
    hinted = ("policy", "check", "x", "get", "--read-only", "--server", "good", "--hints", '{"readOnlyHint": true}')
    assert (await place.run(*hinted)).code == 4
    assert (await place.run(*hinted, "--trust-hints", "good")).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (CHECK, "There is no policy to check"),
        ((*CHECK, "--policy", "none.json"), "none.json: there is no such file"),
        ((*CHECK, *POLICY), "--server NAME says it. There are good, other."),
        ((*CHECK, *POLICY, "--server", "goood"), "There is no MCP server 'goood'. Did you mean good?"),
        (("policy", "check", "x", "y", "[]", *POLICY, *OF_GOOD), "must be a JSON object"),
        (("policy", "check", "x", "y", "{", *POLICY, *OF_GOOD), "JSON: not JSON"),
        ((*CHECK, "--policy", "wrong.json"), "wrong.json: rules.0.then: must be one of 'allow', 'ask' or 'deny'"),
    ],
)
async def test_wrong_use_is_explained(place: Place, words: tuple[str, ...], said: str) -> None:
    place.write({"good": good(), "other": good()})
    put(place, DENIED)
    put(place, {"rules": [{"then": "never"}]}, "wrong.json")
    ended = await place.run(*words)
    assert ended.code == 2
    assert said in ended.err


# doctor


async def test_doctor_checks_the_file(place: Place) -> None:
    place.write({"good": good()})
    put(place, {"rules": [{"tools": "add", "then": "allow"}, {"servers": "gone", "then": "deny"}]})
    found = json.loads((await place.run("doctor", "--json", *POLICY, "--port", "0")).out)["findings"]
    mine = [(each["level"], each["what"]) for each in found if each["check"] == "policy"]
    assert ("ok", "policy.json: 2 rules.") in mine
    assert any(level == "warning" and "it names tools without servers" in what for level, what in mine)
    assert any(level == "warning" and "there is no MCP server 'gone'" in what for level, what in mine)
    path = put(place, {"rules": [{"then": "never"}], "x": 1})
    path.chmod(0o666)
    ended = await place.run("doctor", "--json", *POLICY, "--port", "0")
    assert ended.code == 1
    mine = [each["what"] for each in json.loads(ended.out)["findings"] if each["check"] == "policy"]
    assert len(mine) == 3, mine
    assert "can be changed by others on this machine" in mine[0]


# computer and up


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*POLICY], "policy.json: rules.0 ('r').agent: is an unknown field, did you mean 'agents'?"),
        (["--policy", "gone.json"], "gone.json: there is no such file"),
        (["--policy", "open.json"], "can be changed by others on this machine, and is not used; run: chmod go-w"),
        (["--trust-hints", "good"], "--trust-hints decides nothing by itself"),
    ],
)
@pytest.mark.parametrize("command", ["computer", "up"])
async def test_a_program_does_not_start_with_a_policy_that_it_cannot_use(
    place: Place, command: str, words: list[str], said: str
) -> None:
    config = place.write({"good": good()})
    put(place, {"rules": [{"name": "r", "then": "deny", "agent": "x"}]})
    put(place, {}, "open.json").chmod(0o666)
    ended = await place.run(command, "--config", str(config), *words, "--no-input")
    assert ended.code == 2
    assert said in ended.err


@pytest.mark.parametrize("words", [(), POLICY], ids=["without a policy", "with one"])
async def test_up_says_that_its_tools_need_approval_only_if_no_policy_decides(
    place: Place, words: tuple[str, ...]
) -> None:
    place.write({"good": good(default_tool_meta=None)})
    put(place, {"default": "deny"})
    program = await place.start("up", "--port", "0", "--name", "laptop", "--no-input", *words)
    await program.says("good: ready")
    await program.says("or from an MCP client")
    program.signal(signal.SIGINT)
    assert await program.ends() == 0
    assert ("its tools need approval and nobody can be asked" in "".join(program.err)) is not bool(words)


async def test_a_computer_follows_its_policy_and_a_loosening_does_not_survive_a_restart(
    place: Place, shared_hub: Any, office: str
) -> None:
    config, path = place.write({"good": good()}), put(place, DENIED)
    where = ("--name", "laptop", "--url", shared_hub.url, "--office", office, "--config", str(config))
    program = await place.start("computer", *where, *POLICY, "--no-input")
    await program.says(f"joined {office}")
    async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent:

        async def calls() -> str:
            return (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})).text

        await until_it_goes(lambda: agent.emit_tool_call("laptop", "environment", {}))
        with pytest.raises(ToolForbidden):
            await calls()
        put(place, {})
        await program.says("a change of the policy is not applied, since nobody can be asked: policy: without the rule")
        with pytest.raises(ToolForbidden):
            await calls()
        put(place, {"default": "deny", **DENIED})
        await program.says("the policy has changed: 1 rule, otherwise deny")
        await until(lambda: not agent.registry.describe())
        put(place, {})
        await program.says("policy: default is what the configuration says instead of deny")
    await program.kill()
    ended = await place.run("computer", *where, *POLICY, "--no-input")
    assert ended.code == 1
    assert f"{path.name} holds a change that its owner has not agreed to: policy: default" in ended.err
    program = await place.start("computer", *where, *POLICY, "--no-input", "--trust-changes")
    await program.says(f"joined {office}")
    async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent:
        added = await until_it_goes(lambda: agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}))
        assert added.text == "3"


# The prompt


@pytest.mark.covers("policy-grants", "prompt-approvals")
def test_grants_with_an_end_are_kept_and_older_ones_get_one(tmp_path: Path) -> None:
    def known(longest: float | None = None) -> tuple[Approvals, Grants]:
        approvals = Approvals()
        approvals.longest_grant = longest
        grants = Grants(approvals, "laptop", tmp_path, lambda text, style: None)
        grants.enter("http://hub", "desk")
        return approvals, grants

    approvals, grants = known()
    approvals.add(Grant("planner"))
    approvals.add(Grant("planner", "files", "read"), 3600)
    approvals.add(Grant("clerk", client="claude"), 3600)
    assert {*known()[1]} == {*grants}
    (file,) = (tmp_path / "approvals").iterdir()
    kept = json.loads(file.read_text())["http://hub desk"]
    assert sorted(map(len, kept)) == [3, 6, 6]
    ends = {each.for_good: each.until for each in known(600)[1]}
    assert all(ends.values())
    later = {each.for_good: each.until for each in known(6000)[1]}
    assert later == ends, "a restart renews nothing"
    file.write_text(
        json.dumps({"http://hub desk": [[*each[:3], "", 1.0] for each in kept] + [["x", None, None, "", True]]})
    )
    assert [*known()[1]] == []


async def test_the_prompt_shows_the_policy_and_grants_for_a_time(machine: Machine) -> None:
    machine.put("../work/mcp.json", {"mcpServers": {"good": example_server("ledger")}})
    paying = {"name": "paying", "tools": "pay", "then": "ask"}
    rules = [paying, {"tools": "close_year", "then": "ask", "every_time": True}]
    machine.put("../work/policy.json", {"rules": rules, "budgets": [{"name": "few", "calls_per_minute": 9}]})
    up = await Up.start(machine, "a2c-smcp up --config mcp.json --name laptop --policy policy.json")
    called = await up.agent("a2c-smcp agent --name clerk call laptop pay account=rent amount=1 to=x")
    await up.shows('clerk in desk wants pay of good, which the rule "paying" asks about')
    await up.at("laptop>", "always tool 8h")
    await up.shows("clerk may use pay of good without asking until 2")
    assert await called.ends() == 0
    again = await up.agent("a2c-smcp agent --name clerk call laptop pay account=rent amount=1 to=x")
    assert await again.ends() == 0
    once = await up.agent("a2c-smcp agent --name clerk call laptop close_year year=2025")
    await up.shows("wants close_year of good")
    await up.at("laptop>", "always tool")
    await up.shows("it runs this once: the rule 'rules.1' wants to be asked every time")
    assert await once.ends() == 0
    await up.at("laptop>", "policy")
    await up.shows("policy: 2 rules, 1 budget")
    await up.shows("3 of 9 calls in the last minute")
    await up.shows(lambda screen: re.search(r'paying +ask +tools \["pay"\]', screen.text))
    await up.at("laptop>", "always tool soon")
    await up.shows("'soon' is not a time like 30m, 8h or 7d")
    await up.at("laptop>", "approve")
    await up.shows(lambda screen: re.search(r"clerk +good +pay +20\d\d-", screen.text))
    machine.put("../work/policy.json", {"rules": [{"tools": "pay", "then": "allow"}]})
    await up.shows("the configuration has changed, and this needs your yes:")
    await up.shows('instead of {"tools": ["pay"], "name": "paying", "then": "ask"}')
    await up.shows("apply it? [y/N]:")
    up.types("y\r")
    await up.shows("the policy has changed: 1 rule")


# The guide


@pytest.fixture
def guide(machine: Machine) -> Machine:
    """A machine with the files of the guide."""
    found = re.findall(r"^`(\w+\.\w+)`:\n\n```\w+\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert [name for name, _ in found] == ["finance.json", "home.toml", "ci.json"]
    for name, text in found:
        (machine.folder / name).write_text(text)
    return machine


@pytest.mark.covers("examples")
async def test_the_decisions_of_the_guide_are_explained_as_it_says(guide: Machine) -> None:
    shown = [step for step in steps(PAGE) if step.command.startswith("a2c-smcp policy check")]
    assert len(shown) == 5
    codes = {"allow": 0, "ask:": 3, "deny:": 4}
    for step in shown:
        program = await guide.starts(step.command)
        code = await program.ends()
        if not step.prints:
            assert (code, '"decision": "allow"' in program.screen.text) == (0, True)
            continue
        assert is_printed(step.prints, program.screen.text), program.screen.text
        assert code == codes.get(step.prints.split()[0], 0)


@pytest.mark.covers("examples")
async def test_the_finance_department_of_the_guide(guide: Machine) -> None:
    guide.put("../work/mcp.json", {"mcpServers": {"ledger": example_server("ledger")}})
    (start,) = [step.command for step in steps(PAGE) if step.command.startswith("a2c-smcp up --config")]
    up = await Up.start(guide, start)
    shown = [step for step in steps(PAGE) if step.command.startswith("a2c-smcp agent ")]
    assert len(shown) == 3
    for step in shown:
        await up.prints(step, code=int("forbidden" in step.prints))
    assert "close_year" not in texts(PAGE, "…\nbalance")[0]


async def test_the_files_of_the_guide_have_no_faults(guide: Machine) -> None:
    for name in ("finance.json", "home.toml", "ci.json"):
        program = await guide.starts(f"a2c-smcp doctor --policy {name} --port 0 --json | cat")
        await asyncio.wait_for(program.ends(), 60)
        said = json.loads(program.screen.raw.replace("\r", ""))["findings"]
        assert [each["level"] for each in said if each["check"] == "policy"] == ["ok"], said
