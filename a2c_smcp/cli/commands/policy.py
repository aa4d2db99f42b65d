"""`a2c-smcp policy`: what a policy file decides, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli import options
from a2c_smcp.cli.errors import WrongUse, file_error, server_names_hint
from a2c_smcp.cli.options import option
from a2c_smcp.cli.policies.source import PolicySource, ReadOnly, TrustHints, rules_of
from a2c_smcp.cli.setup_files import find_setups
from a2c_smcp.cli.terminal import printable, put_json, put_text
from a2c_smcp.computer.configuration.files import Configuration, read_all
from a2c_smcp.computer.policy.advice import warnings_about
from a2c_smcp.computer.policy.decision import Subject, Verdict, applies, decide, outlook_of
from a2c_smcp.computer.policy.rules import AccessPolicy, BudgetEntry
from a2c_smcp.computer.tools.names import tools_of
from a2c_smcp.computer.tools.table import ToolRoute
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import run_program
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, ToolMeta
from a2c_smcp.registry.schemas.check import Schema

__all__ = ["policy"]

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
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for a program to read.")] = False,
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
    given = PolicySource(file, read_only, tuple(trust_hints or ()))
    if file is None and not read_only:
        raise WrongUse("There is no policy to check", "Name its file with --policy FILE.")
    rules, known = rules_of(given), _configuration(config)
    assert rules
    subject = _subject(rules, known, _server(known, rules, server), agent, office, tool, _object(hints, "--hints"))
    params = _object(arguments, "JSON")
    verdict = run_program(decide(rules, subject, params))
    found = _explanation(rules, known, subject, verdict)
    if as_json:
        put_json(found)
    else:
        put_text(printable(_in_words(found, subject)))
    raise typer.Exit(EXIT_CODES[verdict.then])


def _configuration(files: list[Path] | None) -> Configuration:
    try:
        return read_all(files or find_setups(Path.cwd())[:1])
    except SMCPError as error:
        raise file_error(error) from None


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise WrongUse(f"{what}: not JSON: {error}", 'Write it like \'{"path": "/tmp"}\'.') from None
    if not isinstance(found, dict):
        raise WrongUse(f"{what}: must be a JSON object", 'Write it like \'{"path": "/tmp"}\'.')
    return found


def _server(known: Configuration, rules: AccessPolicy, given: str | None) -> str:
    """The server of the tool. Raises `WrongUse` if it is not clear, and the policy looks at it."""
    if given is not None:
        if known.servers and given not in known.servers:
            raise WrongUse(f"There is no MCP server {given!r}", server_names_hint(given, [*known.servers]))
        return given
    if len(known.servers) == 1:
        return next(iter(known.servers))
    if known.servers or rules.servers or any(each.servers for each in (*rules.rules, *rules.budgets)):
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
    (found,) = tools_of({server: (config, [{"name": _own_name(config, tool)}])})
    route = ToolRoute(server, found.tool, found.meta or ToolMeta(), Schema({}), hints)
    return Subject.of(rules, agent, office, found.wanted, route)


def _own_name(config: BaseServerConfig, tool: str) -> str:
    """The name that the MCP server knows: the tool may be given by its alias."""
    return next((name for name, meta in config.tool_meta.items() if meta.alias == tool), tool)


def _explanation(rules: AccessPolicy, known: Configuration, subject: Subject, verdict: Verdict) -> dict[str, Any]:
    config = known.servers.get(subject.server)
    is_forbidden = config is not None and not {subject.tool, subject.name}.isdisjoint(config.forbidden_tools)
    budgets = [(rules.budget_label(index), each) for index, each in enumerate(rules.budgets)]
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
        "budgets": [{"budget": label, **_limits(each)} for label, each in budgets if not applies(each, subject)],
        "warnings": warnings_about(rules, [*known.servers] if known.servers else None),
    }


def _limits(entry: BudgetEntry) -> dict[str, Any]:
    names = ("calls_per_minute", "running", "bytes_per_hour", "per")
    return {name: value for name in names if (value := getattr(entry, name))}


_DECIDED = {
    "allow": "allow: {agent} may call {tool}, without asking",
    "ask": "ask: the owner is asked before {tool} runs for {agent}",
    "deny": "deny: {agent} may not call {tool}",
}


def _in_words(found: dict[str, Any], subject: Subject) -> str:
    of = f" of {subject.server}" if subject.server else ""
    lines = [_DECIDED[found["decision"]].format(agent=subject.agent, tool=f"{subject.tool}{of}")]
    lines.append(f"decided by {found['rule']}: {found['why']}")
    lines += [f"not by {step['rule']}: {step['missed']}" for step in found["steps"] if step["missed"]]
    if not found["listed"]:
        lines.append("this agent is not shown the tool, whatever its arguments are")
    if found["forbidden_tools"]:
        lines.append("the configuration forbids the tool, whatever the policy says")
    if found["every_time"]:
        lines.append("a permanent approval does not answer this")
    for budget in found["budgets"]:
        limits = ", ".join(f"{name} {_text(value)}" for name, value in budget.items() if name != "budget")
        lines.append(f"budget {budget['budget']}: {limits}")
    return "\n".join([*lines, *(f"warning: {each}" for each in found["warnings"])])


def _text(value: object) -> str:
    return " and ".join(value) if isinstance(value, tuple) else str(value)
