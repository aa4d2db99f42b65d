"""`a2c-smcp policy`: what a policy file decides, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli import options
from a2c_smcp.cli.errors import WrongUse, server_names_hint
from a2c_smcp.cli.local_computer import PolicySource, ReadOnly, TrustHints
from a2c_smcp.cli.options import option
from a2c_smcp.cli.setup_files import find_setups, read_setups
from a2c_smcp.cli.terminal import printable, put_json, put_text
from a2c_smcp.computer.calls.table import ToolRoute, tools_of
from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.computer.consent.decision import Subject, Verdict, applies, decide, outlook_of, warnings_about
from a2c_smcp.computer.consent.rules import AccessPolicy
from a2c_smcp.loops import run_program
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, ToolMeta
from a2c_smcp.registry.schemas.check import Schema

policy = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

EXIT_CODES = {"allow": 0, "ask": 3, "deny": 4}


@policy.callback()
def _group() -> None:
    """Explain what a policy file decides.

    Example: a2c-smcp policy check planner read_file '{"path": "/tmp/a"}' --policy policy.json --server files
    """


@policy.command()
def check(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent that calls.")],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool, by the name that its MCP server gives it.")],
    arguments: Annotated[str, typer.Argument(metavar="[JSON]", help="Its arguments, a JSON object.")] = "{}",
    file: Annotated[Path | None, option(None, "--policy", "The policy file.", metavar="FILE")] = None,
    office: options.Office = options.DEFAULT_OFFICE,
    server: Annotated[str | None, option(None, "--server", "The MCP server that has the tool.")] = None,
    config: Annotated[
        list[Path] | None, option(None, "--config", "File of MCP servers; repeat for more.", show_default=False)
    ] = None,
    hints: Annotated[
        str, option(None, "--hints", "The annotations that the MCP server gives the tool, a JSON object.")
    ] = "{}",
    read_only: ReadOnly = False,
    trust_hints: TrustHints = None,
    as_json: options.AsJSON = False,
) -> None:
    """Say what would happen to a call, which rule decides, and why the rules before it do not.

    Starts no MCP server and calls nothing. The configuration (--config, or the file that `a2c-smcp up` would use here)
    says what runs without asking where no rule decides. What the MCP server itself says of its tool is given with
    --hints, and counts only if the policy trusts it. Exit codes: 0 it runs, 3 its owner is asked, 4 it is denied;
    1 failed, 2 wrong use.

    Examples:

    \b
    a2c-smcp policy check planner pay '{"amount": 50}' --policy policy.json --server ledger
    a2c-smcp policy check planner read_file --policy policy.json --server files --json
    """
    if file is None and not read_only:
        raise WrongUse("There is no policy to check", "Name its file with --policy FILE.")
    rules = PolicySource(policy=file, read_only=read_only, trust_hints=trust_hints).at_start()
    assert rules
    known = read_setups(config or find_setups(Path.cwd())[:1])
    subject = _subject(rules, known, _server(known, rules, server), agent, office, tool, _object(hints, "--hints"))
    params = _object(arguments, "JSON")
    verdict = run_program(decide(rules, subject, params))
    explanation = _explanation(rules, known, subject, verdict)
    if as_json:
        put_json(explanation)
    else:
        put_text(printable(_in_words(explanation, subject)))
    raise typer.Exit(EXIT_CODES[verdict.then])


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise WrongUse(f"{what}: not JSON: {error}", 'Write it like \'{"path": "/tmp"}\'.') from None
    if not isinstance(value, dict):
        raise WrongUse(f"{what}: must be a JSON object", 'Write it like \'{"path": "/tmp"}\'.')
    return value


def _server(known: Configuration, rules: AccessPolicy, name: str | None) -> str:
    """The server of the tool. Raises `WrongUse` if it is not clear, and the policy looks at it."""
    if name is not None:
        if known.servers and name not in known.servers:
            raise WrongUse(f"There is no MCP server {name!r}", server_names_hint(name, [*known.servers]))
        return name
    if len(known.servers) == 1:
        return next(iter(known.servers))
    if known.servers or rules.servers or any(entry.servers for entry in (*rules.rules, *rules.budgets)):
        hint = server_names_hint("", [*known.servers]) if known.servers else ""
        raise WrongUse("Which MCP server has the tool is not said", f"--server NAME says it. {hint}".rstrip())
    return ""


def _subject(
    rules: AccessPolicy,
    known: Configuration,
    server: str,
    agent: str,
    office: str,
    tool: str,
    hints: dict[str, Any],
) -> Subject:
    config: BaseServerConfig = known.servers.get(server) or BaseServerConfig(name=server or "server")
    own_name = next((name for name, meta in config.tool_meta.items() if meta.alias == tool), tool)
    (shown,) = tools_of({server: (config, [{"name": own_name}])})
    route = ToolRoute(server, shown.tool, shown.meta or ToolMeta(), Schema({}), hints)
    return Subject.of(rules, agent, office, shown.wanted, route)


def _explanation(rules: AccessPolicy, known: Configuration, subject: Subject, verdict: Verdict) -> dict[str, Any]:
    config = known.servers.get(subject.server)
    is_forbidden = config is not None and not {subject.tool, subject.name}.isdisjoint(config.forbidden_tools)
    budgets = [
        {"budget": rules.budget_label(index)} | {name: value for name in _LIMITS if (value := getattr(entry, name))}
        for index, entry in enumerate(rules.budgets)
        if not applies(entry, subject)
    ]
    return {
        "decision": verdict.then,
        "rule": verdict.rule,
        "why": verdict.why,
        "told": verdict.told or None,
        "every_time": verdict.every_time,
        "listed": not outlook_of(rules, subject).is_hidden,
        "forbidden_tools": is_forbidden,
        "annotations": subject.annotations,
        "steps": [{"rule": step.rule, "missed": step.missed or None} for step in verdict.steps],
        "budgets": budgets,
        "warnings": warnings_about(rules, [*known.servers] if known.servers else None),
    }


_LIMITS = ("calls_per_minute", "running", "bytes_per_hour", "per")
_DECIDED = {
    "allow": "allow: {agent} may call {tool}, without asking",
    "ask": "ask: the owner is asked before {tool} runs for {agent}",
    "deny": "deny: {agent} may not call {tool}",
}


def _in_words(explanation: dict[str, Any], subject: Subject) -> str:
    of = f" of {subject.server}" if subject.server else ""
    lines = [_DECIDED[explanation["decision"]].format(agent=subject.agent, tool=f"{subject.tool}{of}")]
    lines.append(f"decided by {explanation['rule']}: {explanation['why']}")
    lines += [f"not by {step['rule']}: {step['missed']}" for step in explanation["steps"] if step["missed"]]
    if not explanation["listed"]:
        lines.append("this agent is not shown the tool, whatever its arguments are")
    if explanation["forbidden_tools"]:
        lines.append("the configuration forbids the tool, whatever the policy says")
    if explanation["every_time"]:
        lines.append("a permanent approval does not answer this")
    for budget in explanation["budgets"]:
        limits = ", ".join(f"{name} {_text(value)}" for name, value in budget.items() if name != "budget")
        lines.append(f"budget {budget['budget']}: {limits}")
    return "\n".join([*lines, *(f"warning: {line}" for line in explanation["warnings"])])


def _text(value: object) -> str:
    return " and ".join(value) if isinstance(value, tuple) else str(value)
